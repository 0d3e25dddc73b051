"""One writer per run, whatever is killed: locks that the system frees with their holder."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prudent.errors import StoreError
from prudent.experiments import store

__all__ = ["Busy", "claim", "holder"]

logger = logging.getLogger("prudent")


class Busy(StoreError):
    """Another process works on the run."""


@contextlib.contextmanager
def claim(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold a run for writing.

    Where the system has no locks two writers do the work twice, with the same result.

    Args:
        path: The directory of the run.
        wait: Wait for another process that holds it, or raise :class:`Busy`.
    """
    lock = store.work(path, ".lock")
    descriptor = _take(lock, wait=wait)
    try:
        yield
    finally:
        # Removed while it is held: who waited for it sees that, and takes the next one.
        with contextlib.suppress(OSError):
            lock.unlink()
        os.close(descriptor)
        store.tidy(path)


def holder(path: Path) -> dict[str, Any] | None:
    """Who holds a run (``host``, ``pid``, ``since``), or None if nobody does."""
    lock = store.work(path, ".lock")
    try:
        descriptor = os.open(lock, os.O_RDONLY)
    except OSError:
        return None
    try:
        if _lock(descriptor, shared=True):
            return None
        facts = json.loads(os.read(descriptor, 4096) or b"{}")
        return facts if isinstance(facts, dict) else {}
    except (OSError, ValueError):
        return {}
    finally:
        os.close(descriptor)


def _take(lock: Path, *, wait: bool) -> int:
    told = False
    while True:
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # somebody tidied up in between
            continue
        except OSError as error:
            raise StoreError(f"could not write {lock}: {error.strerror}.") from error
        try:
            if not _lock(descriptor):
                if not wait:
                    raise Busy(f"another process works on {lock.with_suffix('').name}.")
                if not told:
                    logger.warning("another process works on this run; waiting for it.")
                told = True
                _lock(descriptor, wait=True)
            if _same(descriptor, lock):
                _sign(descriptor)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, *, wait: bool = False, shared: bool = False) -> bool:
    """Whether the lock is ours now; on systems without locks it always is."""
    if sys.platform == "win32":
        return True
    import fcntl

    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _same(descriptor: int, lock: Path) -> bool:
    """Whether the file that we hold still has the name that others look at."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(lock))
    except OSError:
        return False


def _sign(descriptor: int) -> None:
    facts = {"host": platform.node(), "pid": os.getpid(), "since": round(time.time())}
    with contextlib.suppress(OSError):  # only for people to read
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(facts).encode())
