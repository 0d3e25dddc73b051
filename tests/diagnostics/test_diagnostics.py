"""Coverage and its scalars on posteriors whose truth is known; each test has a case to reject."""

import math

import pytest
import torch
from torch.distributions import Independent, Normal, Uniform

import prudent
from prudent.coverage import alpha
from prudent.datasets import Pairs
from prudent.diagnostics import Coverage, expected_coverage, measure, scalars, verdict
from prudent.errors import InputError
from prudent.problems.gaussian import NOISE

LOW, HIGH = -4.0, 4.0


class Conditional:
    """An estimator made of a function from x to a distribution, normalised or not."""

    def __init__(self, make, prior, *, normalized=True, log_scale=0.0):
        self.make, self.prior, self.normalized = make, prior, normalized
        self.log_scale = log_scale

    def __call__(self, x):
        return _Posterior(self.make(x), self.log_scale)


class _Posterior:
    def __init__(self, distribution, log_scale):
        self.distribution, self.log_scale = distribution, log_scale

    def log_prob(self, theta):
        return self.distribution.log_prob(theta) + self.log_scale

    def sample(self, shape=()):
        return self.distribution.sample(shape)


def gaussian(widen=1.0, dim=2, shift=0.0, **options):
    """The exact posterior of the conjugate Gaussian, made wider, narrower or shifted."""
    scale = widen * NOISE / (1 + NOISE**2) ** 0.5

    def make(x):
        return Independent(Normal(x / (1 + NOISE**2) + shift, torch.full_like(x, scale)), 1)

    return Conditional(make, prudent.problems.get("gaussian", dim=dim).prior, **options)


def boxed(widen=1.0, dim=2, **options):
    """The same likelihood under a uniform prior so wide that the posterior is N(x, NOISE^2)."""
    prior = Independent(Uniform(torch.full((dim,), LOW), torch.full((dim,), HIGH)), 1)

    def make(x):
        return Independent(Normal(x, torch.full_like(x, widen * NOISE)), 1)

    return Conditional(make, prior, **options)


def boxed_pairs(number, dim=2, seed=0):
    """Truths far from the edges, where the posterior is exact."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(number, dim, generator=generator) - 1
    return x + NOISE * torch.randn(number, dim, generator=generator), x


def run(kind, widen, method, number=4000, dim=2, **options):
    if kind == "boxed":
        pairs = boxed_pairs(number, dim)
        return prudent.diagnose(
            boxed(widen, dim, **options), *pairs, method=method, progress=False
        )
    pairs = prudent.problems.get("gaussian", dim=dim).draw(number, 0)
    return prudent.diagnose(gaussian(widen, dim, **options), *pairs, method=method, progress=False)


CASES = [
    ("boxed", "grid", {}),
    ("boxed", "grid", {"normalized": False, "log_scale": 3.0}),
    ("gaussian", "samples", {}),
    ("gaussian", "importance", {"normalized": False, "log_scale": -7.0}),
]


@pytest.mark.parametrize(("kind", "method", "options"), CASES)
@pytest.mark.parametrize("dim", [1, 2])
def test_exact_narrow_and_wide(kind, method, options, dim):
    results = {w: run(kind, w, method, dim=dim, **options) for w in (0.7, 1.0, 1.4)}
    assert {r.method for r in results.values()} == {method}
    # Four standard errors of the mean coverage at 4,000 pairs are 0.018.
    assert abs(results[1.0].auc) < 0.018
    assert results[1.0].verdict.startswith("calibrated")
    assert results[0.7].auc < -0.05
    assert results[0.7].verdict.startswith("over-confident")
    assert results[1.4].auc > 0.05
    assert results[1.4].verdict.startswith("conservative")
    assert results[1.4].worst_shortfall < 0.01 < 0.1 < results[0.7].worst_shortfall
    assert results[1.4].worst_excess > 0.1 > 0.01 > results[0.7].worst_excess


@pytest.mark.parametrize(("kind", "method", "options"), CASES)
def test_log_posterior_is_normalised(kind, method, options):
    """-D (log sigma + log(2 pi) / 2 + 1/2) for the exact posterior, whatever its raw scale."""
    result = run(kind, 1.0, method, **options)
    sigma = NOISE if kind == "boxed" else NOISE / (1 + NOISE**2) ** 0.5
    expected = -2 * (math.log(sigma) + math.log(2 * math.pi) / 2 + 0.5)
    assert abs(result.log_posterior - expected) < 5 * result.log_posterior_error
    assert 0.01 < result.log_posterior_error < 0.02


def test_grid_samples_and_importance_agree():
    pairs = Pairs.of(*boxed_pairs(3000))
    curves = {
        method: expected_coverage(measure(boxed(0.8), pairs, method, progress=False).alpha).curve
        for method in ("grid", "samples")
    }
    unnormalised = boxed(0.8, normalized=False)
    curves["importance"] = expected_coverage(
        measure(unnormalised, pairs, "importance", progress=False).alpha
    ).curve
    for curve in curves.values():
        torch.testing.assert_close(curve, curves["grid"], atol=0.015, rtol=0)


def flat_grid_coverage(log_density, theta, levels, side=400):
    """A plain transcription: one fine grid, sort, cumulate, threshold, compare."""
    axis = LOW + (HIGH - LOW) * (torch.arange(side) + 0.5) / side
    cells = torch.cartesian_prod(axis, axis)
    covered = torch.zeros(len(levels))
    for row in range(len(theta)):
        density = log_density(cells, row)
        mass = density.exp() / density.exp().sum()
        ordered, index = mass.sort(descending=True)
        threshold_at = (ordered.cumsum(0) < levels[:, None]).sum(1).clamp(max=len(cells) - 1)
        threshold = density[index[threshold_at]]
        covered += log_density(theta[row : row + 1], row) >= threshold
    return covered / len(theta)


def test_adaptive_grid_equals_sort_and_cumulate_on_a_fine_grid():
    """A mixture with a broad and a narrow mode, which the first grid alone cannot resolve."""
    theta, x = boxed_pairs(150, seed=3)

    class Mixture:
        def __init__(self, centre):
            self.centre = centre

        def log_prob(self, points):
            far = -((points - self.centre) ** 2).sum(-1) / 2 / 0.5**2 - 2 * math.log(0.5)
            near = -((points - self.centre - 1.3) ** 2).sum(-1) / 2 / 0.08**2 - 2 * math.log(0.08)
            return torch.logaddexp(far, near)

    estimator = Conditional(Mixture, boxed().prior, normalized=False)
    measured = measure(estimator, Pairs.of(theta, x), "grid", progress=False)
    coverage = expected_coverage(measured.alpha)
    plain = flat_grid_coverage(
        lambda points, row: Mixture(x[row]).log_prob(points), theta, coverage.levels
    )
    # One pair of 150 may fall on the other side of a threshold, at a few levels.
    assert (coverage.curve - plain).abs().max() < 0.021
    assert (coverage.curve - plain).abs().mean() < 0.004


def test_the_prior_as_posterior_lies_on_the_diagonal():
    """Ties everywhere: a constant density has the coverage of the prior, which is calibrated."""
    prior = boxed().prior
    theta = prior.sample((4000,))

    def make(x):
        shape = (len(x), 2)
        return Independent(Uniform(torch.full(shape, LOW), torch.full(shape, HIGH)), 1)

    estimator = Conditional(make, prior)
    result = prudent.diagnose(estimator, theta, torch.zeros(4000, 1), progress=False)
    assert result.method == "grid"
    assert abs(result.auc) < 0.018
    assert result.log_posterior == pytest.approx(-2 * math.log(HIGH - LOW), abs=1e-4)


def test_coverage_from_alpha_equals_coverage_from_regions():
    """The paper's second lemma, on explicit regions of a normal: |z| below its quantile."""
    torch.manual_seed(0)
    z = torch.randn(2000)
    alphas = 2 * (1 - Normal(0.0, 1.0).cdf(z.abs()))
    coverage = expected_coverage(alphas)
    edge = Normal(0.0, 1.0).icdf((1 + coverage.levels) / 2)
    explicit = (z.abs() <= edge[:, None]).float().mean(1)
    torch.testing.assert_close(coverage.curve, explicit, atol=1e-6, rtol=0)


def test_normalised_ranks_of_the_exact_posterior_are_uniform_on_the_lattice():
    """The paper's Eq. 9 with L draws: every value of 0, 1/L, ..., 1 is equally likely."""
    torch.manual_seed(0)
    theta, x = prudent.problems.get("gaussian").draw(20_000, 0)
    number = 9

    def chi_square(widen):
        posterior = gaussian(widen)(x)
        draws = posterior.sample((number,))
        values = alpha(posterior.log_prob(theta), posterior.log_prob(draws), indicator="hard")
        counts = torch.bincount((values * number).round().long(), minlength=number + 1)
        expected = len(theta) / (number + 1)
        return float(((counts - expected) ** 2 / expected).sum())

    # The 0.9999 quantile of chi-square with 9 degrees of freedom.
    assert chi_square(1.0) < 33.7
    assert chi_square(0.9) > 33.7


def test_scalars_by_hand():
    levels = torch.tensor([0.2, 0.5, 0.8])
    curve = torch.tensor([0.3, 0.4, 0.7])
    coverage = Coverage(levels, curve, curve, curve, 100)
    assert scalars.auc(coverage) == pytest.approx(-0.1 / 3, abs=1e-7)
    assert scalars.calibration_error(coverage) == pytest.approx(0.1, abs=1e-7)
    assert scalars.conservativeness_error(coverage) == pytest.approx(0.2 / 3, abs=1e-7)
    assert scalars.worst_shortfall(coverage) == pytest.approx(0.1, abs=1e-7)
    assert scalars.worst_excess(coverage) == pytest.approx(0.1, abs=1e-7)


def test_intervals_hold_the_truth():
    """The 95 % interval at one level, over 2,000 repetitions, holds it 95 % of the time."""
    generator = torch.Generator().manual_seed(0)
    level = torch.tensor([0.9])
    held = 0
    for _ in range(2000):
        coverage = expected_coverage(torch.rand(200, generator=generator), level)
        held += bool(coverage.lower <= 0.9 <= coverage.upper)
    assert 0.93 < held / 2000 < 0.97


def verdict_of(number, power, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return verdict(expected_coverage(torch.rand(number, generator=generator) ** power))


@pytest.mark.parametrize(
    ("number", "power", "words"),
    [
        (2000, 1.0, "calibrated within ± 0.03"),
        (2000, 2.0, "over-confident: 90 % regions contain the truth 68 ± 2 %"),
        (
            2000,
            0.5,
            "conservative: worst shortfall 0.00 ± 0.03, 90 % regions contain the truth 99",
        ),
        (64, 1.0, "not enough test pairs to tell"),
    ],
)
def test_verdicts(number, power, words):
    assert verdict_of(number, power).startswith(words)


def test_a_verdict_keeps_its_error_rate():
    """Of 500 calibrated posteriors, at most about 5 % may be called anything else."""
    wrong = sum(not verdict_of(1000, 1.0, seed).startswith("calibrated") for seed in range(500))
    assert wrong / 500 < 0.07


def test_evidence_names_the_level_that_falls_short():
    levels = torch.tensor([0.5, 0.9])
    curve = torch.tensor([0.3, 0.9])
    words = verdict(Coverage(levels, curve, curve - 0.01, curve + 0.01, 5000))
    assert "50 % regions contain the truth 30" in words


def test_nan_densities_are_counted_and_never_cover():
    theta, x = boxed_pairs(200)
    estimator = boxed()
    make = estimator.make

    class Broken:
        def __init__(self, distribution, bad):
            self.distribution, self.bad = distribution, bad

        def log_prob(self, points):
            return self.distribution.log_prob(points).masked_fill(self.bad, torch.nan)

    estimator.make = lambda data: Broken(make(data), data[:, 0] > 0.5)
    bad = int((x[:, 0] > 0.5).sum())
    result = prudent.diagnose(estimator, theta, x, progress=False)
    assert result.num_invalid == bad > 20
    assert "density NaN" in str(result)
    assert float(result.coverage.curve.max()) <= 1 - bad / 200 + 1e-6
    assert math.isfinite(result.log_posterior)
    estimator.make = lambda data: Broken(make(data), torch.ones(len(data), dtype=torch.bool))
    with pytest.raises(InputError, match="all 200 test pairs is NaN"):
        prudent.diagnose(estimator, theta, x, progress=False)


def test_density_zero_at_a_truth_is_reported_not_hidden():
    theta, x = boxed_pairs(50)

    class Nowhere:
        def log_prob(self, points):
            return torch.where(points[..., 0] > 1.0, -torch.inf, 0.0)

    estimator = boxed()
    estimator.make = lambda data: Nowhere()
    result = prudent.diagnose(estimator, theta, x, progress=False)
    assert result.log_posterior == -math.inf
    assert result.metrics()["log_posterior"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "gird"}, "Did you mean `grid`"),
        ({"levels": [0.5, 1.5]}, "between 0 and 1"),
        ({"levels": []}, "between 0 and 1"),
    ],
)
def test_misuse_is_named(options, message):
    with pytest.raises(InputError, match=message):
        prudent.diagnose(boxed(), *boxed_pairs(10), progress=False, **options)


def test_the_grid_needs_a_box():
    with pytest.raises(InputError, match="uniform prior on a box"):
        prudent.diagnose(gaussian(), *boxed_pairs(10), method="grid", progress=False)


def test_any_levels_and_a_readable_result():
    result = prudent.diagnose(boxed(), *boxed_pairs(100), levels=[0.5, 0.68], progress=False)
    assert result.coverage.levels.tolist() == pytest.approx([0.5, 0.68])
    assert repr(result).startswith("<Diagnosis:")
    assert "coverage AUC" in str(result)
