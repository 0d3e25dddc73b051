"""Figures: functions from finished runs to matplotlib figures, without global state."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prudent.experiments.store import Run

__all__ = ["coverage_figure", "history_figure", "png", "svg"]

# Okabe and Ito's palette, told apart with any colour vision; dashes and markers for grey prints.
STYLES = {
    "nre": ("#0072B2", "-", "o"),
    "bnre": ("#E69F00", "--", "s"),
    "calnre": ("#009E73", "-", "^"),
    "npe": ("#CC79A7", "-", "D"),
    "bnpe": ("#D55E00", "--", "v"),
    "calnpe": ("#56B4E9", "-", "P"),
}
LABELS = {
    "nre": "NRE",
    "bnre": "BNRE",
    "calnre": "CalNRE",
    "npe": "NPE",
    "bnpe": "BNPE",
    "calnpe": "CalNPE",
}
SETTINGS: Any = {
    "font.size": 9,
    "font.family": "sans-serif",
    "svg.fonttype": "none",
    "svg.hashsalt": "prudent",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def coverage_figure(runs: Sequence[Run]) -> Figure:
    """Coverage against level with 95 % intervals, one panel per problem and budget."""
    panels = [
        (key, list(group))
        for key, group in groupby(runs, key=lambda run: (run.config.problem, run.config.budget))
    ]
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    with rc_context(SETTINGS):
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


def history_figure(run: Run) -> Figure:
    """The training curves of one run."""
    with rc_context(SETTINGS):
        figure: Figure = run.history().plot()
    return figure


def png(figure: Figure, dpi: int = 150) -> bytes:
    """The figure as a PNG file."""
    buffer = io.BytesIO()
    with rc_context(SETTINGS):
        figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def svg(figure: Figure, prefix: str = "") -> str:
    """The figure as SVG text, the same bytes for the same figure.

    Args:
        figure: The figure.
        prefix: Of all identifiers, so that several figures can share a page.
    """
    buffer = io.StringIO()
    with rc_context(SETTINGS):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{prefix}", text)
    return text[text.index("<svg") :]
