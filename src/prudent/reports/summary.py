r"""What a store says in words: which methods can be trusted at which budget, and at what cost.

Runs that differ by nothing but their seed form a cell. Its coverage is that of all test pairs of
all seeds together. It counts as over-confident if that curve falls short by more than chance
explains, or if one of its seeds does, with a margin that holds for all n seeds at once:
:math:`\sqrt{\ln(2 n / 0.05) / 2N}` for N test pairs each. So good seeds cannot hide a bad one, and
a method does not look worse because more seeds were run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from prudent.diagnostics.verdict import NORMAL_95, Verdict, judge, margin
from prudent.reports.figures.cells import settings_of
from prudent.reports.figures.methods import LABELS

if TYPE_CHECKING:
    from pandas import DataFrame

    from prudent.experiments import Results

__all__ = [
    "Cell",
    "Estimate",
    "by_run",
    "cells",
    "records",
    "run_verdicts",
    "settings",
]

KEYS = ("problem", "method", "budget", "seed")
ABSENT = ("nan", "None")  # of runs whose config could not be read
ERRORS = {
    "auc": "auc_error",
    "log_posterior": "log_posterior_error",
    "information_gain": "information_gain_error",
}
NOTHING = Verdict("no finished run", "", "no finished run")
METRICS = ("worst_shortfall", "auc", "log_posterior", "information_gain", "region_volume")


Columns = dict[str, "np.ndarray[Any, Any]"]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds.

    Args:
        mean: None if no seed has the number.
        error: The standard error over seeds, or over test pairs if there is one seed; for the
            worst shortfall what chance explains, with 95 %. None if it is not known.
        number: Seeds that have the number.
    """

    mean: float | None
    error: float | None
    number: int


@dataclass(frozen=True)
class Cell:
    """All seeds of one method, with one setting, on one problem, at one budget.

    Args:
        problem: Its name.
        budget: Simulations.
        method: Its name.
        setting: What distinguishes it from cells with the same names; mostly nothing.
        verdict: The judgement of all seeds together; its kind is ``no finished run`` if none is.
        num_done: Finished seeds.
        num_seeds: All of them.
        num_short: Seeds that are over-confident, each for itself.
        num_pairs: Test pairs of all finished seeds.
        estimates: By metric, and ``train_seconds``.
    """

    problem: str
    budget: int
    method: str
    setting: str
    verdict: Verdict
    num_done: int
    num_seeds: int
    num_short: int
    num_pairs: int
    estimates: dict[str, Estimate]

    @property
    def name(self) -> str:
        """The method, with its setting if there are several."""
        label = LABELS.get(self.method, self.method)
        return f"{label} ({self.setting})" if self.setting else label

    @property
    def trusted(self) -> bool:
        """Whether it is known not to be over-confident."""
        return self.verdict.trusted

    @property
    def kind(self) -> str:
        """The kind of its verdict."""
        return self.verdict.kind


def settings(runs: DataFrame) -> list[str]:
    """For each run the fields that tell it from others with the same problem, budget and seed."""
    text = settings_of(runs)
    if text.empty:
        return [""] * len(runs)
    groups = text.groupby([runs[name].astype(str) for name in KEYS])
    varied = [name for name in text if int(groups[name].nunique().max()) > 1]
    return [
        ", ".join(f"{name} {value}" for name, value in row.items() if value not in ABSENT)
        for row in text[varied].to_dict("records")
    ]


def run_verdicts(results: Results) -> dict[str, Verdict]:
    """The verdict of every finished run that has a curve."""
    done = records(results.runs[results.runs["state"] == "done"])
    curves = by_run(results.curves)
    return {
        row["run"]: _judge([curves[row["run"]]], [int(row["num_pairs"])], row)
        for row in done
        if row["run"] in curves and row.get("num_pairs")
    }


def cells(results: Results) -> list[Cell]:
    """All cells, in the order of the runs."""
    runs, verdicts = results.runs, run_verdicts(results)
    curves = by_run(results.curves)
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row, setting in zip(records(runs), settings(runs), strict=True):
        if row.get("problem") is not None and row.get("budget") is not None:
            key = (row["problem"], int(row["budget"]), row["method"], setting)
            groups.setdefault(key, []).append(row)
    return [_cell(key, rows, verdicts, curves) for key, rows in groups.items()]


def _cell(
    key: tuple[Any, ...],
    rows: Sequence[dict[str, Any]],
    verdicts: dict[str, Verdict],
    curves: Mapping[str, Columns],
) -> Cell:
    done = [row for row in rows if row["run"] in verdicts]
    pairs = [int(row["num_pairs"]) for row in done]
    found = {name: _estimate(done, name) for name in (*METRICS, "train_seconds")}
    short = [row for row in done if verdicts[row["run"]].kind == "over-confident"]
    verdict = NOTHING
    if done:
        error = found["information_gain"].error
        metrics = {
            "log_posterior": found["log_posterior"].mean,
            "log_prior": _estimate(done, "log_prior").mean,
            "information_gain_error": error,
        }
        verdict = _judge([curves[row["run"]] for row in done], pairs, metrics)
        if verdict.kind != "over-confident" and (bad := _beyond_chance(done)):
            seeds = f"in {bad} of {len(done)} seeds; together {verdict}"
            verdict = Verdict.of("over-confident", seeds, " ")
    problem, budget, method, setting = key
    return Cell(
        problem=problem,
        budget=budget,
        method=method,
        setting=setting,
        verdict=verdict,
        num_done=len(done),
        num_seeds=len(rows),
        num_short=len(short),
        num_pairs=sum(pairs),
        estimates=found,
    )


def _beyond_chance(rows: Sequence[dict[str, Any]]) -> int:
    """Seeds whose shortfall is beyond a margin that holds for all of them at once."""
    limits = (margin(int(row["num_pairs"]), len(rows)) for row in rows)
    return sum(row["worst_shortfall"] > limit for row, limit in zip(rows, limits, strict=True))


def _judge(curves: Sequence[Columns], pairs: Sequence[int], metrics: Mapping[str, Any]) -> Verdict:
    """The verdict on the coverage of all test pairs together."""
    columns = {
        name: np.stack([curve[name].astype(float) for curve in curves])
        for name in ("level", "coverage", "lower", "upper")
    }
    mean = np.average(columns["coverage"], axis=0, weights=pairs)
    lower, upper = columns["lower"][0], columns["upper"][0]
    if len(curves) > 1:
        half = NORMAL_95 * np.sqrt(np.clip(mean * (1 - mean), 0, None) / sum(pairs))
        lower, upper = (mean - half).clip(0, 1), (mean + half).clip(0, 1)
    found = (part.tolist() for part in (columns["level"][0], mean, lower, upper))
    return judge(*found, num_pairs=sum(pairs), metrics=metrics)


def _estimate(rows: Sequence[dict[str, Any]], name: str) -> Estimate:
    finite = [row for row in rows if isinstance(row.get(name), int | float)]
    values = np.array([float(row[name]) for row in finite])
    if not finite:
        return Estimate(None, None, 0)
    error: float | None = None
    if name == "worst_shortfall":
        error = margin(sum(int(row["num_pairs"]) for row in finite))
    elif len(finite) > 1:
        error = float(values.std(ddof=1) / math.sqrt(len(values)))
    elif name in ERRORS:
        error = finite[0].get(ERRORS[name])
    return Estimate(float(values.mean()), error, len(finite))


def by_run(table: DataFrame) -> dict[str, Columns]:
    """The columns of each run; much faster than groups of pandas if there are many."""
    order = np.argsort(table["run"].to_numpy().astype(str), kind="stable")
    columns = {name: table[name].to_numpy()[order] for name in table}
    runs = columns["run"]
    edges = [0, *(np.flatnonzero(runs[1:] != runs[:-1]) + 1), len(runs)] if len(runs) else []
    return {
        str(runs[first]): {name: values[first:last] for name, values in columns.items()}
        for first, last in pairwise(edges)
    }


def records(table: DataFrame) -> Iterator[dict[str, Any]]:
    """Rows as dictionaries, None for what is missing."""
    for row in table.to_dict("records"):
        yield {name: None if _missing(value) else value for name, value in row.items()}


def _missing(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
