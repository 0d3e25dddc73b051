"""Coverage on posteriors whose truth is known; each test has a case that it must reject."""

import math

import pytest
import torch
from known_posteriors import (
    HIGH,
    LOW,
    SPREAD,
    Known,
    box,
    boxed,
    boxed_pairs,
    density,
    gaussian,
    normal_alpha,
    two_modes,
)
from torch.distributions import Beta, Independent, MultivariateNormal, Normal, Uniform

import prudent
from prudent.coverage import alpha
from prudent.datasets import Pairs
from prudent.diagnostics import expected_coverage, measure
from prudent.diagnostics._grid import SIZES, SPLIT
from prudent.diagnostics.expected_coverage import choose
from prudent.errors import InputError
from prudent.problems.gaussian import NOISE

pytestmark = pytest.mark.usefixtures("any_theta")

LEVELS = torch.arange(1, 100) / 100
# How far the distribution function of 1,000 uniform values strays, with 95 % (Massart).
BAND = math.sqrt(math.log(2 / 0.05) / 2000)


def flat_alpha(log_density, theta, x, low, high, side):
    """A plain transcription: one fine grid; the mass of the cells less dense than the truth."""
    dim = theta.shape[1]
    axis = (torch.arange(side) + 0.5) / side
    cells = low + (high - low) * torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)
    values = []
    for row in range(len(theta)):
        one = x[row : row + 1]
        log_cells = log_density(cells[:, None], one).squeeze(1).double()
        lower = log_cells < log_density(theta[row : row + 1], one)
        values.append((log_cells.softmax(0) * lower).sum())
    return torch.stack(values)


def curve(alphas):
    return expected_coverage(alphas).curve


def largest_difference(one, other):
    return float((curve(one) - curve(other)).abs().max())


@pytest.mark.parametrize("widen", [0.8, 1.25])
@pytest.mark.parametrize("dim", [1, 2])
def test_the_grid_is_exact_on_a_normal(dim, widen):
    theta, x = boxed_pairs(2000, dim)
    estimator = boxed(dim=dim, widen=widen, normalized=False, log_scale=5.0)
    measured = measure(estimator, Pairs.of(theta, x), "grid", progress=False)
    exact = normal_alpha(theta, x, widen * NOISE)
    assert (measured.alpha - exact).abs().max() < 0.015
    assert (measured.alpha - exact).abs().mean() < 0.004
    assert largest_difference(measured.alpha, exact) <= 0.005
    assert (measured.log_norm - 5.0).abs().max() < 0.01
    torch.testing.assert_close(measured.mean, x, atol=0.01, rtol=0)
    expected = torch.full_like(x, (widen * NOISE) ** 2)
    torch.testing.assert_close(measured.variance, expected, atol=0, rtol=0.02)
    # The other width is not within reach.
    assert (measured.alpha - normal_alpha(theta, x, NOISE)).abs().mean() > 0.03


def test_the_grid_needs_far_fewer_cells_than_a_flat_one():
    side, cut, _ = SIZES[2]
    assert side**2 + cut * SPLIT**2 < 90**2 / 10


@pytest.mark.parametrize("scale", [0.1, 0.01, 0.001])
def test_narrow_posteriors_are_cut_again(scale):
    """Down to a hundredth of a cell; the truths are placed so that alpha is uniform."""
    torch.manual_seed(0)
    x = 6 * torch.rand(100, 2) - 3
    theta = x + scale * torch.randn(100, 2)
    prior = box(2)

    def make(data):
        return Independent(Normal(data, torch.full_like(data, scale)), 1)

    pairs = Pairs.of(theta, x)
    measured = measure(Known(make, prior, normalized=False), pairs, progress=False)
    exact = normal_alpha(theta, x, scale)
    assert (measured.alpha - exact).abs().mean() < 0.004
    assert (measured.alpha - exact).abs().quantile(0.95) < 0.02
    assert measured.log_norm.abs().mean() < 0.01
    assert measured.effective_size.min() > 100
    assert measured.resolved.all()


def test_a_ridge_too_thin_for_the_grid_is_measured_with_draws():
    """A ten-thousandth of the box wide, and as long as the box."""

    def ridge(theta, x):
        return -((theta.diff(dim=-1).squeeze(-1) / 1e-3).square()) / 2

    away = torch.linspace(-2.5e-3, 2.5e-3, 20)
    theta = torch.stack((torch.zeros(20), away), dim=-1)
    measured = measure(density(ridge, box(2)), Pairs.of(theta, away[:, None]), progress=False)
    assert measured.resolved.all()
    exact = torch.special.erfc(away.abs() / 1e-3 / 2**0.5)
    # Four standard errors of what the draws are worth.
    error = (exact * (1 - exact) / measured.effective_size).sqrt()
    assert ((measured.alpha - exact).abs() < 4 * error + 1e-3).all()
    assert (measured.alpha - exact).abs().mean() < 0.03


@pytest.mark.usefixtures("disagreeing")
def test_what_cannot_be_resolved_is_reported():
    theta, x = boxed_pairs(5)
    estimator = boxed(normalized=False)
    result = prudent.diagnose(estimator, theta, x, method="importance", progress=False)
    assert result.num_unresolved == 5
    assert "5 not resolved, which counts against safety" in str(result)
    assert result.verdict.kind == "cannot be measured"
    # Nothing is known of a mean over no pairs, and nothing is made up.
    assert math.isnan(result.log_posterior)
    assert result.metrics()["log_posterior"] is None


@pytest.mark.usefixtures("disagreeing")
def test_a_density_of_zero_is_known_where_nothing_is_resolved():
    def cut(theta, x):
        return -theta.square().sum(-1).masked_fill(theta[..., 0] < 0, torch.inf)

    theta, estimator = torch.full((5, 2), -1.0), density(cut, box(2))
    x = torch.arange(5.0)[:, None]
    result = prudent.diagnose(estimator, theta, x, method="importance", progress=False)
    assert result.num_unresolved == result.num_zero_density == 5
    assert result.log_posterior == -math.inf


def test_two_modes_of_different_width_against_a_fine_grid():
    theta, x = boxed_pairs(150, seed=3)
    plain = flat_alpha(two_modes, theta, x, LOW, HIGH, side=640)
    estimator = density(two_modes, box(2))
    measured = measure(estimator, Pairs.of(theta, x), "grid", progress=False)
    assert (measured.alpha - plain).abs().max() < 0.035
    assert (measured.alpha - plain).abs().mean() < 0.003
    coarse = flat_alpha(two_modes, theta, x, LOW, HIGH, side=26)
    assert (coarse - plain).abs().mean() > 0.01


def test_three_correlated_parameters_against_a_fine_grid():
    covariance = 0.3 * torch.tensor([[1.0, 0.8, 0.0], [0.8, 1.0, -0.3], [0.0, -0.3, 0.4]])
    torch.manual_seed(0)
    x = 2 * torch.rand(20, 3) - 1

    def make(data):
        return MultivariateNormal(data, covariance)

    def log_density(theta, data):
        return make(data).log_prob(theta)

    theta = make(x).sample()
    estimator = Known(make, box(3), normalized=False)
    measured = measure(estimator, Pairs.of(theta, x), progress=False)
    assert measured.method == "importance"
    plain = flat_alpha(log_density, theta, x, LOW, HIGH, side=90)
    assert (measured.alpha - plain).abs().max() < 0.06
    assert (measured.alpha - plain).abs().mean() < 0.015


@pytest.mark.slow
def test_a_trained_ratio_of_three_parameters_against_plain_draws():
    """The prior's draws, weighted; a pair's error is 0.5 / sqrt(effective draws) at most."""
    problem = prudent.problems.get("mg1")
    estimator = prudent.fit(
        *problem.draw(4096, 0), problem.prior, method="nre", epochs=15, hidden=(32, 32), seed=0,
        progress=False,
    )  # fmt: skip
    theta, x = problem.draw(16, 0, "test")
    measured = measure(estimator, Pairs.of(theta, x), progress=False)
    torch.manual_seed(0)
    draws = problem.prior.sample((400_000, 1))
    plain, size = [], []
    with torch.no_grad():
        for index in range(16):
            posterior = estimator(x[index : index + 1])
            log_prob = posterior.log_prob(draws)[:, 0].double()
            weight, own = log_prob.softmax(dim=0), posterior.log_prob(theta[index : index + 1])
            plain.append(weight[log_prob < own].sum())
            size.append(1 / weight.square().sum())
    error = (measured.alpha - torch.stack(plain)).abs()
    assert measured.method == "importance"
    assert (error - 2 / torch.stack(size).sqrt()).max() < 0.05
    assert error.median() < 0.015
    assert torch.stack(size).median() > 1000


@pytest.mark.parametrize("dim", [1, 2])
def test_grid_samples_and_importance_agree(dim):
    """With 1,000 draws an alpha has an error of 0.016 at most, and no bias."""
    pairs = Pairs.of(*boxed_pairs(500, dim))
    found = {
        method: measure(boxed(dim=dim, widen=0.8, normalized=flow), pairs, method, progress=False)
        for method, flow in (("grid", True), ("samples", True), ("importance", False))
    }
    assert {name for name, one in found.items() if one.method == name} == set(found)
    grid = found.pop("grid")
    for one in found.values():
        assert (one.alpha - grid.alpha).abs().mean() < 0.016
        assert abs(float((one.alpha - grid.alpha).mean())) < 0.004
        assert largest_difference(one.alpha, grid.alpha) < 0.02
        assert one.volume.mean() == pytest.approx(float(grid.volume.mean()), rel=0.03)
        torch.testing.assert_close(one.mean.mean(0), grid.mean.mean(0), atol=0.003, rtol=0)
        torch.testing.assert_close(one.variance.mean(0), grid.variance.mean(0), atol=0, rtol=0.02)
        # A posterior of another width differs by more than these bands.
        assert (one.alpha - normal_alpha(pairs.theta, pairs.x, NOISE)).abs().mean() > 0.03


@pytest.mark.parametrize("dim", [5, 10])
def test_importance_reaches_ten_parameters(dim):
    """The prior alone would leave one draw in thousands."""
    theta, x = prudent.problems.get("gaussian", dim=dim).draw(300, 0)
    estimator = gaussian(dim=dim, widen=0.8, normalized=False, log_scale=-7.0)
    measured = measure(estimator, Pairs.of(theta, x), progress=False)
    exact = normal_alpha(theta, x / (1 + NOISE**2), 0.8 * SPREAD)
    assert measured.method == "importance"
    assert measured.effective_size.mean() > 500
    assert (measured.alpha - exact).abs().mean() < 0.015
    assert abs(float((measured.alpha - exact).mean())) < 0.004
    assert measured.log_norm.mean() == pytest.approx(-7.0, abs=0.05)


def test_the_estimator_of_coverage_is_chosen_and_named():
    def chosen(dim, normalized, prior=None):
        estimator = boxed(dim=dim, normalized=normalized)
        estimator.prior = prior or estimator.prior
        return next(choose(estimator, Pairs.of(*boxed_pairs(1, dim)))).name

    assert [chosen(dim, True) for dim in (1, 2, 3, 4)] == ["grid"] * 2 + ["samples"] * 2
    assert [chosen(dim, False) for dim in (1, 2, 3, 4)] == ["grid"] * 2 + ["importance"] * 2
    unbounded = prudent.problems.get("gaussian", dim=2).prior
    assert [chosen(2, flow, unbounded) for flow in (True, False)] == ["samples", "importance"]


class _FromNoise:
    def __init__(self, x, widen):
        self.x, self.scale = x, widen * NOISE
        self.exact = boxed(widen=widen).make(x)

    def log_prob(self, theta):
        return self.exact.log_prob(theta)

    def from_noise(self, noise):
        theta = self.x + self.scale * noise
        return theta, self.log_prob(theta), self.log_prob(theta)


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_even_noise_is_more_accurate_than_more_random_draws(dim):
    class Flow(Known):
        def __call__(self, x):
            return _FromNoise(x, 0.8)

    theta, x = boxed_pairs(500, dim)
    pairs = Pairs.of(theta, x)
    even = measure(Flow(None, box(dim)), pairs, progress=False)
    drawn = measure(boxed(dim=dim, widen=0.8), pairs, "samples", progress=False)
    exact = normal_alpha(theta, x, 0.8 * NOISE)
    assert even.method == "samples"
    errors = [float((one.alpha - exact).abs().mean()) for one in (even, drawn)]
    assert errors[0] < errors[1] < 0.012
    assert abs(float((even.alpha - exact).mean())) < 0.001


def test_a_bounded_prior_need_not_be_uniform():
    """x given theta is binomial, so the posterior is another beta distribution."""
    torch.manual_seed(0)
    prior = Independent(Beta(torch.tensor([2.0]), torch.tensor([5.0])), 1)
    theta = prior.sample((1500,))
    x = torch.binomial(torch.full_like(theta, 20.0), theta)

    def make(count):
        return Independent(Beta(2 + count, 5 + 20 - count), 1)

    pairs = Pairs.of(theta, x)
    grid = measure(Known(make, prior, normalized=False), pairs, progress=False)
    drawn = measure(Known(make, prior), pairs, "samples", progress=False)
    assert grid.method == "grid"
    assert grid.log_norm.abs().max() < 0.01
    assert (grid.alpha - drawn.alpha).abs().mean() < 0.016
    assert grid.volume.mean() == pytest.approx(float(drawn.volume.mean()), rel=0.03)
    # As if the prior were uniform: the wrong posterior.
    flat = Known(lambda n: Independent(Beta(1 + n, 21 - n), 1), prior, normalized=False)
    assert (measure(flat, pairs, progress=False).alpha - grid.alpha).abs().mean() > 0.03


def leaky(normalized=True):
    """Posteriors at the edge of the box: half of the mass is outside."""

    def make(x):
        return Independent(Normal(torch.full((len(x), 2), HIGH), torch.full((len(x), 2), 1.0)), 1)

    return Known(make, box(2), normalized=normalized)


def test_what_leaks_is_cut_and_counted():
    """The first quadrant of a normal has a quarter of its mass, and the same regions."""
    torch.manual_seed(0)
    theta = HIGH - torch.randn(500, 2).abs().clamp(max=7.9)
    pairs = Pairs.of(theta, torch.zeros(500, 1))
    exact = normal_alpha(theta, HIGH, 1.0)
    for method in ("grid", "samples"):
        measured = measure(leaky(), pairs, method, progress=False)
        assert measured.log_norm.exp().mean() == pytest.approx(0.25, abs=0.01)
        assert (measured.alpha - exact).abs().mean() < 0.03
        # The density stays the flow's own.
        torch.testing.assert_close(measured.log_posterior, leaky()(pairs.x).log_prob(theta))
    result = prudent.diagnose(leaky(), *(pairs.theta, pairs.x), progress=False)
    assert result.leakage == pytest.approx(0.75, abs=0.01)
    assert "75" in str(result)
    assert "outside the prior" in str(result)
    tight = prudent.diagnose(boxed(), *boxed_pairs(100), progress=False)
    assert tight.leakage < 0.005
    assert "outside the prior" not in str(tight)


def test_draws_and_densities_in_one_go_are_used():
    class Both:
        def __init__(self, x):
            self.exact = boxed().make(x)

        def log_prob(self, theta):
            assert theta.ndim == 2, "densities of draws should come with them"
            return self.exact.log_prob(theta)

        def sample_and_log_prob(self, shape):
            theta = self.exact.sample(shape)
            return theta, self.exact.log_prob(theta)

    estimator = boxed()
    pairs = Pairs.of(*boxed_pairs(50))
    plain = measure(estimator, pairs, "samples", progress=False)
    estimator.__class__ = type("Direct", (Known,), {"__call__": lambda self, x: Both(x)})
    torch.testing.assert_close(
        measure(estimator, pairs, "samples", progress=False).alpha, plain.alpha
    )


@pytest.mark.parametrize("method", ["grid", "importance"])
def test_ties_count_at_random(method):
    """All mass has exactly the density of the truth: alpha is uniform, whatever the truth."""

    def half(theta, x):
        return torch.where(theta[..., 0] > 0, math.log(3.0), -torch.inf)

    pairs = Pairs.of(torch.full((1000, 2), 1.0), torch.zeros(1000, 1))
    measured = measure(density(half, box(2)), pairs, method, progress=False)
    expected = (torch.arange(1000) + 0.5) / 1000
    assert (measured.alpha.sort().values - expected).abs().max() < BAND
    # A truth of density zero has nothing below it.
    nowhere = Pairs.of(torch.full((10, 2), -1.0), torch.zeros(10, 1))
    assert not measure(density(half, box(2)), nowhere, method, progress=False).alpha.any()


def test_the_prior_as_posterior_lies_on_the_diagonal():
    for prior, dim in ((box(2), 2), (prudent.problems.get("gaussian", dim=5).prior, 5)):
        torch.manual_seed(1)
        theta = prior.sample((1000,))
        same = Known(lambda x, prior=prior: prior.expand((len(x),)), prior)
        result = prudent.diagnose(same, theta, torch.zeros(1000, 1), progress=False)
        assert result.computed_by == ("grid" if dim == 2 else "samples")
        assert (result.coverage.curve - result.coverage.levels).abs().max() < BAND
        assert result.log_posterior == pytest.approx(result.log_prior, abs=1e-4)
        assert result.information_gain == pytest.approx(0.0, abs=1e-4)
        assert result.region_volume == pytest.approx(0.9, abs=0.01)
        assert result.verdict.text.startswith("uninformative: it says no more than the prior")
        assert "no level falls short by more than" in result.verdict.text


def test_coverage_from_alpha_equals_coverage_from_regions():
    """The paper's second lemma, on explicit regions of a normal: |z| below its quantile."""
    torch.manual_seed(0)
    z = torch.randn(2000)
    alphas = 2 * (1 - Normal(0.0, 1.0).cdf(z.abs()))
    edge = Normal(0.0, 1.0).icdf((1 + LEVELS) / 2)
    explicit = (z.abs() <= edge[:, None]).float().mean(1)
    torch.testing.assert_close(curve(alphas), explicit, atol=1e-6, rtol=0)


def test_coverage_of_the_grid_equals_sort_cumulate_threshold():
    """The same lemma on a grid: regions built as the paper builds them, then asked."""
    theta, x = boxed_pairs(100, seed=3)
    measured = measure(density(two_modes, box(2)), Pairs.of(theta, x), progress=False)
    axis = LOW + (HIGH - LOW) * (torch.arange(400) + 0.5) / 400
    cells = torch.cartesian_prod(axis, axis)
    covered = torch.zeros(len(LEVELS))
    for row in range(len(theta)):
        log_cells = two_modes(cells, x[row])
        ordered, index = log_cells.softmax(0).sort(descending=True)
        place = (ordered.cumsum(0) < LEVELS[:, None]).sum(1).clamp(max=len(cells) - 1)
        covered += two_modes(theta[row], x[row]) >= log_cells[index[place]]
    # One pair of 100 may fall on the other side of a threshold, at a few levels.
    assert (curve(measured.alpha) - covered / 100).abs().max() < 0.021
    assert (curve(measured.alpha) - covered / 100).abs().mean() < 0.004


@pytest.mark.parametrize("number", [1, 9, 31])
def test_normalised_ranks_of_the_exact_posterior_are_uniform_on_the_lattice(number):
    """The paper's Eq. 9 with L draws: every value of 0, 1/L, ..., 1 is equally likely."""
    torch.manual_seed(0)
    theta, x = prudent.problems.get("gaussian").draw(20_000, 0)

    def chi_square(widen):
        posterior = gaussian(widen=widen)(x)
        draws = posterior.sample((number,))
        values = alpha(posterior.log_prob(theta), posterior.log_prob(draws), indicator="hard")
        counts = torch.bincount((values * number).round().long(), minlength=number + 1)
        expected = len(theta) / (number + 1)
        return float(((counts - expected) ** 2 / expected).sum())

    # The 0.9999 quantile of chi-square with L degrees of freedom, by Wilson and Hilferty.
    bound = number * (1 - 2 / 9 / number + 3.719 * (2 / 9 / number) ** 0.5) ** 3
    assert chi_square(1.0) < bound
    assert chi_square(0.8) > bound


@pytest.mark.parametrize("dim", [1, 2, 5, 10])
def test_alphas_of_a_conservative_posterior_dominate_the_uniform(dim):
    theta, x = prudent.problems.get("gaussian", dim=dim).draw(1000, 0)
    uniform = (torch.arange(1000) + 0.5) / 1000

    def lowest(widen):
        pairs = Pairs.of(theta, x)
        alphas = measure(gaussian(dim=dim, widen=widen), pairs, "samples", progress=False).alpha
        return float((alphas.sort().values - uniform).min())

    assert lowest(1.25) > -BAND
    assert lowest(0.8) < -2 * BAND


def test_agreement_with_lampe():
    """The same normal posterior and pairs; each side has the noise of its own 1,024 draws."""
    coverage = pytest.importorskip("lampe.diagnostics")
    theta, x = prudent.problems.get("gaussian").draw(500, 0)
    estimator = gaussian(widen=0.8)
    torch.manual_seed(0)
    pairs = zip(theta, x, strict=True)
    ranks, _ = coverage.expected_coverage_mc(lambda one: estimator.make(one[None]), pairs)
    theirs = 1 - ranks[1:-1].flip(0)
    ours = measure(estimator, Pairs.of(theta, x), "samples", progress=False).alpha.sort().values
    assert (ours - theirs).abs().mean() < 0.004
    assert largest_difference(ours, theirs) < 0.02
    wide = measure(gaussian(widen=1.0), Pairs.of(theta, x), "samples", progress=False).alpha
    assert (wide.sort().values - theirs).abs().mean() > 0.03


def test_intervals_hold_the_truth():
    """The 95 % interval at one level, over 2,000 repetitions, holds it 95 % of the time."""
    generator = torch.Generator().manual_seed(0)
    level = torch.tensor([0.9])
    held = 0
    for _ in range(2000):
        coverage = expected_coverage(torch.rand(200, generator=generator), level)
        held += bool(coverage.lower <= 0.9 <= coverage.upper)
    assert 0.93 < held / 2000 < 0.97


def test_memory_does_not_grow_with_the_number_of_pairs():
    """However many pairs, the points of a few are evaluated at once."""
    largest = []

    def log_density(theta, x):
        largest.append(theta.shape[:-1].numel())
        return -(theta - x).square().sum(-1)

    theta, x = boxed_pairs(300)
    for method in ("grid", "importance"):
        measure(density(log_density, box(2)), Pairs.of(theta, x), method, progress=False)
    assert max(largest) <= 2**14


def test_the_same_seed_gives_the_same_numbers():
    pairs = Pairs.of(*boxed_pairs(100))
    one, two, three = (
        measure(boxed(), pairs, "samples", seed=seed, progress=False).alpha for seed in (0, 0, 1)
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, three)


@pytest.mark.parametrize(
    "prior",
    [Independent(Normal(torch.zeros(2), torch.ones(2)), 1), box(4)],
    ids=["unbounded", "four parameters"],
)
def test_the_grid_needs_a_small_box(prior):
    dim = prior.event_shape[0]
    estimator = Known(lambda x: prior.expand((len(x),)), prior)
    with pytest.raises(InputError, match="uniform prior on a box"):
        prudent.diagnose(
            estimator, prior.sample((10,)), torch.zeros(10, dim), method="grid", progress=False
        )


def test_a_prior_on_one_value_each_is_a_box():
    """Bounds given as one number for all parameters."""
    prior = Independent(Uniform(torch.tensor(0.0), torch.tensor(1.0)).expand((2,)), 1)
    estimator = Known(lambda x: prior.expand((len(x),)), prior)
    theta = prior.sample((50,))
    result = prudent.diagnose(estimator, theta, torch.zeros(50, 1), progress=False)
    assert result.computed_by == "grid"
    assert result.leakage == pytest.approx(0.0, abs=1e-5)
