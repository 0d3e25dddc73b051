"""Ranks of one thorough run: SBC by parameter, TARP for all parameters at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prudent.reports.figures.cells import name_run, one_run
from prudent.reports.figures.style import (
    canvas,
    diagonal,
    dress,
    line,
    one_axis,
    plain_name,
    themed,
)

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["THOROUGH", "sbc", "tarp"]

THOROUGH = "Run with `thorough = true`, for instance: prudent sweep FILE --set thorough=true"
MOST_COLUMNS = 3


@themed
def sbc(ranks: DataFrame, *, run: str | None = None) -> Figure:
    """How the ranks of the truth differ from uniform ones, one panel per parameter.

    Args:
        ranks: See :attr:`prudent.experiments.Results.ranks`.
        run: The identity; None for the first.
    """
    rows = one_run(ranks[ranks["test"] == "sbc"], run, "SBC ranks", THOROUGH)
    names = list(rows["parameter"].unique())
    columns = min(MOST_COLUMNS, len(names))
    count = -(-len(names) // columns)
    width = 2.85 if columns == 1 else 2.1
    figure, axes = canvas(count, columns, panel=(width, 1.8), sharey=True)
    style = line(rows["method"].iloc[0])
    for axis, name in zip(axes.flat, names, strict=False):
        own = rows[rows["parameter"] == name]
        axis.fill_between(own["level"], own["lower"], own["upper"], color="0.85", linewidth=0)
        axis.axhline(0, color="0.45", linewidth=0.8)
        axis.plot(own["level"], own["value"], color=style["color"])
        axis.set_title(f"{plain_name(name, 20)}, p = {own['p_value'].iloc[0]:.2g}")
        axis.set(xlabel="rank of the truth / draws", xlim=(0, 1), xticks=[0, 0.5, 1])
    for axis in axes[:, 0]:
        axis.set_ylabel("ECDF − uniform")
    for axis in axes.flat[len(names) :]:
        axis.remove()
    note = "Grey: 95 % of exact posteriors stay inside everywhere"
    dress(figure, f"SBC: {name_run(rows)}", [note])
    return figure


@themed
def tarp(ranks: DataFrame, *, run: str | None = None, ax: Axes | None = None) -> Figure:
    """Coverage of balls around random points, which sees defects in all parameters together.

    Args:
        ranks: See :attr:`prudent.experiments.Results.ranks`.
        run: The identity; None for the first.
        ax: Where to draw.
    """
    rows = one_run(ranks[ranks["test"] == "tarp"], run, "TARP coverage", THOROUGH)
    figure, axis = one_axis(ax)
    diagonal(axis, words=False, shaded=False)
    axis.fill_between(rows["level"], rows["lower"], rows["upper"], color="0.75", linewidth=0)
    axis.plot(rows["level"], rows["value"], color=line(rows["method"].iloc[0])["color"])
    axis.set(xlabel="credibility level", ylabel="share of truths inside the ball")
    title = f"TARP, p = {rows['p_value'].iloc[0]:.2g}: {name_run(rows)}"
    if ax is None:
        dress(figure, title, ["Grey band: 95 % of exact posteriors stay inside everywhere"])
    else:
        axis.set_title(title)
    return figure
