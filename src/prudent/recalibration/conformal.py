r"""The levels that make credible regions hold what they promise.

The region of credibility :math:`1 - c` holds all theta whose alpha, the posterior mass of lower
density, is at least c (:mod:`prudent.estimators.summaries`). A posterior that is wrong covers more
or less than its credibility. With alphas of n pairs that training did not see, *conformal* levels
mend that for any posterior: let c be the k-th smallest of these alphas, with

.. math:: k = \lfloor (n + 1)(1 - \ell) \rfloor .

The alpha of a new pair is equally likely to fall between any two of them, so that the region holds
the truth with probability :math:`1 - k / (n + 1)`: at least :math:`\ell`, and less than
:math:`\ell + 1 / (n + 1)`. This holds on average over observations, and with several sets of
alphas, one for each region of x, on average inside each of these.

Alpha is estimated with draws, in the same way for old and new pairs, so that the promise is exact
whatever the number of draws. A diagnosis takes the alphas that regions are made with.
"""

import html
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from prudent._files import sha256, write_atomic
from prudent._randomness import derive, even_noise, seeded
from prudent.adapters.estimator import Adapted, borrowed
from prudent.datasets.provenance import to_judge
from prudent.diagnostics.local_coverage import cut, leaves
from prudent.errors import InputError
from prudent.estimators._description import unjudged
from prudent.estimators.base import Saved
from prudent.estimators.summaries import alphas
from prudent.posteriors.density import facts_of, undivided
from prudent.posteriors.posterior import Posterior
from prudent.priors.checks import dtype_for

# Draws of each posterior, and pairs at a time.
NUM_DRAWS, CHUNK = 512, 256
# The names of the tensors of conformal levels in a file begin with this.
PREFIX = "conformal."
# The way to the next alpha, but for what levels are told apart by.
NEXT = 1 - 1e-4


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
        flat = x.detach().flatten(1).cpu().to(self.low)[:, None]
        return ((flat > self.low) & (flat <= self.high)).all(dim=-1).int().argmax(dim=1)

    def least_alpha(self, level: float, x: Tensor) -> Tensor:
        """The alpha from which on a theta is inside the region of a level, (N,)."""
        cuts = []
        for own in self.alphas:
            # To nine digits, so that a tenth of 100 is not taken for less.
            rank = math.floor(round((len(own) + 1) * (1 - level), 9))
            cuts.append(float(own[rank - 1]) if rank > 0 else -torch.inf)
        return torch.tensor(cuts, dtype=self.alphas[0].dtype)[self.place(x)]

    def cloud(self, posterior: Any) -> tuple[Tensor, Tensor]:
        """Log-densities of the draws that measure alpha, and the logs of their weights, (L, N).

        They are made as for the pairs that made the levels, and anew for other observations: with
        the same noise everywhere, its chance would be in all regions.
        """
        parts = []
        for index in torch.arange(len(posterior)).split(CHUNK):
            some = posterior if len(index) == len(posterior) else posterior.rows(index)
            with seeded(0, "region", sha256(some.x.detach().cpu().numpy().tobytes())):
                parts.append(cloud(some, len(some), some.density.dim))
        density, log_weight = (torch.cat(own, dim=1) for own in zip(*parts, strict=True))
        return density, log_weight

    def adjusted(self, alphas: Tensor, x: Tensor) -> Tensor:
        """The alphas (N,) as shares: the region of a level holds those of one minus it or more."""
        found, place = torch.empty_like(alphas, dtype=torch.float64), self.place(x)
        for index, own in enumerate(self.alphas):
            mine = place == index
            rank = torch.searchsorted(own.to(alphas), alphas[mine].contiguous(), right=True)
            # Levels round down, so that a region holds its theta until the next alpha is due.
            found[mine] = (rank.double() + NEXT) / (len(own) + 1)
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


class Conformal:
    """An estimator with conformal levels; densities and draws are those of the inner one.

    Args:
        inner: Any estimator.
        levels: The levels, from :func:`conformalize`.
    """

    def __init__(self, inner: Any, levels: Levels) -> None:
        self.inner, self.levels = inner, levels
        self.prior, self.normalized = inner.prior, inner.normalized
        self.info = unjudged(inner)

    def __call__(self, x: Any) -> Posterior:
        """The posteriors given ``x``."""
        inner = _of_ours(self.inner)(x)
        return Posterior(
            self, inner.density, inner.x.detach().clone(), inner.observed, self.levels
        )

    @cached_property
    def dtype(self) -> torch.dtype:
        """The type of theta."""
        return dtype_for(self.inner)

    @torch.no_grad()
    def adjusted(self, theta: Tensor, x: Tensor) -> Tensor:
        """The alphas (N,) that its regions are made by, as shares."""
        found = []
        for own, some in zip(theta.split(CHUNK), x.split(CHUNK), strict=True):
            posterior = self(some)
            value = alphas(posterior.log_prob(own), *posterior._cloud)
            found.append(self.levels.adjusted(value.cpu(), some))
        return torch.cat(found)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write estimator and levels to one file; :func:`prudent.load` reads it."""
        if not hasattr(self.inner, "to_bytes"):
            raise InputError(
                f"levels are saved with an estimator of prudent.fit, not with {self.inner}; save "
                "that model by its own means, load it and call conformalize with the same pairs."
            )
        found = {PREFIX + name: value for name, value in self.levels.tensors().items()}
        self.inner.check_saving(path)
        write_atomic(path, self.inner.to_bytes({"conformal": self.info}, found))

    def summary(self) -> str:
        """The levels and, where it can tell, the estimator inside."""
        inner = getattr(self.inner, "summary", None)
        return "\n".join([repr(self), *([inner()] if callable(inner) else [])])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.summary())}</pre>"

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
    pairs, _ = to_judge(estimator, theta, x)
    if lacks := facts_of(estimator(pairs.x[:1])).lacks:
        raise InputError(lacks.format("region"))
    with seeded(seed, "conformal"):
        posteriors = _of_ours(estimator)
        parts = [alphas_of(posteriors(b.x), b.theta).cpu() for b in pairs.batches(CHUNK)]
    alphas = torch.cat(parts)
    if bool(alphas.isnan().any()):
        raise InputError("some densities of these pairs are NaN: the estimator is broken.")
    flat = pairs.x.flatten(1)
    if max_regions == 1:
        ends = torch.full((1, flat.shape[1]), torch.inf)
        return Conformal(estimator, Levels([alphas.sort().values], -ends, ends))
    return Conformal(estimator, _by_region(alphas, flat, max_regions, seed))


def _of_ours(estimator: Any) -> Any:
    """An estimator whose posteriors are ours; another one is adapted."""
    return estimator if isinstance(estimator, Saved | Adapted) else borrowed(estimator)


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
def cloud(posterior: Any, number: int, dim: int) -> tuple[Tensor, Tensor]:
    """Log-densities of draws of N posteriors and the logs of their weights, (L, N) each."""
    if facts_of(posterior).noise:
        _, density, proposal = posterior.from_noise(even_noise(NUM_DRAWS, number, dim))
        return density, density - proposal
    density = posterior.log_prob(posterior.sample((NUM_DRAWS,)))
    return density, torch.zeros_like(density)


@torch.no_grad()
def alphas_of(posterior: Any, theta: Tensor) -> Tensor:
    """The posterior mass of lower density than theta (..., N, D), by draws, (..., N)."""
    # What is outside the prior's support is no part of the regions, so that a cut stays.
    if facts_of(posterior).divided != "cut":
        posterior = undivided(posterior)
    return alphas(posterior.log_prob(theta), *cloud(posterior, theta.shape[-2], theta.shape[-1]))
