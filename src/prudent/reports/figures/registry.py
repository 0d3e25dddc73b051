"""All figures: what each asks, how to read it, and which table it is drawn from.

>>> names()[:3]
['auc', 'corner', 'coverage']
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from prudent.errors import unknown_name
from prudent.experiments.results import Results
from prudent.reports.figures import budgets, corner, coverage, intuition, one_run, penalty

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Entry:
    """A figure.

    Args:
        function: The function from the table, if any, to the figure.
        table: A table of :class:`prudent.experiments.Results`, or None if nothing is read.
        question: The question that the figure answers.
        reading: How to read the figure.
    """

    function: Callable[..., Figure]
    table: str | None
    question: str
    reading: str

    @property
    def name(self) -> str:
        """The name of the figure, of its file and of its function."""
        return self.function.__name__


_ENTRIES = (
    Entry(coverage.coverage, "curves",
        "Do regions of every credibility level hold the truth as often as they say?",
        "On the diagonal is calibrated, above it is cautious, below it is over-confident."),
    Entry(budgets.log_posterior, "runs",
        "How much do the posteriors know about the truth, and how much do simulations add?",
        "Higher is better; below the dotted line a posterior is worse than the prior."),
    Entry(budgets.auc, "runs",
        "Is coverage too low or too high on average, and does it depend on the budget?",
        "Above zero is cautious, below zero is over-confident."),
    Entry(budgets.tradeoff, "runs",
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
        "Where the whole band lies below the diagonal, the posterior is over-confident."),
    Entry(one_run.sbc, "ranks",
        "Which parameter has wrong ranks, and is it shifted, too narrow or too wide?",
        "Inside the grey band is fine. Up on the left and down on the right is too narrow, the "
        "opposite too wide; all above or all below is shifted."),
    Entry(one_run.tarp, "ranks",
        "Is the posterior right in all parameters together?",
        "Inside the grey band is fine; an S or a bow outside it is a defect."),
    Entry(corner.corner, "draws",
        "What does a posterior look like?",
        "The truth should lie where there is mass; dashed lines are the exact posterior."),
    Entry(one_run.history, "history",
        "Did training converge, and did it learn by heart?",
        "Validation that rises while training falls is learning by heart; the kept epoch is "
        "marked."),
    Entry(intuition.intuition, None,
        "What is coverage?",
        "The region of the narrow approximation misses truths that lie beside it."),
)  # fmt: skip
FIGURES = {entry.name: entry for entry in _ENTRIES}


def names() -> list[str]:
    """The registered figures, in alphabetical order."""
    return sorted(FIGURES)


def get(name: str) -> Entry:
    """The figure of that name."""
    if name not in FIGURES:
        raise unknown_name("figure", name, FIGURES)
    return FIGURES[name]


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
    table = with_runs(results) if entry.table == "curves" else results.table(entry.table)
    return entry.function(table, **options)


def with_runs(results: Results) -> DataFrame:
    """The curves beside the settings and metrics of their runs; those not done have no curve."""
    own = [name for name in results.curves if name not in results.runs or name == "run"]
    return results.runs.merge(results.curves[own], on="run", how="left")
