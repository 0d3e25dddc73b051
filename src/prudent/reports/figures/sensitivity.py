"""What the weight of the penalty and its number of draws do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prudent import _plots as plots
from prudent.errors import InputError
from prudent.reports.cells import CELL
from prudent.reports.figures._rows import finished, no_variation, regularizer, shown, widest
from prudent.training.methods import METHODS, look

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["sensitivity_samples", "sensitivity_weight"]

WORDS = {"weight": "weight of the penalty", "num_samples": "draws per pair, L"}


@plots.themed
def sensitivity_weight(curves: DataFrame) -> Figure:
    """Coverage, AUC and log posterior for several weights of the penalty.

    Args:
        curves: Coverage curves with the columns of the runs, as ``draw`` passes them.
    """
    return _sensitivity(curves, "weight")


@plots.themed
def sensitivity_samples(curves: DataFrame) -> Figure:
    """Coverage, AUC and log posterior for several numbers of draws in the penalty.

    Args:
        curves: Coverage curves with the columns of the runs, as ``draw`` passes them.
    """
    return _sensitivity(curves, "num_samples")


def _sensitivity(curves: DataFrame, setting: str) -> Figure:
    name = "sensitivity_" + {"weight": "weight", "num_samples": "samples"}[setting]
    rows, planned = _scan(finished(curves), curves, setting, name)
    first = rows.iloc[0]
    values = sorted(rows[setting].unique())
    shades = mpl.colormaps["viridis"].resampled(256)
    colours = [shades(0.88 * index / max(1, len(values) - 1)) for index in range(len(values))]
    figure, axes = plots.canvas(1, 3, panel=(2.15, 2.0))
    left, middle, right = axes[0]
    plots.diagonal(left, words=True)
    handles = []
    for value, colour in zip(values, colours, strict=True):
        mean = rows[rows[setting] == value].groupby("level")["coverage"].mean()
        handles += left.plot(mean.index, mean, color=colour, label=f"{value:g}")
    left.set(xlabel="credibility level", ylabel="coverage")
    runs = rows.drop_duplicates("run")
    groups = runs.groupby(setting)
    mean, spread = groups["auc"].mean(), 2 * groups["auc"].std().fillna(0)
    _points(middle, colours, mean, mean - spread, mean + spread)
    middle.axhline(0, color=plots.LINE, linewidth=0.8)
    middle.set_ylabel("AUC")
    density = groups["log_posterior"]
    _points(right, colours, density.median(), density.min(), density.max())
    right.axhline(runs["log_prior"].median(), color="black", linestyle=":", linewidth=1)
    right.set_ylabel("log posterior")
    for axis in (middle, right):
        axis.set_xticks(range(len(values)), [f"{value:g}" for value in values])
        axis.set_xlabel(WORDS[setting])
    handles += _reference(curves, first, axes[0])
    seeds = groups["seed"].nunique()
    notes = [
        f"Colours: {WORDS[setting]}; {_range(seeds)} seeds each. Coverage: mean; AUC: mean ± 2 "
        "standard deviations; log posterior: median, least to greatest; dotted: prior",
        *planned,
    ]
    method, problem = (
        plots.plain_name(look(first["method"]).label),
        plots.plain_name(first["problem"]),
    )
    where = f"{method} on {problem}, {first['budget']:,.0f} simulations"
    plots.dress(figure, where, notes, handles)
    return figure


def _scan(
    done: DataFrame, table: DataFrame, setting: str, name: str
) -> tuple[DataFrame, list[str]]:
    """The curves of the widest scan, and a note if some of its cell are missing."""
    if setting not in table:
        raise InputError(
            f"`{name}` needs the column `{setting}`; draw it with: draw(name, results)"
        )
    runs = done.drop_duplicates("run")
    chosen = widest(runs[runs["method"].map(regularizer) == "coverage"], setting)
    if len(chosen) == 0 or chosen[setting].nunique() < 2:
        raise no_variation(name, setting, "sweeps/sensitivity.toml")
    rows = done[done["run"].isin(chosen["run"])].copy()
    rows[setting] = rows["run"].map(chosen.set_index("run")[setting])
    cell = (table[CELL] == chosen.iloc[0][CELL]).all(axis=1)
    lost = table[cell & (table["state"] != "done")]["run"].nunique() if "state" in table else 0
    return rows, [f"{lost:,} runs of this cell are not done"] if lost else []


def _points(axis: Axes, colours: Sequence[Any], middle: Any, lower: Any, upper: Any) -> None:
    axis.plot(range(len(middle)), middle, color="0.6", linewidth=0.8, zorder=1)
    for place, colour in enumerate(colours):
        ends = ([middle.iloc[place] - lower.iloc[place]], [upper.iloc[place] - middle.iloc[place]])
        axis.errorbar(
            place, middle.iloc[place], yerr=ends, color=colour, marker="o", capsize=2, elinewidth=1
        )


def _reference(curves: DataFrame, first: Any, axes: Any) -> list[Any]:
    """The method without a penalty on the most simulations, if it was run."""
    plain = curves[
        (curves["problem"] == first["problem"])
        & (curves["method"] == METHODS[first["method"]].family)
    ]
    plain = plain[plain["budget"] == plain["budget"].max()]
    if plain["coverage"].notna().sum() == 0:
        return []
    found = shown(plain, "coverage")
    rows = found.rows[found.rows["series"] == found.rows["series"].mode()[0]]
    runs = rows.drop_duplicates("run")
    style = {"color": "black", "linestyle": "--", "linewidth": 1}
    mean = rows.groupby("level")["coverage"].mean()
    text = f"{look(runs['method'].iloc[0]).label}, {runs['budget'].iloc[0]:,.0f} simulations"
    handle: list[Any] = axes[0].plot(mean.index, mean, label=text, **style)
    axes[1].axhline(runs["auc"].mean(), **style)
    axes[2].axhline(runs["log_posterior"].median(), **style)
    return handle


def _range(counts: Any) -> str:
    least, most = int(counts.min()), int(counts.max())
    return f"{least}" if least == most else f"{least} to {most}"
