"""Figures of one run: its coverage, its rank tests and its training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prudent import _plots as plots
from prudent.history import PANELS, History
from prudent.reports.figures._rows import finished, name_run, one_run
from prudent.reports.series import Series

if TYPE_CHECKING:
    from pandas import DataFrame

DEMO = "Make some with: prudent demo"
THOROUGH = "Run with `thorough = true`, for instance: prudent sweep FILE --set thorough=true"


@plots.themed
def run_coverage(curves: DataFrame, *, run: str | None = None, ax: Axes | None = None) -> Figure:
    """The coverage of one run with its 95 % interval at each level."""
    rows = one_run(finished(curves), run, "coverage curves", DEMO)
    figure, axis = plots.one_axis(ax)
    bands = (rows[name] for name in ("level", "coverage", "lower", "upper"))
    plots.coverage_curve(axis, *bands, **Series(rows["method"].iloc[0]).line)
    pairs = f" ({int(rows['num_pairs'].iloc[0]):,} test pairs)" if "num_pairs" in rows else ""
    return _titled(figure, ax, name_run(rows), f"Band: 95 % at each level{pairs}")


@plots.themed
def sbc(ranks: DataFrame, *, run: str | None = None) -> Figure:
    """The difference of the ranks of the truth from uniform ones, one panel per parameter."""
    rows = one_run(ranks[ranks["test"] == "sbc"], run, "SBC ranks", THOROUGH)
    groups = list(rows.groupby("parameter", sort=False))
    figure, axes = plots.panels(len(groups), sharey=True)
    color = Series(rows["method"].iloc[0]).color
    for axis, (name, own) in zip(axes, groups, strict=True):
        plots.rank_curve(axis, *(own[column] for column in plots.BANDS), color=color)
        axis.set_title(f"{plots.plain_name(name, 20)}, p = {own['p_value'].iloc[0]:.2g}")
        axis.yaxis.label.set_visible(axis.get_subplotspec().is_first_col())
    return _titled(figure, None, f"SBC: {name_run(rows)}", f"Grey: {plots.EXACT}")


@plots.themed
def tarp(ranks: DataFrame, *, run: str | None = None, ax: Axes | None = None) -> Figure:
    """Coverage of balls around random points, which sees defects in all parameters together."""
    rows = one_run(ranks[ranks["test"] == "tarp"], run, "TARP coverage", THOROUGH)
    figure, axis = plots.one_axis(ax)
    color = Series(rows["method"].iloc[0]).color
    plots.tarp_curve(axis, *(rows[column] for column in plots.BANDS), color=color)
    title = f"TARP, p = {rows['p_value'].iloc[0]:.2g}: {name_run(rows)}"
    return _titled(figure, ax, title, f"Grey band: {plots.EXACT}")


def history(history: DataFrame, *, run: str | None = None) -> Figure:
    """Losses, terms of the penalty and learning rate of one run, a line per member."""
    rows = one_run(history, run, "training curves", DEMO)
    return plots.training_curves(History(rows.to_dict("records")), PANELS, name_run(rows))


def _titled(figure: Figure, ax: Axes | None, title: str, note: str) -> Figure:
    if ax is None:
        plots.dress(figure, title, [note])
    else:
        ax.set_title(title)
    return figure
