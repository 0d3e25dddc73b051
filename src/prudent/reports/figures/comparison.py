"""Figures that compare methods: their coverage, and what simulations buy at which budget."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from prudent import _plots as plots
from prudent.diagnostics.verdict import MOST_MISSED
from prudent.errors import InputError
from prudent.reports.cells import Series, mean_curve, own_pairs, records
from prudent.reports.figures._rows import (
    Shown,
    Spread,
    bands_of,
    penalized,
    shown,
    two_deviations,
    with_errors,
)

if TYPE_CHECKING:
    from pandas import DataFrame

WORDS: Any = {"color": plots.GREY, "style": "italic", "fontsize": plots.SMALL, "ha": "right"}


def coverage(curves: DataFrame) -> Figure:
    """Coverage against level: a row per problem, a column per budget, a color per method."""
    found = shown(curves, "coverage")
    problems = sorted(curves["problem"].dropna().unique())
    budgets = sorted(curves["budget"].dropna().unique())
    panel = (plots.SINGLE, 2.45) if len(budgets) == 1 else (1.6, 1.45)
    figure, axes = plots.canvas(len(problems), len(budgets), panel=panel)
    inside = plots.INSIDE.replace(" inside", "\ninside")
    bands: dict[int, Any] = {}
    for row, problem in enumerate(problems):
        for column, budget in enumerate(budgets):
            axis, rows = axes[row, column], found.rows
            own = rows[(rows["problem"] == problem) & (rows["budget"] == budget)]
            bands |= _panel(axis, own, found, words=row == column == 0)
            if row == 0:
                axis.set_title(f"{int(budget):,} simulations")
            # Shared axes would do the same, in a time that grows with the square of the panels.
            name = plots.plain_name(problem, 20)
            axis.set_ylabel(f"{name}\n{inside}")
            axis.label_outer()
    title = f"Expected coverage{_targets(found.rows)}"
    seeds = f"Thick: mean of {found.num_seeds} seeds; thin: each" if found.num_seeds > 1 else ""
    notes = [seeds, plots.verdict_note(dict(sorted(bands.items()))), *found.notes]
    return plots.dress(figure, title, notes, found.handles)


def _panel(axis: Axes, cell: DataFrame, found: Shown, *, words: bool) -> dict[int, Any]:
    """The curves of a cell's series, with the bands of their verdicts, which come back."""
    series = list(found.each(cell))
    bands = bands_of(rows for *_, rows in series)
    plots.coverage_panel(axis, bands, words=words)
    if not series:
        style: Any = {"ha": "center", "backgroundcolor": "white", "fontsize": plots.SMALL}
        axis.text(0.5, 0.5, "no finished run", **style)
    for name, one, rows in series:
        each = [part for _, part in rows.groupby("run")]
        if len(each) > 1:
            lines = [part[["level", "coverage"]].to_numpy(float) for part in each]
            thin = LineCollection(lines, colors=one.color, linewidths=0.5, alpha=0.5)
            axis.add_collection(thin, autolim=False)
        first = rows.drop_duplicates("run").sort_values("run")  # in the order of the groups
        mean = mean_curve(each, own_pairs(records(first)))
        # So that markers of curves that agree lie beside each other.
        every = max(1, len(mean["levels"]) // 16)
        place = every * (list(found.series).index(name) % 6)
        places = (place // 6, every)
        axis.plot(mean["levels"], mean["curve"], markevery=places, **one.line)
    return bands


def _targets(rows: DataFrame) -> str:
    """The targets of the coverage penalty, where they are not the default."""
    used = penalized(rows)["target"].unique() if "target" in rows else ()
    other = [str(target) for target in used if target != "conservative"]
    return f", penalty with target {' and '.join(other)}" if other else ""


def log_posterior(runs: DataFrame) -> Figure:
    """Log posterior of the truth against the budget: median, least and greatest over seeds."""
    found = shown(runs, "log_posterior")
    priors = found.rows.groupby("problem")["log_prior"].median()
    figure, axes = _by_budget(
        found, "log_posterior", lambda groups: (groups.median(), groups.min(), groups.max())
    )
    style: Any = {"color": "black", "linestyle": ":", "linewidth": 1}
    for problem, axis in axes.items():
        prior = axis.axhline(priors[problem], label="prior", **style)
        axis.set_ylabel("log posterior (nats)")
    notes = [found.average("Median of {}; band: least to greatest"), *found.notes]
    return plots.dress(figure, "Log posterior of the truth", notes, [*found.handles, prior])


def auc(runs: DataFrame) -> Figure:
    """AUC of the coverage curve against the budget: mean and two standard deviations."""
    found = shown(runs, "auc")
    figure, axes = _by_budget(found, "auc", two_deviations, sharey=True)
    for axis in axes.values():
        axis.axhline(0, color=plots.LINE, linewidth=0.8, zorder=1.9)
        axis.set_ylabel("AUC")
    first = next(iter(axes.values()))
    first.margins(y=0.15)
    first.text(0.98, 0.98, "cautious", va="top", transform=first.transAxes, **WORDS)
    first.text(0.98, 0.02, "over-confident", va="bottom", transform=first.transAxes, **WORDS)
    notes = [found.average("Mean of {}; band: ± 2 standard deviations"), *found.notes]
    return plots.dress(figure, "Area between coverage curve and diagonal", notes, found.handles)


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
    for problem, axis in axes.items():
        own = found.rows[found.rows["problem"] == problem]
        tops = [_path(axis, one, rows, budgets) for _, one, rows in found.each(own)]
        axis.set(xlabel="information gain (nats)", ylabel="worst shortfall")
        axis.margins(x=0.12)
        _over_confident(axis, max(tops))
    sizes = f"{budgets[0]:,.0f} simulations"
    if len(budgets) > 1:
        sizes = f"small to large marker: {budgets[0]:,.0f} to {budgets[-1]:,.0f} simulations"
    if ax is None:
        words = "Mean of {}; bars: ± 2 standard deviations"
        best = "Best is the lower right; upright bars end at the most that is missed (95 % sure)"
        notes = [f"{found.average(words)}; {sizes}", best, *found.notes]
        plots.dress(figure, "Honesty against information", notes, found.handles)
    else:
        ax.legend(handles=found.handles)
    return figure


def _over_confident(axis: Axes, top: float) -> None:
    """The area in which no bar of a safe method ends, and room for its name above all markers."""
    top = 1.25 * max(top, 1.5 * MOST_MISSED)
    axis.set_ylim(-0.04 * top, top)
    axis.axhspan(MOST_MISSED, top, color="0.5", alpha=0.12, linewidth=0, zorder=0)
    place: Any = {"transform": axis.transAxes, "va": "top"}
    axis.text(0.98, 0.98, "over-confident", **place, **WORDS)


def _path(axis: Axes, one: Series, rows: DataFrame, budgets: list[Any]) -> float:
    """One series from the smallest budget to the largest, whose marker is the largest.

    Returns the upper end of the highest bar.
    """
    gain, left, right = with_errors(rows, "information_gain", two_deviations)
    lack = rows.groupby("budget")["worst_shortfall"].mean()
    high = rows.groupby("budget")["shortfall_bound"].mean().fillna(lack).clip(lower=lack)
    bars: Any = {"xerr": (gain - left, right - gain), "yerr": (0 * lack, high - lack)}
    faint: Any = {"elinewidth": 0.7, "alpha": 0.6, "zorder": 1.8, "clip_on": False}
    axis.plot(gain, lack, **{**one.line, "marker": "", "linewidth": 0.8})
    axis.errorbar(gain, lack, **bars, fmt="none", ecolor=one.color, **faint)
    style: Any = {**one.line, "linestyle": "", "markeredgewidth": 0, "clip_on": False}
    for budget, x, y in zip(gain.index, gain, lack, strict=True):
        share = budgets.index(budget) / (len(budgets) - 1) if len(budgets) > 1 else 0.5
        axis.plot(x, y, markersize=4 + 4 * share, **style)
    return float(high.max())


def _by_problem(found: Shown, **options: Any) -> tuple[Figure, dict[str, Axes]]:
    """A panel per problem."""
    problems = sorted(found.rows["problem"].unique())
    figure, axes = plots.panels(len(problems), **options)
    for problem, axis in zip(problems, axes, strict=True):
        axis.set_title(plots.plain_name(problem))
    return figure, dict(zip(problems, axes, strict=True))


def _by_budget(
    found: Shown, value: str, spread: Spread, **options: Any
) -> tuple[Figure, dict[str, Axes]]:
    """A panel per problem, with a line and its band for each series against the budget."""
    figure, axes = _by_problem(found, **options)
    names, budgets = list(found.series), found.rows["budget"].unique()
    # One budget alone has bars instead of bands, and series beside each other.
    step = 0.0 if len(budgets) > 1 else 0.12
    for problem, axis in axes.items():
        _budget_axis(axis, budgets)
        axis.set_xlabel("simulations")
        for name, one, rows in found.each(found.rows[found.rows["problem"] == problem]):
            middle, lower, upper = with_errors(rows, value, spread)
            x = middle.index * 2 ** (step * (names.index(name) - (len(names) - 1) / 2))
            if len(x) > 1:
                axis.fill_between(x, lower, upper, color=one.color, alpha=0.2, linewidth=0)
            else:
                axis.vlines(x, lower, upper, color=one.color, linewidth=1)
            axis.plot(x, middle, label=name, **one.line)
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
