"""Simulation-based calibration: are the ranks of the truth uniform?

The distribution function of the ranks (:mod:`prudent.diagnostics.ranks`) is compared at up to 100
points with a band that holds it everywhere at once, exactly, on the whole numbers 0, ..., L
(:mod:`prudent.diagnostics._bands`), with Holm's correction over the functions.

What SBC cannot see: a posterior that ignores x. The prior as posterior has uniform ranks in any
function of theta alone. Add a function that knows the data, such as the log-likelihood. A defect
in the joint law of two parameters is invisible in each of them: add ``"log_prob"``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prudent.diagnostics._bands import holm, uniform_path
from prudent.diagnostics.ranks import LOG_PROB, TARP_DISTANCE, Ranks
from prudent.diagnostics.verdict import ERROR_RATE, MOST_MISSED

MOST_POINTS = 100
# The shapes of ranks in words.
WIDE = "is too wide"
ABOVE, BELOW = (f"of the truth lies {side} that of the draws" for side in ("above", "below"))


@dataclass(frozen=True)
class SBC:
    """Tests of the ranks of K functions.

    Args:
        ranks: The ranks, with what was left out.
        points: The points at which the distribution function is taken, (P,).
        difference: The distribution function of the ranks minus that of uniform ones, (K, P).
        lower, upper: The ends of the simultaneous 95 % band of the difference, (P,) each.
        p_values: The p-values by the simultaneous band, (K,), float64.
        adjusted: The ``p_values`` with Holm's correction, (K,).
    """

    ranks: Ranks
    points: Tensor
    difference: Tensor
    lower: Tensor
    upper: Tensor
    p_values: Tensor
    adjusted: Tensor

    @property
    def p_value(self) -> float:
        """The p-value of "the ranks of every function are uniform"."""
        return float(self.adjusted.min())

    @property
    def worst(self) -> str:
        """The function with the smallest p-value."""
        return self.ranks.names[int(self.p_values.argmin())]

    @property
    def verdict(self) -> str:
        """A line that says whether something is wrong, in which function, and how."""
        more = int((self.adjusted < ERROR_RATE).sum()) - 1
        where = f" in {self.worst} and {more} more" if more > 0 else f" in {self.worst}"
        holm_text = f", Holm over {len(self.p_values)}" if len(self.p_values) > 1 else ""
        shape = describe(self.ranks.ranks[self.p_values.argmin()], self.ranks.num_samples)
        defect = f"{where}: {self.worst} {shape}"
        return rank_verdict(self.ranks, self.p_value, defect, f" in {self.worst}{holm_text}")

    def metrics(self) -> dict[str, Any]:
        """The scalars that a run stores."""
        return {"sbc_p_value": self.p_value, "sbc_worst": self.worst, **harm("sbc", self._harm())}

    def _harm(self) -> list[tuple[float, str]]:
        """The p-value and the defect of each function of which caution is no explanation."""
        number, found = self.ranks.num_samples, []
        for name, own, p_value in zip(
            self.ranks.names, self.ranks.ranks, self.adjusted.tolist(), strict=True
        ):
            shape = describe(own, number)
            # Truths denser than the draws are what a posterior has that is too wide.
            if shape != WIDE and not (name == LOG_PROB and shape == ABOVE):
                found.append((p_value, f"SBC: {name} {shape}, p = {p_value:.2g}"))
        return found

    def rows(self) -> list[dict[str, Any]]:
        """The curve of each function with its band, as plain numbers."""
        shared = {"level": self.points, "lower": self.lower, "upper": self.upper}
        columns = zip(self.ranks.names, self.difference, self.adjusted.tolist(), strict=True)
        return [
            {"parameter": name, **plain({**shared, "value": values}), "p_value": p_value}
            for name, values, p_value in columns
        ]

    def __repr__(self) -> str:
        return f"<SBC: {self.verdict}>"


def sbc(ranks: Ranks, names: Sequence[str] | None = None) -> SBC:
    """Test every parameter, and further functions of theta and x, for uniform ranks.

    Args:
        ranks: Ranks from :func:`prudent.diagnostics.posterior_ranks`.
        names: The functions to test; by default all but the distance of TARP.

    >>> uniform = torch.arange(100).repeat(1, 5)
    >>> sbc(Ranks(("theta",), uniform, 99, {}, 0.0, 0.0))
    <SBC: no defect seen (p = 1 in theta; 500 pairs, 99 draws)>
    """
    others = [name for name in ranks.names if name != TARP_DISTANCE]
    ranks = ranks.select(others if names is None else names)
    points, curves, lower, upper, p_values = rank_curves(ranks)
    return SBC(
        ranks=ranks,
        points=points,
        difference=curves - points,
        lower=lower - points,
        upper=upper - points,
        p_values=p_values,
        adjusted=torch.from_numpy(holm(p_values.numpy())),
    )


def rank_curves(ranks: Ranks) -> tuple[Tensor, ...]:
    """Points (P,), shares of ranks below (K, P), ends of the uniform band (P,), p-values (K,)."""
    number, most = ranks.num_pairs, min(MOST_POINTS, ranks.num_samples)
    spread = np.linspace(1, ranks.num_samples, min(most, max(2, number)))
    steps = np.unique(np.rint(spread).astype(np.int64))
    ordered = np.sort(ranks.ranks.numpy(), axis=1)
    counts = np.stack([np.searchsorted(row, steps, side="left") for row in ordered])
    points = steps / (ranks.num_samples + 1)
    path = uniform_path(number, tuple(points))
    shares = (each / number for each in (counts, *path.band(1 - ERROR_RATE)))
    parts = (points, *shares, path.p_value(counts))
    return tuple(torch.from_numpy(part) for part in parts)


def plain(curves: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """Curves as lists of numbers: six digits are enough to draw, and half the bytes."""
    return {name: [float(f"{v:.6g}") for v in curve.tolist()] for name, curve in curves.items()}


def rank_verdict(ranks: Ranks, p_value: float, defect: str, of: str = "") -> str:
    """A line that names the defect if the p-value is small, with the evidence and its caveats."""
    text = f"not calibrated{defect}" if p_value < ERROR_RATE else "no defect seen"
    if ranks.num_unresolved > MOST_MISSED * (ranks.num_pairs + ranks.num_unresolved):
        text = "cannot be measured this way"
    size = f"{ranks.num_pairs:,} pairs, {ranks.num_samples:,} draws"
    text += f" (p = {p_value:.2g}{of}; {size})"
    return f"{text}; {ranks.caveats}" if ranks.caveats else text


def describe(ranks: Tensor, num_samples: int, narrow: str = "is too narrow") -> str:
    """The shape of some ranks in words: shifted, too narrow or too wide.

    >>> describe(torch.tensor([0, 9, 1, 8, 0, 9, 9, 0]), 9)
    'is too narrow'
    """
    centred = (ranks.double() + 0.5) / (num_samples + 1) - 0.5
    root = math.sqrt(len(ranks))
    # In standard deviations of a uniform number, and of the square of a centred one.
    shift = float(centred.mean()) * root * math.sqrt(12)
    expected = (1 - 1 / (num_samples + 1) ** 2) / 12
    spread = float(centred.square().mean() - expected) * root * math.sqrt(180)
    if abs(shift) > abs(spread):
        return ABOVE if shift > 0 else BELOW
    return narrow if spread > 0 else WIDE


def harm(test: str, found: Sequence[tuple[float, str]]) -> dict[str, Any]:
    """The scalars by which a verdict knows a defect that is no caution, if a test found one."""
    p_value, defect = min(found, default=(1.0, ""))
    return {f"{test}_harm_p_value": p_value, f"{test}_harm": defect}
