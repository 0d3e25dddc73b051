"""``prudent diagnose``."""

import contextlib
import re
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from prudent._extras import require
from prudent._files import check_file
from prudent._settings import whole
from prudent.cli.options import as_json, debug, quiet
from prudent.cli.output import allow_import, emit, progress, say, show
from prudent.errors import InputError, unknown_name
from prudent.experiments.config import THOROUGH_NEEDS
from prudent.experiments.store import locate, runs_like

# The verdicts that a script can refuse: one that is known to be wrong, and any that is not known
# to be safe.
CONDITIONS = ("over-confident", "untrusted")


def complete_runs(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The runs that begin like this; where there are none, directories on the way to them."""
    runs = [CompletionItem(str(run)) for run in runs_like(Path(incomplete))]
    return runs or [CompletionItem(incomplete, type="dir")]


@click.command()
@click.argument("run", shell_complete=complete_runs)
@click.option("--num-test", type=int, help="Test pairs; by default 2,000, or all of --data.")
@click.option("--data", help="Store or file (.zarr .npz .h5 .safetensors) with test pairs.")
@click.option("--theta", help="Name of the parameters in the file; guessed by default.")
@click.option("--x", help="Name of the observations in the file; guessed by default.")
@click.option("--problem", help="Problem of your own as module:attribute, which is imported.")
@click.option(
    "--seed", default=1, help="Seed of the test pairs, which never are those of the training."
)
@click.option("--thorough", is_flag=True, help="Also SBC, TARP and coverage by region of x.")
@click.option(
    "--fail-if",
    multiple=True,
    metavar="CONDITION",
    shell_complete=lambda ctx, parameter, incomplete: [
        CompletionItem(name) for name in CONDITIONS if name.startswith(incomplete)
    ],
    help="Return 1 if the verdict is over-confident, if it is untrusted (not known to be safe), "
    'or if a metric is beyond a number: "auc < -0.02".',
)
@as_json
@quiet
@debug
def diagnose(
    run: str, num_test: int | None, problem: str | None, fail_if: tuple[str, ...], **options: Any
) -> None:
    """Measure the coverage of the stored RUN on new test pairs.

    The verdict is kept: sample, plot and report show it from then on.
    The beginning of a run's name is enough where there is only one like it.

    \b
    Examples:
      prudent diagnose runs/first
      prudent diagnose runs/first --num-test 10000 --json
      prudent diagnose runs/first --thorough
      prudent diagnose runs/first --data test.h5
      prudent diagnose runs/first --fail-if over-confident
    """
    if num_test is not None:
        whole("num_test", num_test, 1)
    conditions = [_parse(text) for text in fail_if]
    path = locate(Path(run))
    if options["data"] is not None:
        check_file(Path(options["data"]))
    if options["thorough"]:
        require(*THOROUGH_NEEDS)
    say("loading torch ...")
    from prudent.diagnostics import Diagnosis
    from prudent.experiments.run import diagnose_run

    for name in (name for name, *_ in conditions if name not in CONDITIONS):
        if name not in Diagnosis.scalars():
            raise unknown_name("metric", name, Diagnosis.scalars(), "See docs: Metrics.")
    allow_import(problem)
    result = diagnose_run(path, num_test, problem=problem, progress=progress(), **options)
    curves = result.coverage.curves()
    facts = {"verdict": str(result.verdict), "metrics": result.metrics()}
    failed = [text for text, one in zip(fail_if, conditions, strict=True) if _holds(one, result)]
    facts |= {"failed": failed} if fail_if else {}
    if not emit("diagnose", {**facts, "coverage": {k: curves[k] for k in ("levels", "curve")}}):
        show(str(result))
    if failed:
        say(f"Failed: {', '.join(failed)}.")
        raise click.exceptions.Exit(1)


def _parse(text: str) -> tuple[str, str, float]:
    """A condition: a name, and for a metric also a sign and a number."""
    if text.strip().lower() in CONDITIONS:
        return text.strip().lower(), "", 0.0
    if found := re.fullmatch(r"\s*(\w+)\s*([<>])\s*([-+.\deE]+)\s*", text):
        with contextlib.suppress(ValueError):
            return found[1], found[2], float(found[3])
    raise InputError(
        f"`--fail-if` is {text!r}; expected {' or '.join(CONDITIONS)}, or a metric, < or > and a "
        'number, such as "worst_shortfall > 0.02".'
    )


def _holds(condition: tuple[str, str, float], result: Any) -> bool:
    """Whether a condition is met; a metric that could not be measured meets every condition."""
    name, sign, bound = condition
    if name == "untrusted":
        return not result.verdict.trusted
    if not sign:
        return bool(result.verdict.kind == name)
    values = result.metrics()[name]
    for value in values if isinstance(values, list) else [values]:
        if not isinstance(value, int | float) or (value > bound if sign == ">" else value < bound):
            return True
    return False
