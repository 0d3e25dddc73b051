"""Finished runs on disk: all of a run or none of it.

A run is a directory. Its files are written to ``.work`` beside it, ``metrics.json`` last with the
checksums of the others, and then the directory takes its name in one step.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prudent._files import sha256, sync_directory, to_json, write_atomic
from prudent.errors import InputError, StoreError
from prudent.experiments.config import RunConfig
from prudent.history import History

if TYPE_CHECKING:
    from prudent.diagnostics.verdict import Verdict

__all__ = [
    "Run",
    "clear",
    "find",
    "finished",
    "forget_failure",
    "leftovers",
    "load_runs",
    "publish",
    "read",
    "seal",
    "tidy",
    "work",
]

ZEROS = 64 * "0"

logger = logging.getLogger("prudent")


@dataclass(frozen=True)
class Run:
    """A finished run, read from its directory.

    Args:
        path: The directory.
        config: What was run.
        metrics: Its scalars.
        coverage: ``levels``, ``curve``, ``lower`` and ``upper`` of the coverage curve.
        timing: Seconds and versions.
        files: The size and SHA-256 of each file.
    """

    path: Path
    config: RunConfig
    metrics: dict[str, Any]
    coverage: dict[str, list[float]]
    timing: dict[str, Any]
    files: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)

    @property
    def verdict(self) -> Verdict:
        """What the coverage curve of the run says."""
        from prudent.diagnostics.verdict import judge

        return judge(**self.coverage, num_pairs=self.metrics["num_pairs"], metrics=self.metrics)

    def file(self, name: str) -> bytes:
        """The contents of a file, which must be those that were stored with this run."""
        return _contents(self.path, name, self.files.get(name, {}).get("sha256"))

    def history(self) -> History:
        """What happened in each epoch of the training."""
        return History.from_jsonl(self.file("history.jsonl").decode())


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
        ours, theirs = config.to_dict(), run.config.to_dict()
        changed = {key for key in ours if ours[key] != theirs.get(key)}
        listing = ", ".join(f"{k}: {theirs.get(k)} there, {ours[k]} now" for k in sorted(changed))
        raise InputError(f"{path} holds another run ({listing}). Choose another output.")
    return run


def work(path: Path, suffix: str = "") -> Path:
    """Where the unfinished parts of a run are."""
    return path.parent / ".work" / f"{path.name}{suffix}"


def tidy(path: Path) -> None:
    """Remove the directory of unfinished parts, if others do not work there."""
    with contextlib.suppress(OSError):
        work(path).parent.rmdir()


def finished(path: Path) -> bool:
    """Whether a finished run is there, by a look at its last file alone."""
    try:
        with open(f"{path}/metrics.json", "rb") as file:
            data = file.read()
    except (OSError, ValueError):
        return False
    # Enough to tell a whole file from a part of one; who reads the run checks it in full.
    return b'"files"' in data and data.rstrip().endswith(b"}")


def leftovers(path: Path) -> bool:
    """Whether unfinished parts of a run are there."""
    return any(work(path, suffix).exists() for suffix in ("", ".checkpoint", ".lock", ".claim"))


def clear(path: Path) -> None:
    """Remove the unfinished parts of a run that is finished."""
    for suffix in ("", ".checkpoint"):
        shutil.rmtree(work(path, suffix), ignore_errors=True)
    tidy(path)


def forget_failure(path: Path) -> None:
    """Remove the record of an earlier failure."""
    shutil.rmtree(work(path), ignore_errors=True)


def publish(path: Path, files: Mapping[str, bytes], metrics: Mapping[str, Any]) -> None:
    """Make a finished run appear at a path."""
    unfinished = work(path)
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        for name, data in files.items():
            write_atomic(unfinished / name, data)
        listing = {name: {"sha256": sha256(d), "bytes": len(d)} for name, d in files.items()}
        write_atomic(unfinished / "metrics.json", seal({**metrics, "files": listing}))
        _take_name(unfinished, path)
        sync_directory(path.parent)
        tidy(path)
    except OSError as error:
        raise StoreError(f"could not write {path}: {error.strerror or error}.") from error


def seal(metrics: Mapping[str, Any]) -> bytes:
    """The contents of ``metrics.json``: its checksum is of itself with zeros in that place."""
    text = to_json({**metrics, "sha256": ZEROS})
    return text.replace(ZEROS.encode(), sha256(text).encode())


def _is_sealed(data: bytes, checksum: object) -> bool:
    if not isinstance(checksum, str) or len(checksum) != len(ZEROS):
        return False
    return sha256(data.replace(checksum.encode(), ZEROS.encode())) == checksum


def _take_name(unfinished: Path, path: Path) -> None:
    try:
        os.rename(unfinished, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not finished(path):
            raise
        # Without locks another process can be first; the two are the same but for their times.
        ours, theirs = read(unfinished), read(path)
        if (ours.config, ours.metrics) != (theirs.config, theirs.metrics):
            logger.warning("%s was finished by another process with other metrics.", path)
        shutil.rmtree(unfinished, ignore_errors=True)


def read(path: Path) -> Run:
    """Read a finished run; a file that does not match its checksum is refused."""
    data = _contents(path, "metrics.json", None)
    metrics = _parse(path, "metrics.json", data)
    checksum, listing = metrics.pop("sha256", None), metrics.get("files")
    if not isinstance(listing, dict):
        raise StoreError(f"{path / 'metrics.json'} lists no files; it was not written by prudent.")
    if not _is_sealed(data, checksum):
        raise _damaged(path, "metrics.json")
    del metrics["files"]
    parts = {}
    for name in ("config.json", "coverage.json", "timing.json"):
        known = str(listing.get(name, {}).get("sha256"))
        parts[name] = _parse(path, name, _contents(path, name, known))
    return Run(
        path=path,
        config=RunConfig.from_dict(parts["config.json"]),
        metrics=metrics,
        coverage=parts["coverage.json"],
        timing=parts["timing.json"],
        files=listing,
    )


def load_runs(directory: str | os.PathLike[str]) -> list[Run]:
    """All finished runs below a directory, or the one that it is, in a stable order."""
    root = Path(directory)
    if not root.is_dir():
        raise InputError(f"no directory {root}. Make runs with: prudent demo")
    if (root / "metrics.json").is_file():
        return [read(root)]
    found = sorted(p.parent for p in root.glob("*/metrics.json"))
    if not found:
        raise InputError(f"no finished runs in {root}. Make some with: prudent demo -o {root}")
    runs = [read(path) for path in found]
    return sorted(runs, key=lambda run: _order(run.config))


def _order(config: RunConfig) -> tuple[Any, ...]:
    order = ["nre", "bnre", "calnre", "npe", "bnpe", "calnpe"]
    return (config.problem, config.budget, order.index(config.method), config.seed, str(config))


def _contents(path: Path, name: str, checksum: str | None) -> bytes:
    try:
        data = (path / name).read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read {path / name}: {error.strerror}.") from error
    if checksum is not None and sha256(data) != checksum:
        raise _damaged(path, name)
    return data


def _parse(path: Path, name: str, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"cannot read {path / name}: {error}.") from error
    if not isinstance(value, dict):
        raise StoreError(f"{path / name} does not hold a JSON object.")
    return value


def _damaged(path: Path, name: str) -> StoreError:
    return StoreError(
        f"{path / name} does not match its checksum (damaged or edited). Restore it, or "
        f"delete {path} and run it again."
    )
