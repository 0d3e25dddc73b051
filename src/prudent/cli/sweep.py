"""``prudent sweep``: many runs from one file."""

import sys
from pathlib import Path
from typing import Any

import click

from prudent.cli.options import EXIT_CODES, LAUNCH, as_json, debug, options, quiet
from prudent.cli.output import allow_import, check_writable, say
from prudent.cli.status import plan_line, show_plan, show_result, show_status, watch_status
from prudent.errors import InputError
from prudent.experiments.launch import LaunchOptions, find_sweep, launch
from prudent.experiments.status import Overview, states
from prudent.experiments.sweep import MOST_RUNS, Sweep, read_sweep, stored_sweep

BY_CORES = {"default": None, "help": "Runs at once.  [default: by cores]"}


@click.command(epilog=EXIT_CODES)
@click.argument("file", required=False, type=click.Path())
@click.option("-o", "--output", help="Directory of the runs.  [default: runs/NAME]")
@options(LAUNCH.values(), workers=BY_CORES)
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a key.")
@click.option("--max-runs", type=int, help=f"Allow so many runs.  [default: {MOST_RUNS:,}]")
@click.option("--dry-run", is_flag=True, help="Only say what would be done, and its cost.")
@click.option("--status", is_flag=True, help="Only say what is done, running, failed, left.")
@click.option("--watch", is_flag=True, help="The status again and again, until all is done.")
@click.option("--verify", is_flag=True, help="With --status: check all files of all runs.")
@click.option("--print-script", is_flag=True, help="Only print a Slurm job that does it.")
@click.option("--allow-code", is_flag=True, help="Trust a FILE from elsewhere that names code.")
@as_json
@quiet
@debug
def sweep(
    file: str | None,
    output: str | None,
    changes: tuple[str, ...],
    max_runs: int | None,
    allow_code: bool,
    as_json: bool,
    quiet: bool,
    **rest: Any,
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
    looking = rest["status"] or rest["watch"]
    plan, root = _plan(file, output, changes, max_runs, looking=looking)
    how = LaunchOptions.of(plan.configs, **{name: rest[name] for name in LAUNCH})
    verify = rest["verify"] and rest["status"]

    def look() -> Overview:
        found = states(plan.configs, root, verify=verify)
        return Overview(plan, root, found, how.workers)

    if rest["watch"]:
        watch_status(look, as_json=as_json)
    elif rest["status"]:
        show_status(look(), as_json=as_json)
    elif rest["dry_run"]:
        show_plan(look(), as_json=as_json)
    else:
        _check_trust(plan, file or "", allowed=allow_code)
        if rest["print_script"]:
            _print_script(plan, root, changes, max_runs)
        else:
            _run(look(), how, quiet=quiet, as_json=as_json)


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
        plan = read_sweep(find_sweep(file), changes, max_runs)
        return plan, Path("runs") / plan.name if output is None else Path(output)
    if output is None or not looking:
        raise InputError("name the FILE of the sweep, such as sweeps/smoke.toml.")
    return stored_sweep(Path(output), max_runs), Path(output)


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


def _run(now: Overview, how: LaunchOptions, *, quiet: bool, as_json: bool) -> None:
    quiet = quiet or as_json
    check_writable(now.root)
    for problem in sorted({one.config.problem for one in now.found if one.state != "done"}):
        allow_import(problem, quiet=quiet)
    say(plan_line(now), quiet=quiet)
    ended = launch(now.plan, now.root, now.found, how, False if quiet else None)
    now = Overview(now.plan, now.root, ended, how.workers)
    show_result(now, as_json=as_json)
    if now.counts["done"] < len(ended):
        sys.exit(1)
