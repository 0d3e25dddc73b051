"""Posteriors known in closed form, right or wrong on purpose, for the coverage tests beside."""

import math

import torch
from torch.distributions import Independent, Normal, Uniform

import prudent
from prudent.estimators.priors import log_prior
from prudent.problems.gaussian import NOISE

LOW, HIGH = -4.0, 4.0
SPREAD = NOISE / (1 + NOISE**2) ** 0.5


class Conditional:
    """An estimator made of a function from x to a distribution, normalised or not."""

    def __init__(self, make, prior, *, normalized=True, log_scale=0.0):
        self.make, self.prior, self.normalized = make, prior, normalized
        self.log_scale = log_scale

    def __call__(self, x):
        return _Posterior(self.make, x, self.log_scale)


class _Posterior:
    def __init__(self, make, x, log_scale):
        self.make, self.x, self.log_scale = make, x, log_scale
        self.distribution = make(x)

    def log_prob(self, theta):
        return self.distribution.log_prob(theta) + self.log_scale

    def sample(self, shape=()):
        return self.distribution.sample(shape)

    def rows(self, index):
        return _Posterior(self.make, self.x[index], self.log_scale)


class _Density:
    """Something with a density and no draws."""

    def __init__(self, log_density, x):
        self.log_density, self.x = log_density, x

    def log_prob(self, theta):
        return self.log_density(theta, self.x)


def density(log_density, prior, **options):
    """An estimator made of a function of theta (..., N, D) and x, up to a constant."""
    return Conditional(lambda x: _Density(log_density, x), prior, normalized=False, **options)


def box(dim):
    return Independent(Uniform(torch.full((dim,), LOW), torch.full((dim,), HIGH)), 1)


def gaussian(widen=1.0, dim=2, shift=0.0, **options):
    """The exact posterior of the conjugate Gaussian, widened, shifted in standard deviations."""

    def make(x):
        centre = x / (1 + NOISE**2) + shift * SPREAD
        return Independent(Normal(centre, torch.full_like(x, widen * SPREAD)), 1)

    return Conditional(make, prudent.problems.get("gaussian", dim=dim).prior, **options)


def boxed(widen=1.0, dim=2, shift=0.0, **options):
    """The same likelihood under a uniform prior so wide that the posterior is N(x, NOISE^2)."""

    def make(x):
        return Independent(Normal(x + shift * NOISE, torch.full_like(x, widen * NOISE)), 1)

    return Conditional(make, box(dim), **options)


def boxed_pairs(number, dim=2, seed=0):
    """Truths far from the edges, where that posterior is exact."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(number, dim, generator=generator) - 1
    return x + NOISE * torch.randn(number, dim, generator=generator), x


def normal_alpha(theta, centre, scale):
    """The mass of an isotropic normal that is less dense than theta: a chi-square tail."""
    squared = ((theta - centre) / scale).square().sum(-1).double()
    return torch.special.gammaincc(torch.tensor(theta.shape[-1] / 2.0).double(), squared / 2)


def wrong(name, widen=1.0, shift=0.0):
    """The exact posterior of a problem on a box, wrong on purpose.

    Its density to the power 1 / widen^2, which multiplies the width of a normal by ``widen``; and
    moved by ``shift`` along the first parameter.
    """
    problem = prudent.problems.get(name)

    def log_density(theta, x):
        moved = theta - shift * torch.eye(problem.dim)[0]
        value = problem.log_posterior(moved, x) / widen**2
        return value + log_prior(problem.prior, theta)

    return density(log_density, problem.prior)


def two_modes(theta, x):
    """Log-density of a broad mode and of one a sixth as wide, which a coarse grid cannot see."""
    far = -((theta - x) ** 2).sum(-1) / 2 / 0.5**2 - theta.shape[-1] * math.log(0.5)
    near = -((theta - x - 1.3) ** 2).sum(-1) / 2 / 0.08**2 - theta.shape[-1] * math.log(0.08)
    return torch.logaddexp(far, near)
