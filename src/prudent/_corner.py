"""The pair plot of draws: every parameter, and every pair of them.

Regions are what the caption says: the contour of each is drawn at the height of the density, as it
is drawn, above which the stated share of the posterior lies. Of the draws themselves more lie
there, as each of them raises the density at its own place; so the height is that above which this
share of them lies when each is looked at by the density that the others show. How far a density is
blurred, the draws decide: each half of them shows it, and the width is taken under which the other
half is most likely. At the prior's bounds it is reflected, so that nothing crosses them or is lost
there.

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
# The shares of the posterior that regions hold.
MASSES = (0.9, 0.5)
TRUTH: Any = {"color": plots.RED, "linestyle": ":", "linewidth": 1}
PRIOR = "0.55"
BOUND: Any = {"color": plots.LINE, "linewidth": 0.8}


def blur(number: int, width: float) -> Array:
    """What each of so many cells (in a column) gives to each (in a row).

    It is a Gaussian of so many cells, reflected at the edges.
    """
    cell = np.arange(number)
    images = (cell, -1 - cell, 2 * number - 1 - cell)
    parts = [np.exp(-0.5 * ((cell[:, None] - own) / width) ** 2) for own in images]
    kernel: Array = np.sum(parts, axis=0)
    kernel /= kernel.sum(axis=0)
    return kernel


def smooth(counts: Array, width: float) -> Array:
    """Counts of cells, blurred."""
    kernel = blur(len(counts), width)
    for axis in range(counts.ndim):
        counts = np.moveaxis(np.tensordot(kernel, counts, (1, axis)), 0, axis)
    return counts


@dataclass(frozen=True, eq=False)
class Surface:
    """A density of one or two parameters, linear between points.

    Args:
        points: The coordinates of the points along each parameter, from limit to limit.
        height: The density at the points.
        width: The width of the blur, in cells.
        number: The number of draws that show it.
    """

    points: list[Array]
    height: Array
    width: float
    number: int

    @classmethod
    def of(cls, draws: Array, limits: Array) -> Self:
        """The density of draws (L, K) inside limits (K, 2)."""
        # Copies of a draw go to the same half: they say nothing about each other.
        first, _ = _copies(draws)
        halves = [draws[first % 2 == half] for half in (0, 1)]
        counts = [_counts(half, limits) for half in halves]

        def score(width: float) -> float:
            total = 0.0
            for own, other in ((0, 1), (1, 0)):
                shown = cls._of_counts(counts[own], width, len(halves[own]), limits)
                found = shown.at(halves[other])
                least = 1e-9 * max(float(shown.height.max()), 1e-30)
                total += float(np.log(np.maximum(found, least)).sum())
            return total / len(draws)

        scores = [score(width) for width in WIDTHS]
        chosen = max(w for w, own in zip(WIDTHS, scores, strict=True) if own > max(scores) - ALIKE)
        # Twice as many draws deserve a little less of it.
        width = chosen * 2 ** (-1 / (4 + len(limits)))
        return cls._of_counts(counts[0] + counts[1], width, len(draws), limits)

    @classmethod
    def _of_counts(cls, counts: Array, width: float, number: int, limits: Array) -> Self:
        """The density from counts of cells, reaching from the first edge to the last."""
        points = [np.r_[own[0], (own[1:] + own[:-1]) / 2, own[-1]] for own in _edges(limits)]
        height = np.pad(smooth(counts, width), 1, mode="edge")
        return cls(points, height / (max(1, number) * _volume(limits)), width, number)

    @property
    def limits(self) -> Array:
        """The ends of each parameter, (K, 2)."""
        return np.array([[own[0], own[-1]] for own in self.points])

    def at(self, draws: Array) -> Array:
        """The density at draws (L, K): zero beyond the limits."""
        low, high = self.limits.T
        inside = ((draws >= low) & (draws <= high)).all(axis=1)
        pairs = zip(self.points, draws.T, strict=True)
        places, shares = zip(*(_place(own, column) for own, column in pairs), strict=True)
        total = np.zeros(len(draws))
        for corner in np.ndindex(*(2,) * len(places)):
            pairs = zip(shares, corner, strict=True)
            weight = np.prod([share if up else 1 - share for share, up in pairs], axis=0)
            moved = tuple(place + up for place, up in zip(places, corner, strict=True))
            total += weight * self.height[moved]
        return np.where(inside, total, 0.0)

    def by_others(self, draws: Array) -> Array:
        """The density at each of the draws (L, K) that show it, as those elsewhere show it."""
        kernel, own = np.pad(blur(CELLS, self.width), ((1, 1), (0, 0)), mode="edge"), 1.0
        for points, edges, column in zip(self.points, _edges(self.limits), draws.T, strict=True):
            cell, (place, share) = _place(edges, column)[0], _place(points, column)
            own = own * ((1 - share) * kernel[place, cell] + share * kernel[place + 1, cell])
        _, copies = _copies(draws)
        total = self.number * self.at(draws) - copies * own / _volume(self.limits)
        found: Array = np.maximum(total, 0.0) / np.maximum(1, self.number - copies)
        return found

    def levels(self, draws: Array) -> list[float]:
        """The heights above which ``MASSES`` lie, ascending, by the draws (L, K) that show it."""
        ordered = np.sort(self.by_others(draws))[::-1]
        return [float(ordered[min(int(mass * len(ordered)), len(ordered) - 1)]) for mass in MASSES]


def _edges(limits: Array) -> list[Array]:
    return [np.linspace(low, high, CELLS + 1) for low, high in limits]


def _volume(limits: Array) -> float:
    """The volume of a cell."""
    return float(np.prod((limits[:, 1] - limits[:, 0]) / CELLS))


def _place(points: Array, column: Array) -> tuple[Any, Array]:
    """The point before each number, and the share of the way to the next."""
    place = np.clip(np.searchsorted(points, column, side="right") - 1, 0, len(points) - 2)
    return place, (column - points[place]) / (points[place + 1] - points[place])


def _copies(draws: Array) -> tuple[Any, Any]:
    """The first place of each draw (L, K) and the number of its copies, itself included."""
    options: Any = {"return_index": True, "return_inverse": True, "return_counts": True}
    _, first, place, copies = np.unique(draws, axis=0, **options)
    place = place.reshape(-1)
    return first[place], copies[place]


def _counts(draws: Array, limits: Array) -> Array:
    bins: Any = _edges(limits)
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
            axis.plot(points, prior(i, points), color=PRIOR, linewidth=0.9, zorder=1)
        _mark(axis, pair, bounds, limits, truth)
        _label(axis, names, i, j)
    handles = [axes[0, 0].fill_between([], [], color=color, alpha=0.5, label=label)]
    for shown, style, text in (
        (exact, {"color": "black", "linestyle": "--"}, "exact"),
        (prior, {"color": PRIOR}, "prior"),
        (truth, {"color": plots.RED, "linestyle": ":", "marker": "x"}, "truth"),
    ):
        if shown is not None:
            handles += axes[0, 0].plot([], [], linewidth=1, label=text, **style)
    note = f"{len(draws):,} draws for one observation"
    note += ";\nregions hold 50 % and 90 % of the posterior" if dim > 1 else ""
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
