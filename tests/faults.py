"""Faults on purpose: crashes, kills, full disks, damaged files. Linux, no extra packages."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import resource
import signal
import sys
import time
import traceback
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

CRASHED, FAILED = 137, 99
WRITE_EVENTS = {
    "os.rename",
    "os.mkdir",
    "os.remove",
    "os.link",
    "os.symlink",
    "os.truncate",
    "shutil.rmtree",
}
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def peak_memory(action: Callable[[], Any]) -> int:
    """The most bytes that an action had allocated at once, whatever this process held before."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def in_child(action: Callable[[], None], log: Path | None = None) -> int:
    """Fork, act, leave; the child's process id. Exit code 99 if the action raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns about forks beside threads
        pid = os.fork()
    if pid:
        return pid
    try:
        action()
    except BaseException as error:
        if log is not None:
            log.write_text(f"{type(error).__name__}: {error}")
        else:
            traceback.print_exc()
        os._exit(FAILED)
    os._exit(0)


def in_session(action: Callable[[], None]) -> int:
    """The same in a session of its own, so that workers can be killed with it."""

    def alone() -> None:
        os.setsid()
        action()

    return in_child(alone)


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _is_write(event: str, arguments: tuple[object, ...]) -> bool:
    if event == "open":
        path, _, flags = arguments
        return not str(path).startswith("/dev/") and bool(int(flags or 0) & WRITE_FLAGS)
    return event in WRITE_EVENTS


def arm(number: int, fault: int | None, marker: int) -> None:
    """At the number-th write event of this process, crash (None) or fail with an errno.

    The marker is a descriptor that receives a byte: the code under test may survive the fault.
    """
    count = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if not _is_write(event, arguments):
            return
        count += 1
        if count == number:
            os.write(marker, b"x")
            if fault is None:
                os._exit(CRASHED)
            raise OSError(fault, os.strerror(fault))

    sys.addaudithook(hook)


def fault_points(
    prepare: Callable[[], None], action: Callable[[], None], log: Path, fault: int | None = None
) -> Iterator[tuple[int, int]]:
    """F1: the action with a fault at its first, second, ... write event, until none is left.

    Yields the number of the event and the child's exit code after each fault.
    """
    for number in range(1, 1000):
        prepare()
        log.unlink(missing_ok=True)
        marker = log.with_suffix(".reached")
        marker.unlink(missing_ok=True)

        def act(number: int = number, marker: Path = marker) -> None:
            reached = marker.open("w")  # opened before the hook counts
            arm(number, fault, reached.fileno())
            action()

        code = exit_code(in_child(act, log))
        if marker.stat().st_size == 0:
            assert code == 0, log.read_text() if log.exists() else code
            return
        yield number, code
    raise AssertionError("the action never ends")


held: dict[str, Any] = {}


def hold() -> None:
    """Wait, in a process that is to be killed when so much is done, for that."""
    while held and held["progress"]() >= held["target"]:
        time.sleep(0.005)


def killed_along_the_way(
    action: Callable[[], None], kills: Sequence[int], progress: Callable[[], int]
) -> list[int]:
    """F2: start the action, kill -9 it and its workers when so much is done, again and again.

    The action calls :func:`hold` now and then, so that kills find it at work on any machine. At
    last it may finish. Returns what was done after each kill that found it at work.
    """
    seen = []
    for target in kills:
        held.update(target=target, progress=progress)
        if killed_when(action, lambda target=target: progress() >= target, 0.0):
            seen.append(progress())
    held.clear()
    assert exit_code(in_session(action)) == 0
    return seen


def killed_when(action: Callable[[], None], condition: Callable[[], bool], delay: float) -> bool:
    """Kill -9 the action a moment after a condition holds; whether it was still at work."""
    pid = in_session(action)
    look = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while not condition() and os.waitid(os.P_PID, pid, look) is None:
        time.sleep(0.005)
    time.sleep(delay)
    # Just forked, it may not lead a group yet.
    while os.waitid(os.P_PID, pid, look) is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.005)
    return exit_code(pid) == -signal.SIGKILL


def file_size_limit(size: int) -> None:
    """F3: no file of this process grows beyond a size; a real short write."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def mutations(data: bytes, flips: int, seed: int = 0) -> Iterator[bytes]:
    """F4: truncations, an empty file, appended bytes, single flipped bits."""
    sizes = {0, len(data) - 1, len(data) // 2, *(2**k for k in range(12) if 2**k < len(data))}
    for size in sorted(sizes):
        yield data[:size]
    yield data + b"\0"
    places = range(8 * len(data))
    for place in random.Random(seed).sample(places, min(flips, len(places))):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        yield bytes(changed)


def tree_digest(directory: Path) -> dict[str, str]:
    """F6: every name below a directory, with the SHA-256 of what it holds."""
    return {
        str(path.relative_to(directory)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "directory"
        )
        for path in sorted(directory.rglob("*"))
    }
