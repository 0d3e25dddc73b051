"""One look at ratios against exact alphas, and what it must leave to two."""

import math

import pytest
import torch
from known_posteriors import box, density
from shapes import Case

from prudent._randomness import seeded
from prudent.datasets import Pairs
from prudent.diagnostics import _points
from prudent.diagnostics._points import Importance
from prudent.diagnostics.expected_coverage import _measured, measure
from prudent.estimators import looks
from prudent.estimators.learning import ENOUGH
from prudent.estimators.looks import two_looks

NUMBER = 60


def by_one_look(estimator, theta, x):
    """What one look alone says, with nothing left to two."""
    with seeded(0, "one look"), torch.no_grad():
        return _measured(estimator, Pairs.of(theta, x), Importance(estimator, looks=1), 0)


@pytest.mark.parametrize("widen", [1.0, 0.8])
@pytest.mark.parametrize("shape", ["correlated", "banana", "two modes", "bounded", "heavy-tailed"])
def test_one_look_agrees_with_exact_alphas(shape, widen):
    """With so many points of equal weight an alpha is right to about 0.02."""
    case = Case(shape, 3, widen, 0.0, normalized=False, number=NUMBER)
    measured = by_one_look(case.estimator, case.theta, case.x)
    assert measured.resolved.double().mean() >= 0.95
    assert measured.effective_size[measured.resolved].min() >= 0.99 * ENOUGH[0]
    error = (measured.alpha - case.alpha)[measured.resolved]
    assert error.square().mean().sqrt() <= 0.02
    assert error.mean().abs() <= 0.01
    # The densities are normalized.
    assert measured.log_norm[measured.resolved].abs().max() <= 0.2


def test_an_edge_of_the_box_may_cut_through_the_mode():
    """A normal centred on a corner keeps an eighth of its mass, and alphas of the whole one."""
    x = torch.full((40, 3), 4.0)
    theta = x - (0.5 * torch.randn(40, 3, generator=torch.Generator().manual_seed(0))).abs()
    estimator = density(lambda theta, x: -2 * (theta - x).square().sum(-1), box(3))
    measured = by_one_look(estimator, theta, x)
    squared = 4 * (theta - x).square().sum(-1)
    exact = torch.special.gammaincc(torch.tensor(1.5), squared / 2)
    assert bool(measured.resolved.all())
    assert (measured.alpha - exact).square().mean().sqrt() <= 0.02
    assert (measured.mean - (4 - 0.5 * (2 / torch.pi) ** 0.5)).abs().max() <= 0.1


@pytest.mark.parametrize("shape", [(1.0, 0.02, 0.7), (0.3, 0.01, 4.0)], ids=["inside", "far"])
def test_what_one_look_may_overlook_is_not_resolved(shape):
    """Half of the mass in a spike of a millionth of the box: not one answer is trusted."""
    case = Case(shape, 3, 1.0, 0.0, normalized=False, number=NUMBER)
    measured = by_one_look(case.estimator, case.theta, case.x)
    assert not bool(measured.resolved.any())


def test_climbs_give_away_a_mode_where_no_truth_is():
    """A spurious mode of a third of the mass in a thousandth of the box, far from all truths."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(NUMBER, 3, generator=generator) - 2.5
    theta = x + 0.3 * torch.randn(NUMBER, 3, generator=generator)

    def log_density(theta, x):
        own = -((theta - x) / 0.3).square().sum(-1) / 2
        return torch.logaddexp(own, 2.2 - ((theta - 2.0) / 0.12).square().sum(-1) / 2)

    estimator = density(log_density, box(3))
    measured = measure(estimator, Pairs.of(theta, x), progress=False)
    total = 0.3**3 + math.exp(2.2) * 0.12**3
    exact = math.log(total) + 1.5 * math.log(2 * math.pi)
    overlooked = (measured.log_norm - exact).abs() > 0.2
    assert not bool((overlooked & measured.resolved).any())


@pytest.mark.parametrize("shape", ["spike", "spike aside"])
def test_alphas_of_spikes_are_right_whoever_measures_them(shape):
    case = Case(shape, 3, 1.0, 0.0, normalized=False, number=NUMBER)
    measured = measure(case.estimator, Pairs.of(case.theta, case.x), progress=False)
    wrong = (measured.alpha - case.alpha).abs() > 0.1
    # A spike is overlooked in one of some hundred pairs; half of the truths lie in spikes.
    assert int((wrong & measured.resolved).sum()) <= 1
    assert measured.resolved.double().mean() >= 0.9


@pytest.mark.parametrize("spike", [0.02, 0.05])
def test_pairs_that_are_not_resolved_go_to_draws_that_learn(monkeypatch, spike):
    case = Case((1.0, spike, 0.7), 3, 1.0, 0.0, normalized=False, number=40, edge=10.0)
    asked = []
    call = Importance.__call__

    def spy(self, posterior, pairs, log_prob):
        if self.looks == 2:
            asked.append(len(pairs))
        return call(self, posterior, pairs, log_prob)

    monkeypatch.setattr(Importance, "__call__", spy)
    measured = measure(case.estimator, Pairs.of(case.theta, case.x), progress=False)
    assert asked[0] == 40
    assert measured.method == "importance"
    wrong = (measured.alpha - case.alpha).abs() > 0.1
    # One in 160 pairs over four seeds.
    assert int((wrong & measured.resolved).sum()) <= 1


def test_nobody_looks_twice_if_all_is_resolved(monkeypatch):
    monkeypatch.setattr(_points, "two_looks", lambda *_: pytest.fail("asked"))
    case = Case("correlated", 3, 1.0, 0.0, normalized=False, number=20)
    measured = measure(case.estimator, Pairs.of(case.theta, case.x), progress=False)
    assert bool(measured.resolved.all())


def test_a_density_that_is_not_a_number_spoils_its_own_pair_only():
    case = Case("correlated", 3, 1.0, 0.0, normalized=False, number=20)

    def log_density(theta, x):
        bad = (x == case.x[3]).all(dim=-1)
        return case.estimator(x).log_prob(theta).masked_fill(bad, torch.nan)

    good = torch.arange(20) != 3
    estimator = density(log_density, case.estimator.prior)
    measured = by_one_look(estimator, case.theta, case.x)
    assert measured.resolved.tolist() == good.tolist()
    assert measured.valid.tolist() == good.tolist()


@pytest.mark.parametrize(("width", "seen"), [(0.03, False), (2.0, True)])
def test_a_look_that_sees_no_density_agrees_with_none(monkeypatch, width, seen):
    """A normal of six parameters that ends at five widths: without the truth it is not found."""
    monkeypatch.setattr(looks, "MAX_REPEATS", 0)  # no second look by what the other one found
    prior, number = box(6), 12
    with seeded(0, "truths"):
        center = 4 * torch.rand(number, 6, dtype=torch.float64) - 2
        point = center + width * torch.randn(number, 6, dtype=torch.float64)

    def target(theta, rows):
        squared = ((theta - center[rows]) / width).square().sum(dim=-1)
        height = -3 * math.log(2 * math.pi) - 6 * math.log(width)
        return (height - squared / 2).masked_fill(squared > 30, -torch.inf)

    with seeded(0, "looks"):
        found = two_looks(target, prior, number, point)
    assert bool(found.resolved.all()) == bool(found.resolved.any()) == seen
