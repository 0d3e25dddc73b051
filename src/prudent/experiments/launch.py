"""Runs a sweep from its plan to its results; the same call continues one that was stopped."""

import contextlib
import csv
import io
import logging
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from prudent._extras import require
from prudent._files import write_atomic
from prudent._progress import Progress, Reporter
from prudent._settings import check, documented, setting
from prudent._tables import read_settings
from prudent.errors import InputError, StoreError
from prudent.experiments._runner import DiskFull, Runner, View
from prudent.experiments.config import THOROUGH_NEEDS, RunConfig
from prudent.experiments.cost import Cost, cost_of, disk_bytes, largest
from prudent.experiments.engines import ENGINES, open_engine
from prudent.experiments.store import RunState, count, states, tidy
from prudent.experiments.sweep import FILE, Sweep, read_sweep

# The sweeps that come with prudent.
SHIPPED = Path(__file__).parents[1] / "sweeps"
# Where they are before a wheel is built.
CHECKOUT = Path(__file__).parents[3] / "sweeps"
INDEX = "index.csv"
TRASH = ".trash"

logger = logging.getLogger("prudent")


@documented
@dataclass(frozen=True)
class LaunchOptions:
    """The way a sweep is run, which does not change its results."""

    workers: int = setting(1, least=1, help="Number of runs at once")
    engine: str = setting("local", choices=ENGINES, help="Processes that do the work")
    address: str | None = setting(
        None,
        others=r"([a-z]+://)?\S+:\d+/?",
        form="an address such as tls://10.0.0.1:8786",
        help="Address of a running Dask scheduler",
    )
    timeout: float | None = setting(None, above=0, help="Seconds after which a run fails")
    force: bool = setting(default=False, help="Ignore a full disk or a changed simulator")

    def __post_init__(self) -> None:
        check(self)
        if self.address is not None and self.engine != "dask":
            raise InputError(
                f"an address is for the engine dask, not for {self.engine}; pass --engine dask."
            )

    @classmethod
    def of(cls, configs: Sequence[RunConfig], workers: int | None = None, **options: Any) -> Self:
        """The options for some runs; without a number of workers, the cores are shared."""
        affinity = getattr(os, "sched_getaffinity", None)  # the cores that this process may use
        cores = len(affinity(0)) if affinity else os.cpu_count() or 1
        room = max(1, cores // max(config.threads for config in configs))
        return cls(room if workers is None else workers, **options)


@dataclass(frozen=True)
class Overview:
    """A sweep in a directory, the way it is run, and the state of each of its runs."""

    plan: Sweep
    root: Path
    options: LaunchOptions
    found: Sequence[RunState]

    @cached_property
    def counts(self) -> dict[str, int]:
        """The number of runs in each state."""
        return count(self.found)

    @cached_property
    def left(self) -> list[RunConfig]:
        """The runs that are not done."""
        return [one.config for one in self.found if one.state != "done"]

    @cached_property
    def expected(self) -> Cost:
        """The expected cost of the unfinished runs, corrected by the finished ones."""
        done = [one.config for one in self.of("done")]
        return cost_of(self.left, done, self.root, self.options.workers)

    def of(self, *names: str) -> list[RunState]:
        """The runs that are in one of some states."""
        return [one for one in self.found if one.state in names]


def find_sweep(file: str | os.PathLike[str]) -> Path:
    """The path of a sweep file; one that comes with prudent is found by its name alone.

    >>> find_sweep("demo.toml").is_file()
    True
    """
    path = Path(file)
    if path.parent in (Path(), Path("sweeps")) and not path.exists():
        for place in (SHIPPED, CHECKOUT):
            if (place / path.name).is_file():
                return place / path.name
    return path


def run_sweep(
    file: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    progress: Reporter = None,
    **options: Any,
) -> dict[str, int]:
    """Run the grid that a TOML file describes; finished runs are skipped.

    Args:
        file: The file.
        output: The directory of the runs; ``runs/NAME`` by default.
        progress: See :class:`prudent._progress.Progress`.
        **options: Fields of :class:`LaunchOptions`; by default there is a worker for each core.

    Returns:
        How many runs are ``done``, ``failed`` and so on; see also
        :attr:`prudent.experiments.Results.runs`.
    """
    plan = read_sweep(find_sweep(file))
    root = Path("runs") / plan.name if output is None else Path(output)
    how = LaunchOptions.of(plan.configs, **options)
    return launch(Overview(plan, root, how, states(plan.configs, root)), progress).counts


def launch(now: Overview, progress: Reporter = None) -> Overview:
    """Work on what is left of a sweep; returns what became of it."""
    plan, root, options, left = now.plan, now.root, now.options, now.left
    if (root / FILE).is_file():
        read_settings(root / FILE)  # refuses what a newer version wrote
    old = _outdated(plan.configs, root)
    if old and not options.force:
        raise InputError(
            f"{root} has {len(old)} runs of a simulator whose file has changed since. Choose "
            f"another output with -o, or pass --force to run again and move these to "
            f"{root / TRASH}. Nothing was changed."
        )
    tidy((one.config for one in now.of("done")), root)
    if not left:
        plan.write(root)
        return now
    if any(config.thorough for config in left):
        require(*THOROUGH_NEEDS)
    _check_space(root, disk_bytes(left, options.workers), force=options.force)
    scratch = root / ".work" / f"{options.engine}-{os.getpid()}"
    workers = min(options.workers, len(left))
    engine = open_engine(options.engine, workers, scratch, address=options.address, job=plan.job)
    try:
        with engine:
            plan.write(root)
            _set_aside(old, root)
            with Progress("sweep", 1.0, progress) as display:
                listen = View(left, now.counts["done"], display).listen
                budgets = {key: config.budget for key, config in largest(plan.configs).items()}
                Runner(left, root, engine, listen, options.timeout, budgets).run()
    except DiskFull as error:
        raise StoreError(f"{error} {_interruption(now)}") from error
    except BaseException as error:
        # The first sign comes at once; counting takes a moment.
        error.add_note(_interruption(now))
        raise
    finally:
        with contextlib.suppress(OSError):
            scratch.parent.rmdir()
    return _record(now)


def _outdated(configs: Iterable[RunConfig], root: Path) -> list[Path]:
    """Finished runs of the problems of some runs whose simulator was another one than now."""
    sources = {config.problem: config.source for config in configs if config.source}
    found = []
    for file in sorted(root.glob("*/config.json")) if sources else ():
        try:
            settings = read_settings(file)
        except InputError:
            continue  # other commands say what is wrong with it
        source = sources.get(str(settings.get("problem")))
        if source is not None and settings.get("source", "") != source:
            found.append(file.parent)
    return found


def _set_aside(runs: Sequence[Path], root: Path) -> None:
    """Move runs of a simulator that has changed out of the way."""
    trash = root / TRASH
    for path in runs:
        trash.mkdir(exist_ok=True)
        os.rename(path, trash / path.name)
    if runs:
        logger.warning("moved %d runs of the simulator as it was to %s.", len(runs), trash)


def _check_space(root: Path, needed: int, *, force: bool) -> None:
    existing = next(path for path in (root, *root.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < needed and not force:
        raise InputError(
            f"the runs need about {needed / 1e6:,.0f} MB, but {free / 1e6:,.0f} MB are free in "
            f"{existing}. Free some space, or pass --force."
        )


def _interruption(now: Overview) -> str:
    """A message on the runs that are done and left of an interrupted sweep."""
    numbers = _record(now).counts
    begun = numbers["interrupted"] + numbers["running"]
    failed = f"{numbers['failed']} failed, " if numbers["failed"] else ""
    return (
        f"interrupted: {numbers['done']} done, {failed}{begun} continue from checkpoints, "
        f"{numbers['left']} left. Continue with: prudent sweep {now.plan.source} -o {now.root}"
    )


def _record(now: Overview) -> Overview:
    """The state of each run now, also written down for people: which directory is which run."""
    now = replace(now, found=states(now.plan.configs, now.root))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", "problem", "method", "budget", "seed", "state"])
    for c, state in ((one.config, one.state) for one in now.found):
        # A spreadsheet would take a name that begins like this for a formula.
        problem = f"'{c.problem}" if c.problem[0] in "=+-@" else c.problem
        writer.writerow([c.identity, problem, c.method, c.budget, c.seed, state])
    path, data = now.root / INDEX, text.getvalue().encode("utf-8", "replace")
    # No reason to hide what went wrong before.
    with contextlib.suppress(OSError, StoreError):
        if not path.is_file() or path.read_bytes() != data:
            write_atomic(path, data)
    return now
