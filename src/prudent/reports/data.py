"""The numbers behind a page, as small as JSON can hold them: columns, names once, six digits."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from itertools import chain
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prudent.diagnostics.registry import DIAGNOSTICS
from prudent.diagnostics.verdict import band
from prudent.history import PANELS
from prudent.reports.cells import Cell, Series, estimate, records, series_of
from prudent.reports.tables import FORMS
from prudent.training.methods import METHODS, look

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
    "sbc": ("SBC: ranks less uniform", "rank of the truth / draws", "ECDF − uniform", 0),
    "tarp": ("TARP: coverage", "credibility level", "share of truths inside the ball", 1),
}
BLACK = "#000000"  # the page draws it in its ink
# Further diagnostics are drawn if they store these columns.
CURVES = {"run", "test", "parameter", "level", "value", "lower", "upper", "p_value"}
# Of a coverage curve that is drawn as it is.
MOST_LEVELS = 40
# Of training curves, and of ranks: more would make the page slow to load.
MOST_NUMBERS = 500_000
# Of curves; in a page of very many runs, as many as can be seen.
DIGITS, FEW_DIGITS, MANY_RUNS = 6, 4, 5000


def page_data(
    results: Results, runs: DataFrame, cells: Sequence[Cell], single: Sequence[Cell]
) -> dict[str, Any]:
    """Everything that the page draws: cells, each run as a cell of its own, and its curves."""
    rows = records(runs)
    names = [str(row["run"]) for row in rows]
    problems = list(dict.fromkeys(cell.problem for cell in single))
    series = list(series_of((one.series.method, one.series.setting) for one in single).values())
    own = ([row for row in rows if row.get("problem") == name] for name in problems)
    digits = DIGITS if len(rows) <= MANY_RUNS else FEW_DIGITS
    curves = [cell.curve or {"curve": []} for cell in single]
    levels = next((cell.curve["levels"] for cell in single if cell.curve), [])
    counted = {cell.num_pairs for cell in (*cells, *single) if cell.num_pairs}
    return {
        "problems": problems,
        "priors": [_short(estimate(group, "log_prior").mean) for group in own],
        "methods": [
            {"name": one.method, "label": Series(one.method).name, "color": one.color}
            for one in series
            if one.number == 0
        ],
        "series": [
            {
                "name": one.name,
                "method": one.method,
                "setting": one.setting,
                "color": one.color,
                "dash": DASHES[one.line["linestyle"]],
                "symbol": SYMBOLS.get(one.line["marker"], "x"),
            }
            for one in series
        ],
        "cells": _table(cells, problems, series),
        "runs": {
            **_table(single, problems, series),
            "run": names,
            "place": [Path(str(row.get("path") or "?")).name for row in rows],
            "seed": [_short(row.get("seed")) for row in rows],
        },
        "coverage": {
            "levels": _numbers(_few(levels)),
            "curve": [_numbers(_few(curve["curve"]), digits) for curve in curves],
            "mean": [
                _numbers(_few(cell.curve["curve"]), digits)
                if cell.curve and cell.num_done > 1
                else None
                for cell in cells
            ],
            "bands": {
                pairs: [_numbers(_few(end)) for end in band(pairs, tuple(levels))]
                for pairs in sorted(counted)
            },
        },
        "history": _history(results.history, names),
        "ranks": _ranks(results, names),
        "tests": {name: (row.title, "level", "value", None) for name, row in DIAGNOSTICS.items()}
        | TESTS,
        "panels": PANELS,
        "palette": [look(name).color for name in METHODS if look(name).color != BLACK],
    }


def embedded(value: Any) -> str:
    """JSON for a script element, which no text inside can end."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c")


def _table(
    cells: Sequence[Cell], problems: Sequence[str], series: Sequence[Series]
) -> dict[str, Any]:
    """The columns of some cells; means are there as numbers, to sort and draw, and as text."""
    values = {
        key: {
            "mean": [_short(cell.estimates[key].mean) for cell in cells],
            "error": [_short(cell.estimates[key].error) for cell in cells],
            "text": [cell.text(key) for cell in cells],
            "note": {at: note for at, cell in enumerate(cells) if (note := cell.note(key))},
        }
        for key in FORMS
    }
    return {
        "problem": [problems.index(cell.problem) for cell in cells],
        "budget": [cell.budget or None for cell in cells],
        "series": [series.index(cell.series) for cell in cells],
        "members": [cell.places for cell in cells],
        "seeds": [cell.seeds for cell in cells],
        "kind": [cell.verdict.kind for cell in cells],
        "evidence": [cell.evidence for cell in cells],
        # "calibrated within", but "over-confident: 90 %"
        "between": [
            " " if cell.verdict.text.startswith(f"{cell.verdict.kind} ") else ": "
            for cell in cells
        ],
        "done": [cell.num_done for cell in cells],
        "pairs": [cell.num_pairs for cell in cells],
        "bound": [_short(cell.bound) for cell in cells],
        "at90": [_at90(cell) for cell in cells],
        "values": values,
    }


def _few(values: Any) -> list[float]:
    """The values at every fifth level and the last, where more could not be told apart."""
    many = len(values) > MOST_LEVELS
    return [*values[4:-1:5], values[-1]] if many else list(values)


def _at90(cell: Cell) -> str:
    """The coverage of 90 % regions in words."""
    curve = cell.curve or {"levels": [], "curve": []}
    found = dict(zip((round(level, 6) for level in curve["levels"]), curve["curve"], strict=True))
    return f"{100 * found[0.9]:.0f} %" if 0.9 in found else "?"


def _history(table: DataFrame, order: Sequence[str]) -> dict[str, Any]:
    """Training curves by run and member; with very many numbers only one epoch in n."""
    drawn = [*PANELS, *(f"validation_{name}" for name in PANELS)]
    columns = [name for name in drawn if name in table and table[name].notna().any()]
    step = max(1, math.ceil(len(table) * len(columns) / MOST_NUMBERS))
    found: dict[str, list[Any]] = {}
    for (run, _), rows in table.groupby(["run", "member"], sort=False):
        kept = rows[(rows["epoch"] % step == 0) | (rows["epoch"] == rows["epoch"].max())]
        curves = {name: _numbers(kept[name]) for name in columns}
        chosen = rows["epoch"][rows["selected"] == 1] if "selected" in rows else ()
        line = {
            "epoch": kept["epoch"].astype(int).tolist(),
            "selected": max(map(int, chosen), default=None),
            **{name: values for name, values in curves.items() if set(values) != {None}},
        }
        found.setdefault(run, []).append(line)
    return {"step": step, "runs": [found.get(run) for run in order]}


def _ranks(results: Results, order: Sequence[str]) -> dict[str, Any]:
    """The curves of tests by run and parameter; levels and bands that agree are kept once."""
    tables = [results.ranks, *(results.table(name) for name in DIAGNOSTICS if name not in TESTS)]
    tables = [table for table in tables if len(table) and set(table) >= CURVES]
    step = max(1, math.ceil(sum(map(len, tables)) / MOST_NUMBERS))
    shared: dict[tuple[float | None, ...], int] = {}
    found: dict[str, list[Any]] = {}
    groups = (table.groupby(["run", "test", "parameter"], sort=False) for table in tables)
    for (run, test, parameter), rows in chain.from_iterable(groups):
        bands = {name: tuple(_numbers(rows[name][::step])) for name in ("level", "lower", "upper")}
        line = {
            "test": test,
            "parameter": str(parameter),
            "p": _short(rows["p_value"].iloc[0]),
            "value": _numbers(rows["value"][::step]),
            **{name: shared.setdefault(values, len(shared)) for name, values in bands.items()},
        }
        found.setdefault(run, []).append(line)
    return {"shared": list(shared), "runs": [found.get(run) for run in order]}


def _numbers(values: Iterable[Any], digits: int = DIGITS) -> list[float | None]:
    return [_short(value, digits) for value in values]


def _short(value: Any, digits: int = DIGITS) -> float | None:
    """Some significant digits; what is no number or not finite is None."""
    if not isinstance(value, Real) or not math.isfinite(value):
        return None
    number = float(value)
    if abs(number) >= 1e15:
        return number
    rounded = float(f"{number:.{digits}g}") if number % 1 else number
    return int(rounded) if rounded.is_integer() else rounded
