r"""Simulation-based calibration: are the ranks of the truth uniform?

Three tests of the same ranks (see :mod:`prudent.diagnostics.ranks`), each with its exact or
usual null law on 0, ..., L:

- the distribution function of the ranks at up to 100 points against a band that holds it
  everywhere at once (:mod:`prudent.diagnostics._bands`); this is the one that decides, with Holm's
  correction over the functions;
- chi-square on a histogram of at most 20 bins, with at least five pairs expected in each;
- Kolmogorov-Smirnov.

What SBC cannot see: a posterior that ignores x. The prior as posterior has uniform ranks in every
parameter, and in any function of theta alone. Add a function of theta and x that knows the data,
the log-likelihood for instance, and compare the log posterior with the prior's. A defect in the
joint law of two parameters is invisible in each of them: add ``"log_prob"``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prudent.diagnostics._bands import UniformPath, bin_band, holm, ks_p_value
from prudent.diagnostics.ranks import TARP_DISTANCE, Ranks
from prudent.diagnostics.verdict import ERROR_RATE

MOST_POINTS = 100
MOST_BINS = 20
MOST_STEPS = 1000


@dataclass(frozen=True)
class Histogram:
    """Counts of ranks in bins of nearly equal size.

    Args:
        edges: The limits of the bins; each holds the ranks from one up to the next, (B + 1,).
        counts: The number of pairs in each bin, (K, B).
        lower: The least count that uniform ranks have, for all bins at once with 95 %, (B,).
        upper: The greatest such count, (B,).
        expected: The mean count of uniform ranks, (B,).
    """

    edges: Tensor
    counts: Tensor
    lower: Tensor
    upper: Tensor
    expected: Tensor


@dataclass(frozen=True)
class SBC:
    """Tests of the ranks of K functions.

    Args:
        ranks: The ranks, with what was left out.
        points: The points at which the distribution function is taken, (P,).
        difference: The distribution function of the ranks minus that of uniform ones, (K, P).
        lower: The lower end of the simultaneous 95 % band of the difference, (P,).
        upper: The upper end of that band, (P,).
        histogram: The rank histograms.
        p_values: The p-values by the simultaneous band, (K,), float64.
        p_chi_square: The p-values by chi-square, (K,).
        p_ks: The p-values by Kolmogorov-Smirnov, (K,).
        adjusted: The ``p_values`` with Holm's correction, (K,).
    """

    ranks: Ranks
    points: Tensor
    difference: Tensor
    lower: Tensor
    upper: Tensor
    histogram: Histogram
    p_values: Tensor
    p_chi_square: Tensor
    p_ks: Tensor
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
        row = int(self.p_values.argmin())
        others = f", Holm over {len(self.p_values)}" if len(self.p_values) > 1 else ""
        evidence = f"p = {self.p_value:.2g} in {self.worst}{others}; {self.ranks.size}"
        if self.p_value >= ERROR_RATE:
            text = f"no defect seen ({evidence})"
        else:
            more = int((self.adjusted < ERROR_RATE).sum()) - 1
            where = f"{self.worst} and {more} more" if more else self.worst
            shape = describe(self.ranks.ranks[row], self.ranks.num_samples)
            text = f"not calibrated in {where}: {self.worst} {shape} ({evidence})"
        return f"{text}; {self.ranks.caveats}" if self.ranks.caveats else text

    def metrics(self) -> dict[str, Any]:
        """The scalars that a run stores."""
        return {"sbc_p_value": self.p_value, "sbc_worst": self.worst}

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
    number, path = ranks.num_pairs, rank_path(ranks)
    step = np.rint(path.points * (ranks.num_samples + 1)).astype(np.int64)
    counts = rank_counts(ranks, step)
    lower, upper = (bound / number - path.points for bound in path.band(1 - ERROR_RATE))
    p_values = path.p_value(counts)
    histogram = _histogram(ranks)
    return SBC(
        ranks=ranks,
        points=torch.from_numpy(path.points),
        difference=torch.from_numpy(counts / number - path.points),
        lower=torch.from_numpy(lower),
        upper=torch.from_numpy(upper),
        histogram=histogram,
        p_values=torch.from_numpy(p_values),
        p_chi_square=_chi_square(histogram),
        p_ks=_kolmogorov_smirnov(ranks),
        adjusted=torch.from_numpy(holm(p_values)),
    )


def _spread(count: int, last: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """At most ``count`` whole numbers from 1 to the last, evenly spread."""
    return np.unique(np.rint(np.linspace(1, last, min(count, last))).astype(np.int64))


def rank_path(ranks: Ranks) -> UniformPath:
    """The law of the distribution function of uniform ranks, at up to 100 of their steps."""
    step = _spread(min(MOST_POINTS, max(2, ranks.num_pairs)), ranks.num_samples)
    return UniformPath.at(ranks.num_pairs, tuple(step / (ranks.num_samples + 1)))


def rank_counts(ranks: Ranks, step: np.ndarray[Any, np.dtype[np.int64]]) -> Any:
    """The number of ranks of each function below each step, (K, P)."""
    ordered = np.sort(ranks.ranks.numpy(), axis=1)
    return np.stack([np.searchsorted(row, step, side="left") for row in ordered])


def _histogram(ranks: Ranks) -> Histogram:
    number, values = ranks.num_pairs, ranks.num_samples + 1
    bins = max(2, min(MOST_BINS, values, number // 5))
    edges = np.rint(np.linspace(0, values, bins + 1)).astype(np.int64)
    shares = np.diff(edges) / values
    lower, upper = bin_band(number, shares, 1 - ERROR_RATE)
    counts = np.diff(rank_counts(ranks, edges), axis=1)
    parts = (edges, counts, lower, upper, number * shares)
    return Histogram(*(torch.from_numpy(part) for part in parts))


def _chi_square(histogram: Histogram) -> Tensor:
    excess = histogram.counts - histogram.expected
    statistic = (excess.square() / histogram.expected).sum(dim=1)
    freedom = torch.full_like(statistic, len(histogram.expected) - 1)
    p_values: Tensor = torch.special.gammaincc(freedom / 2, statistic / 2)
    return p_values


def _kolmogorov_smirnov(ranks: Ranks) -> Tensor:
    step = _spread(MOST_STEPS, ranks.num_samples)
    points = step / (ranks.num_samples + 1)
    distance = np.abs(rank_counts(ranks, step) - ranks.num_pairs * points).max(axis=1)
    values = [ks_p_value(ranks.num_pairs, points, float(worst)) for worst in distance]
    return torch.tensor(values, dtype=torch.float64)


def plain(curves: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """Curves as lists of numbers: six digits are enough to draw, and half the bytes."""
    return {name: [float(f"{v:.6g}") for v in curve.tolist()] for name, curve in curves.items()}


def describe(ranks: Tensor, num_samples: int) -> str:
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
        return f"of the truth lies {'above' if shift > 0 else 'below'} that of the draws"
    return "is too narrow" if spread > 0 else "is too wide"
