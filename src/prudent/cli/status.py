"""What ``prudent sweep`` says about a sweep."""

import sys
import time
from collections import Counter
from collections.abc import Callable

import click

from prudent._progress import duration
from prudent.cli.output import asked_for, emit, show
from prudent.experiments import store
from prudent.experiments.status import STATES, Overview, RunState

WATCH_SECONDS = 2.0
MOST_LISTED = 10
REASONS = {
    "left": "new",
    "failed": "failed before",
    "interrupted": "interrupted",
    "running": "running elsewhere",
}


def plan_line(now: Overview) -> str:
    """What is skipped, what is to do and why, and what it costs."""
    numbers, expected, duplicates = now.counts, now.expected, now.plan.num_duplicates
    reasons = [f"{numbers[name]:,} {word}" for name, word in REASONS.items() if numbers[name]]
    left = len(now.found) - numbers["done"]
    merged = f" {duplicates} duplicates merged." if duplicates else ""
    skipped = f"Skipping {numbers['done']:,} finished runs; " if numbers["done"] else ""
    if not left:
        return f"All {len(now.found)} runs are finished.{merged}"
    threads = max(one.config.threads for one in now.found)
    source = "finished runs" if expected.corrected else "a table; another machine differs"
    return (
        f"{skipped}{left:,} to do ({', '.join(reasons)}). About "
        f"{duration(expected.seconds, about=True)} on {now.workers} workers x {threads} thread, "
        f"{expected.bytes / 1e6:,.0f} MB (from {source}).{merged}"
    )


def show_plan(now: Overview) -> None:
    """The answer to ``--dry-run``."""
    facts = {
        "path": str(now.root),
        "num_runs": len(now.found),
        "num_duplicates": now.plan.num_duplicates,
        "counts": now.counts,
        "workers": now.workers,
        "seconds": round(now.expected.seconds, 1),
        "bytes": now.expected.bytes,
        "corrected": now.expected.corrected,
    }
    if emit("sweep-plan", facts):
        return
    show(f"{now.plan.name}: {len(now.found):,} runs in {now.root}")
    for name in ("problem", "method", "budget", "seed"):
        values = list(dict.fromkeys(getattr(one.config, name) for one in now.found))
        listed = [f"{v:,}" if name == "budget" else str(v) for v in values[:MOST_LISTED]]
        more = f" and {len(values) - MOST_LISTED} more" if len(values) > MOST_LISTED else ""
        show(f"  {name:<8}{' '.join(listed)}{more}")
    show(f"  first   {now.found[0].config}\n  last    {now.found[-1].config}")
    show(plan_line(now))


def show_status(now: Overview) -> None:
    """The answer to ``--status``."""
    if _emit_status(now):
        return
    left = duration(now.expected.seconds, about=True)
    told = f"   about {left} left on {now.workers} workers"
    counts = "   ".join(f"{name} {now.counts[name]:,}" for name in STATES)
    show(f"{now.root}   {len(now.found):,} runs   {now.plan.source}")
    show(f"  {counts}{told if now.counts['done'] < len(now.found) else ''}")
    for one in now.of("running", "interrupted")[:MOST_LISTED]:
        show(f"  {one.state}  {one.config}  {one.note}".rstrip())
    _show_failures(now)


def watch_status(look: Callable[[], Overview]) -> None:
    """The status until nothing is left: redrawn on a terminal, else a line per change."""
    terminal = sys.stdout.isatty() and not asked_for("as_json")
    last: dict[str, int] = {}
    while True:
        now = look()
        if terminal:
            click.clear()
            show_status(now)
        elif now.counts != last:
            last = now.counts
            if not _emit_status(now):
                show(" ".join(f"{name} {number}" for name, number in now.counts.items()))
        if len(now.of("done", "failed")) == len(now.found):
            return
        sys.stdout.flush()
        time.sleep(WATCH_SECONDS)


def show_result(now: Overview) -> None:
    """What became of a sweep that was run."""
    failed = now.of("failed")
    facts = [
        {
            "run": one.config.identity,
            "name": str(one.config),
            "reason": one.note,
            "path": str(store.unfinished_path(now.root / one.config.identity)),
        }
        for one in failed
    ]
    if emit("sweep", {"path": str(now.root), "counts": now.counts, "failed": facts}):
        return
    bad = f", {len(failed)} failed" if failed else ""
    show(f"{now.counts['done']} of {len(now.found)} runs done{bad}: {now.root}")
    _show_failures(now)
    if not failed:
        show(f"Next: prudent report {now.root} -o report.html")


def _show_failures(now: Overview) -> None:
    """Shows why runs failed; a reason that many share is one line with a count."""
    alike: dict[str, list[RunState]] = {}
    for one in now.of("failed"):
        alike.setdefault(one.note, []).append(one)
    most = Counter({reason: len(runs) for reason, runs in alike.items()}).most_common(MOST_LISTED)
    for reason, number in most:
        first = alike[reason][0].config
        more = f" and {number - 1} more" if number > 1 else ""
        show(f"  failed  {first}{more}: {reason}")
        details = store.unfinished_path(now.root / first.identity) / store.ERROR
        show(f"          details: {details}")
    if len(alike) > MOST_LISTED:
        show(f"  and {len(alike) - MOST_LISTED} other reasons")


def _emit_status(now: Overview) -> bool:
    facts = {
        "path": str(now.root),
        "source": now.plan.source,
        "num_runs": len(now.found),
        "counts": now.counts,
        "seconds_left": round(now.expected.seconds, 1),
        "unfinished": [
            {"run": one.config.identity, "name": str(one.config), "state": one.state}
            | ({"note": one.note} if one.note else {})
            for one in now.of("running", "failed", "interrupted")
        ],
    }
    return emit("sweep-status", facts)
