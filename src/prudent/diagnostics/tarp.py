"""TARP: coverage of balls around random points (Lemos et al. 2023).

Around a reference point r, the draws closer to r than the truth fill a ball; the share of draws
inside is its credibility. For the exact posterior that share is uniform, as long as r was chosen
without looking at the truth: it is the rank of the distance to r, in units of the prior's standard
deviation, so that no parameter dominates by its unit. No density is needed.

Points that ignore x, the usual choice, cannot tell the prior from the posterior, and hardly see a
shift. Points that follow x, ``ReferenceDistance(prior, lambda x: ...)``, see both.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prudent._randomness import derive
from prudent.diagnostics.ranks import TARP_DISTANCE, Ranks
from prudent.diagnostics.sbc import WIDE, describe, harm, plain, rank_curves, rank_verdict
from prudent.diagnostics.verdict import ERROR_RATE

NUM_BOOTSTRAPS = 1000


@dataclass(frozen=True)
class TARP:
    """Expected coverage of balls around reference points.

    Args:
        levels: The credibility levels, (P,).
        coverage: The share of pairs whose ball has at most that credibility, (P,).
        lower, upper: The ends of a bootstrap band that holds the whole curve with 95 %, (P,) each.
        uniform_lower, uniform_upper: The ends of the band that holds the curve of the exact
            posterior, (P,) each.
        p_value: The exact p-value of "this is the exact posterior".
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
        """The mean of coverage minus level above one half: positive is conservative."""
        high = self.levels > 0.5
        return float((self.coverage - self.levels)[high].mean()) if bool(high.any()) else 0.0

    @property
    def verdict(self) -> str:
        """A line that says whether something is wrong, and in which direction."""
        return rank_verdict(self.ranks, self.p_value, f": the distance {self._shape}")

    @property
    def _shape(self) -> str:
        # Balls on both sides of a shifted posterior see it as one that is too narrow.
        narrow = "is too narrow or shifted"
        return describe(self.ranks.ranks[0], self.ranks.num_samples, narrow)

    def metrics(self) -> dict[str, Any]:
        """The scalars that a run stores."""
        defect = f"TARP: the distance {self._shape}, p = {self.p_value:.2g}"
        found = [] if self._shape == WIDE else [(self.p_value, defect)]
        return {"tarp_p_value": self.p_value, **harm("tarp", found)}

    def rows(self) -> list[dict[str, Any]]:
        """The curve with the band of the exact posterior, as plain numbers."""
        band = {"lower": self.uniform_lower, "upper": self.uniform_upper}
        curves = {"level": self.levels, "value": self.coverage, **band}
        return [{"parameter": "all", **plain(curves), "p_value": self.p_value}]

    def __repr__(self) -> str:
        return f"<TARP: {self.verdict}>"


def tarp(ranks: Ranks, name: str = TARP_DISTANCE, *, seed: int = 0) -> TARP:
    """Test a posterior by its draws alone, all parameters at once.

    Args:
        ranks: Ranks from :func:`prudent.diagnostics.posterior_ranks`.
        name: The name of the :class:`ReferenceDistance` among the ranked functions.
        seed: The seed of the bootstrap.

    >>> uniform = torch.arange(100).repeat(1, 5)
    >>> tarp(Ranks(("tarp",), uniform, 99, {}, 0.0, 0.0))
    <TARP: no defect seen (p = 1; 500 pairs, 99 draws)>
    """
    ranks = ranks.select([name])
    number = ranks.num_pairs
    levels, (coverage,), least, most, p_value = rank_curves(ranks)
    counts = torch.round(number * coverage).long().numpy()
    # Resampling pairs is a multinomial draw of the number of pairs between the levels.
    shares = np.diff(counts, prepend=0, append=number) / number
    random = np.random.default_rng(derive(seed, "tarp bootstrap"))
    resampled = random.multinomial(number, shares, size=NUM_BOOTSTRAPS).cumsum(axis=1)[:, :-1]
    distance = np.abs(resampled - counts).max(axis=1)
    half = float(np.quantile(distance, 1 - ERROR_RATE)) / number
    lower, upper = (coverage - half).clip(min=0), (coverage + half).clip(max=1)
    return TARP(levels, coverage, lower, upper, least, most, float(p_value), ranks)
