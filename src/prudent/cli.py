"""The command line: thin calls, and errors without tracebacks.

Nothing heavy is imported before the arguments have been checked, so help and mistakes are answered
at once.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from prudent import __version__, problems
from prudent.errors import InputError, PrudentError
from prudent.experiments.config import RunConfig, read_settings
from prudent.extras import require
from prudent.files import write_atomic
from prudent.training import methods
from prudent.training.options import PRESETS, Options

__all__ = ["main"]

CONTEXT = {"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 80}
EXIT_CODES = "Exit codes: 0 done, 1 something failed, 2 wrong usage or input, 130 interrupted."
DEFAULTS = Options().to_dict()


class Group(click.Group):
    """Commands in the order of the work, not of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands."""
        return list(self.commands)


@click.group(cls=Group, context_settings=CONTEXT, epilog=EXIT_CODES, invoke_without_command=True)
@click.version_option(__version__, message="prudent %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Neural posteriors that do not claim more than the data supports.

    \b
    Examples:
      prudent demo
      prudent train slcp --method calnre --budget 1024 -o runs/first
      prudent diagnose runs/first
    """
    if ctx.invoked_subcommand is None:
        _print(ctx.get_help())


class TrainCommand(click.Command):
    """Help in sections: the run, the training, the penalty."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write them."""
        training = list(DEFAULTS)
        penalty = training[training.index("num_samples") :]
        rows: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            section = "Training" if parameter.name in training else "Options"
            section = "Coverage penalty" if parameter.name in penalty else section
            record = parameter.get_help_record(ctx)
            if isinstance(parameter, click.Option) and record is not None:
                rows.setdefault(section, []).append(record)
        for section, records in rows.items():
            with formatter.section(section):
                formatter.write_dl(records)


debug = click.option("--debug", is_flag=True, help="Show tracebacks.", expose_value=False)
quiet = click.option("-q", "--quiet", is_flag=True, help="Only the result, no progress.")
seed = click.option("--seed", default=0, help="The same seed gives the same result.")
NUMBERS = {"weight": float, "patience": int}  # whose default is None


def training_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """An option for every setting of a training, with its documentation as help."""
    for name, text in reversed(Options.descriptions().items()):
        kind = NUMBERS.get(name, type(DEFAULTS[name]))
        flag = "--" + name.replace("_", "-")
        command = click.option(flag, type=kind, default=DEFAULTS[name], help=text)(command)
    return command


as_json = click.option("--json", "as_json", is_flag=True, help="The result as one JSON object.")


@cli.command()
@click.option("-o", "--output", default="runs/demo", help="Directory for the runs.")
@seed
@quiet
@debug
def demo(output: str, seed: int, quiet: bool) -> None:
    """Train NRE, BNRE and CalNRE on SLCP and compare their coverage.

    \b
    Examples:
      prudent demo
      prudent demo -o runs/other --seed 1
    """
    from prudent.experiments.demo import configs

    require("matplotlib", "report", "figures")
    root = Path(output)
    runs = configs(seed)
    _say(
        f"{len(runs)} runs: NRE, BNRE and CalNRE on 1,024 and on 4,096 simulations of SLCP, each "
        f"measured on {runs[0].num_test:,} new ones. About 4 minutes on 2 cores; finished runs "
        "are kept.",
        quiet=quiet,
    )
    _check_writable(root)
    from prudent.experiments.engines import run_all

    finished = run_all(runs, root, progress=False if quiet else None)
    from prudent.reports.html import run_verdict, write_report
    from prudent.reports.tables import text

    write_report(finished, root / "report.html")
    from prudent.reports.figures import coverage_figure, png

    write_atomic(root / "coverage.png", png(coverage_figure(finished)))
    _print(text(finished, shutil.get_terminal_size().columns) + "\n")
    for run in finished:
        _print(f"{run.config}: {run_verdict(run)}")
    _print(f"Report: {root / 'report.html'}")
    _print("Next: prudent train --help")


@cli.command(name="problems")
@as_json
@debug
def list_problems(as_json: bool) -> None:
    """List the built-in problems.

    \b
    Examples:
      prudent problems
      prudent problems --json
    """
    if as_json:
        _emit("problems", {"problems": problems.DESCRIPTIONS})
        return
    width = max(map(len, problems.names()))
    for name in problems.names():
        _print(f"{name:<{width}}  {problems.DESCRIPTIONS[name]}")


@cli.command()
@click.argument("problem")
@click.option("-n", "--num-simulations", default=16384, help="How many simulations.")
@click.option("-o", "--output", required=True, help="Directory of the store, such as sims.zarr.")
@click.option("--workers", default=1, help="Processes; they do not change the result.")
@click.option("--chunk-size", type=int, help="Simulations per task; default: by size.")
@seed
@as_json
@quiet
@debug
def simulate(
    problem: str,
    num_simulations: int,
    output: str,
    workers: int,
    chunk_size: int | None,
    seed: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Simulate PROBLEM into a Zarr store; the same command continues a killed one.

    \b
    Examples:
      prudent simulate slcp -n 16384 --seed 0 -o sims.zarr
      prudent simulate my_module:problem -n 1000 -o mine.zarr --workers 2
    """
    if num_simulations < 1 or workers < 1:
        raise InputError("`num_simulations` and `workers` must be whole numbers >= 1.")
    problems.check(problem)
    _check_writable(Path(output).parent)
    _allow_import(problem, quiet=quiet or as_json)
    from contextlib import nullcontext

    from prudent.datasets.simulate import simulate as fill
    from prudent.experiments.engines import local

    with local(workers) if workers > 1 else nullcontext() as pool:
        store = fill(
            problem,
            num_simulations,
            output,
            seed=seed,
            chunk_size=chunk_size,
            executor=pool,
            progress=False if quiet or as_json else None,
        )
    invalid = store.num_invalid()
    if as_json:
        facts = {"path": output, "num_simulations": num_simulations, "invalid": invalid}
        _emit("simulate", facts)
        return
    number = sum(invalid.values())
    reasons = ", ".join(f"{count:,} {name}" for name, count in invalid.items() if count)
    note = f", {number:,} of them not usable ({reasons})" if number else ""
    _print(f"Simulations: {output} ({num_simulations:,} of {problem}{note})")


@cli.command(cls=TrainCommand)
@click.argument("problem", required=False)
@click.option("--method", default="calnre", help=f"One of {' '.join(methods.names())}.")
@click.option("--budget", default=1024, help="Simulations, training and validation together.")
@click.option("-o", "--output", required=True, help="Directory of the run.")
@click.option("--num-test", default=2000, help="Test pairs, simulated apart.")
@click.option("--threads", default=1, help="Threads of torch.")
@click.option("--device", default="cpu", help="cpu, cuda or mps.")
@click.option("--config", type=click.Path(), help="TOML or JSON file with these settings.")
@click.option("--preset", help=f"Training settings to begin from: {' '.join(PRESETS)}.")
@training_options
@seed
@as_json
@quiet
@debug
@click.pass_context
def train(
    ctx: click.Context, /, output: str, as_json: bool, quiet: bool, config: str | None, **_: Any
) -> None:
    """Simulate PROBLEM, train on it, measure coverage, and store the run.

    The same command continues a killed one. A file given by --config holds the
    same names, those of the training in a table [training]; options given here
    win over it.

    \b
    Examples:
      prudent train slcp --method calnre --budget 1024 -o runs/first
      prudent train gaussian --method npe --epochs 50 -o runs/second
      prudent train weinberg --preset paper --members 5 -o runs/third
    """
    settings = _settings(ctx, read_settings(Path(config)) if config else {})
    config_ = RunConfig.from_settings(settings)
    path = Path(output)
    _check_writable(path.parent)
    _allow_import(config_.problem, quiet=quiet or as_json)
    run = _run(config_, path, quiet=quiet or as_json)
    from prudent.reports.html import run_verdict
    from prudent.reports.tables import text

    if as_json:
        _emit("train", {"path": str(path), "verdict": run_verdict(run), "metrics": run.metrics})
        return
    _print(text([run], shutil.get_terminal_size().columns) + "\n")
    _print(f"{config_.method}: {run_verdict(run)}")
    _print(f"Results: {path}")
    _print(f"Next: prudent report {path} -o report.html")


@cli.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False))
@click.option("--num-test", default=2000, help="Test pairs, simulated apart.")
@click.option("--problem", help="module:attribute of a problem of your own; it is imported.")
@click.option("--seed", default=1, help="Of the test pairs; training used another stream.")
@as_json
@quiet
@debug
def diagnose(
    run: str, num_test: int, problem: str | None, seed: int, as_json: bool, quiet: bool
) -> None:
    """Measure the coverage of the stored RUN on new test pairs.

    \b
    Examples:
      prudent diagnose runs/first
      prudent diagnose runs/first --num-test 10000 --json
    """
    if num_test < 1:
        raise InputError(f"`num_test` is {num_test}; expected a whole number >= 1.")
    _say("loading torch ...", quiet=quiet or as_json)
    from prudent.experiments.run import diagnose_run

    _allow_import(problem, quiet=quiet or as_json)
    silent = False if quiet or as_json else None
    result = diagnose_run(Path(run), num_test, seed, problem=problem, progress=silent)
    if as_json:
        curves = result.coverage.curves()
        facts = {"verdict": result.verdict, "metrics": result.metrics()}
        _emit("diagnose", {**facts, "coverage": {k: curves[k] for k in ("levels", "curve")}})
        return
    _print(str(result))


@cli.command()
@click.argument("runs", type=click.Path(exists=True, file_okay=False))
@click.option("-o", "--output", default="report.html", help="The file to write.")
@debug
def report(runs: str, output: str) -> None:
    """Write one HTML page about all finished runs in the directory RUNS.

    \b
    Examples:
      prudent report runs/demo
      prudent report runs/first -o first.html
    """
    from prudent.experiments.store import load

    found = load(runs)
    from prudent.reports.html import write_report

    write_report(found, output)
    _print(f"Report: {output} ({len(found)} finished {'run' if len(found) == 1 else 'runs'})")


def _run(config: RunConfig, path: Path, *, quiet: bool) -> Any:
    _say(f"{config} ...", quiet=quiet)
    from prudent.experiments.run import run

    return run(config, path, progress=False if quiet else None)


def _allow_import(problem: str | None, *, quiet: bool) -> None:
    """Let a problem named ``module:attribute`` be found in the current directory, and say so."""
    if problem and ":" in problem:
        _say(f"importing {problem}", quiet=quiet)
        sys.path.insert(0, os.getcwd())


def _check_writable(directory: Path) -> None:
    """Refuse an output that cannot be written before any work is done."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise InputError(f"cannot write below {existing}; choose another output with -o.")


def _settings(ctx: click.Context, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run: what was typed, then what the file says, then our defaults."""
    training = settings.get("training", {})
    if not isinstance(training, dict):
        return settings  # which is refused with the reason
    training = dict(training)
    ours = {field.name for field in dataclasses.fields(RunConfig)}
    for name, value in ctx.params.items():
        typed = ctx.get_parameter_source(name) is not ParameterSource.DEFAULT
        if name in DEFAULTS or name == "preset":
            if typed:
                training[name] = _number_or_text(value) if name == "target" else value
        elif name in ours and (typed or name not in settings) and value is not None:
            settings = {**settings, name: value}
    return {**settings, "training": training}


def _number_or_text(value: str) -> str | float:
    try:
        return float(value)
    except ValueError:
        return value


def _emit(command: str, value: dict[str, Any]) -> None:
    _print(json.dumps({"schema": f"prudent.{command}/1", **value}, allow_nan=False))


def _print(text: str) -> None:
    """Show a result; a terminal that cannot show ± gets +/-."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        text = text.replace("±", "+/-").encode("ascii", "replace").decode()
    click.echo(text)


def _say(text: str, *, quiet: bool) -> None:
    if not quiet:
        click.echo(text, err=True)


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"Error: {message}", err=True)
    sys.exit(code)


def main() -> NoReturn:
    """Run the command line; every mistake of a user is one line and exit code 2."""
    log = logging.getLogger("prudent")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    tracebacks = "--debug" in sys.argv
    try:
        cli.main(prog_name="prudent", standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted; finished runs are kept, the same command continues.", 130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except PrudentError as error:
        if tracebacks:
            raise
        _fail(str(error), 2 if isinstance(error, InputError) else 1)
    sys.exit(0)
