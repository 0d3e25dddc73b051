"""``prudent diagnose``."""

from __future__ import annotations

from pathlib import Path

import click

from prudent._settings import whole
from prudent.cli.options import as_json, debug, quiet
from prudent.cli.output import allow_import, emit, say, show


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False))
@click.option("--num-test", default=2000, help="Test pairs, simulated apart.")
@click.option("--problem", help="module:attribute of a problem of your own; it is imported.")
@click.option("--seed", default=1, help="Of the test pairs; training used another stream.")
@click.option("--thorough", is_flag=True, help="Also SBC, TARP and coverage by region of x.")
@as_json
@quiet
@debug
def diagnose(
    run: str,
    num_test: int,
    problem: str | None,
    seed: int,
    thorough: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Measure the coverage of the stored RUN on new test pairs.

    \b
    Examples:
      prudent diagnose runs/first
      prudent diagnose runs/first --num-test 10000 --json
      prudent diagnose runs/first --thorough
    """
    whole("num_test", num_test, 1)
    say("loading torch ...", quiet=quiet or as_json)
    from prudent.experiments.run import diagnose_run

    allow_import(problem, quiet=quiet or as_json)
    silent = False if quiet or as_json else None
    result = diagnose_run(
        Path(run), num_test, seed, problem=problem, thorough=thorough, progress=silent
    )
    if as_json:
        curves = result.coverage.curves()
        facts = {"verdict": str(result.verdict), "metrics": result.metrics()}
        emit("diagnose", {**facts, "coverage": {k: curves[k] for k in ("levels", "curve")}})
        return
    show(str(result))
