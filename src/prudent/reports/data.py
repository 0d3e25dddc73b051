"""The numbers behind a page, as small as JSON can hold them: columns, names once, six digits."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prudent.history import PANELS
from prudent.reports.figures.methods import LABELS, STYLES
from prudent.reports.summary import Cell, Columns, by_run, records, run_verdicts, settings

if TYPE_CHECKING:
    from pandas import DataFrame

    from prudent.experiments import Results

__all__ = ["arranged", "embedded", "page_data", "private"]

METRICS = (
    "auc",
    "auc_error",
    "worst_shortfall",
    "log_posterior",
    "log_posterior_error",
    "log_prior",
    "information_gain",
    "information_gain_error",
    "region_volume",
    "num_pairs",
    "train_seconds",
)
DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}
SYMBOLS = {"o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down"}
# Of training curves, and of ranks: more would make the page slow to load.
MOST_NUMBERS = 500_000
# Of curves; in a page of very many runs, as many as can be seen.
DIGITS, FEW_DIGITS, MANY_RUNS = 6, 4, 5000


def arranged(results: Results) -> DataFrame:
    """The runs in the order of a page: problem, budget, method, seed."""
    order = {name: number for number, name in enumerate(STYLES)}
    keys = ["problem", "budget", "method", "seed", "run"]
    return results.runs.sort_values(
        keys,
        key=lambda column: (
            column.map(lambda name: (order.get(name, 99), str(name)))
            if column.name == "method"
            else column
        ),
        kind="stable",
        ignore_index=True,
    )


def page_data(results: Results, cells: Sequence[Cell]) -> dict[str, Any]:
    """Everything that the page draws; the runs must be arranged."""
    rows = list(records(results.runs))
    names = {
        "problems": list(dict.fromkeys(_text(row.get("problem")) for row in rows)),
        "methods": list(dict.fromkeys(_text(row.get("method")) for row in rows)),
    }
    own = settings(results.runs)
    variants = list(dict.fromkeys(own))
    verdicts = run_verdicts(results)
    runs: dict[str, list[Any]] = {
        "run": [_text(row["run"]) for row in rows],
        "place": [Path(_text(row.get("path"))).name for row in rows],
        "problem": [names["problems"].index(_text(row.get("problem"))) for row in rows],
        "method": [names["methods"].index(_text(row.get("method"))) for row in rows],
        "setting": [variants.index(name) for name in own],
        "budget": [_short(row.get("budget")) for row in rows],
        "seed": [_short(row.get("seed")) for row in rows],
        "state": [_text(row["state"]) for row in rows],
        "error": [private(row.get("error"), row["state"]) for row in rows],
        "kind": [verdicts[row["run"]].kind if row["run"] in verdicts else None for row in rows],
        "words": [verdicts[row["run"]].text if row["run"] in verdicts else None for row in rows],
    }
    runs |= {name: [_short(row.get(name)) for row in rows] for name in METRICS}
    return {
        "problems": names["problems"],
        "methods": [_method(name) for name in names["methods"]],
        "settings": variants,
        "runs": runs,
        "cells": [
            [
                names["problems"].index(cell.problem),
                cell.budget,
                names["methods"].index(cell.method),
                variants.index(cell.setting),
                cell.kind,
                cell.verdict.text,
            ]
            for cell in cells
        ],
        "coverage": _coverage(results.curves, runs["run"]),
        "history": _history(results.history, runs["run"]),
        "ranks": _ranks(results.ranks, runs["run"]),
        "panels": PANELS,
    }


def embedded(value: Any) -> str:
    """JSON for a script element, which no text inside can end."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c")


def private(error: object, state: str = "failed") -> str | None:
    """The reason of a run without what is nobody's business: home, host, absolute paths."""
    if not isinstance(error, str):
        return None
    if state == "running":
        progress = re.search(r"epoch \d+ of \d+", error)
        return progress[0] if progress else None
    text = error.replace(str(Path.cwd()), ".").replace(str(Path.home()), "~")
    return re.sub(r"/(?:home|Users|root)/[^/\s'\"`]+", "~", text)


def _method(name: str) -> dict[str, str]:
    colour, line, marker = STYLES.get(name, ("#767676", ":", "x"))
    return {
        "name": name,
        "label": LABELS.get(name, name),
        "colour": colour,
        "dash": DASHES.get(line, "solid"),
        "symbol": SYMBOLS.get(marker, "cross"),
    }


def _coverage(curves: DataFrame, order: Sequence[str]) -> dict[str, Any]:
    groups = by_run(curves)
    digits = DIGITS if len(order) <= MANY_RUNS else FEW_DIGITS
    first = next(iter(groups.values()), {"level": ()})
    return {
        "levels": _numbers(first["level"]),
        **{
            name: [_numbers(groups[run][name], digits) if run in groups else None for run in order]
            for name in ("coverage", "lower", "upper")
        },
    }


def _history(table: DataFrame, order: Sequence[str]) -> dict[str, Any]:
    """Training curves by run and member; with very many numbers only every n-th epoch."""
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
        {"members": [member(rows) for rows in _split(groups[run], "member")]}
        if run in groups
        else None
        for run in order
    ]
    return {"step": step, "runs": found}


def _ranks(table: DataFrame, order: Sequence[str]) -> dict[str, Any]:
    """SBC and TARP by run, test and parameter; levels and bands that agree are kept once."""
    step = max(1, math.ceil(len(table) / MOST_NUMBERS))
    groups = by_run(table)
    shared: dict[tuple[float | None, ...], int] = {}

    def line(rows: Columns) -> dict[str, Any]:
        bands = {name: tuple(_numbers(rows[name][::step])) for name in ("level", "lower", "upper")}
        return {
            "test": _text(rows["test"][0]),
            "parameter": _text(rows["parameter"][0]),
            "p": _short(rows["p_value"][0]),
            "value": _numbers(rows["value"][::step]),
            **{name: shared.setdefault(values, len(shared)) for name, values in bands.items()},
        }

    found = [
        [line(rows) for rows in _split(groups[run], "test", "parameter")]
        if run in groups
        else None
        for run in order
    ]
    return {"shared": [list(values) for values in shared], "runs": found}


def _split(columns: Columns, *names: str) -> list[Columns]:
    """The parts of a run, by the values of some columns."""
    keys = list(zip(*(columns[name] for name in names), strict=True))
    masks = ([key == one for key in keys] for one in dict.fromkeys(keys))
    return [{name: values[mask] for name, values in columns.items()} for mask in masks]


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


def _text(value: object) -> str:
    return value if isinstance(value, str) else "?"
