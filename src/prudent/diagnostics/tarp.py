r"""TARP: coverage of balls around random points (Lemos et al. 2023).

Around a reference point r, the draws closer to r than the truth fill a ball; the share of draws
inside is its credibility. For the exact posterior that share is uniform, whatever r, as long as r
was chosen without looking at the truth: it is the rank of the distance to r. No density is needed.

Distances are in units of the prior's standard deviation, so that no parameter dominates by its
unit.

What TARP cannot see depends on the references. Points that ignore x, the usual choice, cannot
tell the prior from the posterior, and see a shift only through balls that happen to lie on one
side. Points that follow x, ``references=lambda x: ...``, see both. A reference point far away
turns balls into half-spaces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prudent._progress import Reporter
from prudent._randomness import derive, seeded
from prudent.contracts import Estimator, Prior
from prudent.diagnostics.ranks import Ranks, posterior_ranks
from prudent.diagnostics.sbc import describe, rank_counts, rank_path
from prudent.errors import InputError, unknown_name

__all__ = ["TARP", "ReferenceDistance", "tarp", "tarp_from_ranks"]

KINDS = ("prior", "uniform")
NUM_PRIOR_DRAWS = 4096
NUM_BOOTSTRAPS = 1000
ERROR_RATE = 0.05
NAME = "tarp"

References = str | Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class TARP:
    """Expected coverage of balls around reference points.

    Args:
        levels: Credibility levels (P,).
        coverage: The share of pairs whose ball has at most that credibility, (P,).
        lower: Lower end of a bootstrap band that holds the whole curve with 95 %, (P,).
        upper: Its upper end, (P,).
        uniform_lower: Lower end of the band that holds the curve of the exact posterior, (P,).
        uniform_upper: Its upper end, (P,).
        p_value: For "this is the exact posterior", exact.
        ranks: The ranks of the distances, with what was left out.
    """

    levels: Tensor
    coverage: Tensor
    lower: Tensor
    upper: Tensor
    uniform_lower: Tensor
    uniform_upper: Tensor
    p_value: float
    ranks: Ranks

    @property
    def area(self) -> float:
        """Mean of coverage minus level above one half: positive is conservative."""
        high = self.levels > 0.5
        return float((self.coverage - self.levels)[high].mean()) if bool(high.any()) else 0.0

    @property
    def verdict(self) -> str:
        """In one line: is something wrong, and in which direction."""
        size = f"{self.ranks.num_pairs:,} pairs, {self.ranks.num_samples:,} draws"
        evidence = f"p = {self.p_value:.2g}; {size}"
        if self.p_value >= ERROR_RATE:
            text = f"no defect seen ({evidence})"
        else:
            shape = describe(self.ranks.ranks[0], self.ranks.num_samples)
            # Balls on both sides of a shifted posterior see it as one that is too narrow.
            shape = shape.replace("narrow", "narrow or shifted")
            text = f"not calibrated: the distance {shape} ({evidence})"
        return f"{text}; {self.ranks.caveats}" if self.ranks.caveats else text

    def __repr__(self) -> str:
        return f"<TARP: {self.verdict}>"


class ReferenceDistance:
    """The distance to a random point for each pair: a test function for ``posterior_ranks``.

    Args:
        prior: Its standard deviations scale the distances.
        references: ``prior`` draws the points from the prior, ``uniform`` from the box that holds
            some thousand prior draws; a function maps x (N, ...) to points (N, D).
        scale: Standard deviations (D,), if not those of the prior.
        seed: Of the draws that measure the prior.

    >>> from torch.distributions import Independent, Normal
    >>> prior = Independent(Normal(torch.zeros(2), torch.tensor([1.0, 100.0])), 1)
    >>> distance = ReferenceDistance(prior, lambda x: torch.zeros(len(x), 2), torch.tensor([1, 2]))
    >>> distance(torch.tensor([[[3.0, 8.0]]]), torch.zeros(1, 1))
    tensor([[5.]])
    """

    def __init__(
        self,
        prior: Prior | None,
        references: References = "prior",
        scale: Tensor | None = None,
        seed: int = 0,
    ) -> None:
        if prior is None:
            raise InputError(
                "the estimator has no prior, and TARP needs its spread; pass the prior to "
                "`prudent.adapt(model, prior=...)`."
            )
        if isinstance(references, str) and references not in KINDS:
            raise unknown_name("kind of reference points", references, KINDS)
        self.prior, self.references = prior, references
        with seeded(seed, "tarp prior"):
            draws = prior.sample((NUM_PRIOR_DRAWS,))
        self.low, self.high = draws.amin(dim=0), draws.amax(dim=0)
        self.scale = draws.std(dim=0) if scale is None else scale
        if not bool((self.scale.isfinite() & (self.scale > 0)).all()):
            raise InputError(f"`scale` is {self.scale.tolist()}; expected positive numbers.")

    def points(self, x: Tensor) -> Tensor:
        """One reference point for each row of x, (N, D)."""
        if callable(self.references):
            return self.references(x)
        if self.references == "prior":
            return self.prior.sample((len(x),))
        return self.low + (self.high - self.low) * torch.rand(len(x), len(self.low))

    def __call__(self, theta: Tensor, x: Tensor) -> Tensor:
        """The distance of each ``theta`` (..., N, D) from the point of its row, (..., N)."""
        reference = self.points(x)
        if reference.shape != theta.shape[-2:]:
            raise InputError(
                f"expected reference points of shape {tuple(theta.shape[-2:])}, "
                f"got {tuple(reference.shape)}."
            )
        distance: Tensor = torch.linalg.vector_norm((theta - reference) / self.scale, dim=-1)
        return distance


def tarp(
    estimator: Estimator,
    theta: Any,
    x: Any,
    references: References = "prior",
    *,
    scale: Tensor | None = None,
    num_samples: int | None = None,
    seed: int = 0,
    progress: Reporter = None,
) -> TARP:
    """Test a posterior by its draws alone, all parameters at once.

    Args:
        estimator: Any estimator.
        theta: True parameters (N, D), drawn from the prior.
        x: The observations simulated from them (N, ...).
        references: See :class:`ReferenceDistance`. They must not depend on ``theta``.
        scale: Units of the distances (D,); by default the prior's standard deviations.
        num_samples: Draws per pair, L; by default 1,000, and 100 for ratio estimators.
        seed: Of draws, references and bootstrap.
        progress: See :class:`prudent._progress.Progress`.

    >>> import prudent
    >>> problem = prudent.problems.get("gaussian")
    >>> estimator = prudent.fit(*problem.draw(256, 0), problem.prior, method="npe", epochs=2)
    >>> result = tarp(estimator, *problem.draw(100, 1), num_samples=50)
    >>> bool((result.lower <= result.coverage).all())
    True
    """
    distance = ReferenceDistance(estimator.prior, references, scale, seed)
    functions = {NAME: distance}
    ranks = posterior_ranks(
        estimator, theta, x, functions, num_samples=num_samples, seed=seed, progress=progress
    )
    return tarp_from_ranks(ranks, seed=seed)


def tarp_from_ranks(ranks: Ranks, name: str = NAME, *, seed: int = 0) -> TARP:
    """The same from ranks that exist.

    Args:
        ranks: From a pass that had a :class:`ReferenceDistance` among its functions.
        name: What that function was called.
        seed: Of the bootstrap.

    >>> uniform = torch.arange(100).repeat(1, 5)
    >>> tarp_from_ranks(Ranks(("tarp",), uniform, 99, {}, 0.0, 0.0))
    <TARP: no defect seen (p = 1; 500 pairs, 99 draws)>
    """
    ranks = ranks.select([name])
    number, path = ranks.num_pairs, rank_path(ranks)
    step = np.rint(path.points * (ranks.num_samples + 1)).astype(np.int64)
    counts = rank_counts(ranks, step)[0]
    curve = counts / number
    half = _bootstrap_half_width(counts, number, seed)
    lower, upper = path.band(1 - ERROR_RATE)
    return TARP(
        levels=torch.from_numpy(path.points),
        coverage=torch.from_numpy(curve),
        lower=torch.from_numpy((curve - half).clip(min=0)),
        upper=torch.from_numpy((curve + half).clip(max=1)),
        uniform_lower=torch.from_numpy(lower / number),
        uniform_upper=torch.from_numpy(upper / number),
        p_value=float(path.p_value(counts)),
        ranks=ranks,
    )


def _bootstrap_half_width(counts: Any, number: int, seed: int) -> float:
    """The 95 % quantile of the largest distance of resampled curves from the curve.

    Resampling pairs is a multinomial draw of the number of pairs between the levels.
    """
    between = np.diff(counts, prepend=0, append=number)
    random = np.random.default_rng(derive(seed, "tarp bootstrap"))
    resampled = random.multinomial(number, between / number, size=NUM_BOOTSTRAPS)
    distance = np.abs(resampled.cumsum(axis=1)[:, :-1] - counts).max(axis=1)
    return float(np.quantile(distance, 1 - ERROR_RATE)) / number
