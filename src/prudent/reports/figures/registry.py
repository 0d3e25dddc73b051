"""All figures: what each asks, how to read it, which table it is drawn from, and its files.

>>> names()[:3]
['auc', 'corner', 'coverage']
"""

from __future__ import annotations

import inspect
import io
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from prudent._files import write_atomic
from prudent._plots import themed
from prudent.errors import InputError, unknown_name
from prudent.experiments.results import Results
from prudent.reports.figures import comparison, intuition, one_run, penalty


@dataclass(frozen=True)
class Entry:
    """A figure: its function, the table of results that it takes, if any, and words about it."""

    function: Callable[..., Figure]
    table: str | None
    question: str
    reading: str

    @property
    def name(self) -> str:
        """The name of the figure, of its file and of its function."""
        return self.function.__name__

    @property
    def takes_run(self) -> bool:
        """Whether the figure is of one run, which can be chosen."""
        return "run" in inspect.signature(self.function).parameters


_ENTRIES = (
    Entry(comparison.coverage, "curves",
        "Do regions of every credibility level hold the truth as often as they say?",
        "Inside the grey band is calibrated as far as one can tell, above it is cautious, and "
        "below it is over-confident."),
    Entry(comparison.log_posterior, "runs",
        "How much do the posteriors know about the truth, and how much do simulations add?",
        "Higher is better; below the dotted line a posterior is worse than the prior."),
    Entry(comparison.auc, "runs",
        "Is coverage too low or too high on average, and does it depend on the budget?",
        "Above zero is cautious, below zero is over-confident."),
    Entry(comparison.tradeoff, "runs",
        "Which method claims no more than it should and still knows most?",
        "Down is honest, right is informative; choose the method nearest to the lower right."),
    Entry(penalty.overhead, "runs",
        "How much longer does training take with the penalty?",
        "1 means as long as without it; the number of draws L is the price."),
    Entry(penalty.sensitivity_weight, "curves",
        "How does the weight of the penalty change coverage and log posterior?",
        "Take the smallest weight whose AUC is not below zero: more costs log posterior."),
    Entry(penalty.sensitivity_samples, "curves",
        "How many draws does the penalty need?",
        "With more draws the curve should come nearer to the diagonal, and log posterior rise."),
    Entry(one_run.run_coverage, "curves",
        "Is this one posterior honest, given how many test pairs there were?",
        "Inside the grey band no defect is seen; below it the posterior is over-confident."),
    Entry(one_run.sbc, "ranks",
        "Which parameter has wrong ranks, and is it shifted, too narrow or too wide?",
        "Inside the grey band is fine. Up on the left and down on the right is too narrow, the "
        "opposite too wide; all above or all below is shifted."),
    Entry(one_run.tarp, "ranks",
        "Is the posterior right in all parameters together?",
        "Inside the grey band is fine; an S or a bow outside it is a defect."),
    Entry(one_run.corner, "draws",
        "What does a posterior look like?",
        "The truth should lie where there is mass; dashed lines are the exact posterior."),
    Entry(one_run.history, "history",
        "Did training converge, and did it memorize its pairs?",
        "Validation that rises while training falls is memorization; the kept epoch is "
        "marked."),
    Entry(intuition.intuition, None,
        "What is coverage?",
        "The region of the narrow approximation misses truths that lie beside it."),
)  # fmt: skip
FIGURES = {entry.name: entry for entry in _ENTRIES}
# What files say of themselves: not the time and the program, which differ from day to day.
METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
FORMATS = tuple(METADATA)


def names() -> list[str]:
    """The registered figures, in alphabetical order."""
    return sorted(FIGURES)


def get(name: str) -> Entry:
    """The figure of that name."""
    if name not in FIGURES:
        raise unknown_name("figure", name, FIGURES)
    return FIGURES[name]


@themed
def draw(name: str, results: Results, **options: Any) -> Figure:
    """Draw a figure; if the results do not have what it needs, the error says what to run.

    Args:
        name: One of :func:`names`.
        results: The tables from :func:`prudent.experiments.load_results`.
        **options: Options of the function, such as ``run``, the identity of a run or the beginning
            of it, and ``ax``, the axes to draw in.
    """
    entry = get(name)
    if entry.table is None:
        return entry.function(**options)
    table = results.table(entry.table)
    if entry.table == "curves":  # beside the settings and metrics of all runs, done or not
        own = [name for name in table if name not in results.runs or name == "run"]
        table = results.runs.merge(table[own], on="run", how="left")
    return entry.function(table, **options)


@themed
def _bytes(figure: Figure, form: str, dpi: int) -> bytes:
    if isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        # Laid out once: every further time moves things by a little, so that the bytes of a file
        # would depend on what was saved before.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, dpi=dpi, metadata=METADATA[form])
    return buffer.getvalue()


def png(figure: Figure, dpi: int = 150) -> bytes:
    """The figure as a PNG file."""
    return _bytes(figure, "png", dpi)


def svg(figure: Figure, prefix: str = "") -> str:
    """The figure as SVG text; a prefix of all identifiers lets several figures share a page."""
    text = _bytes(figure, "svg", 72).decode()
    text = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{prefix}", text)
    return text[text.index("<svg") :]


def save(figure: Figure, path: str | os.PathLike[str], dpi: int = 300) -> None:
    """Write a figure; the ending of the name is the format.

    Args:
        figure: The figure.
        path: Ends with ``.png``, ``.svg`` or ``.pdf``.
        dpi: Dots per inch of a PNG.
    """
    form = Path(path).suffix.lower().removeprefix(".")
    if form not in FORMATS:
        raise InputError(f"cannot draw to {path}; expected a name that ends with .png .svg .pdf.")
    write_atomic(path, _bytes(figure, form, dpi))
