r"""Credible regions of a posterior, and the levels that make them hold what they promise.

The region of credibility :math:`1 - c` holds all theta whose alpha, the posterior mass of lower
density, is at least c. A posterior that is wrong covers more or less than its credibility. With
alphas of n pairs that training did not see, *conformal* levels mend that for any posterior: let c
be the k-th smallest of these alphas, with

.. math:: k = \lfloor (n + 1)(1 - \ell) \rfloor .

The alpha of a new pair is equally likely to fall between any two of them, so that the region holds
the truth with probability :math:`1 - k / (n + 1)`: at least :math:`\ell`, and less than
:math:`\ell + 1 / (n + 1)`. This holds on average over observations, and with several sets of
alphas, one for each region of x, on average inside each of these.

Alpha is estimated with draws, in the same way for old and new pairs, so that the promise is exact
whatever the number of draws.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from prudent._files import write_atomic
from prudent._randomness import derive, even_noise, seeded
from prudent.contracts import FromNoise, Normalizable, Shape
from prudent.coverage.alpha import alpha
from prudent.datasets.pairs import finite
from prudent.diagnostics._points import has_density
from prudent.diagnostics.local_coverage import cut, leaves
from prudent.errors import InputError
from prudent.estimators.priors import dtype_for

# Draws of each posterior, and pairs at a time.
NUM_DRAWS, CHUNK = 512, 256
# The names of the tensors of conformal levels in a file begin with this.
PREFIX = "conformal."


@dataclass(frozen=True, eq=False)
class Levels:
    """Alphas of pairs that training did not see, by region of x.

    Args:
        alphas: The alphas of each of G regions, sorted.
        low: The lower limits of each region, (G, F), which are outside of it.
        high: The upper limits of each region, (G, F), which are inside.
    """

    alphas: Sequence[Tensor]
    low: Tensor
    high: Tensor

    def place(self, x: Tensor) -> Tensor:
        """The region of each observation, (N,)."""
        if len(self.alphas) == 1:
            return torch.zeros(len(x), dtype=torch.long)
        flat = x.flatten(1).cpu().to(self.low)[:, None]
        return ((flat > self.low) & (flat <= self.high)).all(dim=-1).int().argmax(dim=1)

    def least_alpha(self, level: float, x: Tensor) -> Tensor:
        """The alpha from which on a theta is inside the region of a level, (N,)."""
        cuts = []
        for own in self.alphas:
            # To nine digits, so that a tenth of 100 is not taken for less.
            rank = math.floor(round((len(own) + 1) * (1 - level), 9))
            cuts.append(float(own[rank - 1]) if rank > 0 else -torch.inf)
        return torch.tensor(cuts)[self.place(x)]

    def adjusted(self, alphas: Tensor, x: Tensor) -> Tensor:
        """The alphas (N,) on the scale on which regions hold what they promise."""
        found, place = torch.empty_like(alphas), self.place(x)
        for index, own in enumerate(self.alphas):
            mine = place == index
            rank = torch.searchsorted(own.to(alphas), alphas[mine].contiguous(), right=True)
            found[mine] = (rank / (len(own) + 1)).to(found)
        return found.masked_fill(alphas.isnan(), torch.nan)

    def tensors(self) -> dict[str, Tensor]:
        """What :meth:`of` takes, for a file."""
        sizes = torch.tensor([len(own) for own in self.alphas])
        found = {"alphas": torch.cat(list(self.alphas)), "sizes": sizes}
        return {**found, "low": self.low, "high": self.high}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The levels that a file holds."""
        alphas = tensors["alphas"].split(tensors["sizes"].tolist())
        return cls(alphas, tensors["low"], tensors["high"])


@dataclass(frozen=True, eq=False)
class CredibleRegion:
    """The highest-density regions of the posteriors of N observations.

    Args:
        posterior: The posteriors.
        level: The level that was asked for, with which a region holds the truth.
        least_alpha: The alpha from which on a theta is inside, (N,).
    """

    posterior: Any
    level: float
    least_alpha: Tensor

    @property
    def credibility(self) -> Tensor:
        """The posterior mass that each region holds, (N,)."""
        return 1 - self.least_alpha.clamp(min=0)

    def contains(self, theta: Tensor) -> Tensor:
        """Whether each theta (..., N, D) is inside, (..., N)."""
        found = alphas_of(self.posterior, theta)
        return found >= self.least_alpha.to(found)

    def __repr__(self) -> str:
        mean = float(self.credibility.mean())
        return f"<CredibleRegion of level {self.level:g}: {mean:.3f} of the posterior mass>"


class ConformalPosterior:
    """Posteriors of N observations with regions that hold what they promise."""

    def __init__(self, inner: Any, levels: Levels, x: Tensor) -> None:
        self.inner, self.levels, self.x = inner, levels, x

    def __len__(self) -> int:
        return len(self.x)

    def log_prob(self, theta: Tensor) -> Tensor:
        """The log-density at ``theta`` (..., N, D), as (..., N)."""
        value: Tensor = self.inner.log_prob(theta)
        return value

    def sample(self, sample_shape: Shape | int = ()) -> Tensor:
        """Draw ``(*sample_shape, N, D)``."""
        draws: Tensor = self.inner.sample(sample_shape)
        return draws

    def rows(self, index: Tensor | slice) -> "ConformalPosterior":
        """The posteriors of some observations."""
        return ConformalPosterior(self.inner.rows(index), self.levels, self.x[index])

    def region(self, level: float) -> CredibleRegion:
        """The region that holds the truth with the probability ``level``, or a little more."""
        if not 0 < level < 1:
            raise InputError(f"`level` is {level}; expected a number between 0 and 1.")
        return CredibleRegion(self.inner, level, self.levels.least_alpha(level, self.x))

    def contains(self, theta: Tensor, level: float) -> Tensor:
        """Whether each theta (..., N, D) is inside the region of a level, (..., N)."""
        return self.region(level).contains(theta)


class Conformal:
    """An estimator with conformal levels; densities and draws are those of the inner one.

    Args:
        inner: Any estimator.
        levels: The levels, from :func:`conformalize`.
    """

    def __init__(self, inner: Any, levels: Levels) -> None:
        self.inner, self.levels = inner, levels
        self.prior, self.normalized = inner.prior, inner.normalized

    def __call__(self, x: Any) -> ConformalPosterior:
        """The posteriors given ``x``."""
        observed = torch.as_tensor(x)
        shape = getattr(self.inner, "x_shape", observed.shape[1:])
        return ConformalPosterior(self.inner(x), self.levels, observed.reshape(-1, *shape))

    @cached_property
    def dtype(self) -> torch.dtype:
        """The type of theta."""
        return dtype_for(self.inner)

    def adjusted(self, alphas: Tensor, x: Tensor) -> Tensor:
        """The alphas (N,) on the scale of its regions, by which it is diagnosed."""
        return self.levels.adjusted(alphas, x)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write estimator and levels to one file; :func:`prudent.load` reads it."""
        found = {PREFIX + name: value for name, value in self.levels.tensors().items()}
        write_atomic(path, self.inner.to_bytes(found))

    def __repr__(self) -> str:
        number = sum(len(own) for own in self.levels.alphas)
        return f"<Conformal by {number:,} pairs, {len(self.levels.alphas)} regions: {self.inner}>"


def conformalize(
    estimator: Any, theta: Any, x: Any, *, max_regions: int = 1, seed: int = 0
) -> Conformal:
    """Give an estimator regions that hold the truth as often as they say, exactly.

    Args:
        estimator: Any estimator.
        theta: True parameters (N, D) of pairs that training did not see, drawn from the prior.
        x: The observations simulated from them (N, ...).
        max_regions: With more than one, half of the pairs cut the space of x where coverage
            differs, as in :func:`prudent.diagnostics.local_coverage`, and the other half makes the
            levels of each region.
        seed: The seed of draws and of the halves.

    >>> import prudent
    >>> problem = prudent.problems.get("gaussian")
    >>> estimator = prudent.fit(*problem.draw(256, 0), problem.prior, method="npe", epochs=2)
    >>> posterior = conformalize(estimator, *problem.draw(99, 1))(problem.draw(5, 2)[1])
    >>> posterior.contains(problem.draw(5, 2)[0], 0.9).shape
    torch.Size([5])
    """
    pairs, _ = finite(theta, x, dtype_for(estimator))
    with seeded(seed, "conformal"):
        parts = [alphas_of(estimator(b.x), b.theta).cpu() for b in pairs.batches(CHUNK)]
    alphas = torch.cat(parts)
    if bool(alphas.isnan().any()):
        raise InputError("some densities of these pairs are NaN: the estimator is broken.")
    flat = pairs.x.flatten(1)
    if max_regions == 1:
        ends = torch.full((1, flat.shape[1]), torch.inf)
        return Conformal(estimator, Levels([alphas.sort().values], -ends, ends))
    return Conformal(estimator, _by_region(alphas, flat, max_regions, seed))


def _by_region(alphas: Tensor, flat: Tensor, max_regions: int, seed: int) -> Levels:
    """Levels by region of x: one half of the pairs cuts, the other fills the regions."""
    order = torch.randperm(len(flat), generator=torch.Generator().manual_seed(derive(seed, "cut")))
    fitted, kept = order.tensor_split(2)
    tree = cut(alphas[fitted].double().numpy(), flat[fitted].numpy(), max_regions)
    names = [str(index) for index in range(flat.shape[1])]
    bounds = list(leaves(tree.tree_, names).values())
    low, high = torch.full((2, len(bounds), flat.shape[1]), torch.inf).unbind()
    low = -low
    for index, own in enumerate(bounds):
        for name, (left, right) in own.items():
            low[index, int(name)], high[index, int(name)] = left, right
    everything = Levels([alphas[:0]] * len(bounds), low, high)
    place = everything.place(flat[kept])
    own_alphas = [alphas[kept][place == index].sort().values for index in range(len(bounds))]
    return Levels(own_alphas, low, high)


@torch.no_grad()
def alphas_of(posterior: Any, theta: Tensor) -> Tensor:
    """The posterior mass of lower density than theta (..., N, D), by draws, (..., N).

    Where no draw is less dense, it is the negative distance in nats from the least dense one, so
    that truths far out are told apart.
    """
    if not has_density(posterior):
        raise InputError(f"expected a density, and {type(posterior).__name__} has no `log_prob`.")
    if isinstance(posterior, Normalizable):
        posterior = posterior.unnormalized()
    shape, dim = theta.shape[:-1], theta.shape[-1]
    if isinstance(posterior, FromNoise):
        draws, density, proposal = posterior.from_noise(even_noise(NUM_DRAWS, shape[-1], dim))
        log_weight = density - proposal
    else:
        draws = posterior.sample((NUM_DRAWS,))
        density = posterior.log_prob(draws)
        log_weight = torch.zeros_like(density)
    flat = posterior.log_prob(theta).reshape(-1, shape[-1])
    lowest = density.masked_fill(log_weight == -torch.inf, torch.inf).amin(dim=0)
    found = torch.stack(
        [alpha(own, density, log_weight, indicator="hard", midpoint=True) for own in flat]
    )
    return torch.where(found > 0, found, (flat - lowest).clamp(max=0.0)).reshape(shape)
