"""What simulations buy: log posterior and AUC against the budget, and one against the other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prudent import _plots as plots
from prudent.errors import InputError
from prudent.reports.figures._rows import Shown, shown
from prudent.reports.series import Series

if TYPE_CHECKING:
    from pandas import DataFrame

WORDS: Any = {"color": plots.GREY, "style": "italic", "fontsize": plots.SMALL, "ha": "right"}


@plots.themed
def log_posterior(runs: DataFrame) -> Figure:
    """Log posterior of the truth against the budget: median, least and greatest over seeds."""
    found = shown(runs, "log_posterior")
    figure, axes = _by_budget(found)
    handles: dict[str, Any] = {}
    for problem, axis in axes.items():
        rows = found.rows[found.rows["problem"] == problem]
        for name, one in found.series.items():
            groups = rows[rows["series"] == name].groupby("budget")["log_posterior"]
            middle, ends = groups.median(), (groups.min(), groups.max())
            handles |= _line(axis, found, name, one, middle, *ends)
        prior = axis.axhline(
            rows["log_prior"].median(), color="black", linestyle=":", linewidth=1, label="prior"
        )
        axis.set_ylabel("log posterior")
    several = found.num_seeds > 1
    note = f"Median of {found.seeds}; band: least to greatest" if several else "One seed"
    lines = [*_in_order(found, handles), prior]
    plots.dress(figure, "Log posterior of the truth", [note, *found.notes], lines)
    return figure


@plots.themed
def auc(runs: DataFrame) -> Figure:
    """AUC of the coverage curve against the budget: mean and two standard deviations."""
    found = shown(runs, "auc")
    figure, axes = _by_budget(found, sharey=True)
    handles: dict[str, Any] = {}
    for problem, axis in axes.items():
        rows = found.rows[found.rows["problem"] == problem]
        axis.axhline(0, color=plots.LINE, linewidth=0.8)
        for name, one in found.series.items():
            groups = rows[rows["series"] == name].groupby("budget")["auc"]
            mean, spread = groups.mean(), 2 * groups.std().fillna(0)
            handles |= _line(axis, found, name, one, mean, mean - spread, mean + spread)
        axis.set_ylabel("AUC")
    first = next(iter(axes.values()))
    first.margins(y=0.15)
    first.text(0.98, 0.98, "cautious", va="top", transform=first.transAxes, **WORDS)
    first.text(0.98, 0.02, "over-confident", va="bottom", transform=first.transAxes, **WORDS)
    note = f"Mean of {found.seeds}; band: ± 2 standard deviations"
    notes = [note if found.num_seeds > 1 else "One seed", *found.notes]
    lines = _in_order(found, handles)
    plots.dress(figure, "Area between coverage curve and diagonal", notes, lines)
    return figure


@plots.themed
def tradeoff(runs: DataFrame, *, ax: Axes | None = None) -> Figure:
    """Worst shortfall of coverage against information gain: by which to choose a method."""
    found = shown(runs, "information_gain")
    if ax is None:
        figure, axes = _by_problem(found)
    elif found.rows["problem"].nunique() == 1:
        figure, axis = plots.one_axis(ax)
        axes = {found.rows["problem"].iloc[0]: axis}
    else:
        raise InputError("`ax` takes one problem; filter the table, or leave `ax` out.")
    budgets = sorted(found.rows["budget"].unique())
    handles: dict[str, Any] = {}
    for problem, axis in axes.items():
        rows = found.rows[found.rows["problem"] == problem]
        for name, one in found.series.items():
            own = rows[rows["series"] == name].groupby("budget")
            if len(own):
                mean = own[["information_gain", "worst_shortfall"]].mean()
                handles[name] = _path(axis, name, one, mean, budgets)
        axis.axhline(0, color=plots.LINE, linewidth=0.8, zorder=1)
        axis.set(xlabel="information gain (nats)", ylabel="worst shortfall")
        axis.margins(0.12)
        words = "good: honest and sharp ↘"
        axis.text(0.98, 0.02, words, va="bottom", transform=axis.transAxes, **WORDS)
        low, high = axis.get_ylim()
        axis.set_ylim(low - 0.15 * (high - low), high)
        axis.set_yticks([tick for tick in axis.get_yticks() if 0 <= tick <= high])
    lines = _in_order(found, handles)
    sizes = f"{budgets[0]:,.0f} simulations"
    if len(budgets) > 1:
        sizes = f"small to large marker: {budgets[0]:,.0f} to {budgets[-1]:,.0f} simulations"
    average = f"Mean of {found.seeds}" if found.num_seeds > 1 else "One seed"
    if ax is None:
        notes = [f"{average}; {sizes}", *found.notes]
        plots.dress(figure, "Honesty against information", notes, lines)
    else:
        ax.legend(handles=lines)
    return figure


def _path(axis: Axes, name: str, one: Series, mean: DataFrame, budgets: list[Any]) -> Any:
    """One series from the smallest budget to the largest; returns the legend's handle."""
    gain, shortfall = mean["information_gain"], mean["worst_shortfall"]
    axis.plot(gain, shortfall, **{**one.line, "marker": "", "linewidth": 0.8})
    for budget in mean.index:
        share = budgets.index(budget) / (len(budgets) - 1) if len(budgets) > 1 else 0.5
        axis.plot(
            gain[budget],
            shortfall[budget],
            **{**one.line, "linestyle": ""},
            markersize=4 + 4 * share,
            alpha=0.8,
            markeredgewidth=0,
        )
    return axis.plot([], [], label=name, **one.line)[0]


def _by_problem(found: Shown, **options: Any) -> tuple[Figure, dict[str, Axes]]:
    """A panel per problem."""
    problems = sorted(found.rows["problem"].unique())
    figure, axes = plots.panels(len(problems), **options)
    for problem, axis in zip(problems, axes, strict=True):
        axis.set_title(plots.plain_name(problem))
    return figure, dict(zip(problems, axes, strict=True))


def _by_budget(found: Shown, **options: Any) -> tuple[Figure, dict[str, Axes]]:
    """A panel per problem, with the budget along its axis."""
    figure, axes = _by_problem(found, **options)
    for axis in axes.values():
        _budget_axis(axis, found.rows["budget"])
        axis.set_xlabel("simulations")
    return figure, axes


def _budget_axis(axis: Axes, budgets: Iterable[float], most: int = 3) -> None:
    """A logarithmic axis with whole numbers at a few of the budgets, and marks at all."""
    values = sorted({int(value) for value in budgets})
    count = min(most, len(values))
    step = (len(values) - 1) / max(1, count - 1)
    labelled = [values[round(step * number)] for number in range(count)]
    axis.set_xscale("log", base=2)
    axis.set_xticks(labelled, [f"{value:,}" for value in labelled])
    axis.set_xticks(values, minor=True, labels=[""] * len(values))
    axis.set_xlim(values[0] / 1.5, values[-1] * 1.5)


def _line(
    axis: Axes, found: Shown, name: str, one: Series, middle: Any, lower: Any, upper: Any
) -> dict[str, Any]:
    """A line with its band; a bar where there is one budget and so no area."""
    if len(middle) == 0:
        return {}
    budgets, names = found.rows["budget"].unique(), list(found.series)
    # One budget alone: the series are drawn beside each other.
    step = 0.0 if len(budgets) > 1 else 0.12
    x = middle.index * 2 ** (step * (names.index(name) - (len(names) - 1) / 2))
    if len(x) > 1:
        axis.fill_between(x, lower, upper, color=one.color, alpha=0.2, linewidth=0)
    else:
        axis.vlines(x, lower, upper, color=one.color, linewidth=1)
    return {name: axis.plot(x, middle, label=name, **one.line)[0]}


def _in_order(found: Shown, handles: dict[str, Any]) -> list[Any]:
    return [handles[name] for name in found.series]
