"""The end of the page: runs that are missing, and how everything was made."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prudent.experiments.config import RunConfig
from prudent.reports.data import private
from prudent.reports.summary import records
from prudent.training.options import Options

if TYPE_CHECKING:
    from prudent.experiments import Results

__all__ = ["made", "unfinished"]

SILENT = {"running": "at work", "left": "not begun"}
UNFINISHED = {"failed": 0, "interrupted": 1, "running": 2, "left": 3}


def unfinished(results: Results) -> str:
    """Runs that are not done, with their reasons; equal reasons are counted, not repeated."""
    rows = [row for row in records(results.runs) if row["state"] != "done"]
    if not rows:
        return "<p>None: every run is finished.</p>"
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        silent = SILENT.get(row["state"], "no reason stored")
        reason = private(row.get("error"), row["state"]) or silent
        groups.setdefault((row["state"], reason), []).append(_name(row))
    ordered = sorted(groups.items(), key=lambda item: (UNFINISHED.get(item[0][0], 9), item[0]))
    body = "".join(
        f"<tr><td>{escape(state)}</td><td>{escape(reason)}</td>"
        f'<td class="number">{len(names):,}</td><td>{_names(names)}</td></tr>'
        for (state, reason), names in ordered
    )
    return (
        '<div class="scroll" role="region" tabindex="0" aria-label="Runs that are not finished">'
        '<table id="unfinished"><thead><tr><th scope="col">state</th><th scope="col">reason</th>'
        '<th scope="col" class="number">runs</th><th scope="col">which</th></tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _name(row: dict[str, Any]) -> str:
    budget = f"{int(row['budget']):,}" if row.get("budget") is not None else "?"
    seed = int(row["seed"]) if row.get("seed") is not None else "?"
    names = f"{row.get('problem') or '?'} {row.get('method') or '?'}"
    return f"{names} {budget} seed {seed} ({row['run']})"


def _names(names: Sequence[str]) -> str:
    if len(names) == 1:
        return escape(names[0])
    items = "<br>".join(map(escape, names))
    more = f"{escape(names[0])} and {len(names) - 1:,} more"
    return f"<details><summary>{more}</summary>{items}</details>"


def made(results: Results, name: str) -> str:
    """Settings that all runs share, those that differ, versions, and how to repeat it."""
    runs = results.runs
    known = [*RunConfig.__dataclass_fields__, *Options.__dataclass_fields__]
    fields = [field for field in known if field in runs]
    values = {field: _values(runs[field]) for field in fields}
    versions = {
        field.removesuffix("_version"): _values(runs[field])
        for field in runs.columns
        if str(field).endswith("_version")
    }
    shared = {field: found[0] for field, found in values.items() if len(found) == 1}
    differing = {field: ", ".join(found) for field, found in values.items() if len(found) > 1}
    alone = {Path(str(path)).name for path in runs["path"]} == {Path(name).name}
    config = f"{name}/config.json" if alone else f"{name}/RUN/config.json"
    hint = "" if alone else "   # RUN: see the table, one row per run"
    commands = (
        f"prudent report {name} -o report.html\nprudent train --config {config} -o again{hint}"
    )
    found = "".join(
        f"<h3>{title}</h3>{_pairs(facts)}"
        for title, facts in (
            ("Versions", {key: ", ".join(value) for key, value in versions.items()}),
            ("Settings that differ", differing),
            ("Settings of all runs", shared),
        )
        if facts
    )
    return f"<h3>To repeat it</h3><pre>{escape(commands)}</pre>{found}"


def _values(column: Any) -> list[str]:
    """The distinct values as text, in order of size where they are numbers."""
    found = column.dropna().unique().tolist()
    if not found:
        return []
    numbers = all(isinstance(value, int | float) for value in found)
    found = sorted(found) if numbers else sorted(found, key=str)
    return [f"{value:g}" if isinstance(value, float) else str(value) or "none" for value in found]


def _pairs(facts: dict[str, str]) -> str:
    items = "".join(
        f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items()
    )
    return f"<dl>{items}</dl>"
