"""Runs in worker processes: the same results, and nobody left behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from prudent.errors import StoreError
from prudent.experiments import RunConfig
from prudent.experiments.engines import run_all
from prudent.experiments.run import run
from prudent.training import Options

TINY = Options(epochs=2, batch_size=32)
CONFIGS = [RunConfig("gaussian", m, 128, num_test=32, training=TINY) for m in ("nre", "calnre")]

LONG = """
from pathlib import Path
from prudent.errors import StoreError
from prudent.experiments import RunConfig
from prudent.experiments.engines import run_all
from prudent.training import Options
if __name__ == "__main__":
    options = Options(epochs=100000, batch_size=32)
    configs = [RunConfig("gaussian", m, 128, training=options) for m in ("nre", "bnre")]
    run_all(configs, Path("runs"), workers=2, progress=False)
"""


def test_workers_give_the_bytes_of_a_run_in_this_process(tmp_path):
    rows = []
    finished = run_all(CONFIGS, tmp_path / "many", workers=2, progress=rows.append)
    assert [one.config for one in finished] == CONFIGS
    assert len([row for row in rows if "validation_loss" in row]) == 4
    assert any(row.get("stage") == "diagnosing" for row in rows)
    number = len(rows)
    for one in finished:
        alone = run(one.config, tmp_path / "alone" / one.config.identity, progress=False)
        for name in ("model.safetensors", "coverage.json", "history.jsonl", "config.json"):
            assert (alone.path / name).read_bytes() == (one.path / name).read_bytes()
    assert run_all(CONFIGS, tmp_path / "many", progress=rows.append) == finished
    assert len(rows) == number


def children(parent):
    """Process ids of the living children that run our workers."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z" and b"spawn_main" in command:
            found.append(int(entry.name))
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def sweep(tmp_path):
    script = tmp_path / "long.py"
    script.write_text(LONG)
    process = subprocess.Popen(
        [sys.executable, str(script)], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    # Both workers are training, not still importing.
    assert wait_for(lambda: len(list(tmp_path.rglob("*.checkpoint"))) == 2, 120)
    yield process
    workers = children(process.pid)
    process.kill()
    process.communicate()
    for worker in workers:
        if alive(worker):
            os.kill(worker, signal.SIGKILL)


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_a_worker_that_dies_while_the_pool_starts_leaves_nobody_behind(tmp_path, monkeypatch):
    """The second submission fails as it does then, while the first worker has a long run."""
    real, calls = ProcessPoolExecutor.submit, []

    def submit(pool, *arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise BrokenPipeError(32, "Broken pipe")
        return real(pool, *arguments)

    monkeypatch.setattr(ProcessPoolExecutor, "submit", submit)
    options = Options(epochs=100_000, batch_size=32)
    configs = [RunConfig("gaussian", m, 128, training=options) for m in ("nre", "bnre")]
    with pytest.raises(StoreError, match="a worker process died"):
        run_all(configs, tmp_path, workers=2, progress=False)
    assert wait_for(lambda: not multiprocessing.active_children(), 5)


@linux
def test_workers_die_with_a_killed_parent(sweep):
    workers = children(sweep.pid)
    sweep.kill()
    sweep.wait()
    assert wait_for(lambda: not any(alive(worker) for worker in workers), 5)


@linux
def test_a_dead_worker_is_an_error_with_advice(sweep, tmp_path):
    os.kill(children(sweep.pid)[0], signal.SIGKILL)
    _, text = sweep.communicate(timeout=60)
    assert sweep.returncode != 0
    # The standard library may add a warning about semaphores of the dead worker.
    errors = [line for line in text.splitlines() if line.startswith("prudent.errors")]
    assert len(errors) == 1
    assert "a worker process died" in errors[0]
    assert not list((tmp_path / "runs").glob("*/metrics.json"))
