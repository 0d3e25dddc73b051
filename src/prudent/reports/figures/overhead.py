"""What the penalty costs: the time of training against its number of draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prudent import _plots as plots
from prudent.reports.figures._rows import finished, no_variation, regularizer, widest
from prudent.reports.series import Series, series_of
from prudent.training.methods import METHODS

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["overhead"]

MACHINE = ["problem", "budget", "device", "threads", "batch_size"]


@plots.themed
def overhead(runs: DataFrame) -> Figure:
    """Training time against the draws of the penalty, relative to the method without it.

    Args:
        runs: One row per run. Runs that may stop early are left out, because the table does not
            say after how many epochs they did.
    """
    done = finished(runs)
    steady = done[done["patience"].isna() & done["train_seconds"].notna()].copy()
    steady["pace"] = steady["train_seconds"] / (steady["epochs"] * steady["members"])
    penalised = steady[steady["method"].map(regularizer) == "coverage"]
    scans = [widest(group, "num_samples") for _, group in penalised.groupby([*MACHINE, "method"])]
    scans = [scan for scan in scans if scan["num_samples"].nunique() > 1]
    if not scans:
        raise no_variation("overhead", "num_samples", "sweeps/overhead.toml")
    drawn = {run for scan in scans for run in scan["run"]}
    penalised = penalised[penalised["run"].isin(drawn)]
    groups = list(penalised.groupby(MACHINE))
    figure, axes = plots.panels(len(groups), panel=(2.2, 2.0))
    handles: dict[str, Any] = {}
    relative = []
    for axis, (machine, rows) in zip(axes, groups, strict=True):
        same = (steady[MACHINE] == list(machine)).all(axis=1)
        relative.append(_slowdown(axis, rows, steady[same], handles))
        problem, budget, device, *_ = machine
        axis.set_title(f"{plots.plain_name(problem)}, {budget:,}, {device}")
    seeds = penalised["seed"].nunique()
    note = f"Mean of {seeds} seed{'s' * (seeds > 1)}"
    note += "; bars: ± 2 standard deviations" * (seeds > 1)
    counts = penalised.groupby([*MACHINE, "method", "num_samples"])["seed"].nunique()
    fewer = int((counts < seeds).sum())
    missing = f"{fewer} of {len(counts)} points have fewer seeds" if fewer else ""
    early = len(done) - len(steady)
    left_out = f"{early:,} runs that may stop early not drawn" if early else ""
    title = "Time of training" + (", relative to no penalty" if all(relative) else " per epoch")
    plots.dress(figure, title, [note, missing, left_out], list(handles.values()))
    return figure


def _slowdown(axis: Axes, rows: DataFrame, all_runs: DataFrame, handles: dict[str, Any]) -> bool:
    """One line per method; whether all of them are relative."""
    looks = {one.method: one for one in series_of((name, "") for name in rows["method"]).values()}
    plain = {
        name: all_runs[all_runs["method"] == METHODS[name].family]["pace"].mean() for name in looks
    }
    relative = all(pace == pace for pace in plain.values())
    for name, look in looks.items():
        own = rows[rows["method"] == name]
        pace = own["pace"] / plain[name] if relative else own["pace"]
        groups = pace.groupby(own["num_samples"])
        mean, spread = groups.mean(), 2 * groups.std().fillna(0)
        text = f"{look.name} / {Series(METHODS[name].family).name}" if relative else look.name
        handles[text] = axis.errorbar(
            mean.index, mean, yerr=spread, label=text, capsize=2, elinewidth=0.8, **look.line
        )
    axis.set_xscale("log", base=2)
    values = sorted(rows["num_samples"].unique())
    axis.set_xticks(values, [f"{value:g}" for value in values])
    axis.minorticks_off()
    if relative:
        axis.axhline(1, color=plots.LINE, linewidth=0.8)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("draws per pair, L")
    axis.set_ylabel("times as long" if relative else "seconds per epoch")
    return relative
