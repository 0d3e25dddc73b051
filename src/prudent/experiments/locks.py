"""One writer per run, whatever is killed: locks that the system frees with their holder.

Where the file system has none, :mod:`prudent.experiments.heartbeat` takes their place.
"""

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
from prudent.experiments import heartbeat, store

__all__ = ["Busy", "claim", "holder"]

logger = logging.getLogger("prudent")


class Busy(StoreError):
    """Another process works on the run."""


@contextlib.contextmanager
def claim(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold a run for writing.

    Args:
        path: The directory of the run.
        wait: Wait for another process that holds it, or raise :class:`Busy`.
    """
    lock = store.work(path, ".lock")
    descriptor = _take(lock, wait=wait)
    try:
        if descriptor is None:
            facts = json.dumps(_facts()).encode()
            with heartbeat.claimed(_claim(lock), facts, wait=wait) as ours:
                if not ours:
                    raise _busy(lock)
                yield
        else:
            yield
    finally:
        # Removed while it is held: who waited for it sees that, and takes the next one.
        with contextlib.suppress(OSError):
            lock.unlink()
        if descriptor is not None:
            os.close(descriptor)
        store.tidy(path)


def holder(path: Path) -> dict[str, Any] | None:
    """Who holds a run (``host``, ``pid``, ``since``), or None if nobody does."""
    lock = store.work(path, ".lock")
    if heartbeat.held(_claim(lock)):
        return _parse(heartbeat.content(_claim(lock)) or b"")
    try:
        descriptor = os.open(lock, os.O_RDONLY)
    except OSError:
        return None
    try:
        if _lock(descriptor, shared=True) is not False:
            return None
        return _parse(os.read(descriptor, 4096))
    except OSError:
        return {}
    finally:
        os.close(descriptor)


def _claim(lock: Path) -> Path:
    """The file that stands for a lock where there are none."""
    return lock.with_suffix(".claim")


def _parse(data: bytes) -> dict[str, Any]:
    try:
        facts = json.loads(data.split(b"\n")[0])
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _busy(lock: Path) -> Busy:
    return Busy(f"another process works on {lock.with_suffix('').name}.")


def _take(lock: Path, *, wait: bool) -> int | None:
    """The locked file, or None where the file system has no locks."""
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
            ours = _lock(descriptor)
            if ours is False:
                if not wait:
                    raise _busy(lock)
                if not told:
                    logger.warning("another process works on this run; waiting for it.")
                told = True
                _lock(descriptor, wait=True)
            if ours is not None and _same(descriptor, lock):
                _sign(descriptor)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if ours is None:
            return None


def _lock(descriptor: int, *, wait: bool = False, shared: bool = False) -> bool | None:
    """Whether the lock is ours now; None where there are no locks."""
    if sys.platform == "win32":
        return None
    import fcntl

    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _same(descriptor: int, lock: Path) -> bool:
    """Whether the file that we hold still has the name that others look at."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(lock))
    except OSError:
        return False


def _facts() -> dict[str, Any]:
    return {"host": platform.node(), "pid": os.getpid(), "since": round(time.time())}


def _sign(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # only for people to read
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(_facts()).encode())
