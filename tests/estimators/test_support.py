"""One posterior: what is judged, drawn and evaluated lies inside the prior's support."""

import math
from types import SimpleNamespace

import pytest
import torch
import zuko
from torch import nn
from torch.distributions import Distribution, Exponential, Independent, Normal, Uniform
from torch.distributions.constraints import cat, independent

import prudent
from known_priors import Disc
from prudent._randomness import seeded
from prudent.diagnostics import posterior_ranks, sbc, tarp
from prudent.estimators import Ensemble, FlowEstimator
from prudent.priors.density import log_density
from prudent.priors.support import Support, leaks

NOISE = 0.2


def box(dim=2):
    return Independent(Uniform(-torch.ones(dim), torch.ones(dim)), 1)


# The prior, and what it adds to an observation in the mean of the posterior, which is normal apart
# from the prior's edges, and to its precision.
KINDS = {
    "box": (box(), 0.0, 0.0),
    "half-line": (Independent(Exponential(torch.ones(2)), 1), -(NOISE**2), 0.0),
    "disc": (Disc(), 0.0, 0.0),
    "line": (Independent(Normal(torch.zeros(2), torch.ones(2)), 1), 0.0, 1.0),
}


class Exact(nn.Module):
    """The posterior of theta + noise, shifted or not, as a flow on the whole plane."""

    def __init__(self, mean, precision, shift):
        super().__init__()
        self.width = (precision + NOISE**-2) ** -0.5
        self.share, self.mean = self.width**2 * NOISE**-2, mean + shift
        self.transform = SimpleNamespace(transforms=[None])  # no couplings

    def forward(self, x):
        center = self.share * x + self.mean
        # The transform limits the slope softly; this undoes it.
        log_slope = -math.log(self.width)
        wanted = log_slope / (1 - abs(log_slope / math.log(1e-30)))
        move = zuko.transforms.MonotonicAffineTransform(
            -center / self.width, torch.full_like(center, wanted), slope=1e-30
        )
        base = zuko.distributions.DiagNormal(torch.zeros_like(center), torch.ones_like(center))
        independent = zuko.transforms.DependentTransform(move, 1)
        return zuko.distributions.NormalizingFlow(independent, base)


def exact(kind, shift=0.0, **options):
    prior, mean, precision = KINDS[kind]

    class Estimator(FlowEstimator):
        def make_head(self, num_features):
            return Exact(mean, precision, shift)

        def embed(self, x):
            return x

    return Estimator(prior, 2, (2,), bounded=False, linear=False, **options).eval()


def pairs(kind, number, seed):
    with seeded(seed, "pairs of", kind):
        theta = KINDS[kind][0].sample((number,))
        return theta, theta + NOISE * torch.randn(number, 2)


@pytest.mark.slow
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_an_exact_posterior_passes_everything_and_a_shifted_one_fails(kind, pooled):
    theta, x = pairs(kind, 300, 0)

    def judged(shift):
        estimator = exact(kind, shift)
        estimator = Ensemble([estimator, estimator]).eval() if pooled else estimator
        found = prudent.diagnose(estimator, theta, x, progress=False)
        ranks = posterior_ranks(estimator, theta, x, num_samples=99, progress=False)
        assert ranks.leakage == 0
        assert found.num_unresolved <= 3
        return found, sbc(ranks).p_value, tarp(ranks).p_value

    found, *p_values = judged(0.0)
    assert found.worst_shortfall < 0.08
    assert found.verdict.kind != "over-confident"
    assert min(p_values) > 0.001
    assert (found.leakage > 0.03) == (kind != "line")
    found, p_sbc, _ = judged(0.2)
    assert p_sbc < 0.001
    assert found.verdict.kind == "over-confident"


@pytest.mark.parametrize("kind", KINDS)
def test_densities_integrate_to_one_inside(kind):
    posterior = exact(kind)(pairs(kind, 4, 1)[1])
    ends = torch.linspace(-4.0, 6.0, 501)
    axis = (ends[1:] + ends[:-1]) / 2
    cells = torch.cartesian_prod(axis, axis).unsqueeze(1).expand(-1, 4, -1)
    mass = posterior.log_prob(cells).exp().sum(dim=0) * 0.02**2
    torch.testing.assert_close(mass, torch.ones(4), atol=0.02, rtol=0)
    if kind != "line":
        raw = posterior.unnormalized().log_prob(cells).exp().sum(dim=0) * 0.02**2
        torch.testing.assert_close(raw, torch.ones(4), atol=1e-3, rtol=0)
        inside = log_density(KINDS[kind][0], cells[:, 0]) > -torch.inf
        assert bool((posterior.log_prob(cells)[~inside] == -torch.inf).all())


def test_a_flow_that_is_almost_nowhere_inside_still_draws_inside():
    estimator = exact("box", shift=4.0)
    posterior = estimator(torch.tensor([[0.9, 0.9], [-3.0, -3.0]]))
    draws = posterior.sample((200,))
    assert draws.shape == (200, 2, 2)
    assert bool((draws.abs() <= 1).all())
    assert posterior.sampling.effective_sample_size[1] == 200


def test_the_loss_is_that_of_the_flow_itself():
    """Cutting would make a step of training depend on draws, and validation as well."""
    estimator = exact("box")
    theta, x = pairs("box", 50, 2)
    cut = estimator(x).log_prob(theta)
    assert estimator(x).facts.divided == "cut"
    whole = estimator.train()(x)
    assert whole.facts.divided == "none"
    torch.testing.assert_close(
        whole.log_prob(theta), estimator.eval()(x).unnormalized().log_prob(theta)
    )
    assert bool((cut >= whole.log_prob(theta)).all())
    assert bool((cut > whole.log_prob(theta)).any())


class SeveralPriors(Distribution):
    """Two parameters in a box and one on the line, as sbi joins them."""

    arg_constraints = {}  # noqa: RUF012

    def __init__(self):
        super().__init__(event_shape=(3,), validate_args=False)

    @property
    def support(self):
        parts = [box().support, Independent(Normal(torch.zeros(1), torch.ones(1)), 1).support]
        return independent(cat(parts, dim=-1, lengths=[2, 1]), 1)

    def sample(self, sample_shape=()):
        shape = torch.Size(sample_shape)
        return torch.cat((2 * torch.rand(*shape, 2) - 1, torch.randn(*shape, 1)), dim=-1)

    def log_prob(self, theta):
        normal = Normal(0.0, 1.0).log_prob(theta[..., 2])
        return torch.where((theta[..., :2].abs() <= 1).all(dim=-1), normal, -torch.inf)


def test_what_may_leak():
    for prior in (box(), KINDS["half-line"][0], KINDS["line"][0]):
        assert not leaks(prior, 2)
        assert not FlowEstimator(prior, 2, (2,)).leaks
    assert leaks(Disc(), 2)
    assert FlowEstimator(Disc(), 2, (2,)).leaks
    assert FlowEstimator(box(), 2, (2,), bounded=False).leaks
    mixed = SeveralPriors()
    low, high = Support(mixed, 3).low, Support(mixed, 3).high
    assert (low.tolist(), high.tolist()) == ([-1, -1, -math.inf], [1, 1, math.inf])
    assert FlowEstimator(mixed, 3, (3,)).leaks  # nobody knows that it fills these ends


@pytest.mark.parametrize("name", prudent.problems.names())
def test_no_draws_outside_the_prior_on_any_problem(name):
    problem = prudent.problems.get(name)
    for networks in ({}, FlowEstimator.paper((3,))):
        estimator = FlowEstimator(problem.prior, problem.dim, (3,), **networks)
        theta = problem.prior.sample((64,))
        estimator.adapt(theta, torch.randn(64, 3))
        draws = estimator.eval()(torch.zeros(2, 3)).sample((200,))
        assert bool((log_density(problem.prior, draws) > -torch.inf).all())
