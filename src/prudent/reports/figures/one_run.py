"""Figures of one run: its coverage, its rank tests, a posterior of it and its training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from prudent import _plots as plots
from prudent.errors import InputError
from prudent.history import PANELS, History
from prudent.reports.cells import Series
from prudent.reports.figures._rows import finished, margins_of, name_cell

if TYPE_CHECKING:
    from pandas import DataFrame

Array = NDArray[np.float64]
# The bins of a marginal, and the masses of its regions.
BINS, MASSES = 36, (0.9, 0.5)
TRUTH: Any = {"color": plots.RED, "linestyle": ":", "linewidth": 1}
DEMO = "Make some with: prudent demo"
THOROUGH = "Run with `thorough = true`, for instance: prudent sweep FILE --set thorough=true"


def rows_of(
    table: DataFrame, run: str | None, what: str, remedy: str = THOROUGH
) -> tuple[DataFrame, Series, str]:
    """The rows of a run, given by the beginning of its identity, its look, and its title."""
    if len(table) == 0:
        raise InputError(f"no {what} to draw. {remedy}")
    first = table["run"].iloc[0]
    found = [first] if run is None else {name for name in table["run"] if name.startswith(run)}
    if len(found) != 1:
        raise InputError(
            f"{len(found)} runs with {what} begin with `{run}`; expected one of "
            f"{' '.join(table['run'].unique()[:5])} ..."
        )
    rows = table[table["run"].isin(found)]
    row = rows.iloc[0]
    title = f"{name_cell(row)}, seed {int(row['seed'])} ({row['run']})"
    return rows, Series(row["method"]), title


def run_coverage(curves: DataFrame, *, run: str | None = None, ax: Axes | None = None) -> Figure:
    """The coverage of one run with the band of its verdict."""
    rows, look, title = rows_of(finished(curves), run, "coverage curves", DEMO)
    figure, axis = plots.one_axis(ax)
    margins = margins_of([rows])
    plots.coverage_panel(axis, margins)
    axis.plot(rows["level"], rows["coverage"], **look.line)
    return plots.dress(figure, title, [plots.verdict_note(margins)], ax=ax)


def sbc(ranks: DataFrame, *, run: str | None = None) -> Figure:
    """The difference of the ranks of the truth from uniform ones, one panel per parameter."""
    rows, look, title = rows_of(ranks[ranks["test"] == "sbc"], run, "SBC ranks")
    groups = list(rows.groupby("parameter", sort=False))
    figure, axes = plots.panels(len(groups), sharey=True)
    for axis, (name, own) in zip(axes, groups, strict=True):
        plots.rank_curve(axis, "sbc", own, color=look.color)
        axis.set_title(f"{plots.plain_name(name, 20)}, p = {own['p_value'].iloc[0]:.2g}")
        axis.yaxis.label.set_visible(axis.get_subplotspec().is_first_col())
    return plots.dress(figure, f"SBC: {title}", [f"Grey: {plots.EXACT}"])


def tarp(ranks: DataFrame, *, run: str | None = None, ax: Axes | None = None) -> Figure:
    """Coverage of balls around random points, which sees defects in all parameters together."""
    rows, look, title = rows_of(ranks[ranks["test"] == "tarp"], run, "TARP coverage")
    figure, axis = plots.one_axis(ax)
    plots.rank_curve(axis, "tarp", rows, color=look.color)
    title = f"TARP, p = {rows['p_value'].iloc[0]:.2g}: {title}"
    return plots.dress(figure, title, [f"Grey band: {plots.EXACT}"], ax=ax)


def history(history: DataFrame, *, run: str | None = None) -> Figure:
    """Losses, terms of the penalty and learning rate of one run, a line per member."""
    rows, _, title = rows_of(history, run, "training curves", DEMO)
    return plots.training_curves(History(rows.to_dict("records")), PANELS, title)


def corner(draws: DataFrame, *, run: str | None = None) -> Figure:
    """Posterior draws for one observation, with the truth and the exact posterior if known."""
    rows, look, title = rows_of(draws, run, "posterior draws")
    names = list(rows["parameter"].unique())
    tables = {
        kind: part.pivot(index="draw", columns="parameter", values="value")[names].to_numpy()
        for kind, part in rows.groupby("kind")
    }
    posterior, exact, truth = (tables.get(kind) for kind in ("posterior", "exact", "truth"))
    assert posterior is not None
    limits = _limits(np.concatenate(list(tables.values())))
    size = plots.SINGLE if len(names) == 1 else max(1.3, plots.SINGLE / len(names))
    figure, axes = plots.canvas(len(names), len(names), panel=(size, size))
    for i, j in np.ndindex(len(names), len(names)):
        axis, pair = axes[i, j], [j, i]
        if j > i:
            axis.remove()
            continue
        draw = _density if i == j else _regions
        draw(axis, posterior[:, pair], limits[pair], look.color)
        if exact is not None:
            draw(axis, exact[:, pair], limits[pair])
        if truth is not None:
            axis.axvline(truth[0, j], **TRUTH)
        if truth is not None and i != j:
            axis.axhline(truth[0, i], **TRUTH)
            axis.plot(truth[0, j], truth[0, i], "x", color=plots.RED, markersize=5)
        axis.set_xlim(*limits[j])
        axis.locator_params(nbins=4)
        _label(axis, names, i, j)
    label = f"{plots.plain_name(look.name)} posterior"
    handles = [axes[0, 0].fill_between([], [], color=look.color, alpha=0.5, label=label)]
    if exact is not None:
        handles += axes[0, 0].plot([], [], "k--", linewidth=1, label="exact")
    if truth is not None:
        handles += axes[0, 0].plot([], [], "x:", color=plots.RED, label="truth")
    note = f"{len(posterior):,} draws for one observation"
    note += ";\nregions hold 50 % and 90 % of them" if len(names) > 1 else ""
    return plots.dress(figure, title, [note], handles)


def _limits(values: Array) -> Array:
    """All but the outermost thousandth, and some room."""
    low, high = np.quantile(values, [0.001, 0.999], axis=0)
    room = 0.05 * (high - low) + 1e-9
    return np.stack((low - room, high + room), axis=1)


def _density(axis: Axes, values: Array, limits: Array, color: str | None = None) -> None:
    """The density of the first column: filled, or dashed where no color is given."""
    edges = np.linspace(limits[0, 0], limits[0, 1], BINS + 1)
    centers = (edges[1:] + edges[:-1]) / 2
    heights = smooth(np.histogram(values[:, 0], edges, density=True)[0])
    if color:
        axis.fill_between(centers, heights, color=color, alpha=0.5)
    else:
        axis.plot(centers, heights, "k--", linewidth=0.9)


def _regions(axis: Axes, values: Array, limits: Array, color: str | None = None) -> None:
    """The regions of two columns: filled, or dashed where no color is given."""
    edges = [np.linspace(low, high, BINS + 1) for low, high in limits]
    counts = smooth(np.histogram2d(values[:, 0], values[:, 1], bins=edges)[0])
    centers = [(part[1:] + part[:-1]) / 2 for part in edges]
    levels = mass_levels(counts, MASSES)
    if color:
        for level, alpha in zip(levels, (0.3, 0.4), strict=True):
            axis.contourf(*centers, counts.T, [level, counts.max()], colors=[color], alpha=alpha)
    else:
        axis.contour(*centers, counts.T, levels, colors="black", linestyles="--", linewidths=0.9)
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


def _label(axis: Axes, names: list[str], i: int, j: int) -> None:
    last = len(names) - 1
    if i == last:
        axis.set_xlabel(plots.plain_name(names[j], 20))
    else:
        axis.tick_params(labelbottom=False)
    if j == 0 and i > 0:
        axis.set_ylabel(plots.plain_name(names[i], 20))
    elif i == j:
        axis.set(ylabel="density", yticks=[], ylim=(0, None))
    else:
        axis.tick_params(labelleft=False)
