import math

import numpy
import pytest
import torch
from references import agreement
from references import weinberg as plain

from prudent._randomness import generator
from prudent.problems import weinberg

PROBLEM = weinberg.problem()


def simulate_at(value, num, seed=0):
    return PROBLEM.simulate(torch.full((num, 1), value), generator(seed, "weinberg", value))


def test_constants():
    assert pytest.approx(-1.60891, abs=5e-6) == weinberg.ASYMMETRY
    assert pytest.approx(0.4144, abs=5e-5) == weinberg.SATURATED_BELOW
    assert pytest.approx(1.2431, abs=5e-5) == weinberg.NEGATIVE_ABOVE
    assert PROBLEM.prior.log_prob(torch.tensor([1.0])) == pytest.approx(-0.5596, abs=5e-5)
    # The maximum over 10,000 points, which the source writes down as f(-1).
    for theta in (0.25, 0.4, 1.0, 1.3, 2.0):
        assert plain.largest(theta) == pytest.approx((2 + 1.608910 * theta) * 3 / 8, rel=1e-6)


@pytest.mark.parametrize(
    ("theta", "quoted", "mean"),
    [(1.0, -0.402, weinberg.ASYMMETRY / 4), (1.5, -0.544, -0.54449), (2.0, -0.579, -0.58004)],
)
def test_mean(theta, quoted, mean):
    x = simulate_at(theta, 20_000)
    # 5 standard errors of 400,000 cosines around the mean of the density, by quadrature.
    assert abs(float(x.mean()) - mean) < 5 * float(x.std()) / math.sqrt(x.numel())
    # The quoted figures were simulated, to about the last digit given.
    assert quoted == pytest.approx(mean, abs=1.5e-3)


def test_shape_and_range():
    theta, x = PROBLEM.draw(5_000, seed=1)
    assert theta.shape == (5_000, 1)
    assert x.shape == (5_000, 20)
    assert x.dtype == torch.float32
    assert bool((x.abs() <= 1).all())
    assert weinberg.simulate(theta[:0], generator(0)).shape == (0, 20)


def test_events_are_independent_and_alike():
    x = simulate_at(1.0, 100_000).double()
    x = (x - x.mean()) / x.std()
    # 20 means and 19 correlations of neighbours, each with standard error 1 / sqrt(100,000).
    assert float(x.mean(0).abs().max()) < 5 / math.sqrt(100_000)
    assert float((x[:, 1:] * x[:, :-1]).mean(0).abs().max()) < 5 / math.sqrt(100_000)


def cdf_at(x, theta, divisions):
    c = numpy.linspace(-1, 1, 20_001)
    height = numpy.clip(plain.shape(c, theta) / plain.largest(theta) ** divisions, 0, 1)
    mass = numpy.concatenate(([0], numpy.cumsum(height[1:] + height[:-1])))
    return numpy.interp(x, c, mass / mass[-1])


@pytest.mark.parametrize("theta", [0.25, 0.35, 1.0, 2.0])
def test_density(theta):
    x = simulate_at(theta, 100_000).numpy().ravel()
    limit = agreement.critical(x.size)
    assert agreement.distance_to_uniform(cdf_at(x, theta, divisions=2)) < limit
    # Controls: 3 % off in theta, and one division only, which differs where acceptance saturates.
    assert agreement.distance_to_uniform(cdf_at(x, 1.03 * theta, divisions=2)) > limit
    if theta == 0.25:
        assert agreement.distance_to_uniform(cdf_at(x, theta, divisions=1)) > limit


@pytest.mark.parametrize(("theta", "wrong"), [(0.3, 0.4), (1.0, 1.1), (1.8, 1.5)])
def test_agrees_with_plain_reference(theta, wrong):
    slow = agreement.simulate_many(plain.simulate_one, (theta,), 1_500, seed=3)
    x = simulate_at(theta, 20_000, seed=4).numpy()
    assert agreement.worst_ratio(x, slow) < 1
    assert agreement.worst_ratio(x.reshape(-1, 1), slow.reshape(-1, 1)) < 1
    off = simulate_at(wrong, 20_000, seed=4).numpy()
    assert agreement.worst_ratio(off.reshape(-1, 1), slow.reshape(-1, 1)) > 1


def test_nothing_is_kept_where_the_shape_is_negative():
    asymmetry = weinberg.ASYMMETRY * 2.0
    root = (-asymmetry - math.sqrt(asymmetry**2 - 4)) / 2
    x = simulate_at(2.0, 20_000)
    # In 400,000 cosines the largest comes within 0.02 of the root, and not beyond it.
    assert root - 0.02 < float(x.max()) <= root + 1e-6


def test_posterior_agrees_with_plain_quadrature():
    theta = torch.tensor([[0.25], [0.35], [0.6], [1.0], [1.5], [2.0]])
    x = PROBLEM.simulate(theta, generator(5)).double()
    grid = torch.linspace(0.25, 2, 701, dtype=torch.float64)
    ours = PROBLEM.log_posterior(grid.view(-1, 1, 1).expand(-1, 6, 1), x)
    for row in range(6):
        expected = torch.tensor(plain.log_posterior_on(grid.numpy(), x[row].numpy()))
        known = expected > -30
        assert float((ours[known, row] - expected[known]).abs().max()) < 1e-4
        assert torch.equal(torch.isfinite(ours[:, row]), torch.isfinite(expected))


def test_posterior_integrates_to_one():
    x = PROBLEM.draw(200, seed=6)[1]
    grid = torch.linspace(0.25, 2, 4_001, dtype=torch.float64)
    density = PROBLEM.log_posterior(grid.view(-1, 1, 1).expand(-1, 200, 1), x).exp()
    # The trapezoid rule itself is good to about 5e-5 at kinks.
    assert float((torch.trapezoid(density, grid, dim=0) - 1).abs().max()) < 1e-4


def test_quadrature_has_converged():
    x = PROBLEM.draw(2_000, seed=7)[1].double()
    change = weinberg.log_evidence(x) - weinberg.log_evidence(x, num_nodes=256)
    assert float(change.abs().max()) < 2e-5


def test_posterior_is_zero_where_it_must_be():
    x = torch.full((1, 20), -0.5)
    outside = PROBLEM.log_posterior(torch.tensor([[[0.2]], [[2.1]]]), x)
    assert bool((outside == -math.inf).all())
    x[0, 3] = 0.99
    value = PROBLEM.log_posterior(torch.tensor([[[1.2]], [[1.3]]]), x)
    assert value.dtype == torch.float32
    assert bool(torch.isfinite(value[0]))
    assert value[1] == -math.inf


@pytest.fixture(scope="module")
def checks():
    theta, x = PROBLEM.draw(10_000, seed=8)
    # 256 cells with one node each, placed at random in the cell: sums are free of a grid's bias.
    offset = torch.rand(256, 10_000, 1, generator=generator(9), dtype=torch.float64)
    grid = 0.25 + 1.75 * (torch.arange(256).view(-1, 1, 1) + offset) / 256
    log_weight = torch.zeros(256, 10_000, dtype=torch.float64)
    return agreement.on_grid(PROBLEM.log_posterior, grid, log_weight, theta, x)


def test_exact_posterior_has_exact_coverage(checks):
    # The standard error is 0.29 / sqrt(10,000) = 0.003.
    assert abs(agreement.auc(checks[1.0][0])) < 0.01
    assert agreement.auc(checks[1.5][0]) < -0.01


def test_exact_posterior_has_uniform_transform(checks):
    limit = agreement.critical(10_000)
    assert agreement.distance_to_uniform(checks[1.0][1]) < limit
    assert agreement.distance_to_uniform(checks[1.5][1]) > limit
