"""One holder at a time, and no dead one that blocks: on file systems with locks and without."""

import errno
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from prudent import _locks
from prudent._locks import Busy, hold, holder
from prudent.errors import StoreError

pytestmark = pytest.mark.process

fcntl = pytest.importorskip("fcntl")

PROC = Path("/proc/nothing/run.lock")

SLEEPER = """
import sys, time
from pathlib import Path
from prudent import _locks
if sys.argv[2] == "without":
    import errno, fcntl
    def flock(*_): raise OSError(errno.ENOLCK, "no locks")
    fcntl.flock = flock
_locks.BEAT_SECONDS = 0.02
with _locks.hold(Path(sys.argv[1]), wait=False):
    print("held", flush=True)
    time.sleep(1000)
"""


@pytest.fixture(params=["with", "without"], autouse=True)
def flock(request, monkeypatch):
    """Whether the file system has locks."""

    def missing(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    if request.param == "without":
        monkeypatch.setattr(fcntl, "flock", missing)
    monkeypatch.setattr(_locks, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(_locks, "POLL_SECONDS", 0.01)
    return request.param


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves; nothing waits for it."""
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(
        _locks,
        "time",
        SimpleNamespace(monotonic=lambda: now.seconds, sleep=time.sleep, time=time.time),
    )
    return now


@pytest.fixture
def lock(tmp_path):
    return tmp_path / "work" / "run.lock"


@pytest.fixture
def sleeper(lock, flock):
    """Another process that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER, str(lock), flock], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    with process:
        yield process
        process.kill()


def test_one_holder_at_a_time(lock):
    assert holder(lock) is None
    with hold(lock, wait=False):
        assert set(holder(lock)) == {"host", "pid", "since"}
        assert holder(lock)["pid"] == os.getpid()
        with pytest.raises(Busy, match="another process works on run"), hold(lock, wait=False):
            pass
        assert holder(lock) is not None
    assert holder(lock) is None
    assert not any(lock.parent.iterdir())


def test_a_store_that_is_waited_for_is_named(tmp_path):
    """By its own name, not by the place where it is on this machine."""
    lock = tmp_path / "sims.zarr" / ".lock"
    named = pytest.raises(Busy, match="^another process works on sims.zarr.$")
    with hold(lock, wait=False), named, hold(lock, wait=False):
        pass


def test_those_who_wait_take_turns(lock):
    """Also while the directory goes away between them."""
    inside, most, counting = 0, 0, threading.Lock()

    def act(_):
        nonlocal inside, most
        with hold(lock, wait=True):
            with counting:
                inside += 1
                most = max(most, inside)
            time.sleep(0.01)
            with counting:
                inside -= 1
        try:
            lock.parent.rmdir()
        except OSError:
            pass

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(act, range(16)))
    assert most == 1


def test_a_lock_that_lost_its_name_is_not_one(lock, monkeypatch, flock):
    """On NFS a removed file that is open stays, under another name."""
    real, aside = fcntl.flock, lock.with_name(".nfs")

    def slow(*arguments):
        if not aside.exists():
            lock.rename(aside)
        return real(*arguments)

    monkeypatch.setattr(fcntl, "flock", slow)
    with hold(lock, wait=False):
        assert holder(lock)["pid"] == os.getpid()
        assert aside.read_bytes() == b""


def test_files_of_the_dead_do_not_block(lock):
    """Of this host, of another, with rubbish inside."""
    for text in ('{"host": "elsewhere", "pid": 1, "since": 0}', "", "\0rubbish"):
        lock.parent.mkdir(exist_ok=True)
        lock.write_text(text)
        assert holder(lock) is None
        with hold(lock, wait=False):
            assert holder(lock)["pid"] == os.getpid()


def test_a_killed_holder_is_taken_over(lock, sleeper, clock, flock):
    assert holder(lock)["pid"] == sleeper.pid
    with pytest.raises(Busy), hold(lock, wait=False):
        pass
    sleeper.kill()
    sleeper.wait()
    if flock == "without":
        assert holder(lock) is not None  # as far as anybody can tell
        clock.seconds += 1.1 * _locks.GRACE_SECONDS
    with hold(lock, wait=False):
        assert holder(lock)["pid"] == os.getpid()
    assert not any(lock.parent.iterdir())


def test_a_living_holder_is_not(lock, sleeper, clock, flock):
    for _ in range(5):
        assert holder(lock)["pid"] == sleeper.pid
        _one_beat(lock, flock)
        clock.seconds += 1.1 * _locks.GRACE_SECONDS
    with pytest.raises(Busy), hold(lock, wait=False):
        pass


def _one_beat(lock, flock):
    before = lock.with_suffix(".claim").read_bytes() if flock == "without" else b""
    while flock == "without" and lock.with_suffix(".claim").read_bytes() in (before, b""):
        time.sleep(0.01)


@pytest.mark.parametrize("text", ['{"pid": 1}', ""], ids=["signed", "killed before it signed"])
def test_who_waits_for_a_dead_one_gets_it(lock, monkeypatch, flock, text):
    lock.parent.mkdir()
    (lock if flock == "with" else lock.with_suffix(".claim")).write_text(text)
    minutes = itertools.count(step=60.0)
    monkeypatch.setattr(
        _locks,
        "time",
        SimpleNamespace(monotonic=lambda: next(minutes), sleep=time.sleep, time=time.time),
    )
    with hold(lock, wait=True):
        assert holder(lock)["pid"] == os.getpid()


def test_a_new_claim_in_place_of_a_dead_one_is_left_alone(tmp_path):
    path = tmp_path / "run.claim"
    path.write_bytes(json.dumps({"pid": 2}).encode())
    _locks._remove(path, b"of the dead one")
    assert json.loads(path.read_bytes()) == {"pid": 2}
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(StoreError, match="could not write .*run.lock: File exists"),
        hold(tmp_path / "file" / "run.lock", wait=True),
    ):
        pass


def test_a_place_where_nothing_can_be_made_is_no_endless_wait(flock):
    if not os.path.isdir("/proc/self"):
        pytest.skip("no /proc")
    with pytest.raises(StoreError, match="could not write /proc"), hold(PROC, wait=True):
        pass
