"""``prudent sample`` and ``prudent plot``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from prudent._extras import require
from prudent._files import check_file
from prudent._settings import whole
from prudent.cli.options import EXIT_CODES, as_json, debug, output, quiet, seed
from prudent.cli.output import check_writable, emit, say, show
from prudent.errors import InputError

DRAWS, FIGURES = (".npz", ".csv", ".nc"), (".pdf", ".png", ".svg")


def _observed(command: Callable[..., None]) -> Callable[..., None]:
    """The options of a command that answers to an observation."""
    for option in (
        click.option("--row", type=int, help="Number of the observation in its file, from 0."),
        click.option("--x", help="Name of the observation in its file; guessed by default."),
        click.option(
            "--observation",
            required=True,
            type=click.Path(),
            help="File with the observation: .npy .npz .csv .txt .h5 .nc .safetensors.",
        ),
        click.argument("run", type=click.Path(exists=True)),
    ):
        command = option(command)
    return command


@click.command(epilog=EXIT_CODES)
@_observed
@click.option("-n", "--num-samples", default=10_000, help="Number of draws.")
@output(default="posterior.npz", help="File: .npz, .csv or .nc (ArviZ).")
@seed
@as_json
@quiet
@debug
def sample(
    run: str, observation: str, output: str, num_samples: int, seed: int, **options: Any
) -> None:
    """Draw from the posterior that RUN gives for an observation.

    RUN is the directory of a run, or the file of a model. The file that is
    written holds the draws and their log-density.

    \b
    Examples:
      prudent sample runs/first --observation x.npy -o posterior.npz
      prudent sample runs/first --observation x.csv --row 3 -n 500 -o draws.csv
      prudent sample model.safetensors --observation data.h5 --x counts
    """
    path = _checked(output, DRAWS)
    whole("num_samples", num_samples, 1)
    whole("seed", seed, 0)
    if path.suffix.lower() == ".nc":
        require("arviz", "arviz", "ArviZ exports")
    check_file(Path(observation))
    say("loading torch ...")
    from prudent.reports.answers import answer, write_draws

    found = answer(Path(run), observation, **options)
    for text in write_draws(found, path, num_samples, seed):
        say(f"Warning: {text}")
    facts = {"output": output, "num_samples": num_samples}
    if not emit("sample", {**facts, **found.facts()}):
        show(f"{found}\n\nDraws: {output} ({num_samples:,})")


@click.command(epilog=EXIT_CODES)
@_observed
@click.option("--truth", type=click.Path(), help="File with true parameters to mark.")
@click.option("--theta", help="Name of the parameters in that file; guessed by default.")
@output(default="posterior.png", help="File: .pdf, .png or .svg.")
@click.option("--dpi", default=300, help="Dots per inch of a PNG.")
@as_json
@quiet
@debug
def plot(
    run: str,
    observation: str,
    output: str,
    truth: str | None,
    theta: str | None,
    dpi: int,
    **options: Any,
) -> None:
    """Plot the posterior that RUN gives for an observation as a pair plot.

    RUN is the directory of a run, or the file of a model. The regions hold 50 %
    and 90 % of the posterior.

    \b
    Examples:
      prudent plot runs/first --observation x.npy -o corner.pdf
      prudent plot runs/first --observation x.csv --row 3 --truth theta.npy
    """
    path = _checked(output, FIGURES)
    whole("dpi", dpi, 10)
    require("matplotlib", "report", "figures")
    for file in filter(None, (observation, truth)):
        check_file(Path(file))
    say("loading torch ...")
    from prudent.reports.answers import answer, truth_of
    from prudent.reports.figures import save

    found = answer(Path(run), observation, **options)
    names = found.posterior.names
    marked = truth_of(truth, theta, options["row"], names) if truth is not None else None
    save(found.posterior.plot(truth=marked), path, dpi)
    if not emit("plot", {"output": output, **found.facts()}):
        show(f"{found}\n\nFigure: {output}")


def _checked(output: str, endings: tuple[str, ...]) -> Path:
    """The path of a file that can be written."""
    path = Path(output)
    if path.suffix.lower() not in endings:
        raise InputError(
            f"`--output` is {output!r}; expected a file ending in {' '.join(endings)}."
        )
    check_writable(path.parent)
    if not path.parent.is_dir():
        raise InputError(f"no directory {path.parent}; make it first.")
    return path
