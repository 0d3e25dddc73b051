"""What became of every run of a sweep, read from its directory without opening any model."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from prudent.errors import InputError, StoreError
from prudent.experiments import store
from prudent.experiments.config import RunConfig
from prudent.experiments.cost import Estimate, estimate
from prudent.experiments.settings import read_settings
from prudent.experiments.sweep import Sweep

STATES = ("done", "running", "failed", "interrupted", "left")


@dataclass(frozen=True)
class RunState:
    """One run of a sweep.

    Args:
        config: What it is.
        state: One of ``done running failed interrupted left``.
        note: Why it failed, or how far it is.
    """

    config: RunConfig
    state: str
    note: str = ""


@dataclass(frozen=True)
class Overview:
    """A sweep and how it stands.

    Args:
        plan: The sweep.
        root: The directory of its runs.
        found: The state of each run.
        workers: How many runs at once are expected.
    """

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
        done = [one.config for one in self.found if one.state == "done"]
        left = [one.config for one in self.found if one.state != "done"]
        return estimate(left, done, self.root, self.workers)

    def of(self, *names: str) -> list[RunState]:
        """The runs that are in one of some states."""
        return [one for one in self.found if one.state in names]


def states(
    configs: Sequence[RunConfig], root: Path, *, verify: bool = False, look: bool = True
) -> list[RunState]:
    """The state of each run.

    Args:
        configs: The runs.
        root: Their directory; it need not exist.
        verify: Check all files of finished runs against their checksums.
        look: Find out how far unfinished runs are.
    """
    finished, unfinished = _names(root), _names(root / ".work")
    return [_state(c, root, finished, unfinished, verify=verify, look=look) for c in configs]


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
    config: RunConfig,
    root: Path,
    finished: set[str],
    unfinished: set[str],
    *,
    verify: bool,
    look: bool,
) -> RunState:
    name = config.identity
    path = root / name
    if name in finished:
        if verify:
            return _verified(config, path)
        if store.is_finished(path):
            return RunState(config, "done")
        return RunState(config, "failed", f"{path} exists and is not a finished run; remove it")
    if unfinished & {f"{name}.lock", f"{name}.claim"} and (who := store.holder(path)) is not None:
        by = f"{who.get('host', '?')} pid {who.get('pid', '?')}"
        return RunState(config, "running", f"{by}{_epoch(config, path) if look else ''}")
    if name in unfinished and (reason := store.failure(path)) is not None:
        return RunState(config, "failed", reason)
    if name in unfinished or f"{name}.checkpoint" in unfinished:
        return RunState(config, "interrupted", _epoch(config, path).lstrip(", ") if look else "")
    return RunState(config, "left")


def _verified(config: RunConfig, path: Path) -> RunState:
    try:
        run = store.read(path)
        for name in run.files:
            run.file(name)
    except StoreError as error:
        return RunState(config, "failed", str(error))
    return RunState(config, "done")


def _epoch(config: RunConfig, path: Path) -> str:
    """The epoch of the last checkpoint."""
    directory = store.unfinished_path(path, ".checkpoint")
    found = [re.search(r"epoch-(\d+)", file.name) for file in directory.rglob("epoch-*")]
    epochs = [int(match[1]) for match in found if match]
    return f", epoch {max(epochs)} of {config.training.epochs}" if epochs else ""


def _names(directory: Path) -> set[str]:
    try:
        return set(os.listdir(directory))
    except OSError:
        return set()
