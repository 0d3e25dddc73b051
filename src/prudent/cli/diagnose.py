"""``prudent diagnose``."""

from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from prudent._extras import require
from prudent._settings import whole
from prudent.cli.options import as_json, debug, quiet
from prudent.cli.output import allow_import, emit, progress, say, show
from prudent.experiments.config import THOROUGH_NEEDS
from prudent.experiments.store import locate, runs_like


def complete_runs(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The runs that begin like this; where there are none, directories on the way to them."""
    runs = [CompletionItem(str(run)) for run in runs_like(Path(incomplete))]
    return runs or [CompletionItem(incomplete, type="dir")]


@click.command()
@click.argument("run", shell_complete=complete_runs)
@click.option("--num-test", type=int, help="Test pairs; default: 2,000, or all of --data.")
@click.option("--data", help="Store or file (.zarr .npz .h5 .safetensors) with test pairs.")
@click.option("--theta", help="Name of the parameters in the file; default: guessed.")
@click.option("--x", help="Name of the observations in the file; default: guessed.")
@click.option("--problem", help="module:attribute of a problem of your own; it is imported.")
@click.option(
    "--seed", default=1, help="Seed of simulated test pairs; another stream than training."
)
@click.option("--thorough", is_flag=True, help="Also SBC, TARP and coverage by region of x.")
@as_json
@quiet
@debug
def diagnose(run: str, num_test: int | None, problem: str | None, **options: Any) -> None:
    """Measure the coverage of the stored RUN on new test pairs.

    The beginning of a run's name is enough where there is only one like it.

    \b
    Examples:
      prudent diagnose runs/first
      prudent diagnose runs/first --num-test 10000 --json
      prudent diagnose runs/first --thorough
      prudent diagnose runs/first --data test.h5
    """
    if num_test is not None:
        whole("num_test", num_test, 1)
    path = locate(Path(run))
    if options["thorough"]:
        require(*THOROUGH_NEEDS)
    say("loading torch ...")
    from prudent.experiments.run import diagnose_run

    allow_import(problem)
    result = diagnose_run(path, num_test, problem=problem, progress=progress(), **options)
    curves = result.coverage.curves()
    facts = {"verdict": str(result.verdict), "metrics": result.metrics()}
    if not emit("diagnose", {**facts, "coverage": {k: curves[k] for k in ("levels", "curve")}}):
        show(str(result))
