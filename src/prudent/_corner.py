"""The pair plot of draws: every parameter, and every pair of them.

Regions are what the caption says: the contour of each is drawn at the height of the density, as it
is drawn, above which the stated share of the draws lies. How far a density is blurred, the draws
decide: each half of them shows it, and the width is taken under which the other half is most
likely. At the prior's bounds it is reflected, so that nothing crosses them or is lost there.

This module imports matplotlib, an extra: whoever draws imports it at that moment.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from prudent import _plots as plots

Array = NDArray[np.float64]
# The cells of a density along each parameter, and the widths of the blur that are tried, in cells.
CELLS, WIDTHS = 160, (0.6, 0.9, 1.35, 2.0, 3.0, 4.5, 6.75, 10.0, 15.0)
# Of widths whose likelihoods differ by less than so many nats per draw, the widest is taken.
ALIKE = 0.005
# The shares of the draws that regions hold.
MASSES = (0.9, 0.5)
TRUTH: Any = {"color": plots.RED, "linestyle": ":", "linewidth": 1}
BOUND: Any = {"color": plots.LINE, "linewidth": 0.8}


def smooth(counts: Array, width: float) -> Array:
    """Counts of cells blurred by a Gaussian of so many cells, reflected at the edges."""
    cell, number = np.arange(len(counts)), len(counts)
    images = (cell, -1 - cell, 2 * number - 1 - cell)
    parts = [np.exp(-0.5 * ((cell[:, None] - own) / width) ** 2) for own in images]
    kernel = np.sum(parts, axis=0)
    kernel /= kernel.sum(axis=0)
    for axis in range(counts.ndim):
        counts = np.moveaxis(np.tensordot(kernel, counts, (1, axis)), 0, axis)
    return counts


@dataclass(frozen=True, eq=False)
class Surface:
    """A density of one or two parameters, linear between points.

    Args:
        points: The coordinates of the points along each parameter, from limit to limit.
        height: The density at the points.
    """

    points: list[Array]
    height: Array

    @classmethod
    def of(cls, draws: Array, limits: Array) -> Self:
        """The density of draws (L, K) inside limits (K, 2)."""
        halves = [draws[0::2], draws[1::2]]
        counts = [_counts(half, limits) for half in halves]

        def score(width: float) -> float:
            total = 0.0
            for own, other in ((0, 1), (1, 0)):
                shown = cls._of_counts(smooth(counts[own], width), len(halves[own]), limits)
                found = shown.at(halves[other])
                total += float(np.log(np.maximum(found, 1e-9 * shown.height.max())).sum())
            return total / len(draws)

        scores = [score(width) for width in WIDTHS]
        chosen = max(w for w, own in zip(WIDTHS, scores, strict=True) if own > max(scores) - ALIKE)
        # Twice as many draws deserve a little less of it.
        width = chosen * 2 ** (-1 / (4 + len(limits)))
        return cls._of_counts(smooth(counts[0] + counts[1], width), len(draws), limits)

    @classmethod
    def _of_counts(cls, counts: Array, number: int, limits: Array) -> Self:
        """The density from blurred counts of cells, reaching from the first edge to the last."""
        edges = [np.linspace(low, high, CELLS + 1) for low, high in limits]
        points = [np.r_[own[0], (own[1:] + own[:-1]) / 2, own[-1]] for own in edges]
        volume = np.prod((limits[:, 1] - limits[:, 0]) / CELLS)
        return cls(points, np.pad(counts, 1, mode="edge") / (number * volume))

    def at(self, draws: Array) -> Array:
        """The density at draws (L, K): zero beyond the limits."""
        places, shares = [], []
        inside = np.ones(len(draws), dtype=bool)
        for own, column in zip(self.points, draws.T, strict=True):
            inside &= (column >= own[0]) & (column <= own[-1])
            place = np.clip(np.searchsorted(own, column, side="right") - 1, 0, len(own) - 2)
            places.append(place)
            shares.append((column - own[place]) / (own[place + 1] - own[place]))
        total = np.zeros(len(draws))
        for corner in np.ndindex(*(2,) * len(places)):
            pairs = zip(shares, corner, strict=True)
            weight = np.prod([share if up else 1 - share for share, up in pairs], axis=0)
            moved = tuple(place + up for place, up in zip(places, corner, strict=True))
            total += weight * self.height[moved]
        return np.where(inside, total, 0.0)

    def levels(self, draws: Array) -> list[float]:
        """The heights above which the shares ``MASSES`` of draws (L, K) lie, ascending."""
        ordered = np.sort(self.at(draws))[::-1]
        return [float(ordered[min(int(mass * len(ordered)), len(ordered) - 1)]) for mass in MASSES]


def _counts(draws: Array, limits: Array) -> Array:
    bins: Any = [np.linspace(low, high, CELLS + 1) for low, high in limits]
    return np.histogramdd(draws, bins)[0]


@plots.themed
def corner(
    draws: Array,
    names: Sequence[str],
    title: str,
    *,
    label: str = "posterior",
    color: str = plots.BLUE,
    truth: Array | None = None,
    exact: Array | None = None,
    bounds: Array | None = None,
    prior: Callable[[int, Array], Array] | None = None,
    notes: Sequence[str] = (),
) -> Figure:
    """Draw the marginals and the regions of draws (L, D).

    Args:
        draws: The draws.
        names: The D names.
        title: The title.
        label: The name of the draws in the legend.
        color: Their color.
        truth: The parameters (D,) to mark.
        exact: Draws (M, D) of the exact posterior to compare with.
        bounds: The bounds of the prior (D, 2), infinite where it has none.
        prior: The prior density of the parameter of a number at points.
        notes: Sentences for below the figure.
    """
    dim = len(names)
    bounds = np.tile([-np.inf, np.inf], (dim, 1)) if bounds is None else bounds
    limits = _limits([part for part in (draws, exact) if part is not None], bounds)
    size = plots.SINGLE if dim == 1 else max(1.3, plots.SINGLE / dim)
    figure, axes = plots.canvas(dim, dim, panel=(size, size))
    for i, j in np.ndindex(dim, dim):
        axis, pair = axes[i, j], [j, i] if i != j else [i]
        if j > i:
            axis.remove()
            continue
        paint = _density if i == j else _regions
        paint(axis, draws[:, pair], limits[pair], color)
        if exact is not None:
            paint(axis, exact[:, pair], limits[pair])
        if i == j and prior is not None:
            points = np.linspace(limits[i, 0], limits[i, 1], CELLS)
            axis.plot(points, prior(i, points), color="0.6", linewidth=0.9, zorder=1)
        _mark(axis, pair, bounds, limits, truth)
        _label(axis, names, i, j)
    handles = [axes[0, 0].fill_between([], [], color=color, alpha=0.5, label=label)]
    for shown, style, text in (
        (exact, {"color": "black", "linestyle": "--"}, "exact"),
        (prior, {"color": "0.6"}, "prior"),
        (truth, {"color": plots.RED, "linestyle": ":", "marker": "x"}, "truth"),
    ):
        if shown is not None:
            handles += axes[0, 0].plot([], [], linewidth=1, label=text, **style)
    note = f"{len(draws):,} draws for one observation"
    note += ";\nregions hold 50 % and 90 % of them" if dim > 1 else ""
    return plots.dress(figure, title, [note, *notes], handles)


def _limits(parts: Sequence[Array], bounds: Array) -> Array:
    """All but the outermost thousandth of each part, and some room inside the bounds, (D, 2)."""
    ends = np.stack([np.quantile(part, [0.001, 0.999], axis=0) for part in parts])
    low, high = ends[:, 0].min(axis=0), ends[:, 1].max(axis=0)
    room = 0.08 * (high - low) + 1e-6 * np.maximum(abs(low), abs(high)) + 1e-30
    return np.stack(
        (np.maximum(low - room, bounds[:, 0]), np.minimum(high + room, bounds[:, 1])), axis=1
    )


def _density(axis: Axes, draws: Array, limits: Array, color: str | None = None) -> None:
    """The density of one column: filled, or dashed where no color is given."""
    shown = Surface.of(draws, limits)
    if color:
        axis.fill_between(shown.points[0], shown.height, color=color, alpha=0.5, linewidth=0)
    else:
        axis.plot(shown.points[0], shown.height, "k--", linewidth=0.9)


def _regions(axis: Axes, draws: Array, limits: Array, color: str | None = None) -> None:
    """The regions of two columns: filled, or dashed where no color is given."""
    shown = Surface.of(draws, limits)
    levels = shown.levels(draws)
    if color:
        top = float(shown.height.max()) * 1.01
        for level, alpha in zip(levels, (0.3, 0.4), strict=True):
            axis.contourf(*shown.points, shown.height.T, [level, top], colors=[color], alpha=alpha)
    else:
        style: Any = {"colors": "black", "linestyles": "--", "linewidths": 0.9}
        axis.contour(*shown.points, shown.height.T, sorted(set(levels)), **style)


def _mark(
    axis: Axes, pair: Sequence[int], bounds: Array, limits: Array, truth: Array | None
) -> None:
    """The bounds of the prior where they are in sight, the truth, and the limits of the panel."""
    rulers, names = (axis.axvline, axis.axhline), ("x", "y")
    for ruler, index, name in zip(rulers, pair, names, strict=False):
        low, high = limits[index]
        room = 0.04 * (high - low)
        seen = [low, high]
        for place, end in enumerate(bounds[index]):
            if seen[place] == end:
                ruler(end, **BOUND)
                seen[place] += room if place else -room
        if truth is not None:
            ruler(truth[index], **TRUTH)
            seen = [min(seen[0], truth[index] - room), max(seen[1], truth[index] + room)]
        axis.set(**{f"{name}lim": seen})
        getattr(axis, f"{name}axis").get_major_locator().set_params(nbins=4)
    if truth is not None and len(pair) > 1:
        axis.plot(*truth[list(pair)], "x", color=plots.RED, markersize=5)


def _label(axis: Axes, names: Sequence[str], i: int, j: int) -> None:
    if i == len(names) - 1:
        axis.set_xlabel(plots.plain_name(names[j], 20))
    else:
        axis.tick_params(labelbottom=False)
    if j == 0 and i > 0:
        axis.set_ylabel(plots.plain_name(names[i], 20))
    elif i == j:
        axis.set(ylabel="density", yticks=[], ylim=(0, None))
    else:
        axis.tick_params(labelleft=False)
