"""Distances to an exact posterior: nil for itself, known values for others."""

import math
import sys

import pytest
import torch
from known_posteriors import SlcpTable, WeinbergGrid, gaussian, share, slcp_exact

import prudent
from prudent.diagnostics.distances import Distance, c2st, kl, mmd
from prudent.errors import DataError, InputError


def samples(number, dim, seed, widen=1.0, shift=0.0):
    """Exact draws and others, for one observation of `gaussian`."""
    torch.manual_seed(seed)
    x = torch.zeros(1, dim)
    exact, other = gaussian(dim=dim)(x), gaussian(dim=dim, widen=widen, shift=shift)(x)
    return exact.sample((number,))[:, 0], other.sample((number,))[:, 0]


@pytest.mark.parametrize("dim", [1, 2, 5, 10])
@pytest.mark.parametrize("options", [{}, {"widen": 0.8}, {"widen": 1.25}, {"shift": 0.5}])
def test_kl_equals_the_closed_form(dim, options):
    theta, x = prudent.problems.get("gaussian", dim=dim).draw(20_000, 0)
    result = kl(
        gaussian(dim=dim)(x).log_prob(theta), gaussian(dim=dim, **options)(x).log_prob(theta)
    )
    widen, shift = options.get("widen", 1.0), options.get("shift", 0.0)
    expected = dim * (math.log(widen) + (1 + shift**2) / (2 * widen**2) - 0.5)
    assert abs(result.value - expected) <= 4 * result.error + 1e-6
    assert (result.value > 0.01) == bool(options)


@pytest.mark.parametrize("name", ["slcp", "weinberg"])
def test_kl_of_the_prior_on_benchmarks(name):
    """The prior knows less than the posterior: the divergence is the information in x."""
    problem = prudent.problems.get(name)
    theta, x = problem.draw(500, 0)
    exact = problem.log_posterior(theta, x)
    assert kl(exact, exact).value == 0
    prior = kl(exact, problem.prior.log_prob(theta))
    assert prior.value > 5 * prior.error


def test_kl_reports_what_cannot_be_compared():
    exact = torch.zeros(10)
    other = exact.clone()
    other[0] = torch.nan
    result = kl(exact, other)
    assert result.num_invalid == 1
    assert "1 rows not finite" in repr(result)
    other[1] = -torch.inf
    assert kl(exact, other).value == math.inf
    with pytest.raises(DataError, match="none of 10"):
        kl(exact * torch.nan, other)
    with pytest.raises(DataError, match="two log-densities"):
        kl(exact, other[:3])


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 10])
def test_mmd_keeps_its_size(dim):
    """500 repetitions of 50 draws each; unbiased, so nil on average."""
    results = [mmd(*samples(50, dim, seed), num_shuffles=99, seed=seed) for seed in range(500)]
    assert 0.03 <= share(result.p_value <= 0.05 for result in results) <= 0.07
    values = torch.tensor([result.value for result in results])
    assert abs(values.mean()) < 4 * values.std() / 500**0.5


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 2, 5, 10])
@pytest.mark.parametrize("options", [{"widen": 0.8}, {"widen": 1.25}, {"shift": 0.5}])
def test_mmd_has_power(dim, options):
    """1,000 draws each."""
    results = [mmd(*samples(1000, dim, seed, **options), num_shuffles=39) for seed in range(20)]
    assert share(result.p_value <= 0.05 for result in results) >= 0.95


def test_mmd_by_hand():
    """Two points each, at distance one or none: the median distance is one."""
    one, two = torch.tensor([[0.0], [0.0]]), torch.tensor([[1.0], [1.0]])
    scale = torch.cat((one, two)).double().std()
    distance = 1 / scale
    across = torch.exp(-0.5 * (distance / distance) ** 2)
    assert mmd(one, two).value == pytest.approx(float(2 - 2 * across))


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 2, 5, 10])
def test_c2st_is_near_the_best_classifier(dim):
    """1,000 draws each; the best classifier compares the two exact densities."""
    x = torch.zeros(1, dim)
    for options in ({}, {"widen": 0.8}, {"widen": 1.25}, {"shift": 0.5}):
        one, two = samples(1000, dim, 0, **options)
        exact, other = gaussian(dim=dim)(x), gaussian(dim=dim, **options)(x)
        right = [exact.log_prob(s[:, None]) > other.log_prob(s[:, None]) for s in (one, two)]
        best = float((right[0].double().mean() + 1 - right[1].double().mean()) / 2)
        value = c2st(one, two).value
        # Four standard errors of 2,000 guesses are 0.045.
        assert value == pytest.approx(best if options else 0.5, abs=0.045), options


def test_c2st_sees_what_two_moments_do_not():
    """A ring, and a normal distribution with its mean and covariance."""
    generator = torch.Generator().manual_seed(0)
    angle = 2 * math.pi * torch.rand(1000, 1, generator=generator)
    ring = 2**0.5 * torch.cat((angle.cos(), angle.sin()), dim=1)
    ring = ring * (1 + 0.1 * torch.randn(1000, 1, generator=generator))
    assert c2st(ring, torch.randn(1000, 2, generator=generator)).value > 0.75


@pytest.mark.slow
def test_benchmarks_exact_and_wrong():
    """A power of the density, for one observation of each problem."""
    torch.manual_seed(0)
    x = prudent.problems.get("weinberg").draw(1, 0)[1]
    exact, again, wrong = (WeinbergGrid(x, p).sample((1000,))[:, 0] for p in (1.0, 1.0, 4.0))
    assert mmd(exact, again).p_value > 0.05 > mmd(exact, wrong).p_value
    assert abs(c2st(exact, again).value - 0.5) < 0.045 < c2st(exact, wrong).value - 0.5
    x = prudent.problems.get("slcp").draw(1, 0)[1]
    tables = [slcp_exact().make, slcp_exact().make, SlcpTable(4.0)]
    exact, again, wrong = (table(x).sample((1000,))[:, 0] for table in tables)
    assert mmd(exact, again).p_value > 0.05
    assert abs(c2st(exact, again).value - 0.5) < 0.045 < c2st(exact, wrong).value - 0.5


def test_a_different_unit_changes_nothing():
    one, two = samples(200, 2, 0, shift=1.0)
    unit = torch.tensor([1.0, 1e4])
    assert mmd(one * unit, two * unit).value == pytest.approx(mmd(one, two).value, rel=1e-5)


def test_repeated_points_are_told_apart():
    """Documented: resampled draws are not independent draws."""
    one, two = samples(200, 2, 0)
    repeated = two[torch.randint(10, (200,))]
    assert mmd(one, repeated).p_value <= 0.01


def test_non_finite_rows_are_counted():
    one, two = samples(100, 2, 0)
    two[3] = torch.nan
    result = mmd(one, two)
    assert result.num_invalid == 1
    assert "1 rows not finite" in repr(result)
    with pytest.raises(DataError, match="0 of 100 rows of `second` are finite"):
        mmd(one, two * torch.nan)
    with pytest.raises(DataError, match="as many parameters"):
        mmd(one, two[:, :1])
    with pytest.raises(DataError, match="expected `first`"):
        mmd(one[0], two)


def test_c2st_needs_points_and_scikit_learn(monkeypatch):
    one, two = samples(3, 2, 0)
    with pytest.raises(InputError, match="5 folds"):
        c2st(one, two)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(InputError, match=r"pip install .*\[distances\]"):
        c2st(*samples(10, 2, 0))


def test_c2st_is_small_and_quick_on_small_samples():
    equal, far = samples(100, 2, 0), samples(100, 2, 0, shift=8.0)
    assert abs(float(c2st(*equal)) - 0.5) < 0.15
    assert float(c2st(*far)) > 0.97
    constant = torch.ones(100, 1)
    assert c2st(constant, constant).value == pytest.approx(0.5, abs=0.15)


def test_repr():
    assert repr(Distance("C2ST", 0.5123, 0.011, math.nan, 0)) == "<C2ST 0.512 ± 0.011>"
