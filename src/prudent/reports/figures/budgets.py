"""What simulations buy: log posterior and AUC against the budget, and one against the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prudent.errors import InputError
from prudent.reports.figures.cells import Cells, cells
from prudent.reports.figures.style import (
    GREY,
    SMALL,
    budget_axis,
    canvas,
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

__all__ = ["auc", "log_posterior", "tradeoff"]

MOST_COLUMNS = 3


@themed
def log_posterior(runs: DataFrame) -> Figure:
    """Log posterior of the truth against the budget: median, least and greatest over seeds.

    Args:
        runs: See :attr:`prudent.experiments.Results.runs`.
    """
    shown = cells(runs, "log_posterior")
    figure, panels = _panels(shown)
    handles: dict[str, Any] = {}
    for problem, axis in panels.items():
        rows = shown.rows[shown.rows["problem"] == problem]
        for name in ordered(rows["method"]):
            groups = rows[rows["method"] == name].groupby("budget")["log_posterior"]
            places = _places(shown, name)
            _band(axis, name, places, groups.min(), groups.max())
            handles[label(name)] = _line(axis, name, places, groups.median())
        prior = axis.axhline(
            rows["log_prior"].median(), color="black", linestyle=":", linewidth=1, label="prior"
        )
        axis.set_ylabel("log posterior")
    lines = [handles[label(name)] for name in ordered(shown.rows["method"])]
    several = shown.num_seeds > 1
    note = f"Median of {shown.seeds}; band: least to greatest" if several else "One seed"
    dress(figure, "Log posterior of the truth", [note, *shown.notes], [*lines, prior])
    return figure


@themed
def auc(runs: DataFrame) -> Figure:
    """AUC of the coverage curve against the budget: mean and two standard deviations over seeds.

    Args:
        runs: See :attr:`prudent.experiments.Results.runs`.
    """
    shown = cells(runs, "auc")
    figure, panels = _panels(shown, sharey=True)
    handles: dict[str, Any] = {}
    for problem, axis in panels.items():
        rows = shown.rows[shown.rows["problem"] == problem]
        axis.axhline(0, color="0.45", linewidth=0.8)
        for name in ordered(rows["method"]):
            groups = rows[rows["method"] == name].groupby("budget")["auc"]
            mean, spread = groups.mean(), 2 * groups.std().fillna(0)
            places = _places(shown, name)
            _band(axis, name, places, mean - spread, mean + spread)
            handles[label(name)] = _line(axis, name, places, mean)
        axis.set_ylabel("AUC")
    first = next(iter(panels.values()))
    words: Any = {
        "color": GREY,
        "style": "italic",
        "fontsize": SMALL,
        "transform": first.transAxes,
    }
    first.margins(y=0.15)
    first.text(0.98, 0.98, "cautious", ha="right", va="top", **words)
    first.text(0.98, 0.02, "over-confident", ha="right", va="bottom", **words)
    lines = [handles[label(name)] for name in ordered(shown.rows["method"])]
    note = f"Mean of {shown.seeds}; band: ± 2 standard deviations"
    note = note if shown.num_seeds > 1 else "One seed"
    dress(figure, "Area between coverage curve and diagonal", [note, *shown.notes], lines)
    return figure


@themed
def tradeoff(runs: DataFrame, *, ax: Axes | None = None) -> Figure:
    """Worst shortfall of coverage against information gain: by which to choose a method.

    Args:
        runs: See :attr:`prudent.experiments.Results.runs`.
        ax: Where to draw, if there is one problem.
    """
    shown = cells(runs, "information_gain")
    if ax is None:
        figure, panels = _panels(shown, budgets=False)
    elif shown.rows["problem"].nunique() == 1:
        figure, axis = one_axis(ax)
        panels = {shown.rows["problem"].iloc[0]: axis}
    else:
        raise InputError("`ax` takes one problem; filter the table, or leave `ax` out.")
    budgets = sorted(shown.rows["budget"].unique())
    handles: dict[str, Any] = {}
    for problem, axis in panels.items():
        rows = shown.rows[shown.rows["problem"] == problem]
        for name in ordered(rows["method"]):
            mean = (
                rows[rows["method"] == name]
                .groupby("budget")[["information_gain", "worst_shortfall"]]
                .mean()
            )
            handles[label(name)] = _path(axis, name, mean, budgets)
        axis.axhline(0, color="0.45", linewidth=0.8, zorder=1)
        axis.set(xlabel="information gain (nats)", ylabel="worst shortfall")
        axis.margins(0.12)
        axis.text(
            0.98,
            0.02,
            "good: honest and sharp ↘",
            ha="right",
            va="bottom",
            transform=axis.transAxes,
            color=GREY,
            style="italic",
            fontsize=SMALL,
        )
        low, high = axis.get_ylim()
        axis.set_ylim(low - 0.15 * (high - low), high)
        axis.set_yticks([tick for tick in axis.get_yticks() if 0 <= tick <= high])
    lines = [handles[label(name)] for name in ordered(shown.rows["method"])]
    sizes = f"{budgets[0]:,.0f} simulations"
    if len(budgets) > 1:
        sizes = f"small to large marker: {budgets[0]:,.0f} to {budgets[-1]:,.0f} simulations"
    average = f"Mean of {shown.seeds}" if shown.num_seeds > 1 else "One seed"
    notes = [f"{average}; {sizes}", *shown.notes]
    if ax is None:
        dress(figure, "Honesty against information", notes, lines)
    else:
        ax.legend(handles=lines)
    return figure


def _path(axis: Axes, name: str, mean: DataFrame, budgets: list[Any]) -> Any:
    """One method's points from the smallest budget to the largest; returns the legend's handle."""
    style = line(name)
    thin = {**style, "marker": "", "linewidth": 0.8}
    axis.plot(mean["information_gain"], mean["worst_shortfall"], **thin)
    for budget, point in mean.iterrows():
        share = budgets.index(budget) / (len(budgets) - 1) if len(budgets) > 1 else 0.5
        axis.plot(
            point["information_gain"],
            point["worst_shortfall"],
            **{**style, "linestyle": ""},
            markersize=4 + 4 * share,
            alpha=0.8,
            markeredgewidth=0,
        )
    return axis.plot([], [], label=label(name), **style)[0]


def _panels(
    shown: Cells, *, budgets: bool = True, sharey: bool = False
) -> tuple[Figure, dict[str, Axes]]:
    problems = sorted(shown.rows["problem"].unique())
    columns = min(MOST_COLUMNS, len(problems))
    count = -(-len(problems) // columns)
    width = 2.85 if columns == 1 else 2.1
    figure, axes = canvas(count, columns, panel=(width, 1.8), sharey=sharey)
    panels = dict(zip(problems, axes.flat, strict=False))
    for axis in axes.flat[len(problems) :]:
        axis.remove()
    for problem, axis in panels.items():
        axis.set_title(plain_name(problem))
        if budgets:
            budget_axis(axis, shown.rows["budget"])
            axis.set_xlabel("simulations")
    return figure, panels


def _places(shown: Cells, name: str) -> dict[Any, float]:
    """Where a budget is drawn: beside the other methods if there is one budget alone."""
    budgets, methods = shown.rows["budget"].unique(), ordered(shown.rows["method"])
    step = 0.0 if len(budgets) > 1 else 0.12
    factor = 2 ** (step * (methods.index(name) - (len(methods) - 1) / 2))
    return {budget: factor * budget for budget in budgets}


def _line(axis: Axes, name: str, places: dict[Any, float], values: Any) -> Any:
    return axis.plot(values.index.map(places), values, label=label(name), **line(name))[0]


def _band(axis: Axes, name: str, places: dict[Any, float], lower: Any, upper: Any) -> None:
    """Between two lines; a bar where there is one budget and so no area."""
    colour, x = line(name)["color"], lower.index.map(places)
    if len(x) > 1:
        axis.fill_between(x, lower, upper, color=colour, alpha=0.2, linewidth=0)
    else:
        axis.vlines(x, lower, upper, color=colour, linewidth=1)
