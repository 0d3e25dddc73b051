"""``prudent problems`` and ``prudent simulate``."""

import contextlib
from pathlib import Path
from typing import Any

import click

from prudent import problems
from prudent._settings import whole
from prudent.cli.options import LAUNCH, PROBLEM, as_json, debug, options, output, quiet, seed
from prudent.cli.output import allow_import, check_writable, emit, progress, show
from prudent.errors import InputError
from prudent.experiments.engines import open_engine
from prudent.experiments.launch import LaunchOptions

POOL = ("workers", "engine", "address")
WORKERS = {"help": "Number of processes, which does not change the result."}
# Suffixes that promise a file.
FILES = {".npz", ".npy", ".h5", ".hdf5", ".safetensors", ".csv", ".pt", ".nc", ".json"}


@click.command(name="problems")
@as_json
@debug
def list_problems() -> None:
    """List the built-in problems.

    \b
    Examples:
      prudent problems
      prudent problems --json
    """
    if emit("problems", {"problems": problems.DESCRIPTIONS}):
        return
    width = max(map(len, problems.names()))
    for name in problems.names():
        show(f"{name:<{width}}  {problems.DESCRIPTIONS[name]}")


@click.command()
@click.argument("problem", type=PROBLEM)
@click.option("-n", "--num-simulations", default=16384, help="Number of simulations.")
@output(required=True, help="Directory of the store, such as sims.zarr.")
@options([LAUNCH[name] for name in POOL], workers=WORKERS)
@click.option("--chunk-size", type=int, help="Simulations per task; by default by size.")
@seed
@as_json
@quiet
@debug
def simulate(problem: str, num_simulations: int, output: str, **given: Any) -> None:
    """Simulate PROBLEM into a Zarr store; the same command continues a killed one.

    \b
    Examples:
      prudent simulate slcp -n 16384 --seed 0 -o sims.zarr
      prudent simulate my_module:problem -n 1000 -o mine.zarr --workers 2
    """
    whole("num_simulations", num_simulations, 1)
    launch = LaunchOptions(**{name: given.pop(name) for name in POOL})
    problems.check(problem)
    path = Path(output)
    if path.suffix.lower() in FILES:
        raise InputError(
            f"`{path.name}` would be a directory with the name of a file; simulations go to a "
            f"Zarr store, such as {path.with_suffix('.zarr').name}."
        )
    check_writable(path.parent)
    allow_import(problem)
    from prudent.datasets.simulate import simulate as fill

    with _pool(launch, path) as pool:
        store = fill(problem, num_simulations, output, executor=pool, progress=progress(), **given)
    invalid = store.num_invalid()
    facts = {"path": output, "num_simulations": num_simulations, "invalid": invalid}
    if emit("simulate", facts):
        return
    number = sum(invalid.values())
    reasons = ", ".join(f"{count:,} {name}" for name, count in invalid.items() if count)
    note = f", {number:,} of them not usable ({reasons})" if number else ""
    show(f"Simulations: {output} ({num_simulations:,} of {problem}{note})")


def _pool(launch: LaunchOptions, path: Path) -> Any:
    """An executor for the chunks; one local worker is this process."""
    if launch.engine == "local" and launch.workers == 1:
        return contextlib.nullcontext()
    scratch = path.with_name(f".{path.name}.work")
    return open_engine(launch.engine, launch.workers, scratch, address=launch.address)
