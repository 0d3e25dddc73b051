"""One posterior to look at: every parameter, and every pair of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from prudent import _plots as plots
from prudent.reports.figures._rows import name_run, one_run
from prudent.reports.figures.one_run import THOROUGH
from prudent.reports.series import Series

if TYPE_CHECKING:
    from pandas import DataFrame

Array = NDArray[np.float64]
BINS = 36
MASSES = (0.9, 0.5)


@plots.themed
def corner(draws: DataFrame, *, run: str | None = None) -> Figure:
    """Posterior draws for one observation, with the truth and the exact posterior if known."""
    rows = one_run(draws, run, "posterior draws", THOROUGH)
    names = list(rows["parameter"].unique())
    tables = {
        kind: part.pivot(index="draw", columns="parameter", values="value")[names].to_numpy()
        for kind, part in rows.groupby("kind")
    }
    posterior, exact, truth = (tables.get(kind) for kind in ("posterior", "exact", "truth"))
    assert posterior is not None
    everything = np.concatenate([part for part in (posterior, exact, truth) if part is not None])
    limits = _limits(everything)
    method = Series(rows["method"].iloc[0])
    color = method.color
    size = plots.SINGLE if len(names) == 1 else max(1.3, plots.SINGLE / len(names))
    figure, axes = plots.canvas(len(names), len(names), panel=(size, size))
    for i, j in np.ndindex(len(names), len(names)):
        axis = axes[i, j]
        if j > i:
            axis.remove()
            continue
        if i == j:
            _density(
                axis, posterior[:, i], exact if exact is None else exact[:, i], limits[i], color
            )
        else:
            pair = [j, i]
            _regions(axis, posterior[:, pair], limits[pair], color, filled=True)
            if exact is not None:
                _regions(axis, exact[:, pair], limits[pair], "black", filled=False)
        if truth is not None:
            _mark(axis, truth[0], j, None if i == j else i)
        axis.set_xlim(*limits[j])
        axis.locator_params(nbins=4)
        _label(axis, names, i, j)
    handles = [
        axes[0, 0].fill_between(
            [], [], color=color, alpha=0.5, label=f"{plots.plain_name(method.name)} posterior"
        )
    ]
    if exact is not None:
        handles += axes[0, 0].plot([], [], "k--", linewidth=1, label="exact")
    if truth is not None:
        handles += axes[0, 0].plot([], [], "x:", color=plots.RED, label="truth")
    note = f"{len(posterior):,} draws for one observation"
    note += ";\nregions hold 50 % and 90 % of them" if len(names) > 1 else ""
    plots.dress(figure, name_run(rows), [note], handles)
    return figure


def _limits(values: Array) -> Array:
    """All but the outermost thousandth, and some room."""
    low, high = np.quantile(values, [0.001, 0.999], axis=0)
    room = 0.05 * (high - low) + 1e-9
    return np.stack((low - room, high + room), axis=1)


def _density(axis: Axes, values: Array, exact: Array | None, limits: Array, color: str) -> None:
    edges = np.linspace(limits[0], limits[1], BINS + 1)
    centres = (edges[1:] + edges[:-1]) / 2
    axis.fill_between(centres, _heights(values, edges), color=color, alpha=0.5)
    if exact is not None:
        axis.plot(centres, _heights(exact, edges), "k--", linewidth=0.9)
    axis.set(yticks=[], ylim=(0, None))


def _heights(values: Array, edges: Array) -> Array:
    return smooth(np.histogram(values, edges, density=True)[0])


def _regions(axis: Axes, values: Array, limits: Array, color: str, *, filled: bool) -> None:
    edges = [np.linspace(low, high, BINS + 1) for low, high in limits]
    counts, *_ = np.histogram2d(values[:, 0], values[:, 1], bins=edges)
    counts = smooth(counts)
    centres = [(part[1:] + part[:-1]) / 2 for part in edges]
    levels = mass_levels(counts, MASSES)
    if filled:
        for level, alpha in zip(levels, (0.3, 0.4), strict=True):
            axis.contourf(*centres, counts.T, [level, counts.max()], colors=[color], alpha=alpha)
    else:
        axis.contour(*centres, counts.T, levels, colors=color, linestyles="--", linewidths=0.9)
    axis.set_ylim(*limits[1])


def smooth(counts: Array, width: float = 1.5) -> Array:
    """Counts blurred by a Gaussian of so many bins, so that regions have no ragged edges."""
    reach = int(np.ceil(3 * width))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    kernel /= kernel.sum()
    for axis in range(counts.ndim):
        counts = np.apply_along_axis(np.convolve, axis, counts, kernel, mode="same")
    return counts


def mass_levels(counts: Array, masses: tuple[float, ...]) -> list[float]:
    """The heights above which the given shares lie, for masses from large to small.

    >>> mass_levels(np.array([1.0, 2.0, 7.0]), (0.9, 0.5))
    [2.0, 7.0]
    >>> points = np.linspace(-8, 8, 100_001)
    >>> normal = np.exp(-0.5 * points**2)
    >>> round(float(points[normal >= mass_levels(normal, (0.95,))[0]].max()), 2)
    1.96
    """
    ordered = np.sort(counts, axis=None)[::-1]
    share = np.cumsum(ordered) / ordered.sum()
    return [float(ordered[np.searchsorted(share, mass - 1e-9)]) for mass in masses]


def _mark(axis: Axes, truth: Any, j: int, i: int | None) -> None:
    color = plots.RED
    axis.axvline(truth[j], color=color, linestyle=":", linewidth=1)
    if i is not None:
        axis.axhline(truth[i], color=color, linestyle=":", linewidth=1)
        axis.plot(truth[j], truth[i], "x", color=color, markersize=5)


def _label(axis: Axes, names: list[str], i: int, j: int) -> None:
    last = len(names) - 1
    if i == last:
        axis.set_xlabel(plots.plain_name(names[j], 20))
    else:
        axis.tick_params(labelbottom=False)
    if j == 0 and i > 0:
        axis.set_ylabel(plots.plain_name(names[i], 20))
    elif i == j:
        axis.set_ylabel("density")
    else:
        axis.tick_params(labelleft=False)
