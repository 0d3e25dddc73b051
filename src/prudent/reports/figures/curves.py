"""Coverage curves: of a whole sweep, and of one run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from prudent.reports.figures.cells import cells, finished, name_run, one_run
from prudent.reports.figures.scans import regularizer
from prudent.reports.figures.style import (
    SMALL,
    canvas,
    diagonal,
    dress,
    label,
    line,
    one_axis,
    ordered,
    plain_name,
    themed,
)

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["coverage", "run_coverage"]


@themed
def coverage(curves: DataFrame) -> Figure:
    """Coverage against level: a row per problem, a column per budget, a colour per method.

    Args:
        curves: See :attr:`prudent.experiments.Results.curves`; with the columns of the runs,
            failed ones are counted and settings kept apart.
    """
    shown = cells(curves, "coverage")
    problems = sorted(curves["problem"].dropna().unique())
    budgets = sorted(curves["budget"].dropna().unique())
    panel = (2.85, 2.45) if len(budgets) == 1 else (1.6, 1.45)
    figure, axes = canvas(len(problems), len(budgets), panel=panel)
    methods = ordered(shown.rows["method"])
    for row, problem in enumerate(problems):
        for column, budget in enumerate(budgets):
            axis, rows = axes[row, column], shown.rows
            cell = rows[(rows["problem"] == problem) & (rows["budget"] == budget)]
            diagonal(axis, words=row == column == 0)
            _panel(axis, cell, methods)
            if row == 0:
                axis.set_title(f"{int(budget):,} simulations" if column == 0 else f"{budget:,.0f}")
            # Shared axes would do the same, in a time that grows with the square of the panels.
            axis.set(xlabel="credibility level", ylabel=f"{plain_name(problem, 20)}\ncoverage")
            axis.label_outer()
    handles = [axes[0, 0].plot([], [], label=label(name), **line(name))[0] for name in methods]
    one = shown.num_seeds == 1
    average = "One seed" if one else f"Thick: mean of {shown.seeds}; thin: each"
    targets = _targets(shown.rows)
    dress(figure, f"Expected coverage{targets}", [average, *shown.notes], handles)
    return figure


def _panel(axis: Axes, cell: DataFrame, methods: list[str]) -> None:
    if len(cell) == 0:
        axis.text(
            0.5, 0.5, "no finished run", ha="center", backgroundcolor="white", fontsize=SMALL
        )
    for name in methods:
        rows = cell[cell["method"] == name]
        style = line(name)
        each = [part[["level", "coverage"]].to_numpy() for _, part in rows.groupby("run")]
        if len(each) > 1:
            thin = LineCollection(each, colors=style["color"], linewidths=0.5, alpha=0.5)
            axis.add_collection(thin, autolim=False)
        mean = rows.groupby("level")["coverage"].mean()
        offset = methods.index(name)  # so that markers of curves that agree lie beside each other
        axis.plot(mean.index, mean, markevery=(offset % 6, 6), **style)


def _targets(rows: DataFrame) -> str:
    """What the coverage penalty aimed at, where that is not the default."""
    if "target" not in rows:
        return ""
    used = rows[rows["method"].map(regularizer) == "coverage"]["target"].unique()
    other = [str(target) for target in used if target != "conservative"]
    return f", penalty with target {' and '.join(other)}" if other else ""


@themed
def run_coverage(curves: DataFrame, *, run: str | None = None, ax: Axes | None = None) -> Figure:
    """The coverage of one run with its 95 % interval at each level.

    Args:
        curves: See :attr:`prudent.experiments.Results.curves`.
        run: The identity; None for the first.
        ax: Where to draw.
    """
    rows = one_run(finished(curves), run, "coverage curves", "Make some with: prudent demo")
    figure, axis = one_axis(ax)
    style = line(rows["method"].iloc[0])
    diagonal(axis, words=True)
    axis.fill_between(
        rows["level"], rows["lower"], rows["upper"], color=style["color"], alpha=0.25, linewidth=0
    )
    axis.plot(rows["level"], rows["coverage"], **style)
    axis.set(xlabel="credibility level", ylabel="share of truths inside the region")
    pairs = f" ({int(rows['num_pairs'].iloc[0]):,} test pairs)" if "num_pairs" in rows else ""
    name = name_run(rows)
    if ax is None:
        dress(figure, name, [f"Band: 95 % at each level{pairs}"])
    else:
        axis.set_title(name)
    return figure
