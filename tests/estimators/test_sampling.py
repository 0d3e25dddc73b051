"""Draws from exact ratios: their law, their worth, and what is refused."""

import functools
import math
import sys

import numpy as np
import pytest
import torch
from torch.distributions import Beta, Dirichlet, Gamma, Independent, LogNormal, Normal, Uniform

from prudent.coverage.alpha import effective_size
from prudent.errors import InputError
from prudent.estimators import RatioEstimator, looks, mcmc, sampling
from prudent.estimators.mcmc import autocorrelation_time
from prudent.estimators.sampling import draw
from prudent.priors.density import log_density
from prudent.priors.families import Product
from prudent.problems.gaussian import exact_posterior
from prudent.problems.problem import box

METHODS = ["importance", "mcmc"]
NUM_SAMPLES = 2000


class Exact:
    """A posterior of one observation, or of several alike, from a function of theta."""

    def __init__(self, log_ratio, number=1):
        self.log_ratio = log_ratio
        self.number = number

    def __len__(self):
        return self.number

    def rows(self, index):
        return Exact(self.log_ratio, len(torch.arange(self.number)[index]))


class Gaussian:
    """Conjugate; ``wrong`` widens it by a half."""

    prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    x = torch.tensor([0.5, -1.5])

    def log_ratio(self, wrong):
        density = exact_posterior(self.x, 1.5 if wrong else 1.0)
        return lambda theta: density.log_prob(theta) - self.prior.log_prob(theta)

    def distribution_function(self, theta):
        return exact_posterior(self.x).base_dist.cdf(theta)


class FourModes:
    """Narrow modes of unequal weight, far apart; ``wrong`` makes the weights equal."""

    prior = box([-3.0, -3.0], [3.0, 3.0])
    centres = torch.tensor([[1.5, 1.5], [-1.5, 1.5], [1.5, -1.5], [-1.5, -1.5]])
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4])
    width = 0.15

    def log_ratio(self, wrong):
        log_weights = torch.zeros(4) if wrong else self.weights.log()

        def evaluate(theta):
            distance = (theta.unsqueeze(-2) - self.centres).square().sum(-1)
            return (log_weights - distance / (2 * self.width**2)).logsumexp(-1)

        return evaluate

    def distribution_function(self, theta):
        modes = Normal(self.centres, self.width).cdf(theta.unsqueeze(-2))
        return (self.weights.unsqueeze(-1) * modes).sum(-2)


class Edge:
    """Densest in a corner of the box; ``wrong`` is a little less steep."""

    prior = box([-1.0, -1.0], [1.0, 1.0])
    slope = 3.0

    def log_ratio(self, wrong):
        slope = 2.0 if wrong else self.slope
        return lambda theta: slope * theta.sum(-1)

    def distribution_function(self, theta):
        rise = (self.slope * theta).exp() - math.exp(-self.slope)
        return rise / (2 * math.sinh(self.slope))


GAUSSIAN, FOUR_MODES, EDGE = TARGETS = [Gaussian(), FourModes(), Edge()]


@functools.cache
def sample(target, method, *, wrong=False, seed=0, number=NUM_SAMPLES):
    torch.manual_seed(seed)
    draws, report = draw(Exact(target.log_ratio(wrong)), target.prior, (number,), method)
    return draws[:, 0], report


def agrees(target, draws, report):
    """Kolmogorov-Smirnov per parameter, each at the level 1e-4, with the effective number."""
    number = 1 / (1 / len(draws) + 1 / report.effective_sample_size.item())
    expected = target.distribution_function(draws).sort(dim=0).values
    steps = torch.arange(len(draws) + 1).unsqueeze(1) / len(draws)
    distance = torch.maximum(steps[1:] - expected, expected - steps[:-1]).amax(0)
    return bool((distance < math.sqrt(math.log(2 / 1e-4) / (2 * number))).all())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: type(target).__name__)
@pytest.mark.slow
def test_draws_follow_the_posterior(target, method):
    draws, report = sample(target, method)
    assert report.method == method
    assert agrees(target, draws, report)
    assert target.prior.support.check(draws).all()


REJECTED = [(GAUSSIAN, "importance"), (EDGE, "importance"), (GAUSSIAN, "mcmc")]


@pytest.mark.parametrize(("target", "method"), REJECTED)
def test_draws_of_a_wrong_posterior_are_rejected(target, method):
    assert not agrees(target, *sample(target, method, wrong=True))


@pytest.mark.parametrize("method", METHODS)
def test_moments(method):
    draws, report = sample(GAUSSIAN, method)
    number = 1 / (1 / NUM_SAMPLES + 1 / report.effective_sample_size.item())
    exact = exact_posterior(Gaussian.x).base_dist
    # Four standard errors.
    assert ((draws.mean(0) - exact.mean).abs() < 4 * exact.stddev / number**0.5).all()
    assert (draws.std(0) / exact.stddev - 1).abs().max() < 4 / (2 * number) ** 0.5


@pytest.mark.slow
def test_modes():
    """Four of them, far apart: where two looks disagree, draws of a batch are worth nothing."""
    with pytest.warns(UserWarning, match="two looks at it disagree"):
        _, report = draw(Exact(FOUR_MODES.log_ratio(wrong=False), 9), FOUR_MODES.prior, (9,))
    assert report.effective_sample_size.min() == 1
    draws, report = sample(FOUR_MODES, "mcmc")
    number = 1 / (1 / NUM_SAMPLES + 1 / report.effective_sample_size.item())
    nearest = (draws.unsqueeze(1) - FourModes.centres).square().sum(-1).argmin(1)
    share = nearest.bincount(minlength=4) / len(draws)
    weights = FourModes.weights
    allowed = 4 * (weights * (1 - weights) / number).sqrt()
    assert ((share - weights).abs() < allowed).all()
    assert ((0.25 - weights).abs() > allowed).any()


@pytest.mark.parametrize(
    ("width", "method"), [(2e-4, "importance"), (2e-5, "importance"), (2e-5, "mcmc")]
)
def test_posteriors_that_prior_draws_miss_are_found(width, method):
    """A ten-thousandth of the width of the box in each of two parameters, or a tenth of that."""
    centre = torch.tensor([0.3, -0.7])
    posterior = Exact(lambda theta: -((theta - centre) / width).square().sum(-1) / 2)
    prior = box([-1.0, -1.0], [1.0, 1.0])
    torch.manual_seed(0)
    draws, report = draw(posterior, prior, (1000,), method)
    assert report.effective_sample_size > 300
    assert ((draws.mean((0, 1)) - centre).abs() < 0.2 * width).all()
    assert (draws.std((0, 1)) / width - 1).abs().max() < 0.1


@pytest.mark.slow
def test_a_chain_stays_on_a_simplex():
    prior = Dirichlet(torch.ones(3))
    posterior = Exact(lambda theta: (torch.tensor([2.0, 1.0, 0.0]) * theta.log()).sum(-1))
    torch.manual_seed(0)
    draws, _ = draw(posterior, prior, (1000,), "mcmc")
    assert prior.support.check(draws).all()
    # Dirichlet(3, 2, 1): standard deviations below 0.2, hence 0.007 per mean.
    assert (draws.mean((0, 1)) - torch.tensor([3.0, 2.0, 1.0]) / 6).abs().max() < 0.03


@pytest.fixture
def hasty(monkeypatch):
    """Chains that stop early, where their law does not matter."""
    monkeypatch.setattr(mcmc, "FIRST_STEPS", 100)
    monkeypatch.setattr(mcmc, "LONG_ENOUGH", 1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.usefixtures("hasty")
def test_the_torch_seed_decides_and_numpy_is_left_alone(method):
    def draws(seed):
        torch.manual_seed(seed)
        return draw(Exact(EDGE.log_ratio(wrong=False)), EDGE.prior, (50,), method)[0]

    before = np.random.get_state()
    first = draws(1)
    after = np.random.get_state()
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    np.random.rand(3)
    assert torch.equal(first, draws(1))
    assert not torch.equal(first, draws(2))
    np.random.set_state(before)


def comb(share):
    """A posterior on many thin teeth, where no normal distribution finds more than prior draws."""
    return lambda theta: ((1e3 * theta[..., 0] % 1.0) >= share).float() * -1e4


@pytest.mark.parametrize("target", [GAUSSIAN, EDGE], ids=lambda target: type(target).__name__)
def test_the_effective_size_is_what_estimates_vary_by(target):
    """The weighted mean over 40 repetitions has the variance of so many independent draws."""
    torch.manual_seed(0)
    _, report = draw(Exact(target.log_ratio(wrong=False), 40), target.prior, (1,), "importance")
    size = report.effective_sample_size
    assert size.shape == (40,)
    ratio, prior = target.log_ratio(wrong=False), target.prior
    draws = looks.two_looks(
        lambda theta, rows: ratio(theta) + log_density(prior, theta), prior, 40
    )
    weight = draws.log_weight.softmax(0)
    torch.testing.assert_close(effective_size(weight).mean(), size.mean(), rtol=0.1, atol=0)
    mean = (weight.unsqueeze(-1) * draws.theta).sum(0)
    variance = (weight.unsqueeze(-1) * (draws.theta - mean).square()).sum(0).mean(0)
    # The ratio of variances of 40 means is known to 22 %, and the size is a rule of thumb.
    assert (mean.var(0) * size.mean() / variance).max() < 2.0
    assert (mean.var(0) * size.mean() / variance).min() > 0.2


def test_effective_size_of_weights_by_hand():
    """A share p of equal weights among all draws of the prior is worth p times their number."""
    number = 2 * looks.NUM_FRESH + 3 * looks.NUM_START
    torch.manual_seed(3)
    _, report = draw(Exact(comb(0.3), 5), box([-1.0], [1.0]), (10,), "importance")
    # The normal proposals are as wide as the prior, so weights differ by a factor or two.
    assert (report.effective_sample_size / (0.3 * number)).max() < 1.1
    assert (report.effective_sample_size / (0.3 * number)).min() > 0.5


@pytest.mark.parametrize(
    "prior",
    [
        Product([Uniform(0.0, 2.0), Gamma(2.0, 1.0), Normal(0.0, 1.0)]),
        Dirichlet(torch.ones(3)),
        Independent(LogNormal(torch.zeros(2), torch.ones(2)), 1),
        Independent(Beta(torch.full((2,), 0.5), torch.full((2,), 0.5)), 1),
        Independent(Uniform(*(torch.full((2,), 1e6 + edge).double() for edge in (0, 1))), 1),
    ],
    ids=lambda prior: str(prior)[:20],
)
def test_weighted_draws_stay_on_every_support(prior):
    """The prior itself as the target: it integrates to one, and to its own mean."""
    torch.manual_seed(0)
    draws = looks.two_looks(lambda theta, rows: log_density(prior, theta), prior, 3)
    assert draws.resolved.all()
    assert prior.support.check(draws.theta).all()
    assert draws.log_weight.logsumexp(0).abs().max() < 0.05
    mean = (draws.log_weight.softmax(0).unsqueeze(-1) * draws.theta).sum(0)
    many = prior.sample((20_000,)).double()
    assert ((mean - many.mean(0)).abs() < 0.15 * many.std(0)).all()


def test_narrow_posteriors_are_found_in_a_batch():
    """Ten parameters, each a tenth as wide as the prior: one prior draw in 10^10 falls there."""
    prior = Independent(Normal(torch.zeros(10), torch.ones(10)), 1)
    width = 0.1

    def log_ratio(theta):
        return Normal(0.5, width).log_prob(theta).sum(-1) - prior.log_prob(theta)

    torch.manual_seed(0)
    draws, report = draw(Exact(log_ratio, 8), prior, (500,), "importance")
    assert report.effective_sample_size.min() > 300
    assert (draws.mean((0, 1)) - 0.5).abs().max() < 0.01
    assert (draws.std((0, 1)) / width - 1).abs().max() < 0.1


def test_autocorrelation_time_by_hand():
    """An autoregression of 0.8 has (1 + 0.8) / (1 - 0.8) = 9; what never moves has its length."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(4000, 32, 2, generator=generator, dtype=torch.float64)
    chain = noise.clone()
    for step in range(1, len(chain)):
        chain[step] = 0.8 * chain[step - 1] + 0.6 * noise[step]
    assert autocorrelation_time(chain) == pytest.approx(9, rel=0.15)
    assert autocorrelation_time(noise) == pytest.approx(1, abs=0.1)
    stuck = noise + 10 * torch.randn(32, 2, generator=generator)
    assert autocorrelation_time(stuck) > 3000


def test_effective_size_of_a_chain():
    _, report = sample(FOUR_MODES, "mcmc")
    states = report.num_steps * mcmc.NUM_WALKERS
    size = report.effective_sample_size.item()
    assert size == pytest.approx(states / report.autocorrelation_time)
    assert size >= NUM_SAMPLES
    assert 0.1 < report.acceptance < 0.6


@pytest.mark.parametrize(("share", "warns"), [(0.3, False), (0.02, True)])
def test_draws_that_are_worth_too_little_come_with_a_warning(share, warns, recwarn):
    """Of a fiftieth of 1,023 draws, neither of two looks can tell anything."""
    torch.manual_seed(0)
    _, report = draw(Exact(comb(share), number=3), box([-1.0], [1.0]), (10,))
    assert report.method == "importance"
    assert ((report.effective_sample_size == 1) == warns).all()
    assert [("for 3 of 3" in str(w.message)) for w in recwarn] == [True] * warns


def test_a_short_chain_warns_where_the_user_stands(monkeypatch):
    monkeypatch.setattr(mcmc, "FIRST_STEPS", 40)
    monkeypatch.setattr(mcmc, "MAX_STEPS", 40)
    estimator, x = make()
    with pytest.warns(UserWarning, match="stopped at 40 steps.*another seed") as caught:
        estimator(x[:1]).sample((5,), method="mcmc")
    assert caught[0].filename == __file__


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.usefixtures("hasty")
def test_more_draws_than_states_repeat(method, monkeypatch):
    monkeypatch.setattr(mcmc, "MAX_STEPS", 100)
    posterior = Exact(EDGE.log_ratio(wrong=False))
    assert draw(posterior, EDGE.prior, (20_000,), method)[0].shape == (20_000, 1, 2)


def make(dtype=torch.float32):
    prior = box([-1.0, -2.0], [1.0, 2.0])
    prior = Independent(Uniform(prior.base_dist.low.to(dtype), prior.base_dist.high.to(dtype)), 1)
    torch.manual_seed(0)
    return RatioEstimator(prior, 2, (2,), hidden=(8,)).eval(), torch.randn(20, 2)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.usefixtures("hasty")
def test_shapes_from_an_estimator(shape, dtype):
    estimator, x = make(dtype)
    for posterior, method in ((estimator(x), "importance"), (estimator(x[:1]), "mcmc")):
        assert posterior.sampling is None
        draws = posterior.sample(shape, method)
        assert draws.shape == (*shape, len(posterior), 2)
        assert draws.dtype == dtype
        assert not draws.requires_grad
        assert posterior.sampling.method == method
        assert posterior.sampling.num_samples == math.prod(shape)
        assert posterior.sampling.effective_sample_size.shape == (len(posterior),)


@pytest.mark.usefixtures("hasty")
def test_reports_fit_on_a_line():
    estimator, x = make()
    posterior = estimator(x[:3])
    posterior.sample((7,))
    assert "importance: 7 draws, 3 observations, effective sample size" in repr(posterior.sampling)
    posterior = estimator(x[:1])
    posterior.sample((7,), method="mcmc")
    assert "steps per walker" in repr(posterior.sampling)
    assert "\n" not in repr(posterior.sampling)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_auto_takes_a_chain_where_importance_is_not_enough():
    """Where two looks disagree, or the draws would repeat each other."""
    torch.manual_seed(0)
    assert draw(Exact(comb(0.3)), EDGE.prior, (100,))[1].method == "importance"
    assert draw(Exact(comb(0.3)), EDGE.prior, (5000,))[1].method == "mcmc"
    assert draw(Exact(comb(0.02)), EDGE.prior, (100,))[1].method == "mcmc"
    with pytest.warns(UserWarning, match="two looks at it disagree"):
        assert draw(Exact(comb(0.02), 2), EDGE.prior, (100,))[1].method == "importance"


def test_wrong_requests_are_named():
    estimator, x = make()
    with pytest.raises(InputError, match="Did you mean `mcmc`"):
        estimator(x).sample((2,), method="mcm")
    with pytest.raises(InputError, match=r"got 20. .*posterior.rows\(slice\(i, i \+ 1\)\)"):
        estimator(x).sample((2,), method="mcmc")
    with pytest.raises(InputError, match="no observation"):
        estimator(x[:0]).sample((2,))


def test_without_emcee(monkeypatch):
    monkeypatch.setitem(sys.modules, "emcee", None)
    estimator, x = make()
    posterior = estimator(x[:1])
    posterior.sample((2,))
    assert posterior.sampling.method == "importance"
    with pytest.raises(InputError, match=r'-e "\.\[mcmc\]"'):
        posterior.sample((2,), method="mcmc")


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("method", METHODS)
def test_ratios_that_are_no_numbers_are_refused(method, value):
    posterior = Exact(lambda theta: torch.where(theta[..., 0] > 0, value, 0.0))
    with pytest.raises(InputError, match=r"NaN or infinite at \d+ of 510|at 4,\d\d\d of 8,192"):
        draw(posterior, Edge.prior, (10,), method)


def test_a_nan_on_the_way_is_refused_and_nothing_is_printed(capsys):
    """Nan in a place so small that no prior draw hits it, where the chain ends up."""

    def log_ratio(theta):
        distance = (theta - 0.5).abs().amax(-1)
        return torch.where(distance < 1e-4, math.nan, -1e3 * distance)

    torch.manual_seed(0)
    with pytest.raises(InputError, match="NaN or infinite at 1 of"):
        draw(Exact(log_ratio), Edge.prior, (10,), "mcmc")
    assert capsys.readouterr() == ("", "")


def test_posteriors_that_are_zero_are_refused():
    nowhere = Exact(lambda theta: theta[..., 0] * 0 - math.inf)
    for method in METHODS:
        with pytest.raises(InputError, match="zero at all of (2,815|8,192)"):
            draw(nowhere, Edge.prior, (10,), method)
    rarely = Exact(lambda theta: torch.where(theta[..., 0] > 0.99, 0.0, -math.inf))
    with pytest.raises(InputError, match="zero at all but"):
        draw(rarely, Edge.prior, (10,), "mcmc")


@pytest.mark.parametrize(("share", "least", "most"), [(0.9, 1000, 1400), (0.1, 9000, 12_000)])
def test_rejection_asks_for_what_is_lacking_and_never_for_much(share, least, most):
    """Rounds of a thousand each would ask for 2,000 where nine of ten are kept."""
    kept, asked = torch.tensor([share, 0.01]), []

    def candidates(rows, number):
        asked.append(number * len(rows))
        return rows.double()[None, :, None].expand(number, -1, 1), kept[rows].log().expand(
            number, -1
        )

    torch.manual_seed(0)
    draws = torch.full((1000, 2, 1), -1.0, dtype=torch.double)
    # The other keeps too little to be tried.
    assert sampling.reject(candidates, kept, draws).tolist() == [1]
    assert torch.equal(draws[..., 0], torch.tensor([0.0, -1.0]).double().expand(1000, 2))
    assert max(asked) <= 1000
    assert least < sum(asked) < most
