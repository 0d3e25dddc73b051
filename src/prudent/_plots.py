"""One look for everything that is drawn, and one drawing of each curve; nothing global is touched.

This module imports matplotlib, an extra: whoever draws imports it at that moment.
"""

import io
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from matplotlib import rc_context, rcParamsDefault
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Inches of a column of 8.5 cm, at which no text is smaller than 7 points.
COLUMN, SINGLE = 3.35, 2.85
SIZE, SMALL = 8.0, 7.0
GREY, LINE = "0.35", "0.45"
BLUE, RED = "#0072B2", "#D55E00"
PARTS = {"": ("training", BLUE, "-"), "validation_": ("validation", RED, "--")}
EXACT = "95 % of exact posteriors stay inside everywhere"
LEVEL, INSIDE = "credibility level", "share of truths inside the region"

LOOK = (
    *("axes", "contour", "errorbar", "figure.", "font.", "grid.", "hatch.", "hist.", "image."),
    *("legend.", "lines.", "markers.", "mathtext.", "patch.", "path.", "pdf.", "savefig."),
    *("scatter.", "svg.", "text.", "xaxis.", "xtick.", "yaxis.", "ytick."),
)
SETTINGS: Any = {
    # What a user set for figures of their own must not change these.
    **{name: value for name, value in rcParamsDefault.items() if name.startswith(LOOK)},
    **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize", "figure.titlesize"), SIZE),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), SMALL),
    **dict.fromkeys(("legend.fontsize", "legend.title_fontsize"), SMALL),
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

Numbers = Iterable[float]
# By number of test pairs: levels, and the least and the greatest coverage at each.
Bands = Mapping[int, tuple[Numbers, Numbers, Numbers]]
# Runs a function with our settings, and puts those of the user back.
themed = rc_context(SETTINGS)


def plain_name(name: object, most: int = 32) -> str:
    r"""A name from outside, so that it can neither break the drawing nor fill it.

    >>> plain_name("alpha" * 20), plain_name("a\x1b[1mb")
    ('alphaalphaalphaalphaalphaalphaa…', 'a�[1mb')
    """
    text = "".join(letter if letter.isprintable() else "�" for letter in str(name)[: most + 1])
    return text if len(text) <= most else f"{text[: most - 1]}…"


# Figures, panels and what is around them


class Picture(Figure):
    """A figure that a notebook shows by itself, without pyplot and without magic words."""

    def _repr_png_(self) -> bytes:
        with rc_context(SETTINGS):
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=120)
        return buffer.getvalue()


def canvas(
    rows: int = 1, columns: int = 1, *, panel: tuple[float, float] = (1.6, 1.45), **options: Any
) -> tuple[Figure, Any]:
    """A figure of panels in inches, at least a column wide, and its axes as a matrix."""
    size = (max(COLUMN, 0.5 + panel[0] * columns), 0.4 + panel[1] * rows)
    figure = Picture(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def panels(
    number: int, *, most: int = 3, panel: tuple[float, float] = (2.1, 1.8), **options: Any
) -> tuple[Figure, list[Any]]:
    """A figure of some panels, so many in a row at most, and their axes; one alone is wider."""
    columns = min(most, number)
    size = (panel[0] if columns > 1 else SINGLE, panel[1])
    figure, axes = canvas(-(-number // columns), columns, panel=size, **options)
    for axis in axes.flat[number:]:
        axis.remove()
    return figure, list(axes.flat[:number])


def one_axis(ax: Axes | None) -> tuple[Figure, Axes]:
    """The user's axes and their figure, or new ones of a column's width."""
    if ax is not None:
        root = ax.get_figure(root=True)
        assert isinstance(root, Figure)
        return root, ax
    figure, axes = canvas(panel=(SINGLE, 2.45))
    return figure, axes[0, 0]


def _wrapped(text: str, inches: float, size: float) -> str:
    """Text in lines that fit a width."""
    characters = max(20, int(inches * 72 / (0.53 * size)))
    return "\n".join(textwrap.fill(part, characters) for part in text.splitlines())


def dress(
    figure: Figure,
    title: str,
    notes: Sequence[str] = (),
    handles: Sequence[Any] = (),
    *,
    ax: Axes | None = None,
) -> Figure:
    """The figure with a title above, a legend and notes below, by whose height it grows.

    The user's own axes get the title and the legend, and their figure stays as it is.
    """
    if ax is not None:
        ax.set_title(title)
        if handles:
            ax.legend(handles=handles)
        return figure
    width, height = figure.get_size_inches()
    width -= 0.2
    title = _wrapped(title, width, SIZE)
    figure.suptitle(title)
    text = "\n".join(_wrapped(note, width, SMALL) for note in notes if note)
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
    return figure


def diagonal(axis: Axes, *, words: bool, shaded: bool = True) -> None:
    """The diagonal, the side of over-confidence in grey, and what the sides mean."""
    axis.plot([0, 1], [0, 1], color=LINE, linewidth=0.8, zorder=1.5)
    if shaded:
        axis.fill_between([0, 1], [0, 1], [0, 0], color="0.5", alpha=0.1, linewidth=0)
    if words:
        style: Any = {"color": GREY, "style": "italic", "fontsize": SMALL}
        axis.text(0.97, 0.04, "over-confident", ha="right", va="bottom", **style)
        axis.text(0.03, 0.97, "cautious", ha="left", va="top", **style)
    axis.set(xlim=(0, 1), ylim=(0, 1))
    axis.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axis.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])


# Curves


def coverage_panel(axis: Axes, bands: Bands, *, words: bool = True) -> None:
    """The axes of coverage curves, with the band of the verdict around the diagonal.

    The bands, by number of test pairs, are levels, and where curves of calibrated posteriors stay.
    """
    diagonal(axis, words=words)
    for columns in bands.values():
        levels, lower, upper = ([0.0, *column, 1.0] for column in columns)
        axis.fill_between(levels, lower, upper, color="0.5", alpha=0.35, linewidth=0, zorder=1.2)
    axis.set(xlabel=LEVEL, ylabel=INSIDE)


def verdict_note(bands: Bands) -> str:
    """An explanation of the band of :func:`coverage_panel`."""
    told = [f"{number:,}" for number in bands]
    if not told:
        return ""
    told[2:] = ["..."] * (len(told) > 2)
    stay = "95 % of calibrated posteriors stay above its lower edge everywhere"
    return f"Grey band: {stay} ({' and '.join(told)} test pairs)"


def rank_curve(axis: Axes, test: str, rows: Mapping[str, Any], *, color: str) -> None:
    """The curve of SBC or TARP, with the band that holds those of exact posteriors."""
    if test == "tarp":
        diagonal(axis, words=False, shaded=False)
        axis.set(xlabel=LEVEL, ylabel="share of truths inside the ball")
    else:
        axis.axhline(0, color=LINE, linewidth=0.8)
        axis.set(xlabel="rank of the truth / draws", ylabel="ECDF − uniform")
        axis.set(xlim=(0, 1), xticks=[0, 0.5, 1])
    gray = "0.75" if test == "tarp" else "0.85"
    axis.fill_between(rows["level"], rows["lower"], rows["upper"], color=gray, linewidth=0)
    axis.plot(rows["level"], rows["value"], color=color)


@themed
def training_curves(
    rows: Sequence[Mapping[str, Any]], titles: Mapping[str, str], title: str = "Training"
) -> Figure:
    """The rows of epochs: a panel per quantity with a title, a line per member of an ensemble."""
    known = {name for row in rows for name, value in row.items() if value is not None}
    names = [name for name in titles if any(part + name in known for part in PARTS)]
    numbers = sorted({row.get("member", 0) for row in rows})
    members = [[row for row in rows if row.get("member", 0) == number] for number in numbers]
    kept = {row.get("member", 0): row["epoch"] for row in rows if row.get("selected")}
    figure, axes = panels(len(names), most=2, panel=(1.75, 1.6))
    handles: dict[str, Any] = {}
    for axis, name in zip(axes, names, strict=True):
        for part, (text, color, dashes) in PARTS.items():
            for own in members if part + name in known else ():
                values = [row.get(part + name) for row in own]
                epochs = [row["epoch"] for row in own]
                drawn = axis.plot(epochs, values, dashes, color=color, linewidth=1, label=text)
                handles[text] = drawn[0]
        for epoch in kept.values() if name == "loss" else ():
            style: Any = {"color": "0.4", "linewidth": 0.9, "linestyle": ":"}
            text = "epoch that was kept"
            handles[text] = axis.axvline(epoch, label=text, **style)
        if name == "learning_rate":
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter("{x:g}")  # small exponents cannot be read
            axis.minorticks_off()
        axis.set(xlabel="epoch", ylabel=titles[name])
    note = f"{len(members)} members, a line each" if len(members) > 1 else ""
    return dress(figure, title, [note], list(handles.values()))


@themed
def diagnosis(
    title: str,
    curve: tuple[Numbers, Numbers],
    bands: Bands,
    tests: Mapping[str, Iterable[Mapping[str, Any]]] = MappingProxyType({}),
) -> Figure:
    """The coverage curve of a diagnosis, and beside it the records of SBC and TARP, if any."""
    rows = [(name, row) for name in ("sbc", "tarp") for row in tests.get(name, ())]
    figure, (first, *others) = panels(1 + len(rows), panel=(2.3, 2.2 if rows else 2.45))
    coverage_panel(first, bands)
    first.plot(*curve, color=BLUE, marker="o", markersize=3, markevery=0.06)
    first.set_title("coverage")
    for axis, (test, row) in zip(others, rows, strict=True):
        rank_curve(axis, test, row, color=BLUE)
        name = "TARP" if test == "tarp" else f"SBC {plain_name(row['parameter'], 16)}"
        axis.set_title(f"{name}, p = {row['p_value']:.2g}")
    return dress(figure, title, [verdict_note(bands)])
