"""``prudent sweep``: many runs from one file."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click

from prudent.cli.options import EXIT_CODES, as_json, debug, quiet
from prudent.cli.output import allow_import, check_writable, emit, say, show
from prudent.cli.status import (
    expected_cost,
    plan_line,
    show_failures,
    show_plan,
    show_status,
    watch_status,
)
from prudent.errors import InputError, StoreError
from prudent.experiments import store
from prudent.experiments.config import RunConfig
from prudent.experiments.engines import available_cores
from prudent.experiments.status import RunState, count, states
from prudent.experiments.sweep import MOST_RUNS, Sweep, check_directory, read_sweep, stored_sweep


@click.command(epilog=EXIT_CODES)
@click.argument("file", required=False, type=click.Path())
@click.option("-o", "--output", help="Directory of the runs.  [default: runs/NAME]")
@click.option("--workers", type=int, help="Runs at once.  [default: by cores]")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a key.")
@click.option("--max-runs", type=int, help=f"Allow so many runs.  [default: {MOST_RUNS:,}]")
@click.option("--dry-run", is_flag=True, help="Only say what would be done, and its cost.")
@click.option("--status", is_flag=True, help="Only say what is done, running, failed, left.")
@click.option("--watch", is_flag=True, help="The status again and again, until all is done.")
@click.option("--verify", is_flag=True, help="With --status: check all files of all runs.")
@click.option("--force", is_flag=True, help="Start even if the disk seems too small.")
@as_json
@quiet
@debug
def sweep(
    file: str | None,
    output: str | None,
    workers: int | None,
    changes: tuple[str, ...],
    max_runs: int | None,
    dry_run: bool,
    status: bool,
    watch: bool,
    verify: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
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
      prudent sweep -o runs/smoke --status
    """
    plan, root = _plan(file, output, changes, max_runs, looking=status or watch)
    if workers is None:
        threads = max(config.threads for config in plan.configs)
        workers = max(1, available_cores() // threads)
    if workers < 1:
        raise InputError(f"`workers` is {workers}; expected a whole number >= 1.")
    if watch:
        watch_status(plan, root, workers, as_json=as_json)
        return
    if status:
        show_status(plan, root, workers, verify=verify, as_json=as_json)
        return
    found = states(plan.configs, root, look=False)
    if dry_run:
        show_plan(plan, root, found, workers, as_json=as_json)
        return
    _start(plan, root, found, workers, force=force, quiet=quiet, as_json=as_json)


def _plan(
    file: str | None,
    output: str | None,
    changes: tuple[str, ...],
    max_runs: int | None,
    *,
    looking: bool,
) -> tuple[Sweep, Path]:
    """The sweep and its directory."""
    if output == "":
        raise InputError("the output is empty; choose a directory with -o.")
    if file is not None:
        plan = read_sweep(Path(file), changes, max_runs)
        return plan, Path("runs") / plan.name if output is None else Path(output)
    if output is None or not looking:
        raise InputError("name the FILE of the sweep, such as sweeps/smoke.toml.")
    return stored_sweep(Path(output), max_runs), Path(output)


def _start(
    plan: Sweep,
    root: Path,
    found: list[RunState],
    workers: int,
    *,
    force: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    silent = quiet or as_json
    left = [one.config for one in found if one.state != "done"]
    expected = expected_cost(found, root, workers)
    check_writable(root)
    check_directory(root)
    if left:
        _check_space(root, expected.bytes, force=force)
    for problem in sorted({config.problem for config in left if ":" in config.problem}):
        allow_import(problem, quiet=silent)
    say(plan_line(plan, found, expected, workers), quiet=silent)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make {root}: {error.strerror}.") from error
    plan.write(root)
    if left:
        _work(plan, root, left, len(found) - len(left), workers, quiet=silent)
    _finish(plan, root, as_json=as_json)


def _check_space(root: Path, needed: int, *, force: bool) -> None:
    existing = next(path for path in (root, *root.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < needed and not force:
        raise InputError(
            f"the runs need about {needed / 1e6:,.0f} MB, but {free / 1e6:,.0f} MB are free in "
            f"{existing}. Free some space, or pass --force."
        )


def _work(
    plan: Sweep, root: Path, configs: list[RunConfig], finished: int, workers: int, *, quiet: bool
) -> None:
    from prudent.experiments.engines import Local
    from prudent.experiments.runner import DiskFull, run_configs
    from prudent.experiments.view import View

    engine = Local(min(workers, len(configs)))
    try:
        with View("sweep", configs, finished, False if quiet else None) as view, engine:
            run_configs(configs, root, engine, view.listen)
    except DiskFull as error:
        raise StoreError(f"{error} {_interruption(plan, root)}") from error
    except BaseException as error:
        # The first sign comes at once; counting takes a moment.
        error.add_note(_interruption(plan, root))
        raise


def _interruption(plan: Sweep, root: Path) -> str:
    numbers = count(states(plan.configs, root, look=False))
    begun = numbers["interrupted"] + numbers["running"]
    failed = f"{numbers['failed']} failed, " if numbers["failed"] else ""
    return (
        f"interrupted: {numbers['done']} done, {failed}{begun} continue from checkpoints, "
        f"{numbers['left']} left. Continue with: prudent sweep {plan.source} -o {root}"
    )


def _finish(plan: Sweep, root: Path, *, as_json: bool) -> None:
    found = states(plan.configs, root, look=False)
    numbers = count(found)
    failed = [one for one in found if one.state == "failed"]
    if as_json:
        facts = [
            {
                "run": one.config.identity,
                "name": str(one.config),
                "reason": one.note,
                "path": str(store.work(root / one.config.identity)),
            }
            for one in failed
        ]
        emit("sweep", {"path": str(root), "counts": numbers, "failed": facts})
    else:
        total = len(found)
        bad = f", {len(failed)} failed" if failed else ""
        show(f"{numbers['done']} of {total} runs done{bad}: {root}")
        show_failures(failed, root)
        if not failed:
            show(f"Next: prudent report {root} -o report.html")
    if numbers["done"] < len(found):
        sys.exit(1)
