"""One writer at a time, whatever is killed: locks that the system frees with their holder.

Where the file system has none, as on some parallel ones, a claim takes their place: a file that
only one process can make and that its holder changes every few seconds. Whoever finds it unchanged
for two minutes of their own clock takes the holder for dead and removes it; clocks of different
machines are never compared. A holder that was only asleep may then meet a second writer of the
same bytes, of which the first to finish counts. (The leases of filelock do not serve here: where
names cannot be exchanged, as on NFS, it never frees those of the dead.)
"""

import contextlib
import errno
import json
import logging
import os
import platform
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout, lock_descriptor

from prudent.errors import StoreError

BEAT_SECONDS = 10.0
GRACE_SECONDS = 120.0
POLL_SECONDS = 0.2
NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}

logger = logging.getLogger("prudent")
# What was last seen in a claim, and since when on our clock.
_seen: dict[Path, tuple[bytes, float]] = {}


class Busy(StoreError):
    """Another process holds the lock."""


@contextlib.contextmanager
def hold(file: Path, *, wait: bool) -> Iterator[None]:
    """Holds a lock inside a ``with`` statement.

    Args:
        file: The file that stands for the lock. It is made with its directory, and removed.
        wait: Whether to wait for another holder instead of raising :class:`Busy`.
    """
    told = False
    try:
        while (release := _take(file)) is None:
            if not wait:
                raise Busy(f"another process works on {_name(file)}.")
            if not told:
                logger.warning("another process works on %s; waiting for it.", _name(file))
                told = True
            time.sleep(POLL_SECONDS)
    except OSError as error:
        raise StoreError(f"could not write {file}: {error.strerror}.") from error
    try:
        yield
    finally:
        release()


def holder(file: Path) -> dict[str, Any] | None:
    """The ``host``, ``pid`` and ``since`` of who holds a lock, or None if nobody does."""
    claim = _claim(file)
    try:
        if _is_alive(claim):
            return _parse(claim.read_bytes())
        with file.open("rb") as opened:
            return _parse(opened.read(4096)) if _is_locked(opened.fileno()) else None
    except OSError:
        return None


def _take(file: Path) -> Callable[[], None] | None:
    """Makes one attempt at a lock; returns what releases it, or None if another holds it."""

    def sign(descriptor: int) -> None:
        # Some file systems keep the file of a holder that has gone under another name.
        if not os.path.samestat(os.fstat(descriptor), os.stat(file)):
            raise FileNotFoundError
        with contextlib.suppress(OSError):  # only for people to read
            os.ftruncate(descriptor, 0)
            os.write(descriptor, _facts())

    lock = FileLock(file, fallback_to_soft=False, thread_local=False, on_acquired=sign)
    while not lock.is_locked:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            return None
        except FileNotFoundError:  # somebody tidied up in between
            continue
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            file.unlink(missing_ok=True)
            return _take_claim(_claim(file))

    def release() -> None:
        # Removed while it is held: who waited for it sees that, and takes the next one.
        with contextlib.suppress(OSError):
            file.unlink()
        lock.release()

    return release


def _take_claim(file: Path) -> Callable[[], None] | None:
    facts = _facts()
    if _is_alive(file):
        return None
    try:
        with file.open("xb") as opened:
            opened.write(facts)
    except (FileExistsError, FileNotFoundError):  # somebody was faster, or tidied up in between
        return None
    stop = threading.Event()
    heart = threading.Thread(target=_beat, args=(file, facts, stop), daemon=True)
    heart.start()

    def release() -> None:
        stop.set()
        heart.join()
        with contextlib.suppress(OSError):
            file.unlink()

    return release


def _beat(file: Path, facts: bytes, stop: threading.Event) -> None:
    number = 0
    while not stop.wait(BEAT_SECONDS):
        number += 1
        with contextlib.suppress(OSError), file.open("r+b") as opened:
            opened.write(facts + f"\n{number}".encode())


def _is_alive(claim: Path) -> bool:
    """Whether a claim has a living holder; one that has been still for long is removed."""
    now = time.monotonic()
    try:
        found = claim.read_bytes()
    except OSError:
        _seen.pop(claim, None)
        return False
    last, since = _seen.get(claim, (b"", now))
    if found != last:
        _seen[claim] = (found, now)
    elif now - since > GRACE_SECONDS:
        _remove(claim, found)
        return False
    return True


def _remove(claim: Path, dead: bytes) -> None:
    """Removes a dead claim, but not one that somebody made in its place."""
    aside = claim.with_name(f"{claim.name}.{secrets.token_hex(6)}")
    with contextlib.suppress(OSError):
        os.rename(claim, aside)
        if aside.read_bytes() != dead:
            os.link(aside, claim)
    with contextlib.suppress(OSError):
        aside.unlink()
    _seen.pop(claim, None)


def _is_locked(descriptor: int) -> bool:
    """Whether somebody holds the lock of an open file."""
    if sys.platform == "win32":
        return not lock_descriptor(descriptor, blocking=False)
    import fcntl

    try:
        # Shared, which needs no right to write.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def _claim(file: Path) -> Path:
    """The file that stands for a lock where there are none."""
    return file.with_name(f"{file.name.removesuffix('.lock')}.claim")


def _name(file: Path) -> str:
    return file.name.removesuffix(".lock") or str(file.parent)


def _facts() -> bytes:
    facts = {"host": platform.node(), "pid": os.getpid(), "since": round(time.time())}
    return json.dumps(facts).encode()


def _parse(data: bytes) -> dict[str, Any]:
    try:
        facts = json.loads(data.split(b"\n")[0])
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}
