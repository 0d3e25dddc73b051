"""The price of the penalty in arithmetic, which no other load of the machine changes.

Of whole trainings, whatever way they are computed in. `make bench` measures times.
"""

from functools import cache

import pytest
from torch.utils.flop_counter import FlopCounterMode

import prudent
from prudent.datasets.simulate import draw_pairs

PROBLEM = prudent.problems.get("slcp")
PAIRS = draw_pairs(PROBLEM, 512, 0)
SMALL = {"hidden": [64] * 3, "epochs": 6, "patience": None, "progress": False}


@cache
def flops(method, **options):
    """Floating-point operations of products of matrices in a training, validation included."""
    with FlopCounterMode(display=False) as counter:
        prudent.fit(PAIRS.theta, PAIRS.x, PROBLEM.prior, method=method, **SMALL, **options)
    return counter.get_total_flops()


# Each bound is about 1.4 times of what was found: 17 evaluations of a pair for one, or 129, would
# take more, and so would the penalty in every step.
@pytest.mark.parametrize(
    ("method", "num_samples", "most"),
    [("calnre", 16, 5.0), ("calnpe", 16, 5.5), ("calnre", 128, 15.0), ("calnpe", 128, 25.0)],
)
def test_the_penalty_takes_little(method, num_samples, most):
    plain = flops(method.removeprefix("cal"))
    ratio = flops(method, num_samples=num_samples) / plain
    assert 1 < ratio < most


@pytest.mark.parametrize(("method", "most"), [("calnre", 15.0), ("calnpe", 25.0)])
def test_the_count_sees_a_dear_penalty(method, most):
    plain = flops(method.removeprefix("cal"))
    assert flops(method, num_samples=128, fraction=1.0) / plain > most
