"""One attempt at a run in a worker process: whatever happens becomes an outcome.

Nothing heavy is imported before the work begins, so that the process that hands out the runs stays
small.
"""

from __future__ import annotations

import errno
import traceback
from dataclasses import dataclass
from pathlib import Path

from prudent._files import to_json, write_atomic
from prudent._progress import Reporter
from prudent.errors import one_line
from prudent.experiments import store
from prudent.experiments.config import RunConfig
from prudent.experiments.locks import Busy, claim

__all__ = ["Outcome", "attempt", "failure", "record_failure"]

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
ERROR = "error.txt"


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended.

    Args:
        state: ``done``, ``failed``, ``busy`` (another process has it) or ``full`` (the disk).
        reason: One line, if it was not done.
    """

    state: str
    reason: str = ""


def attempt(config: RunConfig, root: Path, progress: Reporter) -> Outcome:
    """Run a config unless another process does; its errors are stored, not raised.

    Args:
        config: What to run.
        root: The directory of all runs.
        progress: Receives rows of figures.
    """
    path = root / config.identity
    try:
        with claim(path, wait=False):
            return _attempt(config, path, progress)
    except Busy:
        return Outcome("busy")


def _attempt(config: RunConfig, path: Path, progress: Reporter) -> Outcome:
    try:
        from prudent.experiments.run import run_claimed

        run_claimed(config, path, progress)
    except (Exception, SystemExit) as error:
        reason = one_line(error)
        if _disk_is_full(error):
            return Outcome("full", reason)
        record_failure(config, path, reason, traceback.format_exc())
        return Outcome("failed", reason)
    return Outcome("done")


def record_failure(config: RunConfig, path: Path, reason: str, details: str = "") -> None:
    """Keep why a run failed; the next attempt removes it."""
    directory = store.work(path)
    directory.mkdir(parents=True, exist_ok=True)
    write_atomic(directory / "config.json", to_json(config.to_dict()))
    text = f"{reason}\n\n{config}\n\n{details}"
    write_atomic(directory / ERROR, text.encode("utf-8", "replace"))


def failure(path: Path) -> str | None:
    """Why the last attempt at a run failed, or None if it did not."""
    try:
        with (store.work(path) / ERROR).open(encoding="utf-8", errors="replace") as file:
            return file.readline(500).strip() or "no reason given"
    except OSError:
        return None


def _disk_is_full(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        error = error.__cause__ or error.__context__
    return False
