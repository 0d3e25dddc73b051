import numpy
import pytest
import torch
from references import agreement
from references import mg1 as plain

from prudent._randomness import generator
from prudent.problems import mg1

PROBLEM = mg1.problem()
QUOTED = (1.0, 5.0, 0.2)


def simulate_at(theta, num, seed=0):
    rows = torch.tensor(theta).expand(num, 3)
    return PROBLEM.simulate(rows, generator(seed, "mg1", theta))


def test_shape_and_order():
    theta, x = PROBLEM.draw(20_000, seed=1)
    assert theta.shape == (20_000, 3)
    assert x.shape == (20_000, 5)
    assert x.dtype == torch.float32
    assert bool((x.diff(dim=1) >= 0).all())
    assert bool((x[:, 0] >= theta[:, :2].amin(1) * (1 - 1e-6)).all())
    assert PROBLEM.prior.log_prob(theta[0]) == pytest.approx(-3.5066, abs=5e-5)
    assert PROBLEM.log_posterior is None
    assert mg1.simulate(theta[:0], generator(0)).shape == (0, 5)


def test_quantiles_interpolate_linearly():
    values = torch.randn(20, 50, generator=generator(3), dtype=torch.float64)
    expected = numpy.percentile(values.numpy(), [0, 25, 50, 75, 100], axis=1).T
    assert numpy.abs(mg1.quantiles(values).numpy() - expected).max() < 1e-12


def test_rate_zero_stays_finite():
    x = simulate_at((1.0, 5.0, 0.0), 100)
    assert bool(torch.isfinite(x).all())


def test_quoted_means():
    x = simulate_at(QUOTED, 100_000).double()
    error = (x.mean(0) - torch.tensor([1.13, 2.62, 3.95, 5.87, 21.3])).abs()
    # The quoted means come from an unstated number of draws: 5 standard errors of 10,000, which
    # is generous, plus rounding to the digits given.
    rounding = torch.tensor([0.005, 0.005, 0.005, 0.005, 0.05])
    assert bool((error < 5 * x.std(0) / 100 + rounding).all())


def test_quoted_prior_predictive_quantiles():
    x = PROBLEM.draw(100_000, seed=4)[1]
    # The figures are quantiles of 6,000 draws, of probability p up to sqrt(p (1 - p) / 6,000), and
    # rounded: the interval they stand for must meet 4 standard errors around p.
    for p, quoted, rounding in (
        (0.5, (3.2, 5.0, 6.5, 8.2, 22), (0.05, 0.05, 0.05, 0.05, 0.5)),
        (0.99, (9.5, 92, 208, 391, 1351), (0.05, 0.5, 0.5, 0.5, 0.5)),
    ):
        error = 4 * (p * (1 - p) / 6_000) ** 0.5
        low = (x < torch.tensor(quoted) - torch.tensor(rounding)).double().mean(0)
        high = (x < torch.tensor(quoted) + torch.tensor(rounding)).double().mean(0)
        assert bool((low < p + error).all())
        assert bool((high > p - error).all())


@pytest.mark.parametrize("theta", [QUOTED, (6.0, 2.0, 0.3), (4.0, 9.0, 0.02)])
def test_agrees_with_plain_reference(theta):
    slow = agreement.simulate_many(plain.simulate_one, theta, 2_000, seed=5)
    x = simulate_at(theta, 20_000, seed=6).numpy()
    assert agreement.worst_ratio(x, slow) < 1
    # Controls: a rate 20 % too large, and theta_2 as a width instead of an end point.
    off = simulate_at((theta[0], theta[1], theta[2] * 1.2 if theta[2] < 0.2 else 0.25), 20_000)
    assert agreement.worst_ratio(off.numpy(), slow) > 1
    width = agreement.simulate_many(plain.simulate_one, theta, 500, seed=7, width=True)
    assert agreement.worst_ratio(x, width) > 1


def test_the_ends_of_the_service_time_can_be_exchanged():
    x = simulate_at((2.0, 7.0, 0.15), 50_000, seed=8).numpy()
    swapped = simulate_at((7.0, 2.0, 0.15), 50_000, seed=9).numpy()
    assert agreement.worst_ratio(x, swapped) < 1
    other = simulate_at((7.2, 2.0, 0.15), 50_000, seed=9).numpy()
    assert agreement.worst_ratio(x, other) > 1
