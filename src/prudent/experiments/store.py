"""Runs on disk: all of a finished one or none of it, and what became of the others.

A run is a directory. Its files are written to ``.work`` beside it, ``metrics.json`` last with the
checksums of the others, and then the directory takes its name in one step. Times differ from
run to run, so that they are in ``timing.json`` alone, with a checksum of its own.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prudent._files import (
    dump_json,
    load_json,
    read_whole,
    sha256,
    sync_directory,
    to_json,
    write_atomic,
)
from prudent._locks import hold, holder
from prudent.errors import InputError, StoreError, shortened
from prudent.experiments.config import RunConfig
from prudent.history import History
from prudent.training import methods

if TYPE_CHECKING:
    from prudent.diagnostics.verdict import Verdict

ERROR = "error.txt"
TIMING = "timing.json"
MODEL = "model.safetensors"
DATA = "data.json"
# The options of `prudent train` that name files, or arrays in them.
FILES = ("data", "test_data", "prior", "theta", "x")
# What `prudent diagnose` measured last; it is no part of the run, and has a checksum of its own.
DIAGNOSED = "diagnosis.json"
# What an unfinished run has in ``.work``, beside its lock or claim.
PARTS = ("", ".checkpoint")
MOST_LISTED = 8
MAKE_ONE = " Make a run with: prudent train PROBLEM -o RUN"
STATES = ("done", "running", "failed", "interrupted", "left")

logger = logging.getLogger("prudent")


@dataclass(frozen=True)
class Run:
    """A finished run, read from its directory.

    The ``metrics`` are scalars, ``coverage`` the ``levels``, ``curve``, ``lower`` and ``upper`` of
    the coverage curve, ``timing`` seconds and versions, ``files`` the size and SHA-256 of each.
    Among the metrics, ``pairs`` says which ones they are about, if not those of the run.
    """

    path: Path
    config: RunConfig
    metrics: dict[str, Any]
    coverage: dict[str, list[float]]
    timing: dict[str, Any]
    files: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)

    @property
    def verdict(self) -> Verdict:
        """The verdict on the coverage curve of the run."""
        from prudent.diagnostics.verdict import judge

        return judge(**self.coverage, num_pairs=self.metrics["num_pairs"], metrics=self.metrics)

    def file(self, name: str) -> bytes:
        """The contents of a file, which must be those that were stored with this run."""
        checksum = self.files.get(name, {}).get("sha256")
        return read_whole(self.path / name, _remedy(self.path), checksum)

    def given(self) -> dict[str, str]:
        """The options that say which files a run was trained on; see ``inputs.Inputs``."""
        known = json.loads(self.file(DATA)).get("given") if DATA in self.files else None
        return {k: str(known[k]) for k in FILES if k in known} if isinstance(known, dict) else {}

    def arrays(self) -> dict[str, str]:
        """The names that theta and x have in these files, if they are arrays with names."""
        return {name: text for name, text in self.given().items() if name in ("theta", "x")}

    def history(self) -> History:
        """The history of the training, a row per epoch."""
        return History.from_jsonl(self.file("history.jsonl").decode())


@dataclass(frozen=True)
class RunState:
    """A run of a sweep, one of ``STATES``, and why it failed or how far it is."""

    config: RunConfig
    state: str
    note: str = ""


def find(path: Path, config: RunConfig) -> Run | None:
    """The finished run at that path, None if there is none, an error if another one is there."""
    if not path.exists():
        return None
    if not (path / "metrics.json").is_file():
        if path.is_dir() and not any(path.iterdir()):
            return None
        raise InputError(f"{path} exists and is not a finished run; choose another output.")
    run = read(path)
    if run.config != config:
        ours, theirs = config.flat(), run.config.flat()
        changed = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
        listing = ", ".join(
            f"{key}: {shortened(theirs.get(key))} there, {shortened(ours.get(key))} now"
            for key in changed
        )
        raise InputError(f"{path} holds another run ({listing}). Choose another output.")
    return run


def finished(path: Path) -> Run:
    """The finished run that :func:`locate` finds at a path, with a sound model; as of now."""
    run = latest(read(locate(path)))
    run.file(MODEL)  # the one of this run, not another's
    return run


def locate(path: Path) -> Path:
    """The finished run at a path, or the only one whose name begins like the last part of it."""
    if is_run(path):
        return path
    if path.is_dir():
        found = runs_like(path / "")
        told = f"holds {len(found):,} runs; name one: " if found else "is not a finished run"
    else:
        found = runs_like(path)
        if len(found) == 1:
            return found[0]
        told = f"is the beginning of {len(found):,} runs: " if found else "does not exist"
    listed = " ".join(run.name for run in found[:MOST_LISTED])
    more = f" and {len(found) - MOST_LISTED:,} more" if len(found) > MOST_LISTED else ""
    raise InputError(f"{path} {told}{listed}{more}." + ("" if found else MAKE_ONE))


def runs_like(path: Path) -> list[Path]:
    """The finished runs whose paths begin like this one, by name."""
    parent, start = (path, "") if path.is_dir() else (path.parent, path.name)
    return sorted(
        parent / name
        for name in _names(parent)
        if name.startswith(start) and is_run(parent / name)
    )


def is_run(path: Path) -> bool:
    """Whether a finished run is there, sound or not."""
    return (path / "metrics.json").is_file()


def unfinished_path(path: Path, suffix: str = "") -> Path:
    """The path of the unfinished parts of a run."""
    return path.parent / ".work" / f"{path.name}{suffix}"


@contextlib.contextmanager
def claim(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold a run for writing; see :func:`prudent._locks.hold`."""
    try:
        with hold(unfinished_path(path, ".lock"), wait=wait):
            yield
    finally:
        with contextlib.suppress(OSError):  # others may work there
            unfinished_path(path).parent.rmdir()


def is_finished(path: Path) -> bool:
    """Whether a finished run is there, by a look at its last file alone."""
    try:
        data = (path / "metrics.json").read_bytes()
    except (OSError, ValueError):
        return False
    # Enough to tell a whole file from a part of one; who reads the run checks it in full.
    return b'"files"' in data and data.rstrip().endswith(b"}")


def is_unfinished(path: Path) -> bool:
    """Whether unfinished parts of a run are there."""
    return any(unfinished_path(path, end).exists() for end in (*PARTS, ".lock", ".claim"))


def clear(path: Path) -> None:
    """Remove the unfinished parts of a run that is finished."""
    for suffix in PARTS:
        shutil.rmtree(unfinished_path(path, suffix), ignore_errors=True)


def tidy(configs: Iterable[RunConfig], root: Path) -> None:
    """Remove what a kill right after publishing left of finished runs."""
    for path in (root / config.identity for config in configs):
        if is_unfinished(path):
            with contextlib.suppress(StoreError), claim(path, wait=False):
                clear(path)


def record_failure(config: RunConfig, path: Path, reason: str, details: str = "") -> None:
    """Keep why a run failed; the next attempt removes it."""
    directory = unfinished_path(path)
    directory.mkdir(parents=True, exist_ok=True)
    write_atomic(directory / "config.json", to_json(config.to_dict()))
    text = f"{reason}\n\n{config}\n\n{details}"
    write_atomic(directory / ERROR, text.encode("utf-8", "replace"))


def failure(path: Path) -> str | None:
    """The reason why the last attempt at a run failed, or None if it did not."""
    try:
        with (unfinished_path(path) / ERROR).open(encoding="utf-8", errors="replace") as file:
            return file.readline(500).strip() or "no reason given"
    except OSError:
        return None


def publish(
    path: Path, files: Mapping[str, bytes], metrics: Mapping[str, Any], timing: Mapping[str, Any]
) -> None:
    """Make a finished run appear at a path, which must be claimed."""
    unfinished = unfinished_path(path)
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        for name, data in files.items():
            write_atomic(unfinished / name, data)
        write_atomic(unfinished / TIMING, dump_json(timing))
        listing = {name: {"sha256": sha256(d), "bytes": len(d)} for name, d in files.items()}
        write_atomic(unfinished / "metrics.json", dump_json({**metrics, "files": listing}))
        _take_name(unfinished, path)
        sync_directory(path.parent)
    except OSError as error:
        raise StoreError(f"could not write {path}: {error.strerror or error}.") from error


def _take_name(unfinished: Path, path: Path) -> None:
    try:
        os.rename(unfinished, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not is_finished(path):
            raise
        # Without locks another process can be first; the two are the same but for their times.
        ours, theirs = read(unfinished), read(path)
        if (ours.config, ours.metrics) != (theirs.config, theirs.metrics):
            logger.warning("%s was finished by another process with other metrics.", path)
        shutil.rmtree(unfinished, ignore_errors=True)


def read(path: Path) -> Run:
    """Read a finished run; a file that does not match its checksum is refused."""
    metrics = load_json(path / "metrics.json", _remedy(path))
    listing = metrics.pop("files", None)
    if not isinstance(listing, dict):
        raise StoreError(f"{path / 'metrics.json'} lists no files; it was not written by prudent.")
    config, coverage = (
        load_json(path / name, _remedy(path), str(listing.get(name, {}).get("sha256")))
        for name in ("config.json", "coverage.json")
    )
    timing = load_json(path / TIMING, _remedy(path))
    return Run(path, RunConfig.from_settings(config), metrics, coverage, timing, listing)


def keep_diagnosis(run: Run, found: Mapping[str, Any]) -> None:
    """Keep ``metrics`` and ``coverage`` on other pairs, without a change to the files of a run."""
    model = run.files.get(MODEL, {}).get("sha256")
    write_atomic(run.path / DIAGNOSED, dump_json({**found, "model": model}))


def latest(run: Run) -> Run:
    """The run with what was measured last in place of its own metrics and coverage."""
    path = run.path / DIAGNOSED
    if not path.is_file():
        return run
    remedy = f"Delete it, or diagnose {run.path} again."
    found = load_json(path, remedy)
    if found.get("model") != run.files.get(MODEL, {}).get("sha256"):
        raise StoreError(f"{path} is about another model. {remedy}")
    return replace(run, metrics=found["metrics"], coverage=found["coverage"])


def load_runs(directory: str | os.PathLike[str]) -> list[Run]:
    """All finished runs below a directory, or the one that it is, once each in a stable order."""
    root = Path(directory)
    if not root.is_dir():
        raise InputError(f"no directory {root}. Make runs with: prudent demo")
    if (root / "metrics.json").is_file():
        return [latest(read(root))]
    found = sorted(p.parent for p in root.glob("*/metrics.json"))
    if not found:
        raise InputError(f"no finished runs in {root}. Make some with: prudent demo")
    runs = [latest(read(path)) for path in reversed(found)]
    kept = {run.config.identity: run for run in runs}
    if number := len(found) - len(kept):
        logger.warning("%s: %d runs are copies of others there and are left out.", root, number)
    return sorted(kept.values(), key=_order)


def _order(run: Run) -> tuple[Any, ...]:
    config, position = run.config, methods.position(run.config.method)
    return (config.problem, config.budget, position, config.seed, str(config))


def _remedy(path: Path) -> str:
    return f"Restore it, or delete {path} and run it again."


def states(configs: Sequence[RunConfig], root: Path, *, verify: bool = False) -> list[RunState]:
    """The state of each run in a directory, which need not exist.

    With ``verify`` all files of finished runs are checked against their checksums.
    """
    finished, unfinished = _names(root), _names(root / ".work")
    return [RunState(c, *_state(c, root, finished, unfinished, verify=verify)) for c in configs]


def count(found: Iterable[RunState]) -> dict[str, int]:
    """The number of runs in each state, those with none included."""
    number = Counter(one.state for one in found)
    return {name: number[name] for name in STATES}


def _state(
    config: RunConfig, root: Path, finished: set[str], unfinished: set[str], *, verify: bool
) -> tuple[str, str]:
    name = config.identity
    path = root / name
    if name in finished:
        if verify:
            return _verified(path)
        if is_finished(path):
            return "done", ""
        return "failed", f"{path} exists and is not a finished run; remove it"
    lock = unfinished_path(path, ".lock")
    if unfinished & {lock.name, f"{name}.claim"} and (who := holder(lock)) is not None:
        by = f"{who.get('host', '?')} pid {who.get('pid', '?')}"
        return "running", ", ".join(filter(None, [by, epoch(config, path)]))
    if name in unfinished and (reason := failure(path)) is not None:
        return "failed", reason
    if name in unfinished or f"{name}.checkpoint" in unfinished:
        return "interrupted", epoch(config, path)
    return "left", ""


def _verified(path: Path) -> tuple[str, str]:
    try:
        run = read(path)
        for name in latest(run).files:
            run.file(name)
    except StoreError as error:
        return "failed", str(error)
    return "done", ""


def epoch(config: RunConfig, path: Path) -> str:
    """The epoch of the last checkpoint, and of which network; nothing if there is none."""
    checkpoints = unfinished_path(path, ".checkpoint")
    ends = [
        (int(member or 0), int(number))
        for file in checkpoints.rglob("epoch-*.safetensors")
        for member, number in re.findall(r"(?:member-(\d+)/)?epoch-(\d+)", file.as_posix())
    ]
    if not ends:
        return ""
    member, number = max(ends)
    several = f" of network {member + 1} of {config.num_networks}"
    told = f"epoch {number} of {config.training.epochs}"
    return told + several if config.num_networks > 1 else told


def _names(directory: Path) -> set[str]:
    try:
        return set(os.listdir(directory))
    except OSError:
        return set()
