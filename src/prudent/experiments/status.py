"""What became of every run of a sweep, read from its directory without opening any model."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from prudent._locks import holder
from prudent.errors import InputError, StoreError
from prudent.experiments import store
from prudent.experiments.config import RunConfig
from prudent.experiments.cost import Estimate, estimate
from prudent.experiments.settings import read_settings
from prudent.experiments.sweep import Sweep

STATES = ("done", "running", "failed", "interrupted", "left")


@dataclass(frozen=True)
class RunState:
    """A run of a sweep, one of ``STATES``, and why it failed or how far it is."""

    config: RunConfig
    state: str
    note: str = ""


@dataclass(frozen=True)
class Overview:
    """A sweep in a directory, the state of each of its runs, and how many are done at once."""

    plan: Sweep
    root: Path
    found: Sequence[RunState]
    workers: int

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many runs are in each state."""
        return count(self.found)

    @cached_property
    def expected(self) -> Estimate:
        """What the unfinished runs cost, corrected by the finished ones."""
        done = [one.config for one in self.of("done")]
        left = [one.config for one in self.found if one.state != "done"]
        return estimate(left, done, self.root, self.workers)

    def of(self, *names: str) -> list[RunState]:
        """The runs that are in one of some states."""
        return [one for one in self.found if one.state in names]


def states(configs: Sequence[RunConfig], root: Path, *, verify: bool = False) -> list[RunState]:
    """The state of each run in a directory, which need not exist.

    With ``verify`` all files of finished runs are checked against their checksums.
    """
    finished, unfinished = _names(root), _names(root / ".work")
    return [RunState(c, *_state(c, root, finished, unfinished, verify=verify)) for c in configs]


def count(found: Iterable[RunState]) -> dict[str, int]:
    """How many runs are in each state; all states are there, and they add up."""
    number = Counter(one.state for one in found)
    return {name: number[name] for name in STATES}


def outdated(configs: Iterable[RunConfig], root: Path) -> list[Path]:
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


def _state(
    config: RunConfig, root: Path, finished: set[str], unfinished: set[str], *, verify: bool
) -> tuple[str, str]:
    name = config.identity
    path = root / name
    if name in finished:
        if verify:
            return _verified(path)
        if store.is_finished(path):
            return "done", ""
        return "failed", f"{path} exists and is not a finished run; remove it"
    lock = store.unfinished_path(path, ".lock")
    if unfinished & {lock.name, f"{name}.claim"} and (who := holder(lock)) is not None:
        by = f"{who.get('host', '?')} pid {who.get('pid', '?')}"
        return "running", ", ".join([by, *_epoch(config, path)])
    if name in unfinished and (reason := store.failure(path)) is not None:
        return "failed", reason
    if name in unfinished or f"{name}.checkpoint" in unfinished:
        return "interrupted", "".join(_epoch(config, path))
    return "left", ""


def _verified(path: Path) -> tuple[str, str]:
    try:
        run = store.read(path)
        for name in run.files:
            run.file(name)
    except StoreError as error:
        return "failed", str(error)
    return "done", ""


def _epoch(config: RunConfig, path: Path) -> list[str]:
    """The epoch of the last checkpoint, if there is one."""
    found = store.unfinished_path(path, ".checkpoint").rglob("epoch-*")
    epochs = [int(match[1]) for file in found if (match := re.match(r"epoch-(\d+)", file.name))]
    return [f"epoch {max(epochs)} of {config.training.epochs}"] if epochs else []


def _names(directory: Path) -> set[str]:
    try:
        return set(os.listdir(directory))
    except OSError:
        return set()
