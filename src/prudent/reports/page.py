"""What the page says without JavaScript, as the template takes it; the template escapes it all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prudent.experiments.config import RunConfig
from prudent.reports.cells import Cell, private, records
from prudent.reports.sentences import Case, case_sentence, cases, headline
from prudent.training.options import Options

if TYPE_CHECKING:
    from pandas import DataFrame

# Key, title and class of each column of the table.
COLUMNS = (
    ("problem", "problem", "name"),
    ("budget", "budget", "number"),
    ("method", "method", "name"),
    ("seeds", "seeds", "seeds"),
    ("verdict", "verdict", ""),
    ("worst_shortfall", "worst shortfall", "number"),
    ("auc", "AUC", "number"),
    ("log_posterior", "log posterior", "number"),
    ("information_gain", "information gain, nats", "number"),
    ("region_volume", "90 % region, % of prior", "number"),
    ("pairs", "test pairs", "number"),
    ("train_seconds", "time to train", "number"),
)
SIGNS = {
    "over-confident": ("bad", "▼"),
    "conservative": ("good", "▲"),
    "calibrated": ("good", "●"),
    "uninformative": ("unsure", "○"),
    "not enough test pairs": ("unsure", "?"),
    "no finished run": ("unsure", "–"),
}
# With more cases than this a table is easier to read than sentences.
MOST_SENTENCES = 4
SILENT = {"running": "at work", "left": "not begun"}
UNFINISHED = {"failed": 0, "interrupted": 1, "running": 2, "left": 3}


def contents(runs: DataFrame, cells: Sequence[Cell], name: str) -> dict[str, Any]:
    """The values of the template.

    Args:
        runs: The arranged runs.
        cells: Their cells.
        name: The directory of the runs.
    """
    found = cases(cells)
    states = runs["state"].value_counts()
    return {
        "title": f"{name}: which posterior can you trust?",
        "subtitle": _subtitle(runs),
        "running": any(states.get(state, 0) for state in ("running", "interrupted", "left")),
        "num_done": int(states.get("done", 0)),
        "num_runs": len(runs),
        "headline": headline(found),
        "sentences": [case_sentence(case) for case in found] if len(found) > 1 else [],
        "matrix": _matrix(found) if len(found) > MOST_SENTENCES else None,
        "columns": COLUMNS,
        "signs": SIGNS,
        "cells": cells,
        "unfinished": _unfinished(runs),
        **_made(runs, name),
    }


def _subtitle(runs: DataFrame) -> str:
    """How much there is, in numbers."""
    done = runs[runs["state"] == "done"]
    counts = {name: runs[name].nunique() for name in ("problem", "budget", "method", "seed")}
    listing = ", ".join(f"{number} {name}{'s' * (number != 1)}" for name, number in counts.items())
    tested = ""
    if len(done) and "num_pairs" in done:
        ends = dict.fromkeys((int(done["num_pairs"].min()), int(done["num_pairs"].max())))
        tested = f", {' to '.join(f'{end:,}' for end in ends)} test pairs each"
    return f"{listing}: {len(done):,} of {len(runs):,} runs finished{tested}."


def _matrix(found: Sequence[Case]) -> dict[str, Any]:
    """The best method of each case: a row per problem, a column per budget."""
    places = {(case.problem, case.budget): case for case in found}
    budgets = sorted({case.budget for case in found})
    problems = sorted({case.problem for case in found})
    return {
        "budgets": budgets,
        "rows": [(name, [places.get((name, budget)) for budget in budgets]) for name in problems],
    }


def _unfinished(runs: DataFrame) -> list[tuple[str, str, list[str]]]:
    """State, reason and names of runs that are not done; equal reasons are told once."""
    groups = defaultdict[tuple[str, str], list[str]](list)
    for row in records(runs):
        if row["state"] != "done":
            silent = SILENT.get(row["state"], "no reason stored")
            reason = private(row.get("error"), row["state"]) or silent
            groups[row["state"], reason].append(_name(row))
    ordered = sorted(groups.items(), key=lambda item: (UNFINISHED.get(item[0][0], 9), item[0]))
    return [(state, reason, names) for (state, reason), names in ordered]


def _name(row: dict[str, Any]) -> str:
    budget = f"{int(row['budget']):,}" if row.get("budget") is not None else "?"
    seed = int(row["seed"]) if row.get("seed") is not None else "?"
    names = f"{row.get('problem') or '?'} {row.get('method') or '?'}"
    return f"{names} {budget} seed {seed} ({row['run']})"


def _made(runs: DataFrame, name: str) -> dict[str, Any]:
    """How to repeat it, versions, and the settings that differ and that all runs share."""
    alone = {Path(str(path)).name for path in runs["path"]} == {Path(name).name}
    config = f"{name}/config.json" if alone else f"{name}/RUN/config.json"
    hint = "" if alone else "   # RUN: see the table, one row per run"
    known = [*RunConfig.__dataclass_fields__, *Options.__dataclass_fields__]
    values = {field: _values(runs[field]) for field in known if field in runs}
    versions = {
        str(field).removesuffix("_version"): _values(runs[field])
        for field in runs.columns
        if str(field).endswith("_version")
    }
    facts = {
        "Versions": versions,
        "Settings that differ": {key: found for key, found in values.items() if len(found) > 1},
        "Settings of all runs": {key: found for key, found in values.items() if len(found) == 1},
    }
    return {
        "commands": f"prudent report {name} -o report.html\n"
        f"prudent train --config {config} -o again{hint}",
        "facts": {title: found for title, found in facts.items() if found},
    }


def _values(column: Any) -> list[str]:
    """The distinct values as text, in order of size where they are numbers."""
    found = column.dropna().unique().tolist()
    numbers = all(isinstance(value, int | float) for value in found)
    found = sorted(found) if numbers else sorted(found, key=str)
    return [f"{value:g}" if isinstance(value, float) else str(value) or "none" for value in found]
