"""One look for all figures: colours, dashes, markers, sizes; nothing global is touched."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

from matplotlib import rc_context, rcParamsDefault
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prudent.reports.figures.methods import LABELS, STYLES

__all__ = [
    "COLUMN",
    "SETTINGS",
    "budget_axis",
    "canvas",
    "diagonal",
    "dress",
    "label",
    "line",
    "one_axis",
    "ordered",
    "plain_name",
    "themed",
]

# Inches of a column of 8.5 cm, at which no text is smaller than 7 points.
COLUMN = 3.35
SIZE, SMALL = 8.0, 7.0
GREY = "0.35"

LOOK = (
    *("axes", "contour", "errorbar", "figure.", "font.", "grid.", "hatch.", "hist.", "image."),
    *("legend.", "lines.", "markers.", "mathtext.", "patch.", "path.", "pdf.", "savefig."),
    *("scatter.", "svg.", "text.", "xaxis.", "xtick.", "yaxis.", "ytick."),
)
SETTINGS: Any = {
    # What a user set for figures of their own must not change these.
    **{name: value for name, value in rcParamsDefault.items() if name.startswith(LOOK)},
    "font.size": SIZE,
    "axes.titlesize": SIZE,
    "axes.labelsize": SIZE,
    "figure.titlesize": SIZE,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.title_fontsize": SMALL,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "text.parse_math": False,  # a dollar in a name is a dollar
    "svg.fonttype": "none",
    "svg.hashsalt": "prudent",
    "pdf.fonttype": 42,
}

P = ParamSpec("P")
T = TypeVar("T")


def themed(function: Callable[P, T]) -> Callable[P, T]:
    """Run a function with our settings, and put those of the user back."""

    @functools.wraps(function)
    def inner(*args: P.args, **kwargs: P.kwargs) -> T:
        with rc_context(SETTINGS):
            return function(*args, **kwargs)

    return inner


def label(method: str) -> str:
    """The method's name as the paper writes it."""
    return LABELS.get(method, plain_name(method))


def plain_name(name: object, most: int = 32) -> str:
    r"""A name from outside, so that it can neither break the drawing nor fill it.

    >>> plain_name("alpha" * 20), plain_name("a\x1b[1mb")
    ('alphaalphaalphaalphaalphaalphaa…', 'a�[1mb')
    """
    text = "".join(letter if letter.isprintable() else "�" for letter in str(name)[: most + 1])
    return text if len(text) <= most else f"{text[: most - 1]}…"


def line(method: str) -> dict[str, Any]:
    """Colour, dashes and marker of a method, as keywords of ``plot``."""
    colour, dashes, marker = STYLES.get(method, ("#000000", ":", "x"))
    return {"color": colour, "linestyle": dashes, "marker": marker}


def ordered(methods: Iterable[str]) -> list[str]:
    """Each method once, in the order of the table of styles."""
    order = list(STYLES)
    return sorted(
        set(methods), key=lambda name: (order.index(name) if name in order else 99, name)
    )


def canvas(
    rows: int = 1,
    columns: int = 1,
    *,
    panel: tuple[float, float] = (1.6, 1.45),
    **options: Any,
) -> tuple[Figure, Any]:
    """A figure, at least a column wide, and its axes as an array (rows, columns).

    Args:
        rows: Of panels.
        columns: Of panels.
        panel: Width and height of one, in inches.
        **options: Of ``Figure.subplots``.
    """
    size = (max(COLUMN, 0.5 + panel[0] * columns), 0.4 + panel[1] * rows)
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def one_axis(ax: Axes | None) -> tuple[Figure, Axes]:
    """The user's axes and their figure, or new ones of a column's width."""
    if ax is not None:
        root = ax.get_figure(root=True)
        assert isinstance(root, Figure)
        return root, ax
    figure, axes = canvas(panel=(2.85, 2.45))
    return figure, axes[0, 0]


def wrapped(text: str, inches: float, size: float) -> str:
    """Text in lines that fit a width."""
    characters = max(20, int(inches * 72 / (0.53 * size)))
    return "\n".join(textwrap.fill(part, characters) for part in text.splitlines())


def dress(
    figure: Figure,
    title: str,
    notes: Sequence[str] = (),
    handles: Sequence[Any] = (),
) -> None:
    """Title above, legend and notes below, all within the width; the figure grows by their height.

    Args:
        figure: The figure.
        title: What is shown.
        notes: What a reader must know: how many seeds, what is missing.
        handles: Lines and patches with labels.
    """
    width, height = figure.get_size_inches()
    width -= 0.2
    title = wrapped(title, width, SIZE)
    figure.suptitle(title)
    text = "\n".join(wrapped(note, width, SMALL) for note in notes if note)
    longest = max((len(str(handle.get_label())) for handle in handles), default=0)
    fitting = int(width * 72 / (0.53 * SMALL * longest + 34))
    columns = max(1, min(len(handles), fitting))
    # Matplotlib fills column after column; people read row after row.
    by_row = [handle for first in range(columns) for handle in handles[first::columns]]
    legend = figure.legend(
        handles=by_row,
        loc="outside lower center",
        ncols=columns,
        title=text or None,
        columnspacing=1.2,
        handlelength=2.4,
    )
    legend.get_title().set_multialignment("center")
    lines = len(text.splitlines()) + -(-len(handles) // columns)
    points = 1.3 * SIZE * len(title.splitlines()) + 1.45 * SMALL * lines + 8
    figure.set_size_inches(width + 0.2, height + points / 72)


def diagonal(axis: Axes, *, words: bool, shaded: bool = True) -> None:
    """The diagonal, the side of over-confidence in grey, and what the sides mean."""
    axis.plot([0, 1], [0, 1], color="0.45", linewidth=0.8, zorder=1.5)
    if shaded:
        axis.fill_between([0, 1], [0, 1], [0, 0], color="0.5", alpha=0.1, linewidth=0)
    if words:
        style: Any = {"color": GREY, "style": "italic", "fontsize": SMALL}
        axis.text(0.97, 0.04, "over-confident", ha="right", va="bottom", **style)
        axis.text(0.03, 0.97, "cautious", ha="left", va="top", **style)
    axis.set(xlim=(0, 1), ylim=(0, 1))
    axis.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axis.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])


def budget_axis(axis: Axes, budgets: Iterable[float], most: int = 3) -> None:
    """A logarithmic axis with whole numbers at a few of the budgets, and marks at all."""
    values = sorted({int(value) for value in budgets})
    count = min(most, len(values))
    step = (len(values) - 1) / max(1, count - 1)
    shown = [values[round(step * number)] for number in range(count)]
    axis.set_xscale("log", base=2)
    axis.set_xticks(shown, [f"{value:,}" for value in shown])
    axis.set_xticks(values, minor=True, labels=[""] * len(values))
    axis.set_xlim(values[0] / 1.5, values[-1] * 1.5)
