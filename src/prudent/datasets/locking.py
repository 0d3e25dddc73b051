"""One writer at a time, and no traces of those that were killed."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from prudent.datasets._layout import ARRAYS
from prudent.datasets.store import make_directory
from prudent.errors import StoreError

__all__ = ["locked"]

logger = logging.getLogger("prudent")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the store for writing; wait for another writer, and remove what a killed one left.

    Where the system has no locks two writers do the work twice and write the same bytes.
    """
    make_directory(path)
    try:
        descriptor = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise StoreError(f"could not write {path / '.lock'}: {error.strerror}.") from error
    try:
        if _lock(descriptor, path):
            _clean(path)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> bool:
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.warning("another process is simulating into %s; waiting for it.", path)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        return False
    return True


def _clean(path: Path) -> None:
    folders = [path, *(path / name for name in ("done", *ARRAYS))]
    files = [file for folder in folders if folder.is_dir() for file in folder.iterdir()]
    left = [file for file in files if file.is_file() and _temporary(file.name)]
    for file in left:
        with contextlib.suppress(OSError):
            file.unlink()
    if left:
        logger.info("removed %d unfinished files of a killed run from %s.", len(left), path)


def _temporary(name: str) -> bool:
    return name.endswith(".partial") or (name.startswith(".") and name.endswith(".tmp"))
