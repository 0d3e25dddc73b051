"""Claims for file systems without locks, such as some parallel ones.

A claim is a file that only one process can make. Its holder changes it every few seconds; who
finds it unchanged for two minutes of their own clock takes it for dead and removes it. Clocks of
different machines are never compared. A holder that was only asleep may then meet a second writer
of the same bytes, of which the first to finish counts.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from prudent.errors import StoreError

__all__ = ["claimed", "content", "held"]

BEAT_SECONDS = 10.0
GRACE_SECONDS = 120.0
POLL_SECONDS = 1.0

# What was last seen in a claim, and since when on our clock.
_seen: dict[Path, tuple[bytes, float]] = {}


@contextlib.contextmanager
def claimed(path: Path, facts: bytes, *, wait: bool) -> Iterator[bool]:
    """Hold a claim; yields whether it is ours.

    Args:
        path: The file of the claim.
        facts: Who we are, for people.
        wait: Wait for another holder, or yield False.
    """
    while not _make(path, facts):
        if held(path) and not wait:
            yield False
            return
        time.sleep(POLL_SECONDS if held(path) else 0.0)
    stop = threading.Event()
    beat = threading.Thread(target=_beat, args=(path, facts, stop), daemon=True)
    beat.start()
    try:
        yield True
    finally:
        stop.set()
        beat.join()
        with contextlib.suppress(OSError):
            path.unlink()


def held(path: Path) -> bool:
    """Whether a living process holds the claim; one that has been still for long is removed."""
    now, found = time.monotonic(), content(path)
    if found is None:
        _seen.pop(path, None)
        return False
    last, since = _seen.get(path, (b"", now))
    if found != last:
        _seen[path] = (found, now)
    elif now - since > GRACE_SECONDS:
        _remove(path, found)
        return False
    return True


def content(path: Path) -> bytes | None:
    """What is in a claim, or None if there is none."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def _make(path: Path, facts: bytes) -> bool:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(facts)
    except (FileExistsError, FileNotFoundError):  # held, or somebody tidied up in between
        return False
    except OSError as error:
        raise StoreError(f"could not write {path}: {error.strerror}.") from error
    return True


def _beat(path: Path, facts: bytes, stop: threading.Event) -> None:
    number = 0
    while not stop.wait(BEAT_SECONDS):
        number += 1
        with contextlib.suppress(OSError), path.open("r+b") as file:
            file.write(facts + f"\n{number}".encode())


def _remove(path: Path, stale: bytes) -> None:
    """Remove a dead claim, but not one that somebody made in its place."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(6)}")
    with contextlib.suppress(OSError):
        os.rename(path, aside)
        if content(aside) != stale:
            os.link(aside, path)
    with contextlib.suppress(OSError):
        aside.unlink()
    _seen.pop(path, None)
