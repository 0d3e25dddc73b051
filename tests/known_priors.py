"""Priors as people write them, of two free parameters each (three for shares and mixed ones)."""

import math

import pytest
import torch
from torch import distributions as d
from torch.distributions import Independent, constraints

from prudent.priors.given import as_prior

t = torch.tensor


class Disc(d.Distribution):
    """Uniform on a disc of radius one, which no product of intervals describes."""

    arg_constraints = {}  # noqa: RUF012

    def __init__(self):
        super().__init__(event_shape=(2,), validate_args=False)

    def sample(self, sample_shape=()):
        shape = torch.Size(sample_shape)
        radius, angle = torch.rand(shape).sqrt(), 2 * math.pi * torch.rand(shape)
        return torch.stack((radius * angle.cos(), radius * angle.sin()), dim=-1)

    def log_prob(self, theta):
        return torch.where(theta.norm(dim=-1) <= 1, -math.log(math.pi), -torch.inf)


class Ball(Disc):
    """The same disc, whose support says the square around it."""

    support = constraints.independent(constraints.interval(t([-1.0, -1.0]), t([1.0, 1.0])), 1)


class CutNormal(d.Distribution):
    """A normal between -1 and 2 that does not say so."""

    arg_constraints = {}  # noqa: RUF012

    def __init__(self):
        super().__init__(event_shape=(2,), validate_args=False)

    def sample(self, sample_shape=()):
        low, high = torch.special.ndtr(t([-1.0, 2.0]))
        share = low + (high - low) * torch.rand(*sample_shape, 2)
        return torch.special.ndtri(share).clamp(-1.0, 2.0)

    def log_prob(self, theta):
        low, high = torch.special.ndtr(t([-1.0, 2.0]))
        value = d.Normal(0.0, 1.0).log_prob(theta) - (high - low).log()
        inside = (theta >= -1) & (theta <= 2)
        return value.masked_fill(~inside, -torch.inf).sum(dim=-1)


class Joined(d.Distribution):
    """Independent parts as sbi joins them, which takes and draws rows alone."""

    __module__ = "sbi.utils.user_input_checks_utils"  # by which those are known
    arg_constraints = {}  # noqa: RUF012

    def __init__(self, dists):
        self.dists = dists
        super().__init__(event_shape=(len(dists),), validate_args=False)

    @property
    def support(self):
        parts = [one.support for one in self.dists]
        joined = constraints.cat(parts, dim=-1, lengths=[1] * len(parts))
        return constraints.independent(joined, 1)

    def sample(self, sample_shape=()):
        drawn = torch.cat([one.sample(sample_shape) for one in self.dists], dim=-1)
        return drawn.reshape(-1, len(self.dists))

    def log_prob(self, theta):
        assert theta.ndim == 2
        columns = zip(self.dists, theta.split(1, dim=-1), strict=True)
        return torch.cat([one.log_prob(column) for one, column in columns], dim=1).sum(dim=1)


def log_uniform(dim=2, checks=True):
    """As torch makes it, which raises outside, and as it is where zuko or sbi was imported."""
    ends = torch.full((dim,), math.log(0.1)), torch.full((dim,), math.log(10.0))
    base = d.Uniform(*ends, validate_args=checks)
    return d.TransformedDistribution(base, [d.ExpTransform()], validate_args=checks)


def scipy_beta():
    stats = pytest.importorskip("scipy.stats")
    return [stats.beta(2, 3), stats.beta(2, 3, loc=5, scale=2)]


def mixture():
    parts = Independent(d.Normal(t([[0.0, 0.0], [3.0, 2.0]]), torch.ones(2, 2)), 1)
    return d.MixtureSameFamily(d.Categorical(t([0.3, 0.7])), parts)


def mixed():
    one = torch.ones(1)
    return Joined([log_uniform(1), d.Normal(0 * one, one), d.Uniform(0 * one, one)])


PRIORS = {
    "log-uniform": lambda: Independent(log_uniform(), 1),
    "unchecked log-uniform": lambda: Independent(log_uniform(checks=False), 1),
    "sbi's list": mixed,
    "scipy beta": scipy_beta,
    "half-normal": lambda: Independent(d.HalfNormal(torch.ones(2)), 1),
    "truncated normal": CutNormal,
    "ball in a box": Ball,
    "mixture": mixture,
    "Dirichlet": lambda: d.Dirichlet(t([1.0, 2.0, 3.0])),
    "scaled beta": lambda: Independent(
        d.TransformedDistribution(d.Beta(2 * torch.ones(2), t([3.0, 1.0])), affine()), 1
    ),
}
#: Those that no file can hold, as they are code of a user.
UNSAVED = ("truncated normal", "ball in a box", "scaled beta")


def affine():
    return [d.AffineTransform(5.0, 2.0)]


def made(name):
    """The prior, as every public function has it."""
    return as_prior(PRIORS[name]()).prior
