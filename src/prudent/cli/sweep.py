"""``prudent sweep``: many runs from one file, and what is said about them."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from prudent._files import write_atomic
from prudent._progress import duration
from prudent.cli.options import EXIT_CODES, LAUNCH, as_json, debug, options, output, quiet
from prudent.cli.output import allow_import, asked_for, check_writable, emit, progress, say, show
from prudent.errors import InputError
from prudent.experiments import store
from prudent.experiments.launch import LaunchOptions, Overview, find_sweep, launch
from prudent.experiments.store import STATES, RunState, states
from prudent.experiments.sweep import MOST_RUNS, Sweep, read_sweep, stored_sweep

WATCH_SECONDS = 2.0
# Looks after which nothing is expected to begin; workers take a while to load.
IDLE_LOOKS = 10
MODES = ("init", "dry_run", "status", "watch", "print_script")
MOST_LISTED = 10
REASONS = {
    "left": "new",
    "failed": "failed before",
    "interrupted": "interrupted",
    "running": "running elsewhere",
}
BY_CORES = {"default": None, "help": "Number of runs at once.  [default: by cores]"}


@click.command(epilog=EXIT_CODES)
@click.argument("file", required=False, type=click.Path())
@output(help="Directory of the runs.  [default: runs/NAME]")
@options(LAUNCH.values(), workers=BY_CORES)
@click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Replace a key of FILE."
)
@click.option("--max-runs", type=int, help=f"Refuse more runs.  [default: {MOST_RUNS:,}]")
@click.option("--dry-run", is_flag=True, help="Say what would be done and how long it takes.")
@click.option("--status", is_flag=True, help="Count runs that are done, running, failed, left.")
@click.option("--watch", is_flag=True, help="Show the status again and again until all is done.")
@click.option("--verify", is_flag=True, help="With --status: compare files with checksums.")
@click.option("--init", is_flag=True, help="Write an example to FILE, to begin from.")
@click.option("--print-script", is_flag=True, help="Print a Slurm job that runs the sweep.")
@click.option("--allow-code", is_flag=True, help="Trust a FILE from elsewhere that names code.")
@as_json
@quiet
@debug
def sweep(
    file: str | None, output: str | None, changes: tuple[str, ...], max_runs: int | None, **do: Any
) -> None:
    """Run the grid of runs that the TOML FILE describes.

    In the file a list is a grid and a single value is fixed; every table
    [[runs]] is a grid of its own. Finished runs are skipped, failed ones are
    tried again, and the same command continues a killed sweep. FILE may be left
    out for --status and --watch.

    \b
    Examples:
      prudent sweep sweeps/smoke.toml --dry-run
      prudent sweep sweeps/smoke.toml -o runs/smoke --workers 2
      prudent sweep sweeps/smoke.toml --set seed=0..4 --set training.epochs=20
      prudent sweep sweeps/smoke.toml --engine dask --address tcp://10.0.0.1:8786
      prudent sweep -o runs/smoke --status
    """
    looking = do["status"] or do["watch"]
    _check_modes(do)
    if do["init"]:
        _write_start(file)
        return
    if file is not None:
        plan = read_sweep(find_sweep(file), changes, max_runs)
    elif output is not None and looking:
        plan = stored_sweep(Path(output), max_runs)
    else:
        raise InputError("name the FILE of the sweep, such as sweeps/smoke.toml.")
    root = Path("runs") / plan.name if output is None else Path(output)
    how = LaunchOptions.of(plan.configs, **{name: do[name] for name in LAUNCH})

    def look() -> Overview:
        found = states(plan.configs, root, verify=do["verify"] and do["status"])
        return Overview(plan, root, how, found)

    if do["watch"]:
        _watch_status(look)
    elif do["status"]:
        _show_status(look())
    elif do["dry_run"]:
        _show_plan(look())
    else:
        _check_trust(plan, file or "", allowed=do["allow_code"])
        if do["print_script"]:
            _print_script(plan, root, changes, max_runs)
        else:
            _run(look())


def _write_start(file: str | None) -> None:
    """A commented file to begin from."""
    path = Path(file or "sweep.toml")
    if path.suffix != ".toml":
        raise InputError(f"expected a name that ends in .toml, such as {path.name}.toml.")
    if path.exists():
        raise InputError(f"{path} exists; name another file.")
    check_writable(path.parent)
    text = find_sweep("sweeps/smoke.toml").read_text().replace('"smoke"', json.dumps(path.stem), 1)
    write_atomic(path, text.encode())
    show(f"Sweep: {path}\nNext: prudent sweep {path} --dry-run")


def _check_modes(do: dict[str, Any]) -> None:
    """Refuse options of which only one can be answered."""
    given = ["--" + name.replace("_", "-") for name in MODES if do[name]]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} contradict each other; choose one.")
    if do["verify"] and not do["status"]:
        raise InputError("--verify goes with --status: prudent sweep ... --status --verify")


def _check_trust(plan: Sweep, file: str, *, allowed: bool) -> None:
    """A file that names code is code; one from elsewhere must be trusted in so many words."""
    code = sorted({config.problem for config in plan.configs if ":" in config.problem})
    code += plan.job.prologue
    if code and not allowed and not Path(file).resolve().is_relative_to(Path.cwd().resolve()):
        raise InputError(
            f"{file} names code ({', '.join(code[:3])}) and is not below this directory. If you "
            "trust it, pass --allow-code."
        )


def _print_script(plan: Sweep, root: Path, changes: tuple[str, ...], max_runs: int | None) -> None:
    """A Slurm job that runs this sweep by itself."""
    from prudent.experiments.engines.slurm import script

    command = [sys.executable, "-m", "prudent", "sweep", str(Path(plan.source).absolute())]
    command += ["-o", str(root.absolute()), "--workers", str(plan.job.cores), "--allow-code"]
    command += [f"--set={change}" for change in changes]
    command += [] if max_runs is None else [f"--max-runs={max_runs}"]
    click.echo(script(plan.job, command, Path.cwd(), root.absolute()), nl=False)


def _run(now: Overview) -> None:
    """Work on what is left, and say what became of it."""
    check_writable(now.root)
    for problem in sorted({one.config.problem for one in now.found if one.state != "done"}):
        allow_import(problem)
    say(_plan_line(now))
    now = launch(now, progress())
    _show_result(now)
    if now.counts["done"] < len(now.found):
        sys.exit(1)


def _plan_line(now: Overview) -> str:
    """A line on the runs that are skipped and those to do, with reasons and their cost."""
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
        f"{duration(expected.seconds, about=True)} on {now.options.workers} workers x {threads} "
        f"thread, {expected.bytes / 1e6:,.0f} MB (from {source}).{merged}"
    )


def _show_plan(now: Overview) -> None:
    """The answer to ``--dry-run``."""
    facts = {
        "path": str(now.root),
        "num_runs": len(now.found),
        "num_duplicates": now.plan.num_duplicates,
        "counts": now.counts,
        "workers": now.options.workers,
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
    show(_plan_line(now))


def _show_status(now: Overview) -> None:
    """The answer to ``--status``."""
    if _emit_status(now):
        return
    left = duration(now.expected.seconds, about=True)
    number = now.options.workers
    told = f"   about {left} left on {number} worker{'s' * (number != 1)}"
    counts = "   ".join(f"{name} {now.counts[name]:,}" for name in STATES)
    show(f"{now.root}   {len(now.found):,} runs   {now.plan.source}")
    show(f"  {counts}{told if now.counts['done'] < len(now.found) else ''}")
    for one in now.of("running", "interrupted")[:MOST_LISTED]:
        show(f"  {one.state}  {one.config}  {one.note}".rstrip())
    _show_failures(now)


def _watch_status(look: Callable[[], Overview]) -> None:
    """The status until nothing is left: redrawn on a terminal, else a line per change."""
    terminal = sys.stdout.isatty() and not asked_for("as_json")
    last: dict[str, int] = {}
    idle = 0
    while True:
        now = look()
        idle = 0 if now.counts["running"] else idle + 1
        if terminal:
            click.clear()
            _show_status(now)
        elif now.counts != last:
            last = now.counts
            if not _emit_status(now):
                show(" ".join(f"{name} {number}" for name, number in now.counts.items()))
        if len(now.of("done", "failed")) == len(now.found):
            return
        if idle > IDLE_LOOKS:
            raise InputError(
                f"nothing is running in {now.root}: {len(now.left):,} of {len(now.found):,} runs "
                f"are not done. Continue with: prudent sweep {now.plan.source} -o {now.root}"
            )
        sys.stdout.flush()
        time.sleep(WATCH_SECONDS)


def _show_result(now: Overview) -> None:
    """The result of a sweep that was run."""
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
    if now.counts["done"] == len(now.found):
        show(f"Next: prudent report {now.root} -o report.html")


def _show_failures(now: Overview) -> None:
    """Shows why runs failed; a reason that many share is one line with a count."""
    alike: dict[str, list[RunState]] = {}
    for one in now.of("failed"):
        alike.setdefault(one.note, []).append(one)
    most = sorted(alike.items(), key=lambda item: len(item[1]), reverse=True)
    for reason, runs in most[:MOST_LISTED]:
        first, more = runs[0].config, f" and {len(runs) - 1} more" if len(runs) > 1 else ""
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
