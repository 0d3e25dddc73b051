"""Exact posteriors of many shapes, as they are, of another width, or moved, for the battery.

A shape is a distribution of u; the posterior given x is that of x + u. So pairs are exact by
construction, whatever the shape, and one large sample of u gives the alphas of all observations.
"""

import math

import torch
from known_posteriors import Known
from torch.distributions import (
    Categorical,
    HalfNormal,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    Uniform,
)

from prudent._randomness import seeded

EDGE = 5.0
NUM_EXACT = 100_000


class Banana:
    """A normal that is bent: the second parameter follows the square of the first."""

    def __init__(self, dim):
        self.base = Independent(Normal(torch.zeros(dim), torch.full((dim,), 0.3)), 1)

    @staticmethod
    def _bent(u, sign):
        return torch.cat((u[..., :1], u[..., 1:2] + sign * 4 * u[..., :1] ** 2, u[..., 2:]), -1)

    def sample(self, shape):
        return self._bent(self.base.sample(shape), 1)

    def log_prob(self, u):
        return self.base.log_prob(self._bent(u, -1))


class HeavyTailed:
    """A multivariate Student distribution of three degrees of freedom."""

    def __init__(self, dim, width=0.15, freedom=3.0):
        self.dim, self.width, self.freedom = dim, width, freedom

    def sample(self, shape):
        chi_square = torch.distributions.Chi2(self.freedom).sample((*shape, 1))
        return self.width * torch.randn(*shape, self.dim) / (chi_square / self.freedom).sqrt()

    def log_prob(self, u):
        power = (self.freedom + self.dim) / 2
        constant = math.lgamma(power) - math.lgamma(self.freedom / 2)
        constant -= self.dim * math.log(self.width * math.sqrt(self.freedom * math.pi))
        squared = (u / self.width).square().sum(-1)
        return constant - power * (squared / self.freedom).log1p()


class Flat:
    """Constant on a cube of half the side ``half``, and higher by a factor in its inner half."""

    def __init__(self, dim, half, factor=1.0):
        self.dim, self.half, self.factor = dim, half, factor

    def sample(self, shape):
        number = math.prod(shape)
        u = 2 * torch.rand(int(3 * self.factor) * number, self.dim) - 1
        # Every inner point is kept, of the outer ones one of ``factor``.
        kept = (u.abs() < 0.5).all(-1) | (torch.rand(len(u)) < 1 / self.factor)
        return self.half * u[kept][:number].view(*shape, self.dim)

    def log_prob(self, u):
        away = u.abs().amax(-1) / self.half
        value = torch.where(away < 0.5, math.log(self.factor), 0.0).masked_fill(
            away > 1, -torch.inf
        )
        total = math.log1p((self.factor - 1) / 2**self.dim)
        return value - total - self.dim * math.log(2 * self.half)


def correlated(dim, correlation=0.7, width=0.3):
    covariance = torch.full((dim, dim), correlation).fill_diagonal_(1.0) * width**2
    return MultivariateNormal(torch.zeros(dim), covariance)


def mixture(dim, first, second, apart, share=0.5):
    """Two round normals of given widths, apart along the diagonal."""
    place = torch.tensor([0.0, apart / dim**0.5])[:, None].expand(2, dim)
    width = torch.tensor([first, second])[:, None].expand(2, dim)
    return MixtureSameFamily(
        Categorical(torch.tensor([share, 1 - share])), Independent(Normal(place, width), 1)
    )


SHAPES = {
    "correlated": correlated,
    "ridge": lambda dim: correlated(dim, 0.999),
    "banana": Banana,
    "two modes": lambda dim: mixture(dim, 0.3, 0.2, 2.0),
    "spike": lambda dim: mixture(dim, 0.5, 0.05, 0.0),
    "spike aside": lambda dim: mixture(dim, 0.5, 0.05, 0.3),
    "bounded": lambda dim: Independent(HalfNormal(torch.full((dim,), 0.5)), 1),
    "heavy-tailed": HeavyTailed,
}
# A random share of what is exactly as dense as the truth counts: alphas are right on average.
FLAT = {
    "flat": lambda dim: Flat(dim, 1.0),
    "small flat": lambda dim: Flat(dim, 0.25),
    "steps": lambda dim: Flat(dim, 0.5, 4.0),
}


class Moved:
    """The posteriors x + shift + widen * u: the exact ones with shift 0 and widen 1."""

    def __init__(self, shape, x, widen, shift):
        self.shape, self.x, self.widen, self.shift = shape, x, widen, shift

    def log_prob(self, theta):
        u = (theta - self.x - self.shift) / self.widen
        outside = ~self.shape.support.check(u) if isinstance(self.shape, Independent) else None
        value = self.shape.log_prob(u if outside is None else u.abs())
        value = value - theta.shape[-1] * math.log(self.widen)
        return value if outside is None else value.masked_fill(outside, -torch.inf)

    def sample(self, sample_shape=()):
        return self.x + self.shift + self.widen * self.shape.sample((*sample_shape, len(self.x)))


class Case:
    """Pairs with their exact posterior of a shape, an estimator of another width or place.

    Args:
        name: The name of the shape, or the arguments of :func:`mixture`.
        dim: The number of parameters.
        widen: The factor of the width of the estimator's posteriors.
        shift: Their shift along the first parameter.
        normalized: Whether the estimator is one that draws by itself.
        number: The number of pairs.
        seed: The seed of the pairs.
        edge: Half the side of the box.
        truth: The distribution of u that truths follow, if the estimator's is another one.
    """

    def __init__(
        self, name, dim, widen, shift, *, normalized, number, seed=0, edge=EDGE, truth=None
    ):
        known = SHAPES | FLAT
        shape = known[name](dim) if name in known else mixture(dim, *name)
        edges = torch.full((dim,), edge)
        move = shift * torch.eye(dim)[0]
        self.estimator = Known(
            lambda x: Moved(shape, x, widen, move),
            Independent(Uniform(-edges, edges), 1),
            normalized=normalized,
        )
        with seeded(seed, "battery", str(name), str(dim)):
            self.x = torch.rand(number, dim) - 0.5
            if name == "bounded":
                self.x = -edges.expand(number, dim)
            # Of the heavy tails, a few in ten thousand reach beyond the box.
            u = (truth or shape).sample((3 * number,))
            u = u[(u.abs() < edge - 0.5).all(-1)] if name != "bounded" else u
            self.theta = self.x + u[:number]
            exact = shape.log_prob(shape.sample((NUM_EXACT,))).sort().values
        own = self.estimator(self.x).log_prob(self.theta) + dim * math.log(widen)
        self.alpha = torch.searchsorted(exact, own) / NUM_EXACT
