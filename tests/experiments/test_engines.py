"""Workers: the same results as in this process, and a death is noticed by nobody else."""

import multiprocessing
import os
import signal
import sys
from concurrent.futures import ProcessPoolExecutor

import pytest
from sweeping import wait_for

from prudent.experiments import RunConfig
from prudent.experiments._runner import Runner
from prudent.experiments.engines import WorkerDied
from prudent.experiments.engines.local import Local
from prudent.experiments.run import run_one as run
from prudent.experiments.store import failure, read
from prudent.training import Options

pytestmark = pytest.mark.process

# One parameter, because a diagnosis in more takes seconds.
TINY = Options(epochs=2, batch_size=32)
CONFIGS = [RunConfig("weinberg", m, 128, num_test=16, training=TINY) for m in ("npe", "calnre")]
NAMES = ("model.safetensors", "coverage.json", "history.jsonl", "config.json")


def test_workers_give_the_bytes_of_a_run_in_this_process(tmp_path):
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
    with Local(2) as engine:
        one, two = engine.submit(os.getpid), engine.submit(os.getpid)
        assert one.result(60) != two.result(60)
        killed = engine.submit(signal.raise_signal, signal.SIGKILL)
        other = engine.submit(os.getpid)
        assert other.result(60) == two.result()
        with pytest.raises(WorkerDied, match="^signal 9$"):
            killed.result(60)
        assert engine.submit(os.getpid).result(60) not in (one.result(), two.result())
    assert wait_for(lambda: not multiprocessing.active_children())


def test_a_worker_that_never_starts_is_given_up(tmp_path, monkeypatch):
    tried = []

    def submit(pool, *arguments):
        tried.append(arguments)
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(ProcessPoolExecutor, "submit", submit)
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
