"""``prudent train``."""

import shutil
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from prudent._extras import require
from prudent._files import check_file
from prudent._tables import read_settings
from prudent.cli.options import PROBLEM, as_json, debug, options, output, quiet
from prudent.cli.output import allow_import, check_writable, emit, progress, say, show
from prudent.errors import InputError
from prudent.experiments import store
from prudent.experiments.config import KEYS, LACKS_PRIOR, THOROUGH_NEEDS, RunConfig
from prudent.problems import import_attribute, source_digest
from prudent.training import methods
from prudent.training.options import COVERAGE_OPTIONS

RUN = [one for key, one in KEYS.items() if "." not in key and key != "problem"]
FILES = ("prior", "test_data", "theta", "x")
PENALTY = "Coverage penalty of calnre and calnpe (alpha: mass less dense than theta)"
TRAINING = {one.name: one for key, one in KEYS.items() if "." in key}


class TrainCommand(click.Command):
    """Help in sections: the run, the training, the penalty."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, grouped in sections."""
        rows: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            section = "Training" if parameter.name in TRAINING else "Options"
            section = PENALTY if parameter.name in COVERAGE_OPTIONS else section
            record = parameter.get_help_record(ctx)
            if isinstance(parameter, click.Option) and record is not None:
                rows.setdefault(section, []).append(record)
        for section, records in rows.items():
            with formatter.section(section):
                formatter.write_dl(records)


@click.command(cls=TrainCommand)
@click.argument("problem", required=False, type=PROBLEM)
@options(RUN, method={"default": methods.RECOMMENDED}, budget={"default": 1024})
@output(required=True, help="Directory of the run.")
@click.option("--data", help="Store or file to train on; --theta, --x name its arrays.")
@click.option("--prior", help="Prior of --data: a problem, TOML file or module:attribute.")
@click.option("--test-data", help="Store or file with pairs to measure coverage on.")
@click.option("--theta", hidden=True)
@click.option("--x", hidden=True)
@click.option("--config", type=click.Path(), help="TOML or JSON file with these options.")
@click.option("--dry-run", is_flag=True, help="Check everything and say what would be done.")
@options(TRAINING.values())
@as_json
@quiet
@debug
@click.pass_context
def train(ctx: click.Context, /, output: str, config: str | None, dry_run: bool, **_: Any) -> None:
    """Simulate PROBLEM, train on it, measure coverage, and store the run.

    The same command continues a killed one. A file given by --config holds the
    same names, those of the training in [training]; options given here win over
    it. --data trains on all rows of a store or file, unless --budget is given.
    With --preset paper the method is calnpe, unless one is named.

    \b
    Examples:
      prudent train slcp --budget 1024 -o runs/first
      prudent train weinberg --method calnre --members 5 -o runs/second
      prudent train --data sims.h5 --prior prior.toml -o runs/third
    """
    path, file = Path(output), read_settings(Path(config)) if config else {}
    settings, own_budget = _settings(ctx, file)
    if str(settings.get("problem")).startswith("file:"):  # the config of such a run
        if ctx.params["data"] is None:
            raise InputError(f"{config} is of a run on a file; give it with --data and --prior.")
        del settings["problem"]
    check_writable(path.parent)
    inputs, own = None, ctx.params["data"] is not None
    if not own and (given := [name for name in FILES if ctx.params[name] is not None]):
        raise InputError(f"`--{given[0].replace('_', '-')}` needs --data.")
    wanted = RunConfig.from_settings({**({"problem": "file:data"} if own else {}), **settings})
    if own:
        inputs, facts = _from_files(ctx, settings.get("problem"), wanted, own_budget=own_budget)
        wanted = wanted.changed(**facts)
    if file.get("data") not in (None, wanted.data):
        say(f"the pairs are not those of {config}; this is another run.")
    if wanted.thorough:
        require(*THOROUGH_NEEDS)
    if inputs is None and ":" in wanted.problem:
        allow_import(wanted.problem)
        import_attribute(wanted.problem)
    if not wanted.problem.startswith("file:"):
        wanted = wanted.changed(source=source_digest(wanted.problem))
    finished = store.find(path, wanted)  # refuses another run before torch is loaded
    if dry_run:
        if inputs is not None:
            inputs.rehearse(wanted)
        _show_plan(wanted, path, is_done=finished is not None)
        return
    say(f"{wanted} ...")
    from prudent.experiments.run import run_one

    run = run_one(wanted, path, progress(), inputs)
    facts = {"path": str(path), "verdict": str(run.verdict), "metrics": run.metrics}
    if emit("train", facts):
        return
    from prudent.reports.tables import text

    show(text([run], shutil.get_terminal_size().columns) + "\n")
    show(f"{wanted.method}: {run.verdict}")
    if inputs is not None and inputs.num_held_out:
        show(f"Test pairs: the last {inputs.num_held_out:,} rows of {inputs.source}, held out.")
    show(f"Results: {path}")
    show(f"Next: prudent report {path} -o report.html")


def _show_plan(wanted: RunConfig, path: Path, *, is_done: bool) -> None:
    """The plan of the command, after everything was checked."""
    if emit("train", {"path": str(path), "done": is_done, "config": wanted.to_dict()}):
        return
    training = wanted.training.to_dict()
    rows = {**wanted.to_dict(), **training, "training": None, "data": None, "prior": None}
    for name, value in rows.items():
        if value is not None and value != "":
            show(f"  {name:<20}{value}")
    show(f"{path} is done already." if is_done else f"Nothing was done. It would go to {path}.")


def _settings(ctx: click.Context, file: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The settings typed, else of the file, else our defaults; whether a budget was chosen."""
    default = ParameterSource.DEFAULT
    typed = {k: v for k, v in ctx.params.items() if ctx.get_parameter_source(k) is not default}
    filled = {k: v for k, v in ctx.params.items() if k not in file and v is not None} | typed
    settings = file | {name: value for name, value in filled.items() if name in KEYS}
    training = file.get("training", {})
    if isinstance(training, dict):
        training = training | {name: typed[name] for name in TRAINING if name in typed}
        if str(training.get("preset")).lower() == "paper" and "method" not in {*file, *typed}:
            settings["method"] = methods.PUBLISHED
    return {**settings, "training": training}, "budget" in file or "budget" in typed


def _look(data: str, options: dict[str, str | None], problem: str | None) -> None:
    """Refuse files that are not there before torch is imported, which takes seconds."""
    check_file(Path(data))
    if options["prior"] is None and problem is None and Path(data).is_file():
        raise InputError(f"{data} {LACKS_PRIOR}")
    if options["test_data"] is not None:
        check_file(Path(options["test_data"]))
    if str(options["prior"]).endswith((".toml", ".json")):
        check_file(Path(str(options["prior"])))


def _from_files(
    ctx: click.Context, problem: str | None, wanted: RunConfig, *, own_budget: bool
) -> Any:
    """The pairs that --data names, and what follows from them for the run."""
    options = {name: ctx.params[name] for name in FILES}
    for reference in (problem, options["prior"]):
        allow_import(reference)
    _look(ctx.params["data"], options, problem)
    say(f"reading {ctx.params['data']} ...")
    from prudent.experiments.inputs import from_files

    return from_files(
        ctx.params["data"],
        problem=problem,
        budget=wanted.budget if own_budget else None,
        num_test=wanted.num_test,
        seed=wanted.seed,
        **options,
    )
