r"""Simulation-based calibration: are the ranks of the truth uniform?

Three tests of the same ranks (see :mod:`prudent.diagnostics.ranks`), each with its exact or
usual null law on 0, ..., L:

- the distribution function of the ranks at up to 100 points against a band that holds it
  everywhere at once (:mod:`prudent.diagnostics.bands`); this is the one that decides, with Holm's
  correction over the functions;
- chi-square on a histogram of at most 20 bins, with at least five pairs expected in each;
- Kolmogorov-Smirnov.

What SBC cannot see: a posterior that ignores x. The prior as posterior has uniform ranks in every
parameter, and in any function of theta alone. Add a function of theta and x that knows the data,
the log-likelihood for instance, and compare the log posterior with the prior's. A defect in the
joint law of two parameters is invisible in each of them: add ``"log_prob"``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prudent._progress import Reporter
from prudent.contracts import Estimator
from prudent.diagnostics.bands import UniformPath, bin_band, holm, ks_p_value
from prudent.diagnostics.ranks import Ranks, TestFunction, parameters, posterior_ranks

__all__ = ["SBC", "Histogram", "describe", "rank_counts", "rank_path", "sbc", "sbc_from_ranks"]

MOST_POINTS = 100
MOST_BINS = 20
MOST_STEPS = 1000
ERROR_RATE = 0.05


@dataclass(frozen=True)
class Histogram:
    """Counts of ranks in bins of nearly equal size.

    Args:
        edges: A bin holds the ranks from one edge up to the next, (B + 1,).
        counts: Pairs in each bin, (K, B).
        lower: Least count that uniform ranks have, for all bins at once with 95 %, (B,).
        upper: Greatest count, (B,).
        expected: The mean count of uniform ranks, (B,).
    """

    edges: Tensor
    counts: Tensor
    lower: Tensor
    upper: Tensor
    expected: Tensor


@dataclass(frozen=True)
class SBC:
    """What the ranks of K functions say.

    Args:
        ranks: The ranks, with what was left out.
        points: Where the distribution function is taken, (P,).
        difference: Distribution function of the ranks minus that of uniform ones, (K, P).
        lower: Lower end of the simultaneous 95 % band of the difference, (P,).
        upper: Its upper end, (P,).
        histogram: Rank histograms.
        p_values: By the simultaneous band, (K,), float64.
        p_chi_square: By chi-square, (K,).
        p_ks: By Kolmogorov-Smirnov, (K,).
        adjusted: Holm-corrected ``p_values``, (K,).
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
        """For "the ranks of every function are uniform"."""
        return float(self.adjusted.min())

    @property
    def worst(self) -> str:
        """The function with the smallest p-value."""
        return self.ranks.names[int(self.p_values.argmin())]

    @property
    def verdict(self) -> str:
        """In one line: is something wrong, in which function, and how."""
        size = f"{self.ranks.num_pairs:,} pairs, {self.ranks.num_samples:,} draws"
        row = int(self.p_values.argmin())
        others = f", Holm over {len(self.p_values)}" if len(self.p_values) > 1 else ""
        evidence = f"p = {self.p_value:.2g} in {self.worst}{others}; {size}"
        if self.p_value >= ERROR_RATE:
            text = f"no defect seen ({evidence})"
        else:
            more = int((self.adjusted < ERROR_RATE).sum()) - 1
            where = f"{self.worst} and {more} more" if more else self.worst
            shape = describe(self.ranks.ranks[row], self.ranks.num_samples)
            text = f"not calibrated in {where}: {self.worst} {shape} ({evidence})"
        return f"{text}; {self.ranks.caveats}" if self.ranks.caveats else text

    def __repr__(self) -> str:
        return f"<SBC: {self.verdict}>"


def sbc(
    estimator: Estimator,
    theta: Any,
    x: Any,
    functions: Mapping[str, TestFunction | str] | None = None,
    *,
    names: Sequence[str] | None = None,
    num_samples: int | None = None,
    thin: int = 1,
    seed: int = 0,
    progress: Reporter = None,
) -> SBC:
    """Test every parameter, and further functions of theta and x, for uniform ranks.

    Args:
        estimator: Any estimator.
        theta: True parameters (N, D), drawn from the prior.
        x: The observations simulated from them (N, ...).
        functions: Tested beside the parameters; see
            :func:`prudent.diagnostics.ranks.posterior_ranks`.
        names: D names of the parameters.
        num_samples: Draws per pair, L; by default 1,000, and 100 for ratio estimators.
        thin: Draw this many times as much and keep every ``thin``-th.
        seed: Of draws and ties.
        progress: See :class:`prudent._progress.Progress`.

    >>> import prudent
    >>> problem = prudent.problems.get("gaussian")
    >>> estimator = prudent.fit(*problem.draw(256, 0), problem.prior, method="npe", epochs=2)
    >>> result = sbc(estimator, *problem.draw(100, 1), {"density": "log_prob"}, num_samples=50)
    >>> result.ranks.names
    ('theta_1', 'theta_2', 'density')
    """
    dim = torch.as_tensor(theta).shape[-1]
    tested = {**parameters(dim, names), **(functions or {})}
    return sbc_from_ranks(
        posterior_ranks(
            estimator,
            theta,
            x,
            tested,
            num_samples=num_samples,
            thin=thin,
            seed=seed,
            progress=progress,
        )
    )


def sbc_from_ranks(ranks: Ranks) -> SBC:
    """The same from ranks that exist.

    >>> uniform = torch.arange(100).repeat(1, 5)
    >>> sbc_from_ranks(Ranks(("theta",), uniform, 99, {}, 0.0, 0.0))
    <SBC: no defect seen (p = 1 in theta; 500 pairs, 99 draws)>
    """
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
    """At most so many whole numbers from 1 to the last, evenly."""
    return np.unique(np.rint(np.linspace(1, last, min(count, last))).astype(np.int64))


def rank_path(ranks: Ranks) -> UniformPath:
    """The law of the distribution function of uniform ranks, at up to 100 of their steps."""
    step = _spread(min(MOST_POINTS, max(2, ranks.num_pairs)), ranks.num_samples)
    return UniformPath.at(ranks.num_pairs, tuple(step / (ranks.num_samples + 1)))


def rank_counts(ranks: Ranks, step: np.ndarray[Any, np.dtype[np.int64]]) -> Any:
    """How many ranks of each function lie below each step, (K, P)."""
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
