"""Draws near the nominal parameters: what they see of known posteriors, and what they survive."""

import math

import pytest
import torch
from torch.distributions import (
    Categorical,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    Uniform,
)

from prudent.coverage import CoveragePenalty, alpha, penalty
from prudent.coverage.figures import evaluation
from prudent.coverage.nominal import SHARES, Nominal
from prudent.coverage.proposals import Even, even_if_possible, proposal_of
from prudent.errors import InputError
from prudent.priors.density import log_density
from prudent.training import Options
from prudent.training.objectives import make_term

NUM_PAIRS = 1024
DIMS = (1, 2, 3, 5, 10)
WIDTHS = (0.5, 0.1, 0.02)


def prior_of(kind, dim, dtype=torch.float32):
    ones = torch.ones(dim, dtype=dtype)
    base = Normal(0 * ones, ones) if kind == "normal" else Uniform(-3 * ones, 3 * ones)
    return Independent(base, 1)


class Ratio:
    """A density inside a prior that cannot draw, times an unknown constant per observation."""

    def __init__(self, posterior, prior):
        self.posterior, self.prior, self.shapes = posterior, prior, []

    def log_prob(self, theta):
        self.shapes.append(tuple(theta.shape))
        outside = log_density(self.prior, theta.detach()).isneginf()
        constant = torch.linspace(-50, 50, theta.shape[-2]).to(theta)
        return (self.posterior.log_prob(theta) + constant).masked_fill(outside, -torch.inf)


def gaussian(dim, width, factor, correlation=0.0):
    """Truths (N, D), a normal posterior of another width, and its alphas in closed form."""
    torch.manual_seed(0)
    covariance = torch.full((dim, dim), correlation) + (1 - correlation) * torch.eye(dim)
    root = width * torch.linalg.cholesky(covariance)
    center, noise = 2 * torch.rand(NUM_PAIRS, dim) - 1, torch.randn(NUM_PAIRS, dim)
    posterior = MultivariateNormal(center, scale_tril=factor * root.expand(NUM_PAIRS, -1, -1))
    square = (noise / factor).square().sum(dim=1)
    exact = torch.special.gammaincc(torch.tensor(dim / 2), square / 2)
    return center + noise @ root.T, posterior, exact


def evaluate(proposal, posterior, theta):
    torch.manual_seed(1)
    result = evaluation(CoveragePenalty(proposal), posterior, theta)
    return float(result.value), float(result.figures["effective_samples"])


def test_the_closed_form_agrees_with_ten_thousand_draws():
    theta, posterior, exact = gaussian(2, 0.1, 0.8)
    sample = torch.cat([posterior.log_prob(posterior.sample((1000,))) for _ in range(10)])
    drawn = alpha(posterior.log_prob(theta), sample)
    assert float(penalty(drawn)) == pytest.approx(float(penalty(exact)), rel=0.02)


@pytest.mark.parametrize("kind", ["normal", "box"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dim", DIMS)
def test_nominal_draws_see_an_overconfident_ratio(dim, width, kind):
    """With 16 draws about the penalty by exact draws, which prior draws do not see at all."""
    prior = prior_of(kind, dim)
    theta, posterior, exact = gaussian(dim, width, factor=0.8)
    value, worth = evaluate(Nominal(prior), Ratio(posterior, prior), theta)
    # Five seeds of ten parameters: 0.75 to 0.85.
    assert 0.7 < value / float(penalty(exact)) < 1.35
    assert worth > 7


@pytest.mark.parametrize("dim", DIMS)
def test_model_draws_see_an_overconfident_flow(dim):
    theta, posterior, exact = gaussian(dim, 0.1, factor=0.8)
    value, worth = evaluate("model", posterior, theta)
    # Five seeds of ten parameters: 0.75 to 0.85.
    assert 0.7 < value / float(penalty(exact)) < 1.35
    assert worth == pytest.approx(16)


# Posteriors half as wide as the prior are still seen by its draws in two or three dimensions.
UNSEEN = [(dim, width) for dim in DIMS[1:] for width in WIDTHS if dim > 3 or width < 0.5]


@pytest.mark.parametrize("kind", ["normal", "box"])
@pytest.mark.parametrize(("dim", "width"), UNSEEN)
def test_prior_draws_do_not(dim, width, kind):
    prior = prior_of(kind, dim)
    theta, posterior, exact = gaussian(dim, width, factor=0.8)
    value, worth = evaluate(prior, Ratio(posterior, prior), theta)
    assert value < (0.5 if width == 0.5 else 0.05) * float(penalty(exact))
    assert worth < (4 if width == 0.5 else 2)


@pytest.mark.parametrize("correlation", [0.0, 0.95])
@pytest.mark.parametrize("dim", DIMS)
def test_no_false_alarm(dim, correlation):
    """Exact and too wide posteriors pass, as they do with 16 draws of their own."""
    prior, values = prior_of("box", dim), {}
    for factor in (0.8, 1.0, 1.25):
        theta, posterior, _ = gaussian(dim, 0.1, factor, correlation)
        own, _ = evaluate("model", posterior, theta)
        values[factor], _ = evaluate(Nominal(prior), Ratio(posterior, prior), theta)
        assert values[factor] == pytest.approx(own, rel=0.25, abs=4e-4)
    assert values[1.25] < 1e-4 < 1.2e-3 > values[1.0]
    assert values[0.8] > 5e-3


@pytest.mark.parametrize("dim", [2, 3, 10])
def test_widths_that_differ_from_pair_to_pair(dim):
    """One width for the whole batch would not do: with it, less than half is seen from 2-d on."""
    prior = prior_of("box", dim)
    torch.manual_seed(0)
    width = (0.1 * torch.randn(NUM_PAIRS, dim).exp()).clamp(max=0.5)
    center, noise = 2 * torch.rand(NUM_PAIRS, dim) - 1, torch.randn(NUM_PAIRS, dim)
    exact = torch.special.gammaincc(torch.tensor(dim / 2), (noise / 0.8).square().sum(1) / 2)
    posterior = Ratio(Independent(Normal(center, 0.8 * width), 1), prior)
    value, _ = evaluate(Nominal(prior), posterior, center + width * noise)
    # Five seeds of ten parameters: 0.75 to 0.85.
    assert 0.7 < value / float(penalty(exact)) < 1.35


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_two_modes_of_unequal_mass(dim):
    prior, values = prior_of("box", dim), {}
    for factor in (0.8, 1.0, 1.25):
        torch.manual_seed(0)
        center = (torch.rand(NUM_PAIRS, 1, dim) - 0.5).repeat(1, 2, 1)
        center[:, :, 0] += torch.tensor([-0.3, 0.3])
        mode = (torch.rand(NUM_PAIRS) < 0.3).long()
        theta = center[torch.arange(NUM_PAIRS), mode] + 0.1 * torch.randn(NUM_PAIRS, dim)
        posterior = MixtureSameFamily(
            Categorical(torch.tensor([0.7, 0.3]).expand(NUM_PAIRS, 2)),
            Independent(Normal(center, 0.1 * factor), 1),
        )
        exact = alpha(posterior.log_prob(theta), posterior.log_prob(posterior.sample((2000,))))
        value, _ = evaluate(Nominal(prior), Ratio(posterior, prior), theta)
        values[factor] = value, float(penalty(exact))
    assert 0.5 < values[0.8][0] / values[0.8][1] < 1.5
    assert values[1.0][0] < 1.2e-3
    assert values[1.25][0] < 1e-4


def test_a_gradient_step_makes_a_narrow_ratio_wider():
    """The draws are constants; the gradient is that of the same posterior's own draws."""
    prior, gradients = prior_of("box", 2), []
    theta, posterior, _ = gaussian(2, 0.1, 1.0)
    for proposal in (Nominal(prior), "model"):
        log_width = torch.tensor(math.log(0.07), requires_grad=True)
        narrow = Independent(Normal(posterior.loc, log_width.exp().expand(NUM_PAIRS, 2)), 1)
        torch.manual_seed(0)
        assert not proposal_of(proposal).draw(narrow, 16, theta).theta.requires_grad
        torch.manual_seed(0)
        (slope,) = torch.autograd.grad(CoveragePenalty(proposal)(narrow, theta), log_width)
        gradients.append(float(slope))
    assert gradients[0] < -1e-2
    assert gradients[0] == pytest.approx(gradients[1], rel=0.2)


def test_evaluations():
    """The scores at the nominal and D + 1 near it, the candidates, then all draws at once."""
    prior = prior_of("normal", 3)
    theta, posterior, _ = gaussian(3, 0.1, 1.0)
    counted = Ratio(posterior, prior)
    CoveragePenalty(Nominal(prior))(counted, theta)
    assert [shape[0] for shape in counted.shapes] == [1, 4, 4 * 16, 1 + 16]


def test_units_of_theta_do_not_matter():
    values = []
    for unit in (1.0, 1e-3, 300.0):
        theta, posterior, _ = gaussian(3, 0.1, 0.8, correlation=0.5)
        loc, tril = unit * posterior.loc.double(), unit * posterior.scale_tril.double()
        prior = Independent(Normal(torch.zeros(3), torch.full((3,), unit)).expand((3,)), 1)
        prior = Independent(Normal(prior.mean.double(), prior.stddev.double()), 1)
        posterior = Ratio(MultivariateNormal(loc, scale_tril=tril), prior)
        values.append(evaluate(Nominal(prior), posterior, unit * theta.double())[0])
    assert values[1] == pytest.approx(values[0], rel=1e-3)
    assert values[2] == pytest.approx(values[0], rel=1e-3)


class Function:
    """A posterior made of a function of theta (..., N, D)."""

    def __init__(self, function):
        self.function = function

    def log_prob(self, theta):
        return self.function(theta)


def near_one_half(theta):
    return -((theta - 0.5) / 0.1).square().sum(-1) / 2


@pytest.mark.parametrize(
    "function",
    [
        lambda theta: torch.zeros_like(theta[..., 0]),  # no score
        lambda theta: near_one_half(theta).detach(),  # no gradient
        lambda theta: near_one_half(theta) + 0 * (theta - theta.detach()).norm(dim=-1).sqrt(),
        lambda theta: near_one_half(theta) * 1e30,  # scores that overflow
        lambda theta: near_one_half(theta).masked_fill(theta[..., 0] > 0.5, -torch.inf),
        lambda theta: near_one_half(theta).masked_fill(theta[..., 0] > 0.9, torch.nan),
        lambda theta: torch.full_like(theta[..., 0], -torch.inf),
        lambda theta: -1e-3 * theta[..., :1].square().sum(-1),  # singular
    ],
)
@pytest.mark.parametrize("dim", [1, 2])
def test_draws_stay_finite(function, dim):
    prior = prior_of("box", dim)
    torch.manual_seed(0)
    theta = 0.5 + 0.1 * torch.randn(64, dim)
    draws = Nominal(prior).draw(Function(function), 16, theta)
    assert draws.theta.isfinite().all()
    assert draws.log_weight(torch.zeros(16, 64)).isfinite().all()
    assert ((draws.worth >= 1) & (draws.worth <= 16.001)).all()
    assert CoveragePenalty(Nominal(prior))(Function(function), theta).isfinite()


def test_without_scores_the_scales_about_the_nominal_remain():
    prior = prior_of("box", 2)
    torch.manual_seed(0)
    theta = 0.5 + 0.1 * torch.randn(256, 2)
    posterior = Function(lambda theta: near_one_half(theta).detach())
    found = evaluation(CoveragePenalty(Nominal(prior)), posterior, theta).figures
    assert float(found["effective_samples"]) > 4
    with torch.inference_mode():
        assert CoveragePenalty(Nominal(prior))(posterior, theta).isfinite()


@pytest.mark.parametrize("candidates", [1, 3])
@pytest.mark.parametrize("num_samples", [1, 2, 5])
def test_few_draws_and_pairs(num_samples, candidates):
    prior = prior_of("normal", 2)
    posterior = Independent(Normal(torch.zeros(1, 2), torch.full((1, 2), 0.1)), 1)
    module = CoveragePenalty(Nominal(prior, candidates), num_samples)
    assert module(posterior, torch.full((1, 2), 0.1)).isfinite()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("prior_dtype", [torch.float32, torch.float64])
def test_types_follow_theta(dtype, prior_dtype):
    theta, posterior, _ = gaussian(2, 0.1, 1.0)
    posterior = MultivariateNormal(
        posterior.loc.to(dtype), scale_tril=posterior.scale_tril.to(dtype)
    )
    draws = Nominal(prior_of("box", 2, prior_dtype)).draw(posterior, 4, theta.to(dtype))
    log_weight = draws.log_weight(torch.zeros(draws.theta.shape[:2], dtype=dtype))
    assert draws.theta.dtype == log_weight.dtype == dtype


def test_the_prior_has_a_spread_without_moments_and_leaves_the_random_state():
    state = torch.random.get_rng_state()
    cauchy = Independent(torch.distributions.StudentT(1.0, torch.zeros(2), torch.ones(2)), 1)
    spread = Nominal(cauchy).spread
    # The 84 % quantile of a Cauchy distribution is tan(0.34 pi).
    assert spread.tolist() == pytest.approx([math.tan(0.34 * math.pi)] * 2, rel=0.1)
    assert Nominal(cauchy).spread.equal(spread)
    assert torch.random.get_rng_state().equal(state)
    assert sum(SHARES) == 16


@pytest.mark.parametrize("family", ["nre", "npe"])
def test_the_setting_works_for_both_families(family):
    prior = prior_of("box", 2)
    term = make_term("coverage", family, prior, Options(proposal="nominal", fraction=1.0)).term
    assert isinstance(term.proposal, Nominal)
    assert term.proposal.prior is prior
    own = Nominal(prior, candidates=8)
    options = Options(proposal=own, fraction=1.0)
    assert make_term("coverage", family, prior, options).term.proposal is own


def test_misuse_is_named():
    theta, posterior, _ = gaussian(2, 0.1, 1.0)
    with pytest.raises(InputError, match=r"Nominal\(prior\)"):
        CoveragePenalty("nominal")
    with pytest.raises(InputError, match="`sample`, `log_prob`"):
        Nominal(object())
    with pytest.raises(InputError, match="candidates"):
        Nominal(prior_of("box", 2), candidates=0)
    with pytest.raises(InputError, match="prior draws 3 parameters"):
        CoveragePenalty(Nominal(prior_of("box", 3)))(posterior, theta)
    with pytest.raises(InputError, match="conditioned on the 7 observations"):
        CoveragePenalty(Nominal(prior_of("box", 2)))(Normal(0.0, 1.0), theta[:7])


@pytest.mark.parametrize("kind", ["box", "normal"])
def test_even_draws_have_the_distribution_of_the_prior(kind):
    """Each single draw by its marginal distribution, and all of a pair by how even they are."""
    prior = prior_of(kind, 2)
    torch.manual_seed(0)
    draws, log_prob = Even(prior).sample_and_log_prob((16, 4000))
    torch.testing.assert_close(log_prob, log_density(prior, draws))
    uniform = prior.base_dist.cdf(draws)
    # Kolmogorov's bound at a level of 1e-4, for the fifth draw of all pairs.
    ranked = uniform[4].sort(dim=0).values
    levels = (torch.arange(4000) + 0.5).unsqueeze(1) / 4000
    assert (ranked - levels).abs().max() < 2.23 / math.sqrt(4000)
    # Of the 16 draws of any pair, two are in each eighth of a parameter.
    places = (8 * uniform).long().clamp(max=7)
    assert bool((torch.nn.functional.one_hot(places, 8).sum(dim=0) == 2).all())
    shifted = (draws + 0.3).sort(dim=1).values[4]  # a case that the bound must reject
    assert (prior.base_dist.cdf(shifted) - levels).abs().max() > 2.23 / math.sqrt(4000)


@pytest.mark.parametrize(
    ("width", "number", "factor"),
    [(2.0, 16, 0.9), (1.0, 16, 0.9), (2.0, 64, 0.6), (1.0, 64, 0.6), (0.5, 64, 0.85)],
)
def test_even_draws_are_more_accurate_for_the_same_money(width, number, factor):
    prior = prior_of("box", 2)
    torch.manual_seed(0)
    center = 2 * torch.rand(2000, 2) - 1
    posterior = Independent(Normal(center, width), 1)
    theta = posterior.sample().clamp(-3, 3)
    exact = Even(prior).sample_and_log_prob((4096, 2000))[0]

    def alphas(draws):
        log_prob = posterior.log_prob(draws)
        return alpha(posterior.log_prob(theta), log_prob, log_prob)

    reference = alphas(exact)
    even = alphas(Even(prior).sample_and_log_prob((number, 2000))[0])
    plain = alphas(prior.sample((number, 2000)))
    error, before = ((one - reference).square().mean().sqrt() for one in (even, plain))
    assert error < factor * before
    assert abs((even - reference).mean()) < abs((plain - reference).mean())


def test_even_draws_need_quantiles():
    correlated = MultivariateNormal(torch.zeros(2), torch.eye(2) + 0.5)
    with pytest.raises(InputError, match='quantiles .icdf., got Multi.*use proposal="prior"'):
        Even(correlated)
    assert even_if_possible(correlated) is correlated
    with pytest.raises(InputError, match=r"pass prudent.coverage.Even\(prior\)"):
        CoveragePenalty("even")


def test_even_draws_have_the_type_of_the_prior():
    draws, log_prob = Even(prior_of("box", 3, torch.float64)).sample_and_log_prob((8, 4))
    assert (draws.dtype, log_prob.dtype) == (torch.float64, torch.float64)
