"""Where is the posterior wrong? Coverage by region of x or theta.

Coverage is an average over the prior: too narrow here and too wide there can cancel. The test
pairs are split in two. On one half a small regression tree cuts the space of the features where
alpha changes most. On the other half, which had no part in the choice, every region is tested:

- against calibration: the distribution of alpha in the region stays inside the simultaneous band
  of uniform values (:mod:`prudent.diagnostics._bands`), with Holm's correction over the regions;
- against the other regions: alphas are shuffled between regions, which changes nothing if
  coverage is the same everywhere. This p-value is exact.

Regions of x are what an observer can use. In regions of theta even the exact posterior has
coverage other than its level, because the truth chose the region: they are no judgement of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from prudent._arrays import as_tensor
from prudent._extras import require
from prudent._randomness import derive
from prudent.diagnostics._bands import Array, holm, uniform_path
from prudent.diagnostics.expected_coverage import LEVELS
from prudent.diagnostics.sbc import harm
from prudent.diagnostics.verdict import ERROR_RATE, NORMAL_95, in_words
from prudent.errors import DataError, InputError

# A few levels tell as much as all.
TESTED = (*LEVELS[4::5], LEVELS[-1])
FIT_LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
LEAST_PAIRS = 30
LEAST_SHARE = 0.05
NUM_SHUFFLES = 999
# Numbers at a time in the shuffles.
CHUNK = 2**20

Bounds = dict[str, tuple[float, float]]


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

    bounds: Bounds
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
            if low == -math.inf:
                parts.append(f"{name} <= {high:.3g}")
            elif high == math.inf:
                parts.append(f"{name} > {low:.3g}")
            else:
                parts.append(f"{low:.3g} < {name} <= {high:.3g}")
        return " and ".join(parts) or "everywhere"

    def __str__(self) -> str:
        measured = in_words(self.level, self.coverage, self.error)
        return f"{self.where}: {measured} ({self.num_pairs:,} pairs)"


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
        text = f"no region of {len(self.regions)} is wrong ({self.num_pairs:,} pairs)"
        if self.wrong:
            text = f"{self.wrong[0]}, p = {self.wrong[0].p_value:.2g}"
        if more := len(self.wrong[1:]):
            text += f"; {more} more regions are wrong"
        text += f"; same coverage everywhere: p = {self.p_same:.2g}"
        notes = {"alpha NaN": self.num_invalid, "features not finite": self.num_excluded}
        return text + "".join(f"; {n:,} pairs with {what}" for what, n in notes.items() if n)

    def metrics(self) -> dict[str, Any]:
        """The scalars that a run stores."""
        short = [
            (region.p_value, f"by region: {region}, p = {region.p_value:.2g}")
            for region in self.regions
            if region.coverage < region.level
        ]
        found = {"local_p_value": self.p_same, "num_wrong": len(self.wrong)}
        return {**found, **harm("local", short)}

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
    values, table, *num_bad = _clean(alphas, features)
    if isinstance(names, str):
        names = [f"{names}[{index}]" for index in range(table.shape[1])]
    if len(names) != table.shape[1]:
        raise InputError(f"expected {table.shape[1]} feature names, got {len(names)}.")
    if not 0 < level < 1:
        raise InputError(f"`level` is {level}; expected a number between 0 and 1.")
    random = np.random.default_rng(derive(seed, "local coverage"))
    fitted, tested = np.array_split(random.permutation(len(values)), 2)
    levels = np.array(sorted({*TESTED, level}))
    # Covered at each level, (N, levels): alpha at least 1 - level.
    covered = (values[:, None] >= 1 - levels - 1e-9).astype(np.float64)
    tree = cut(values[fitted], table[fitted], max_regions)
    nodes, covered = tree.apply(table[tested]), covered[tested]
    bounds = {node: own for node, own in leaves(tree.tree_, names).items() if node in nodes}
    inside = np.stack([nodes == node for node in bounds])
    regions = _regions(covered, inside, [*bounds.values()], levels, level)
    p_same = _same_everywhere(covered, inside, levels, random)
    return LocalCoverage(regions, p_same, len(tested), *num_bad)


def cut(alphas: Array, features: Array, max_regions: int) -> Any:
    """A tree whose leaves are the regions of the features (N, F) between which alphas differ."""
    tree = require("sklearn.tree", "distances", "local coverage").DecisionTreeRegressor(
        max_leaf_nodes=max(2, max_regions),
        min_samples_leaf=max(LEAST_PAIRS, math.ceil(LEAST_SHARE * len(alphas))),
        random_state=0,
    )
    # Fewer levels take a fraction of the time. Each has the same variance.
    levels = np.array(FIT_LEVELS)
    covered = (alphas[:, None] >= 1 - levels - 1e-9).astype(np.float64)
    tree.fit(features, covered / np.sqrt(levels * (1 - levels)))
    return tree


def _clean(alphas: Any, features: Any) -> tuple[Array, Array, int, int]:
    """Alphas and features of the rows that regions can hold, and the numbers of bad ones."""
    values = as_tensor("alphas", alphas, torch.float64).detach()
    table = as_tensor("features", features).detach()
    if values.ndim != 1 or table.ndim < 2 or len(table) != len(values):
        raise DataError(
            f"expected `alphas` (N,) and `features` (N, ...), got {tuple(values.shape)} and "
            f"{tuple(table.shape)}."
        )
    flat = table.flatten(1)
    finite = flat.isfinite().all(dim=1)
    if (number := int(finite.sum())) < 4 * LEAST_PAIRS:
        raise DataError(
            f"{number:,} of {len(values):,} pairs have finite features; two halves "
            f"with two regions each need {4 * LEAST_PAIRS} pairs or more."
        )
    if bool(values.isnan().all()):
        raise InputError(f"all {len(values):,} alphas are NaN: the estimator is broken.")
    kept = values[finite].nan_to_num(nan=-1.0)
    return kept.numpy(), flat[finite].numpy(), int(values.isnan().sum()), len(values) - number


def leaves(
    tree: Any, names: Sequence[str], node: int = 0, bounds: Bounds | None = None
) -> dict[int, Bounds]:
    """The bounds of each leaf below a node of a tree."""
    bounds = bounds or {}
    if tree.children_left[node] == -1:
        return {node: bounds}
    name, cut = names[tree.feature[node]], float(tree.threshold[node])
    low, high = bounds.get(name, (-math.inf, math.inf))
    above, below = bounds | {name: (max(low, cut), high)}, bounds | {name: (low, min(high, cut))}
    right = leaves(tree, names, int(tree.children_right[node]), above)
    return right | leaves(tree, names, int(tree.children_left[node]), below)


def _regions(
    covered: Array, inside: NDArray[np.bool_], bounds: list[Bounds], levels: Array, level: float
) -> tuple[Region, ...]:
    """The regions, the worst first."""
    # The number of alphas of at least 1 - level is that of uniform values below level.
    counts = [covered[held].sum(axis=0).astype(np.int64) for held in inside]
    paths = [uniform_path(int(held.sum()), tuple(levels)) for held in inside]
    adjusted = holm(np.array([path.p_value(own) for path, own in zip(paths, counts, strict=True)]))
    regions = []
    for own, count, path, p_value in zip(bounds, counts, paths, adjusted, strict=True):
        at, pointwise = int(np.abs(levels - level).argmin()), path.point_p_values(count)
        if p_value < ERROR_RATE <= pointwise[at]:
            at = int(pointwise.argmin())
        share = float(count[at] / path.number)
        error = NORMAL_95 * math.sqrt(max(share * (1 - share), 0.25 / path.number) / path.number)
        regions.append(Region(own, float(levels[at]), share, error, float(p_value), path.number))
    return tuple(sorted(regions, key=lambda region: region.p_value))


def _same_everywhere(
    covered: Array, inside: NDArray[np.bool_], levels: Array, random: np.random.Generator
) -> float:
    """Permutation p-value of the weighted squared distances between regional curves."""
    member = inside.astype(np.float32)
    sizes = member.sum(axis=1)[:, None, None]
    scaled = ((covered - covered.mean(axis=0)) / np.sqrt(levels * (1 - levels))).astype(np.float32)

    def statistic(orders: NDArray[np.int64]) -> Array:
        """For each order (S, N) of the pairs."""
        between: Array = ((member[:, orders] @ scaled) ** 2 / sizes).sum(axis=(0, 2))
        return between

    order = np.arange(member.shape[1])[None]
    # Rounding must not tell equal statistics apart.
    least = statistic(order)[0] * (1 - 1e-5)
    at_once = max(1, CHUNK // member.size)
    exceeded = 1
    for start in range(0, NUM_SHUFFLES, at_once):
        copies = np.repeat(order, min(at_once, NUM_SHUFFLES - start), axis=0)
        exceeded += int((statistic(random.permuted(copies, axis=1)) >= least).sum())
    return exceeded / (NUM_SHUFFLES + 1)
