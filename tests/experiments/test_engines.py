"""Workers: the same results as in this process, and a death is noticed by nobody else."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.process import BaseProcess

import pytest
from sweeping import GUARD, end, session, wait_for

from prudent.errors import StoreError
from prudent.experiments import RunConfig
from prudent.experiments._runner import Runner
from prudent.experiments.engines import WorkerDied, local
from prudent.experiments.engines.local import Local
from prudent.experiments.run import run_one as run
from prudent.experiments.store import failure, read
from prudent.training import Options

pytestmark = pytest.mark.process

# One parameter, because a diagnosis in more takes seconds.
TINY = Options(epochs=2, batch_size=32)
CONFIGS = [RunConfig("weinberg", m, 128, num_test=16, training=TINY) for m in ("npe", "calnre")]
NAMES = ("model.safetensors", "coverage.json", "history.jsonl", "config.json")


@pytest.mark.parametrize("start", ["spawn", local.START])
def test_workers_give_the_bytes_of_a_run_in_this_process(tmp_path, monkeypatch, start):
    monkeypatch.setattr(local, "START", start)
    rows = []
    root = tmp_path / "many"
    with Local(2) as engine:
        assert Runner(CONFIGS, root, engine, rows.append).run() == {}
    finished = [read(root / config.identity) for config in CONFIGS]
    assert [one.config for one in finished] == CONFIGS
    assert len([row for row in rows if "validation_loss" in row]) == 4
    assert any(row.get("stage") == "diagnosing" for row in rows)
    for one in finished:
        alone = run(one.config, tmp_path / "alone" / one.config.identity, progress=False)
        assert alone.metrics == one.metrics
        for name in NAMES:
            assert (alone.path / name).read_bytes() == (one.path / name).read_bytes()


@pytest.mark.skipif(sys.platform == "win32", reason="kills by signal")
def test_a_death_is_the_error_of_its_own_call_only():
    before = {*multiprocessing.active_children()}  # whatever other tests have left is not ours
    with Local(2) as engine:
        one, two = engine.submit(os.getpid), engine.submit(os.getpid)
        assert one.result(GUARD) != two.result(GUARD)
        killed = engine.submit(signal.raise_signal, signal.SIGKILL)
        other = engine.submit(os.getpid)
        assert other.result(GUARD) == two.result()
        with pytest.raises(WorkerDied, match="^signal 9$"):
            killed.result(GUARD)
        assert engine.submit(os.getpid).result(GUARD) not in (one.result(), two.result())
    assert wait_for(lambda: {*multiprocessing.active_children()} <= before)


def test_calls_beyond_the_number_of_workers_wait(tmp_path):
    with Local(2) as engine:
        futures = [engine.submit(divmod, number, 7) for number in range(20)]
        last = engine.submit(os.getpid)
        assert [future.result(GUARD) for future in futures] == [divmod(n, 7) for n in range(20)]
        assert last.result(GUARD) != os.getpid()
        with pytest.raises(ZeroDivisionError):
            engine.submit(divmod, 1, 0).result(GUARD)
        with pytest.raises(StoreError, match="pickle"):
            engine.submit(threading.Lock).result(GUARD)
        assert engine.submit(divmod, 9, 7).result(GUARD) == (1, 2)


def test_workers_see_the_directory_and_the_environment_of_their_time(tmp_path, monkeypatch):
    """Not those of the first sweep, though they are forked from a process of that time."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        monkeypatch.setenv("PRUDENT_TEST", name)
        with Local(1) as engine:
            assert engine.submit(os.getcwd).result(GUARD) == str(tmp_path / name)
            assert engine.submit(os.getenv, "PRUDENT_TEST").result(GUARD) == name


@pytest.mark.skipif(sys.platform == "win32", reason="kills by signal")
def test_calls_that_wait_for_a_worker_that_dies_are_given_up():
    with Local(1) as engine:
        killed, waiting = (
            engine.submit(signal.raise_signal, signal.SIGKILL),
            engine.submit(os.getpid),
        )
        for future in (killed, waiting):
            with pytest.raises(WorkerDied, match="^signal 9$"):
                future.result(GUARD)
        assert engine.submit(os.getpid).result(GUARD)


HANGS = """
import ctypes, pathlib
pathlib.Path("hangs").touch()
ctypes.PyDLL(None).sleep(100_000)  # with the lock of the interpreter, so that no thread can act
"""
PARENT = f"""
from prudent.experiments.engines.local import Local
with Local(1) as engine:
    engine.submit(exec, {HANGS!r}).result()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_worker_that_never_comes_back_ends_with_its_parent(tmp_path):
    words = [sys.executable, "-c", PARENT]
    parent = subprocess.Popen(words, cwd=tmp_path, start_new_session=True)
    try:
        assert wait_for((tmp_path / "hangs").exists)
        parent.kill()
        assert wait_for(lambda: not session(parent.pid))
    finally:
        end(parent)


def test_an_abandoned_call_makes_room():
    with Local(1) as engine:
        hanging = engine.submit(time.sleep, 1e6)
        engine.abandon(hanging)
        assert hanging.done()
        assert engine.submit(os.getpid).result(GUARD)


def test_a_worker_that_never_starts_is_given_up(tmp_path, monkeypatch):
    tried = []

    def start(process):
        tried.append(process)
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(BaseProcess, "start", start)
    with Local(1) as engine:
        failed = Runner(CONFIGS[:1], tmp_path, engine, lambda row: None).run()
    identity = CONFIGS[0].identity
    assert failed == {identity: "worker died (no exit code, 3 times)"}
    assert len(tried) == 3
    assert failure(tmp_path / identity) == failed[identity]


def test_the_same_run_twice_at_once_is_done_once(tmp_path, monkeypatch):
    """The second caller waits and reads what the first one made."""
    from concurrent.futures import ThreadPoolExecutor

    from prudent.experiments import run as module

    real, begun = module._train_and_diagnose, []
    monkeypatch.setattr(
        module, "_train_and_diagnose", lambda *args: (begun.append(args), real(*args))
    )
    path = tmp_path / CONFIGS[0].identity
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(run, CONFIGS[0], path, progress=False) for _ in range(2)]
        one, two = (future.result() for future in both)
    assert one == two
    assert len(begun) == 1
    assert not (tmp_path / ".work").exists()
