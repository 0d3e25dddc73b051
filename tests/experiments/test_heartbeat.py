"""Claims where the file system has no locks: one writer, and no dead one that blocks."""

import errno
import fcntl
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from prudent.experiments import heartbeat
from prudent.experiments.locks import Busy, claim, holder

SLEEPER = """
import fcntl, errno, sys, time
from pathlib import Path
from prudent.experiments import heartbeat
def flock(*_): raise OSError(errno.ENOSYS, "no locks")
fcntl.flock = flock
heartbeat.BEAT_SECONDS = 0.1
from prudent.experiments.locks import claim
with claim(Path(sys.argv[1]), wait=False):
    print("held", flush=True)
    time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def _without_locks(monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(heartbeat, "GRACE_SECONDS", 2.0)
    monkeypatch.setattr(heartbeat, "POLL_SECONDS", 0.05)


def test_one_holder_at_a_time(tmp_path):
    path = tmp_path / "run"
    assert holder(path) is None
    with claim(path, wait=False):
        assert set(holder(path)) == {"host", "pid", "since"}
        with pytest.raises(Busy), claim(path, wait=False):
            pass
    assert holder(path) is None
    assert not (tmp_path / ".work").exists()


def test_those_who_wait_take_turns(tmp_path):
    inside, most, lock = 0, 0, threading.Lock()

    def act(_):
        nonlocal inside, most
        with claim(tmp_path / "run", wait=True):
            with lock:
                inside += 1
                most = max(most, inside)
            time.sleep(0.05)
            with lock:
                inside -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(act, range(8)))
    assert most == 1


def test_a_killed_holder_is_taken_over_and_a_living_one_is_not(tmp_path):
    path = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER, str(path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "held\n"
        assert holder(path)["pid"] == process.pid
        begun = time.monotonic()
        while time.monotonic() - begun < 3.0:  # longer than the grace: its heart beats
            assert holder(path) is not None
            time.sleep(0.1)
    finally:
        process.kill()
        process.communicate()
    begun = time.monotonic()
    with claim(path, wait=True):
        assert 1.0 < time.monotonic() - begun < 30.0
    assert not (tmp_path / ".work").exists()


def test_a_new_claim_in_place_of_a_dead_one_is_left_alone(tmp_path):
    path = tmp_path / "run.claim"
    path.write_bytes(json.dumps({"pid": 2}).encode())
    heartbeat._remove(path, b"of the dead one")
    assert json.loads(path.read_bytes()) == {"pid": 2}
    assert list(tmp_path.iterdir()) == [path]
