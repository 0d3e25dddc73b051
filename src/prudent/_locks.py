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
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from prudent.errors import StoreError

BEAT_SECONDS = 10.0
GRACE_SECONDS = 120.0
POLL_SECONDS = 0.2
# Directories can vanish while they are made, but not so often.
MOST_TRIES = 1000
NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}

logger = logging.getLogger("prudent")
# What was last seen in a claim, and since when on our clock.
_seen: dict[Path, tuple[bytes, float]] = {}


class Busy(StoreError):
    """Another process holds the lock."""


@contextlib.contextmanager
def hold(file: Path, *, wait: bool) -> Iterator[None]:
    """Holds the lock that a file stands for, which is made with its directory, and removed.

    With ``wait`` another holder is waited for, otherwise it is a reason to raise :class:`Busy`.
    """
    taken = f"another process works on {file.name.removesuffix('.lock') or file.parent.name}"
    told = False
    try:
        while (release := _take(file)) is None:
            if not wait:
                raise Busy(f"{taken}.")
            if not told:
                logger.warning("%s; waiting for it.", taken)
                told = True
            time.sleep(POLL_SECONDS)
    except OSError as error:
        raise StoreError(f"could not write {file}: {error.strerror}.") from error
    with release:
        yield


def holder(file: Path) -> dict[str, Any] | None:
    """The ``host``, ``pid`` and ``since`` of who holds a lock, or None if nobody does."""
    try:
        if (data := _living(_claim(file))) is None:
            import fcntl

            with file.open("rb") as opened:
                try:  # a shared lock, which needs no right to write
                    fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    return None
                except BlockingIOError:
                    data = opened.read(4096)
        facts = json.loads(data.split(b"\n")[0])
    except (OSError, ImportError):  # nobody, or not to be known on this system
        return None
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _take(file: Path) -> ExitStack | None:
    """Makes one attempt at a lock; returns what releases it, or None if another holds it."""
    who = {"host": platform.node(), "pid": os.getpid(), "since": round(time.time())}
    facts = json.dumps(who).encode()

    def sign(descriptor: int) -> None:
        # Some file systems keep the file of a holder that has gone under another name.
        if not os.path.samestat(os.fstat(descriptor), os.stat(file)):
            raise FileNotFoundError
        with contextlib.suppress(OSError):  # only for people to read
            os.ftruncate(descriptor, 0)
            os.write(descriptor, facts)

    lock = FileLock(file, fallback_to_soft=False, thread_local=False, on_acquired=sign)
    tries = 0
    while not lock.is_locked:
        tries += 1
        try:
            lock.acquire(blocking=False)
        except Timeout:
            return None
        except FileNotFoundError:  # somebody tidied up in between, or nothing can be made there
            if tries < MOST_TRIES:
                continue
            raise
        except OSError as error:
            # The directory vanished while it was made; a file in its place is another matter.
            if isinstance(error, FileExistsError) and not file.parent.is_file():
                continue
            if error.errno not in NO_LOCKS:
                raise
            file.unlink(missing_ok=True)
            return _take_claim(_claim(file), facts)
    release = ExitStack()
    release.callback(lock.release)
    # Removed first, while it is held: who waited for it sees that, and takes the next one.
    release.callback(_unlink, file)
    return release


def _take_claim(claim: Path, facts: bytes) -> ExitStack | None:
    if _living(claim) is not None:
        return None
    try:
        with claim.open("xb") as opened:
            opened.write(facts)
    except (FileExistsError, FileNotFoundError):  # somebody was faster, or tidied up in between
        return None
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError), claim.open("r+b") as opened:
                opened.write(facts + f"\n{secrets.token_hex(6)}".encode())

    heart = threading.Thread(target=beat, daemon=True)
    heart.start()
    release = ExitStack()  # in reverse: stop, wait, remove
    release.callback(_unlink, claim)
    release.callback(heart.join)
    release.callback(stop.set)
    return release


def _living(claim: Path) -> bytes | None:
    """The contents of a claim that has a living holder, or None; a dead claim is removed."""
    try:
        found = claim.read_bytes()
    except OSError:
        return None
    last, since = _seen.get(claim, (None, 0.0))
    if found != last:
        _seen[claim] = found, time.monotonic()
    elif time.monotonic() - since > GRACE_SECONDS:
        _remove(claim, found)
        return None
    return found


def _remove(claim: Path, dead: bytes) -> None:
    """Removes a dead claim, but not one that somebody made in its place."""
    aside = claim.with_name(f"{claim.name}.{secrets.token_hex(6)}")
    with contextlib.suppress(OSError):
        os.rename(claim, aside)
        if aside.read_bytes() != dead:
            os.link(aside, claim)
    _unlink(aside)


def _unlink(file: Path) -> None:
    with contextlib.suppress(OSError):
        file.unlink()


def _claim(file: Path) -> Path:
    """The file that stands for a lock where there are none."""
    return file.with_name(f"{file.name.removesuffix('.lock')}.claim")
