"""What ``prudent sweep`` says about a sweep without running it."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click

from prudent._progress import duration
from prudent.cli.output import emit, show
from prudent.experiments.cost import Estimate, estimate
from prudent.experiments.status import STATES, RunState, count, states
from prudent.experiments.sweep import Sweep

__all__ = [
    "expected_cost",
    "plan_line",
    "show_failures",
    "show_plan",
    "show_status",
    "watch_status",
]

WATCH_SECONDS = 2.0
MOST_LISTED = 10


def expected_cost(found: list[RunState], root: Path, workers: int) -> Estimate:
    """What the unfinished runs cost, corrected by the finished ones."""
    left = [one.config for one in found if one.state != "done"]
    finished = [one.config for one in found if one.state == "done"]
    return estimate(left, finished, root, workers)


def plan_line(plan: Sweep, found: list[RunState], expected: Estimate, workers: int) -> str:
    """What is skipped, what is to do and why, and what it costs."""
    numbers = count(found)
    reasons = [
        f"{numbers[state]:,} {word}"
        for state, word in (
            ("left", "new"),
            ("failed", "failed before"),
            ("interrupted", "interrupted"),
            ("running", "running elsewhere"),
        )
        if numbers[state]
    ]
    left = len(found) - numbers["done"]
    merged = f" {plan.num_duplicates} duplicates merged." if plan.num_duplicates else ""
    skipped = f"Skipping {numbers['done']:,} finished runs; " if numbers["done"] else ""
    if not left:
        return f"All {len(found)} runs are finished.{merged}"
    threads = max(one.config.threads for one in found)
    source = "finished runs" if expected.corrected else "a table; another machine differs"
    time_needed = duration(expected.seconds, about=True)
    return (
        f"{skipped}{left:,} to do ({', '.join(reasons)}). About {time_needed} on "
        f"{workers} workers × {threads} thread, {expected.bytes / 1e6:,.0f} MB (from {source})."
        f"{merged}"
    ).replace("×", "x")


def show_plan(
    plan: Sweep, root: Path, found: list[RunState], workers: int, *, as_json: bool
) -> None:
    """The answer to ``--dry-run``."""
    expected = expected_cost(found, root, workers)
    if as_json:
        emit(
            "sweep-plan",
            {
                "path": str(root),
                "num_runs": len(found),
                "num_duplicates": plan.num_duplicates,
                "counts": count(found),
                "workers": workers,
                "seconds": round(expected.seconds, 1),
                "bytes": expected.bytes,
                "corrected": expected.corrected,
            },
        )
        return
    show(f"{plan.name}: {len(found):,} runs in {root}")
    for name in ("problem", "method", "budget", "seed"):
        values = Counter(getattr(one.config, name) for one in found)
        listed = [f"{v:,}" if name == "budget" else str(v) for v in list(values)[:MOST_LISTED]]
        more = f" and {len(values) - MOST_LISTED} more" if len(values) > MOST_LISTED else ""
        show(f"  {name:<8}{' '.join(listed)}{more}")
    show(f"  first   {found[0].config}\n  last    {found[-1].config}")
    show(plan_line(plan, found, expected, workers))


def show_status(
    plan: Sweep, root: Path, workers: int, *, verify: bool = False, as_json: bool
) -> None:
    """The answer to ``--status``."""
    found = states(plan.configs, root, verify=verify)
    if as_json:
        emit("sweep-status", _facts(plan, root, found, workers))
        return
    _show(plan, root, found, workers)


def _show(plan: Sweep, root: Path, found: list[RunState], workers: int) -> None:
    for line in _lines(plan, root, found, workers):
        show(line)
    show_failures([one for one in found if one.state == "failed"], root)


def watch_status(plan: Sweep, root: Path, workers: int, *, as_json: bool) -> None:
    """The status until nothing is left: redrawn on a terminal, else a line per change."""
    terminal = sys.stdout.isatty() and not as_json
    last: Any = None
    while True:
        found = states(plan.configs, root)
        numbers = count(found)
        if terminal:
            click.clear()
            _show(plan, root, found, workers)
        elif numbers != last:
            last = numbers
            if as_json:
                facts = _facts(plan, root, found, workers)
                click.echo(json.dumps({"schema": "prudent.sweep-status/1", **facts}))
            else:
                show(" ".join(f"{name} {numbers[name]}" for name in STATES))
        if numbers["done"] + numbers["failed"] == len(found):
            return
        sys.stdout.flush()
        time.sleep(WATCH_SECONDS)


def show_failures(failed: list[RunState], root: Path) -> None:
    """The same reason of many runs is one line with a count."""
    from prudent.experiments import store

    reasons = Counter(one.note for one in failed)
    for reason, number in reasons.most_common(MOST_LISTED):
        first = next(one.config for one in failed if one.note == reason)
        more = f" and {number - 1} more" if number > 1 else ""
        show(f"  failed  {first}{more}: {reason}")
        show(f"          details: {store.unfinished_path(root / first.identity) / 'error.txt'}")
    if len(reasons) > MOST_LISTED:
        show(f"  and {len(reasons) - MOST_LISTED} other reasons")


def _lines(plan: Sweep, root: Path, found: list[RunState], workers: int) -> list[str]:
    numbers = count(found)
    lines = [f"{root}   {len(found):,} runs   {plan.source}"]
    counts = "   ".join(f"{name} {numbers[name]:,}" for name in STATES)
    lines.append(f"  {counts}{_time_left(found, root, workers)}")
    shown = [one for one in found if one.state in ("running", "interrupted")][:MOST_LISTED]
    lines += [f"  {one.state}  {one.config}  {one.note}".rstrip() for one in shown]
    return lines


def _time_left(found: list[RunState], root: Path, workers: int) -> str:
    if all(one.state == "done" for one in found):
        return ""
    expected = expected_cost(found, root, workers)
    return f"   about {duration(expected.seconds, about=True)} left on {workers} workers"


def _facts(plan: Sweep, root: Path, found: list[RunState], workers: int) -> dict[str, Any]:
    return {
        "path": str(root),
        "source": plan.source,
        "num_runs": len(found),
        "counts": count(found),
        "seconds_left": round(expected_cost(found, root, workers).seconds, 1),
        "unfinished": [
            {"run": one.config.identity, "name": str(one.config), "state": one.state}
            | ({"note": one.note} if one.note else {})
            for one in found
            if one.state in ("running", "failed", "interrupted")
        ],
    }
