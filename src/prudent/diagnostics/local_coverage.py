r"""Where is the posterior wrong? Coverage by region of x or theta.

Coverage is an average over the prior: too narrow here and too wide there can cancel. The test
pairs are split in two. On one half a small regression tree cuts the space of the features where
alpha changes most. On the other half, which had no part in the choice, every region is tested:

- against calibration: the distribution of alpha in the region stays inside the simultaneous band
  of uniform values (:mod:`prudent.diagnostics._bands`), with Holm's correction over the regions;
- against the other regions: alphas are shuffled between regions, which changes nothing if
  coverage is the same everywhere. This p-value is exact.

Features can be x, theta, or any summary of them. Regions of x are what an observer can use; for
regions of theta, even the exact posterior has local coverage other than its level, because
a region of theta is a choice by the truth. Use theta to see where errors of the simulator's
parameters come from, not to judge the posterior.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prudent._extras import require
from prudent._randomness import derive
from prudent.diagnostics._bands import UniformPath, holm
from prudent.diagnostics.expected_coverage import LEVELS
from prudent.diagnostics.verdict import ERROR_RATE, NORMAL_95
from prudent.errors import DataError, InputError

FIT_LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
LEAST_PAIRS = 30
LEAST_SHARE = 0.05
NUM_SHUFFLES = 999
# Numbers at a time in the shuffles.
CHUNK = 2**20

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Region:
    """A part of the space of features.

    Args:
        bounds: The limits, by the name of the feature: above the first and up to the second.
        level: The credibility level that ``coverage`` is about.
        coverage: The share of test pairs inside the credible regions of that level.
        error: Half the width of a 95 % interval for the coverage.
        p_value: The p-value of "the posterior is calibrated here", corrected for the number of
            regions.
        num_pairs: The number of test pairs in the region.
    """

    bounds: dict[str, tuple[float, float]]
    level: float
    coverage: float
    error: float
    p_value: float
    num_pairs: int

    @property
    def where(self) -> str:
        """The bounds in words."""
        parts = []
        for name, (low, high) in self.bounds.items():
            if math.isfinite(low) and math.isfinite(high):
                parts.append(f"{low:.3g} < {name} <= {high:.3g}")
            else:
                one_sided = f"> {low:.3g}" if math.isfinite(low) else f"<= {high:.3g}"
                parts.append(f"{name} {one_sided}")
        return " and ".join(parts) or "everywhere"

    def __str__(self) -> str:
        return (
            f"{self.where}: {100 * self.level:.0f} % regions contain the truth "
            f"{100 * self.coverage:.0f} ± {max(1, round(100 * self.error))} % of the time "
            f"({self.num_pairs:,} pairs)"
        )


@dataclass(frozen=True)
class LocalCoverage:
    """Coverage by region.

    Args:
        regions: All regions, the worst first.
        p_same: The p-value of "coverage is the same in all regions".
        num_pairs: The number of pairs that tested the regions: half of all.
        num_invalid: The number of pairs with alpha NaN; they count as not covered.
        num_excluded: The number of pairs with features that are not finite; no region can hold
            them.
    """

    regions: tuple[Region, ...]
    p_same: float
    num_pairs: int
    num_invalid: int
    num_excluded: int

    @property
    def wrong(self) -> tuple[Region, ...]:
        """The regions where the posterior is not calibrated."""
        return tuple(region for region in self.regions if region.p_value < ERROR_RATE)

    @property
    def verdict(self) -> str:
        """A line that names the worst region, or says that none is wrong."""
        if self.wrong:
            more = len(self.wrong) - 1
            text = f"{self.wrong[0]}, p = {self.wrong[0].p_value:.2g}"
            text += f"; {more} more regions are wrong" if more else ""
        else:
            text = f"no region of {len(self.regions)} is wrong ({self.num_pairs:,} pairs)"
        text += f"; same coverage everywhere: p = {self.p_same:.2g}"
        notes = {"alpha NaN": self.num_invalid, "features not finite": self.num_excluded}
        return text + "".join(f"; {n:,} pairs with {what}" for what, n in notes.items() if n)

    def metrics(self) -> dict[str, Any]:
        """The scalars that a run stores."""
        return {"local_p_value": self.p_same, "num_wrong": len(self.wrong)}

    def rows(self) -> list[dict[str, Any]]:
        """The regions as plain numbers, with their bounds in words."""
        names = ("level", "coverage", "error", "p_value", "num_pairs")
        return [
            {"region": region.where, **{name: getattr(region, name) for name in names}}
            for region in self.regions
        ]

    def __repr__(self) -> str:
        return f"<LocalCoverage: {self.verdict}>"


def local_coverage(
    alphas: Any,
    features: Any,
    *,
    names: Sequence[str] | str = "x",
    level: float = 0.9,
    max_regions: int = 8,
    seed: int = 0,
) -> LocalCoverage:
    """Find regions where coverage differs from its level.

    Args:
        alphas: The alphas of test pairs, (N,), from :func:`prudent.diagnostics.measure`.
        features: What to cut into regions: x or theta of the same pairs, (N, ...).
        names: A name for each feature, or one for all, to be numbered.
        level: The level whose coverage to report, if it is wrong there; otherwise the worst one.
        max_regions: The largest number of regions.
        seed: The seed of the split in halves, and of the shuffles.

    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> x = torch.randn(4000, 3)
    >>> alphas = torch.rand(4000)
    >>> alphas[x[:, 1] > 1] **= 3  # too narrow here
    >>> print(local_coverage(alphas, x).regions[0])
    x[1] > 1.03: 90 % regions contain the truth 53 ± 6 % of the time (309 pairs)
    """
    values, table, num_invalid, num_excluded = _clean(alphas, features)
    if isinstance(names, str):
        names = [f"{names}[{index}]" for index in range(table.shape[1])]
    if len(names) != table.shape[1]:
        raise InputError(f"expected {table.shape[1]} feature names, got {len(names)}.")
    if not 0 < level < 1:
        raise InputError(f"`level` is {level}; expected a number between 0 and 1.")
    random = np.random.default_rng(derive(seed, "local coverage"))
    fitted, tested = np.array_split(random.permutation(len(values)), 2)
    levels = np.array(sorted({*LEVELS, level}))
    # Covered at each level, (N, levels): alpha at least 1 - level.
    covered = (values[:, None] >= 1 - levels - 1e-9).astype(np.float64)
    tree = _fit(table[fitted], covered[fitted], levels, max_regions)
    leaves, bounds = _leaves(tree, table[tested], names)
    regions = _regions(covered[tested], leaves, bounds, levels, level)
    return LocalCoverage(
        regions=tuple(sorted(regions, key=lambda region: region.p_value)),
        p_same=_same_everywhere(covered[tested], leaves, levels, random),
        num_pairs=len(tested),
        num_invalid=num_invalid,
        num_excluded=num_excluded,
    )


def _clean(alphas: Any, features: Any) -> tuple[Array, Array, int, int]:
    values = torch.as_tensor(alphas).detach().double()
    table = torch.as_tensor(features).detach()
    if values.ndim != 1 or table.ndim < 2 or len(table) != len(values):
        raise DataError(
            f"expected `alphas` (N,) and `features` (N, ...), got {tuple(values.shape)} and "
            f"{tuple(table.shape)}."
        )
    flat: Tensor = table.flatten(1).to(torch.float32)
    finite = flat.isfinite().all(dim=1)
    if int(finite.sum()) < 4 * LEAST_PAIRS:
        raise DataError(
            f"{int(finite.sum()):,} of {len(values):,} pairs have finite features; two halves "
            f"with two regions each need {4 * LEAST_PAIRS} pairs or more."
        )
    if bool(values.isnan().all()):
        raise InputError(f"all {len(values):,} alphas are NaN: the estimator is broken.")
    kept = values[finite].nan_to_num(nan=-1.0)
    return kept.numpy(), flat[finite].numpy(), int(values.isnan().sum()), int((~finite).sum())


def _fit(features: Array, covered: Array, levels: Array, max_regions: int) -> Any:
    least = max(LEAST_PAIRS, math.ceil(LEAST_SHARE * len(features)))
    trees = require("sklearn.tree", "distances", "local coverage")
    tree = trees.DecisionTreeRegressor(
        max_leaf_nodes=max(2, max_regions), min_samples_leaf=least, random_state=0
    )
    # A few levels tell as much as all, in a fraction of the time. Each has the same variance.
    some = [int(np.abs(levels - value).argmin()) for value in FIT_LEVELS]
    scale = np.sqrt(levels * (1 - levels))
    return tree.fit(features, (covered / scale)[:, some])


def _leaves(
    tree: Any, features: Array, names: Sequence[str]
) -> tuple[NDArray[np.int64], list[dict[str, tuple[float, float]]]]:
    """The region of each row, numbered from 0, and the bounds of each region."""
    parts = tree.tree_
    bounds: list[dict[str, tuple[float, float]]] = []
    nodes: list[tuple[int, dict[str, tuple[float, float]]]] = [(0, {})]
    number = np.full(parts.node_count, -1)
    while nodes:
        node, limits = nodes.pop()
        if parts.children_left[node] == -1:
            number[node] = len(bounds)
            bounds.append(limits)
            continue
        name, cut = names[parts.feature[node]], float(parts.threshold[node])
        low, high = limits.get(name, (-math.inf, math.inf))
        nodes.append((parts.children_left[node], {**limits, name: (low, min(high, cut))}))
        nodes.append((parts.children_right[node], {**limits, name: (max(low, cut), high)}))
    return number[tree.apply(features)], bounds


def _regions(
    covered: Array,
    leaves: NDArray[np.int64],
    bounds: list[dict[str, tuple[float, float]]],
    levels: Array,
    level: float,
) -> list[Region]:
    rows = []
    for leaf in range(len(bounds)):
        inside = covered[leaves == leaf]
        if len(inside) == 0:
            continue
        # The number of alphas of at least 1 - level is that of uniform values below level.
        path = UniformPath.at(len(inside), tuple(levels))
        counts = inside.sum(axis=0).astype(np.int64)
        point_p_values = path.point_p_values(counts)
        rows.append((leaf, len(inside), counts, point_p_values, float(path.p_value(counts))))
    adjusted = holm(np.array([row[-1] for row in rows]))
    regions = []
    for (leaf, number, counts, point_p_values, _), p_value in zip(rows, adjusted, strict=True):
        at = int(np.abs(levels - level).argmin())
        if p_value < ERROR_RATE <= point_p_values[at]:
            at = int(point_p_values.argmin())
        share = counts[at] / number
        error = NORMAL_95 * math.sqrt(max(share * (1 - share), 0.25 / number) / number)
        region = (bounds[leaf], float(levels[at]), float(share), error, float(p_value), number)
        regions.append(Region(*region))
    return regions


def _same_everywhere(
    covered: Array, leaves: NDArray[np.int64], levels: Array, random: np.random.Generator
) -> float:
    """Permutation p-value of the weighted squared distances between regional curves."""
    member = (np.unique(leaves)[:, None] == leaves).astype(np.float32)
    sizes = member.sum(axis=1)[:, None, None]
    scaled = ((covered - covered.mean(axis=0)) / np.sqrt(levels * (1 - levels))).astype(np.float32)

    def statistic(orders: NDArray[np.int64]) -> Array:
        """For each order (S, N) of the pairs."""
        between: Array = ((member[:, orders] @ scaled) ** 2 / sizes).sum(axis=(0, 2))
        return between

    order = np.arange(len(leaves))[None]
    seen = statistic(order)[0]
    at_once = max(1, CHUNK // member.size)
    exceeded, left = 1, NUM_SHUFFLES
    while left > 0:
        number = min(at_once, left)
        shuffled = statistic(random.permuted(np.repeat(order, number, axis=0), axis=1))
        # Rounding must not tell equal statistics apart.
        exceeded += int((shuffled >= seen * (1 - 1e-5)).sum())
        left -= number
    return exceeded / (NUM_SHUFFLES + 1)
