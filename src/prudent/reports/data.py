"""The numbers behind a page, as small as JSON can hold them: columns, names once, six digits."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prudent.diagnostics.registry import DIAGNOSTICS
from prudent.history import PANELS
from prudent.reports.cells import FORMS, Cell, Columns, by_run, records
from prudent.reports.series import Series, series_of
from prudent.training.methods import look

if TYPE_CHECKING:
    from pandas import DataFrame

    from prudent.experiments import Results

DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}
SYMBOLS = {
    **{"o": "circle", "s": "square", "^": "triangle-up", "v": "triangle-down", "D": "diamond"},
    **{"P": "cross", "X": "x", "*": "star", "p": "pentagon", "h": "hexagon", "d": "diamond-tall"},
    **{"<": "triangle-left", ">": "triangle-right"},
}
# The title of a test, its axes, and where its line for exact posteriors ends on the right.
TESTS = {
    "sbc": ("SBC: ranks less uniform", "normalized rank", "difference", 0),
    "tarp": ("TARP: coverage", "claimed credibility", "share inside", 1),
}
# Further diagnostics are drawn if they store these columns.
CURVES = {"run", "test", "parameter", "level", "value", "lower", "upper", "p_value"}
# Of training curves, and of ranks: more would make the page slow to load.
MOST_NUMBERS = 500_000
# Of curves; in a page of very many runs, as many as can be seen.
DIGITS, FEW_DIGITS, MANY_RUNS = 6, 4, 5000


def page_data(
    results: Results, runs: DataFrame, cells: Sequence[Cell], single: Sequence[Cell]
) -> dict[str, Any]:
    """Everything that the page draws.

    Args:
        results: The tables of curves, training and ranks.
        runs: The arranged runs.
        cells: The cells of the runs.
        single: Each run as a cell of its own.
    """
    rows = list(records(runs))
    names = [str(row["run"]) for row in rows]
    problems = list(dict.fromkeys(cell.problem for cell in single))
    series = list(series_of((one.series.method, one.series.setting) for one in single).values())
    methods = list(dict.fromkeys(one.method for one in series))
    priors = {
        name: [row.get("log_prior") for row in rows if row.get("problem") == name]
        for name in problems
    }
    digits = DIGITS if len(rows) <= MANY_RUNS else FEW_DIGITS
    curves = [cell.curve or {} for cell in single]
    return {
        "problems": problems,
        "priors": [_mean(priors[name]) for name in problems],
        "methods": [
            {"name": name, "label": look(name).label, "color": look(name).color}
            for name in methods
        ],
        "series": [_look(one, methods) for one in series],
        "cells": _table(cells, problems, series),
        "runs": {
            **_table(single, problems, series),
            "run": names,
            "place": [Path(str(row.get("path") or "?")).name for row in rows],
            "seed": [_short(row.get("seed")) for row in rows],
        },
        "coverage": {
            "levels": next((_numbers(curve["levels"]) for curve in curves if curve), []),
            "curve": [_numbers(curve.get("curve", ()), digits) for curve in curves],
            "lower": [_numbers(curve.get("lower", ()), digits) for curve in curves],
            "upper": [_numbers(curve.get("upper", ()), digits) for curve in curves],
            "mean": [
                _numbers(cell.curve["curve"], digits) if cell.curve and cell.num_done > 1 else None
                for cell in cells
            ],
        },
        "history": _history(results.history, names),
        "ranks": _ranks(results, names),
        "tests": {name: (row.title, "level", "value", None) for name, row in DIAGNOSTICS.items()}
        | TESTS,
        "panels": PANELS,
    }


def embedded(value: Any) -> str:
    """JSON for a script element, which no text inside can end."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c")


def _look(one: Series, methods: Sequence[str]) -> dict[str, Any]:
    return {
        "name": one.name,
        "method": methods.index(one.method),
        "setting": one.setting,
        "color": one.color,
        "dash": DASHES[one.line["linestyle"]],
        "symbol": SYMBOLS.get(one.line["marker"], "x"),
    }


def _table(
    cells: Sequence[Cell], problems: Sequence[str], series: Sequence[Series]
) -> dict[str, Any]:
    """The columns of some cells; means are there as numbers, to sort and draw, and as text."""
    values = {
        key: {
            "mean": [_short(cell.estimates[key].mean) for cell in cells],
            "error": [_short(cell.estimates[key].error) for cell in cells],
            "text": [cell.text(key) for cell in cells],
            "few": {at: note for at, cell in enumerate(cells) if (note := cell.few(key))},
        }
        for key in FORMS
    }
    return {
        "problem": [problems.index(cell.problem) for cell in cells],
        "budget": [cell.budget or None for cell in cells],
        "series": [series.index(cell.series) for cell in cells],
        "members": [cell.places for cell in cells],
        "kind": [cell.verdict.kind for cell in cells],
        "evidence": [cell.evidence for cell in cells],
        "done": [cell.num_done for cell in cells],
        "pairs": [cell.num_pairs for cell in cells],
        "values": values,
    }


def _history(table: DataFrame, order: Sequence[str]) -> dict[str, Any]:
    """Training curves by run and member; with very many numbers only one epoch in n."""
    drawn = [*PANELS, *(f"validation_{name}" for name in PANELS)]
    columns = [name for name in drawn if name in table and table[name].notna().any()]
    step = max(1, math.ceil(len(table) * len(columns) / MOST_NUMBERS))
    groups = by_run(table)

    def member(rows: Columns) -> dict[str, Any]:
        epochs = rows["epoch"].astype(int)
        kept = (epochs % step == 0) | (epochs == epochs.max())
        chosen = [e for e, s in zip(epochs, rows.get("selected", ()), strict=False) if s == 1]
        curves = {name: _numbers(rows[name][kept]) for name in columns}
        known = {name: values for name, values in curves.items() if set(values) != {None}}
        return {
            "epoch": epochs[kept].tolist(),
            "selected": _short(max(chosen, default=None)),
            **known,
        }

    found = [
        [member(rows) for rows in _split(groups[run], "member")] if run in groups else None
        for run in order
    ]
    return {"step": step, "runs": found}


def _ranks(results: Results, order: Sequence[str]) -> dict[str, Any]:
    """The curves of tests by run and parameter; levels and bands that agree are kept once."""
    tables = [results.ranks, *(results.table(name) for name in DIAGNOSTICS if name not in TESTS)]
    tables = [table for table in tables if len(table) and set(table) >= CURVES]
    step = max(1, math.ceil(sum(map(len, tables)) / MOST_NUMBERS))
    shared: dict[tuple[float | None, ...], int] = {}

    def line(rows: Columns) -> dict[str, Any]:
        bands = {name: tuple(_numbers(rows[name][::step])) for name in ("level", "lower", "upper")}
        return {
            "test": str(rows["test"][0]),
            "parameter": str(rows["parameter"][0]),
            "p": _short(rows["p_value"][0]),
            "value": _numbers(rows["value"][::step]),
            **{name: shared.setdefault(values, len(shared)) for name, values in bands.items()},
        }

    lines: dict[str, list[Any]] = {}
    for table in tables:
        for run, rows in by_run(table).items():
            found = [line(part) for part in _split(rows, "test", "parameter")]
            lines.setdefault(run, []).extend(found)
    return {
        "shared": [list(values) for values in shared],
        "runs": [lines.get(run) for run in order],
    }


def _split(columns: Columns, *names: str) -> list[Columns]:
    """The parts of a run, by the values of some columns."""
    keys = list(zip(*(columns[name] for name in names), strict=True))
    masks = ([key == one for key in keys] for one in dict.fromkeys(keys))
    return [{name: values[mask] for name, values in columns.items()} for mask in masks]


def _mean(values: Iterable[Any]) -> float | None:
    known = [value for value in values if isinstance(value, int | float)]
    return _short(sum(known) / len(known)) if known else None


def _numbers(values: Iterable[Any], digits: int = DIGITS) -> list[float | None]:
    return [_short(value, digits) for value in values]


def _short(value: Any, digits: int = DIGITS) -> float | None:
    """Some significant digits; what is no number or not finite is None."""
    if isinstance(value, str | bytes | Mapping | list | tuple) or value is None:
        return None
    number = float(value)
    if not math.isfinite(number):
        return None
    rounded = float(f"{number:.{digits}g}") if abs(number) < 1e15 and number % 1 else number
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
