"""What happened in each epoch of one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prudent.history import PANELS
from prudent.reports.figures.cells import name_run, one_run
from prudent.reports.figures.style import canvas, dress, themed

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["history"]

PARTS = {"": ("training", "#0072B2", "-"), "validation_": ("validation", "#D55E00", "--")}


@themed
def history(history: DataFrame, *, run: str | None = None) -> Figure:
    """Losses, terms of the penalty and learning rate of one run, a line per member.

    Args:
        history: See :attr:`prudent.experiments.Results.history`.
        run: The identity; None for the first.
    """
    rows = one_run(history, run, "training curves", "Make some with: prudent demo")
    panels = [name for name in PANELS if any(_has(rows, part + name) for part in PARTS)]
    columns = min(2, len(panels))
    count = -(-len(panels) // columns)
    figure, axes = canvas(count, columns, panel=(1.75 if columns > 1 else 2.85, 1.6))
    handles: dict[str, Any] = {}
    for axis, name in zip(axes.flat, panels, strict=False):
        for part, (text, colour, dashes) in PARTS.items():
            if not _has(rows, part + name):
                continue
            for _, member in rows.groupby("member", dropna=False):
                values = member[part + name]
                handles[text] = axis.plot(
                    member["epoch"], values, dashes, color=colour, linewidth=1, label=text
                )[0]
        if name == "loss":
            handles |= _selected(axis, rows)
        if name == "learning_rate":
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter("{x:g}")  # small exponents cannot be read
            axis.minorticks_off()
        axis.set(xlabel="epoch", ylabel=PANELS[name])
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    members = rows["member"].nunique()
    note = f"{members} members, a line each" if members > 1 else ""
    dress(figure, name_run(rows), [note], list(handles.values()))
    return figure


def _has(rows: DataFrame, name: str) -> bool:
    return name in rows and bool(rows[name].notna().any())


def _selected(axis: Axes, rows: DataFrame) -> dict[str, Any]:
    """The epoch whose weights were kept: the last that was the best so far."""
    if "selected" not in rows:
        return {}
    style: Any = {"color": "0.4", "linewidth": 0.9, "linestyle": ":"}
    kept = rows[rows["selected"].fillna(value=False).astype(bool)]
    text = "epoch that was kept"
    lines = [axis.axvline(e, label=text, **style) for e in kept.groupby("member")["epoch"].max()]
    return {text: lines[0]} if lines else {}
