"""The coverage of a few runs as the store has them, for who has no pandas."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prudent.experiments.store import Run
from prudent.reports.figures.methods import LABELS, STYLES
from prudent.reports.figures.style import themed

__all__ = ["coverage_figure"]


@themed
def coverage_figure(runs: Sequence[Run]) -> Figure:
    """Coverage against level with 95 % intervals, one panel per problem and budget."""
    panels = [
        (key, list(group))
        for key, group in groupby(runs, key=lambda run: (run.config.problem, run.config.budget))
    ]
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(3.9 * columns + 0.6, 3.9 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for axis, ((problem, budget), group) in zip(axes, panels, strict=False):
        _coverage_panel(axis, group)
        axis.set_title(f"{problem}, {budget:,} simulations")
    for axis in list(axes)[len(panels) :]:
        axis.set_axis_off()
    return figure


def _coverage_panel(axis: Axes, runs: Sequence[Run]) -> None:
    axis.plot([0, 1], [0, 1], color="0.45", linewidth=1, zorder=1)
    axis.fill_between([0, 1], [0, 1], [0, 0], color="0.5", alpha=0.08, linewidth=0)
    axis.text(0.97, 0.05, "over-confident", ha="right", color="0.35", style="italic")
    axis.text(0.03, 0.93, "cautious", ha="left", color="0.35", style="italic")
    labelled: set[str] = set()
    for run in runs:
        method, curve = run.config.method, run.coverage
        colour, line, marker = STYLES[method]
        label = None if method in labelled else LABELS[method]
        labelled.add(method)
        axis.fill_between(
            curve["levels"], curve["lower"], curve["upper"], color=colour, alpha=0.2, linewidth=0
        )
        axis.plot(
            curve["levels"],
            curve["curve"],
            color=colour,
            linestyle=line,
            marker=marker,
            markersize=3.5,
            linewidth=1.4,
            label=label,
        )
    axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axis.set_xlabel("credibility level")
    axis.set_ylabel("share of truths inside the region")
    axis.legend(loc="lower right", bbox_to_anchor=(1.0, 0.1), frameon=False)
