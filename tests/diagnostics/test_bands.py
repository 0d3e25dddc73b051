"""Bands against brute force and simulation; pointwise bands are the case to reject."""

import itertools
import math

import numpy as np
import pytest

from prudent.diagnostics._bands import UniformPath, holm, least_shares, stay_probability


def paths(number, num_samples, repetitions, seed=0):
    """Counts of uniform ranks below each step 1, ..., L, (repetitions, L)."""
    random = np.random.default_rng(seed)
    ranks = random.multinomial(
        number, np.full(num_samples + 1, 1 / (num_samples + 1)), repetitions
    )
    return ranks.cumsum(axis=1)[:, :-1]


def steps(num_samples):
    return np.arange(1, num_samples + 1) / (num_samples + 1)


def test_staying_inside_equals_the_sum_over_all_paths():
    number, points = 6, np.array([0.2, 0.5, 0.9])
    lower, upper = np.array([0, 2, 4]), np.array([2, 4, 6])
    shares = np.diff(points, prepend=0, append=1)
    total = 0.0
    for counts in itertools.product(range(number + 1), repeat=4):
        below = np.cumsum(counts)
        if below[-1] == number and all(lower <= below[:3]) and all(below[:3] <= upper):
            ways = math.factorial(number) / math.prod(math.factorial(c) for c in counts)
            total += ways * math.prod(shares**counts)
    assert stay_probability(number, points, lower, upper) == pytest.approx(total, rel=1e-12)
    assert stay_probability(number, points, lower + 3, upper) == 0


@pytest.mark.parametrize(("number", "num_samples"), [(10, 4), (20, 19), (50, 99), (500, 99)])
def test_simultaneous_bands_hold_whole_paths(number, num_samples):
    """95 ± 2 % of 10,000 simulated paths; the pointwise band holds far fewer."""
    path = UniformPath(number, steps(num_samples))
    counts = paths(number, num_samples, 10_000)

    def held(lower, upper):
        return ((counts >= lower) & (counts <= upper)).all(axis=1).mean()

    # With ten values there are few paths to choose between, and the band errs to the safe side.
    assert 0.93 < held(*path.band(0.95)) < (0.99 if number == 10 else 0.97)
    if number > 10:
        assert held(*path.bounds(0.05)) < 0.8
        assert held(*path.band(0.5)) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(("number", "num_samples"), [(50, 19), (200, 99)])
def test_p_values_agree_with_simulation(number, num_samples):
    path = UniformPath(number, steps(num_samples))
    counts = paths(number, num_samples, 5000)
    worst = path.point_p_values(counts).min(axis=1)
    for gamma in np.quantile(worst, [0.01, 0.05, 0.3, 0.8]):
        simulated = (worst <= gamma).mean()
        assert path.leave_probability(float(gamma)) == pytest.approx(simulated, abs=0.025)
    assert 0.03 < (path.p_value(counts[:2000]) <= 0.05).mean() < 0.07


def test_far_out_is_a_small_number_not_an_error():
    path = UniformPath(1000, steps(99))
    everything_low = np.full(99, 1000)
    assert 0 < path.p_value(everything_low) < 1e-12
    one = UniformPath(1, steps(1))
    assert one.band(0.95)[0].tolist() == [0]
    assert float(one.p_value(np.array([1]))) == 1


def test_bands_of_many_pairs():
    path = UniformPath(100_000, steps(49))
    lower, upper = path.band(0.95)
    half = (upper - lower)[24] / 2 / 100_000
    # Between the pointwise half width and that of the Dvoretzky-Kiefer-Wolfowitz inequality.
    assert 1.96 * 0.5 / math.sqrt(1e5) < half < 1.4 * 1.36 / math.sqrt(1e5)


def test_bin_bands_hold_all_bins():
    random = np.random.default_rng(0)
    shares = np.array([0.1, 0.2, 0.3, 0.4])
    lower, upper = UniformPath(200, shares).bounds(0.05 / len(shares))
    counts = random.multinomial(200, shares, 4000)
    assert 0.94 < ((counts >= lower) & (counts <= upper)).all(axis=1).mean() < 0.985


def test_holm_by_hand():
    np.testing.assert_allclose(holm(np.array([0.2, 0.01, 0.02])), [0.2, 0.03, 0.04])
    np.testing.assert_allclose(holm(np.array([0.6, 0.9])), [1.0, 1.0])


@pytest.mark.parametrize(("number", "num_samples"), [(50, 19), (1000, 99)])
@pytest.mark.parametrize("side", ["low", "high"])
def test_one_sided_bands_spend_everything_on_their_side(number, num_samples, side):
    path, both = (UniformPath(number, steps(num_samples), one) for one in (side, ""))
    counts = paths(number, num_samples, 10_000)
    lower, upper = path.band(0.95)
    held = ((counts >= lower) & (counts <= upper)).all(axis=1).mean()
    assert 0.93 < held < 0.97
    # Closer to the diagonal than a band of both sides is.
    own, other = (lower, both.band(0.95)[0]) if side == "low" else (-upper, -both.band(0.95)[1])
    assert (own >= other).all()
    assert own.sum() > other.sum()
    far = np.zeros(num_samples) if side == "high" else np.full(num_samples, number)
    assert float(path.p_value(far.astype(int))) == 1


def test_least_shares_are_ends_of_clopper_pearson_intervals():
    stats = pytest.importorskip("scipy.stats")
    for number in (1, 15, 1000, 20_000):
        counts = np.unique(np.linspace(1, number, 7).astype(int))
        exact = stats.beta.ppf(0.05, counts, number - counts + 1)
        np.testing.assert_allclose(least_shares(number, counts, 0.05), exact, atol=2e-6)
    assert least_shares(10, np.array([0]), 0.05).tolist() == [0.0]
