"""The price of a step in arithmetic and in operations, which no other load of the machine changes.

A large ratio spends its time on products of matrices, a small one and a flow on many operations:
for few draws their penalty rather takes more arithmetic in one pass than the operations of another
one. Times are measured by `make bench`; here a change that makes steps dearer fails.
"""

import pytest
import torch
import zuko
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import prudent
from prudent.datasets.simulate import draw_pairs
from prudent.estimators import _splines
from prudent.estimators.npe import FlowPosterior
from prudent.training import methods
from prudent.training.checkpoint import TrainingState
from prudent.training.loop import _step
from prudent.training.options import Options

PROBLEM = prudent.problems.get("slcp")
PAIRS = draw_pairs(PROBLEM, 512, 0)
# With 16 draws three of these have a penalty, with 128 draws one.
STEPS = 15


@pytest.fixture(scope="module")
def trained():
    """Ratios and a flow that have begun to learn: gradients are typical then."""
    return {
        name: prudent.fit(
            PAIRS.theta, PAIRS.x, PROBLEM.prior, method=name.split()[-1], epochs=8, progress=False,
            **({"hidden": [256] * 4} if "large" in name else {}),
        ).train()
        for name in ("nre", "large nre", "npe")
    }  # fmt: skip


class Calls(TorchDispatchMode):
    """Counts operations."""

    number = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.number += 1
        return function(*arguments, **(keywords or {}))


def steps(estimator, method, **options):
    """A function that makes some steps of a training."""
    chosen = methods.get(method)
    settings = chosen.resolve(Options(learning_rate=1e-9, **options))
    objective = chosen.objective(PROBLEM.prior, settings)
    state = TrainingState(estimator, objective, settings, 0)
    torch.manual_seed(0)
    _step(state, PAIRS[:128], 1.0)  # the first step shows how many entries matter

    def run():
        for number in range(STEPS):
            start = 64 * (number % 6)
            _step(state, PAIRS[start : start + 128], 1.0)

    return run


def flops(*arguments, **options):
    """Floating-point operations of products of matrices in some steps, backward ones included."""
    run = steps(*arguments, **options)
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def calls(*arguments, **options):
    """The number of operations of some steps, of any size, backward ones included."""
    run = steps(*arguments, **options)
    with Calls() as counter:
        run()
    return counter.number


@pytest.mark.parametrize(
    ("count", "name", "options", "most"),
    [
        (flops, "large nre", {}, 1.75),
        (flops, "nre", {}, 1.8),
        (flops, "nre", {"target": "calibrated"}, 2.8),  # one pass
        (calls, "nre", {}, 1.5),
        (calls, "nre", {"target": "calibrated"}, 1.5),
        (flops, "nre", {"num_samples": 128}, 2.9),
        (flops, "nre", {"num_samples": 128, "target": "calibrated"}, 5.9),
        (flops, "npe", {}, 2.4),
        (flops, "npe", {"num_samples": 128}, 4.3),
        (calls, "npe", {}, 1.25),
        (calls, "npe", {"target": "calibrated"}, 1.25),
        (calls, "npe", {"num_samples": 128}, 1.3),
    ],
)
def test_the_penalty_takes_little(trained, count, name, options, most):
    family = name.split()[-1]
    plain = count(trained[name], family)
    ratio = count(trained[name], f"cal{family}", **options) / plain
    assert 1 < ratio < most


def test_the_count_sees_a_dear_penalty(trained):
    plain = flops(trained["nre"], "nre")
    assert flops(trained["nre"], "calnre", fraction=1.0) / plain > 2.5


def test_the_count_sees_a_second_evaluation(trained, monkeypatch):
    """Two passes over as few draws, as a flow without its overhead would make them."""
    one = calls(trained["npe"], "calnpe", fraction=1.0, num_samples=2)
    monkeypatch.setattr(FlowPosterior, "overhead", 0)
    assert calls(trained["npe"], "calnpe", fraction=1.0, num_samples=2) > 1.3 * one


def test_densities_of_splines_take_fewer_operations_than_those_of_zuko():
    torch.manual_seed(0)
    flow = zuko.flows.NSF(2, 8, bins=8, transforms=2, hidden_features=(32, 32))
    theta, context = torch.randn(4, 16, 2), torch.randn(16, 8)

    def number(log_prob):
        with Calls() as calls:
            log_prob().sum().backward()
        return calls.number

    known = number(lambda: flow(context).log_prob(theta))
    assert number(lambda: _splines.log_prob(flow, context, theta)) < 0.9 * known
