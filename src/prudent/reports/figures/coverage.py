"""Coverage curves of a whole sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from prudent import _plots as plots
from prudent.reports.cells import mean_curve
from prudent.reports.figures._rows import Shown, penalized, shown

if TYPE_CHECKING:
    from pandas import DataFrame


def coverage(curves: DataFrame) -> Figure:
    """Coverage against level: a row per problem, a column per budget, a color per method."""
    found = shown(curves, "coverage")
    problems = sorted(curves["problem"].dropna().unique())
    budgets = sorted(curves["budget"].dropna().unique())
    panel = (plots.SINGLE, 2.45) if len(budgets) == 1 else (1.6, 1.45)
    figure, axes = plots.canvas(len(problems), len(budgets), panel=panel)
    for row, problem in enumerate(problems):
        for column, budget in enumerate(budgets):
            axis, rows = axes[row, column], found.rows
            plots.diagonal(axis, words=row == column == 0)
            _panel(axis, rows[(rows["problem"] == problem) & (rows["budget"] == budget)], found)
            if row == 0:
                axis.set_title(f"{int(budget):,} simulations" if column == 0 else f"{budget:,.0f}")
            # Shared axes would do the same, in a time that grows with the square of the panels.
            name = plots.plain_name(problem, 20)
            axis.set(xlabel="credibility level", ylabel=f"{name}\ncoverage")
            axis.label_outer()
    title = f"Expected coverage{_targets(found.rows)}"
    notes = [found.average("Thick: mean of {}; thin: each"), *found.notes]
    return plots.dress(figure, title, notes, found.handles)


def _panel(axis: Axes, cell: DataFrame, found: Shown) -> None:
    if len(cell) == 0:
        words: Any = {"ha": "center", "backgroundcolor": "white", "fontsize": plots.SMALL}
        axis.text(0.5, 0.5, "no finished run", **words)
    for name, one, rows in found.each(cell):
        each = [part for _, part in rows.groupby("run")]
        if len(each) > 1:
            lines = [part[["level", "coverage"]].to_numpy(float) for part in each]
            thin = LineCollection(lines, colors=one.color, linewidths=0.5, alpha=0.5)
            axis.add_collection(thin, autolim=False)
        pairs = [part["num_pairs"].iloc[0] if "num_pairs" in part else 1 for part in each]
        mean = mean_curve(each, pairs)
        # So that markers of curves that agree lie beside each other.
        places = (list(found.series).index(name) % 6, 6)
        axis.plot(mean["levels"], mean["curve"], markevery=places, **one.line)


def _targets(rows: DataFrame) -> str:
    """What the coverage penalty aimed at, where that is not the default."""
    used = penalized(rows)["target"].unique() if "target" in rows else ()
    other = [str(target) for target in used if target != "conservative"]
    return f", penalty with target {' and '.join(other)}" if other else ""
