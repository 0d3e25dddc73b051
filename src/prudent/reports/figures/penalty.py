"""Figures of the coverage penalty: its weight, its number of draws, its time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prudent import _plots as plots
from prudent.errors import InputError
from prudent.reports.cells import CELL, Series, settings_of
from prudent.reports.figures._rows import finished, name_cell, penalized, shown, two_deviations
from prudent.training.methods import METHODS, position

if TYPE_CHECKING:
    from pandas import DataFrame

MACHINE = ["problem", "budget", "device", "threads", "batch_size", "networks"]
WORDS = {"weight": "weight of the penalty", "num_samples": "draws per pair, L"}


def sensitivity_weight(curves: DataFrame) -> Figure:
    """Coverage, AUC and log posterior for several weights of the penalty."""
    return _sensitivity(curves, "weight", "sensitivity_weight")


def sensitivity_samples(curves: DataFrame) -> Figure:
    """Coverage, AUC and log posterior for several numbers of draws in the penalty."""
    return _sensitivity(curves, "num_samples", "sensitivity_samples")


def _sensitivity(curves: DataFrame, setting: str, name: str) -> Figure:
    rows, planned = _scan(finished(curves), curves, setting, name)
    values = sorted(rows[setting].unique())
    # Beyond this the colors are too light for a line on white.
    shades, lightest = mpl.colormaps["plasma"].resampled(256), 0.6
    colors = [shades(lightest * index / max(1, len(values) - 1)) for index in range(len(values))]
    figure, axes = plots.canvas(1, 3, panel=(2.15, 2.0))
    left, middle, right = axes[0]
    plots.diagonal(left, words=True)
    handles = []
    for value, color in zip(values, colors, strict=True):
        mean = rows[rows[setting] == value].groupby("level")["coverage"].mean()
        handles += left.plot(mean.index, mean, color=color, label=f"{value:g}")
    left.set(xlabel=plots.LEVEL, ylabel=plots.INSIDE)
    runs = rows.drop_duplicates("run")
    groups = runs.groupby(setting)
    _points(middle, colors, *two_deviations(groups["auc"]))
    middle.axhline(0, color=plots.LINE, linewidth=0.8)
    middle.set_ylabel("AUC")
    density = groups["log_posterior"]
    _points(right, colors, density.median(), density.min(), density.max())
    right.axhline(runs["log_prior"].median(), color="black", linestyle=":", linewidth=1)
    right.set_ylabel("log posterior (nats)")
    for axis in (middle, right):
        axis.set_xticks(range(len(values)), [f"{value:g}" for value in values])
        axis.set_xlabel(WORDS[setting])
    handles += _reference(curves, rows.iloc[0], axes[0])
    counts = groups["seed"].nunique()
    seeds = " to ".join(dict.fromkeys((f"{counts.min()}", f"{counts.max()}")))
    notes = [
        f"Colours: {WORDS[setting]}; {seeds} seeds each. Coverage: mean; AUC: mean ± 2 "
        "standard deviations; log posterior: median, least to greatest; dotted: prior",
        *planned,
    ]
    return plots.dress(figure, name_cell(rows.iloc[0]), notes, handles)


def _scan(
    done: DataFrame, table: DataFrame, setting: str, name: str
) -> tuple[DataFrame, list[str]]:
    """The curves of the widest scan, and a note if some of its cell are missing."""
    if setting not in table:
        raise InputError(
            f"`{name}` needs the column `{setting}`; draw it with: draw(name, results)"
        )
    chosen = widest(penalized(done.drop_duplicates("run")), setting)
    if len(chosen) == 0 or chosen[setting].nunique() < 2:
        raise no_variation(name, setting, "sweeps/sensitivity.toml")
    rows = done[done["run"].isin(chosen["run"])].copy()
    rows[setting] = rows["run"].map(chosen.set_index("run")[setting])
    cell = (table[CELL] == chosen.iloc[0][CELL]).all(axis=1)
    lost = table[cell & (table["state"] != "done")]["run"].nunique() if "state" in table else 0
    return rows, [f"{lost:,} runs of this cell are not done"] if lost else []


def _points(axis: Axes, colors: Sequence[Any], middle: Any, lower: Any, upper: Any) -> None:
    axis.plot(range(len(middle)), middle, color="0.55", linewidth=0.8, zorder=1)
    points = zip(colors, middle, middle - lower, upper - middle, strict=True)
    style: Any = {"marker": "o", "capsize": 2, "elinewidth": 1}
    for place, (color, value, below, above) in enumerate(points):
        axis.errorbar(place, value, yerr=([below], [above]), color=color, **style)


def _reference(curves: DataFrame, first: Any, axes: Any) -> list[Any]:
    """The method without a penalty on the most simulations, if it was run."""
    family = METHODS[first["method"]].family
    plain = curves[(curves["problem"] == first["problem"]) & (curves["method"] == family)]
    plain = plain[plain["budget"] == plain["budget"].max()]
    if plain["coverage"].notna().sum() == 0:
        return []
    found = shown(plain, "coverage")
    rows = found.rows[found.rows["series"] == found.rows["series"].mode()[0]]
    runs = rows.drop_duplicates("run")
    style = {"color": "black", "linestyle": "--", "linewidth": 1}
    mean = rows.groupby("level")["coverage"].mean()
    text = f"{Series(family).name}, {runs['budget'].iloc[0]:,.0f} simulations"
    handle: list[Any] = axes[0].plot(mean.index, mean, label=text, **style)
    axes[1].axhline(runs["auc"].mean(), **style)
    axes[2].axhline(runs["log_posterior"].median(), **style)
    return handle


def overhead(runs: DataFrame) -> Figure:
    """Training time against the draws of the penalty, relative to the method without it.

    Runs that may stop early are left out: the table does not say after how many epochs they did.
    """
    done = finished(runs)
    # The first epoch is progress, so that patience for all epochs is never at its end.
    patience = done["patience"].astype(float)
    lasting = patience.isna() | (patience >= done["epochs"])
    steady = done[lasting & done["train_seconds"].notna()].copy()
    steady["batch_size"] = steady["batch_size"].astype(float).fillna(0)  # what suits the budget
    steady["pace"] = steady["train_seconds"] / (steady["epochs"] * steady["members"])
    slowed = penalized(steady)
    scans = [widest(group, "num_samples") for _, group in slowed.groupby([*MACHINE, "method"])]
    drawn = [run for one in scans if one["num_samples"].nunique() > 1 for run in one["run"]]
    if not drawn:
        raise no_variation("overhead", "num_samples", "sweeps/overhead.toml")
    rows = slowed[slowed["run"].isin(drawn)]
    groups = list(rows.groupby(MACHINE))
    figure, axes = plots.panels(len(groups), panel=(2.2, 2.0))
    handles: dict[str, Any] = {}
    relative = []
    for axis, (machine, own) in zip(axes, groups, strict=True):
        same = (steady[MACHINE] == list(machine)).all(axis=1)
        relative.append(_slowdown(axis, own, steady[same], handles))
        problem, budget, device, *_ = machine
        axis.set_title(f"{plots.plain_name(problem)}, {budget:,}, {device}")
    seeds = rows["seed"].nunique()
    counts = rows.groupby([*MACHINE, "method", "num_samples"])["seed"].nunique()
    fewer, early = int((counts < seeds).sum()), len(done) - len(steady)
    notes = [
        f"Mean of {seeds} seeds; bars: ± 2 standard deviations" if seeds > 1 else "One seed",
        f"{fewer} of {len(counts)} points have fewer seeds" if fewer else "",
        f"{early:,} runs that may stop early not drawn" if early else "",
    ]
    title = "Time of training" + (", relative to no penalty" if all(relative) else " per epoch")
    return plots.dress(figure, title, notes, list(handles.values()))


def _slowdown(axis: Axes, rows: DataFrame, all_runs: DataFrame, handles: dict[str, Any]) -> bool:
    """One line per method; whether all of them are relative."""
    looks = {name: Series(name) for name in sorted(rows["method"].unique(), key=position)}
    paces = all_runs.groupby("method")["pace"].mean()
    plain = {name: paces.get(METHODS[name].family) for name in looks}
    relative = None not in plain.values()
    for name, look in looks.items():
        own = rows[rows["method"] == name]
        pace = own["pace"] / plain[name] if relative else own["pace"]
        mean, _, upper = two_deviations(pace.groupby(own["num_samples"]))
        text = f"{look.name} / {Series(METHODS[name].family).name}" if relative else look.name
        style: Any = {"capsize": 2, "elinewidth": 0.8, **look.line}
        handles[text] = axis.errorbar(mean.index, mean, yerr=upper - mean, label=text, **style)
    axis.set_xscale("log", base=2)
    values = sorted(rows["num_samples"].unique())
    axis.set_xticks(values, [f"{value:g}" for value in values])
    axis.minorticks_off()
    if relative:
        axis.axhline(1, color=plots.LINE, linewidth=0.8)
    axis.set_ylim(bottom=0)
    axis.set_xlabel(WORDS["num_samples"])
    axis.set_ylabel("times as long" if relative else "seconds per epoch")
    return relative


def widest(runs: DataFrame, setting: str) -> DataFrame:
    """Of the groups of runs that differ in a setting and seeds alone, the one with most values."""
    if len(runs) == 0:
        return runs
    text = settings_of(runs)  # where the method's own weight takes the place of none
    values = text[setting].astype(float)
    keys = text.drop(columns=setting).join(runs[CELL].astype(str)).agg(tuple, axis=1)
    best = max(keys.unique(), key=lambda key: (values[keys == key].nunique(), (keys == key).sum()))
    return runs.assign(**{setting: values})[keys == best]


def no_variation(figure: str, setting: str, sweep: str) -> InputError:
    """The error for a scan that was not run."""
    return InputError(
        f"the figure `{figure}` needs finished runs that differ in `{setting}`, and there are "
        f"none. Make some with: prudent sweep {sweep}"
    )
