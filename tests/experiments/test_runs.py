"""Runs: identity, atomic appearance, reuse, refusal of what is damaged or different."""

import dataclasses
import errno
import json
import os
import shutil
import sys

import pytest
import torch

import prudent
from faults import CRASHED, fault_points, mutations
from prudent._files import to_json, write_atomic
from prudent.datasets.simulate import draw_pairs
from prudent.errors import InputError, StoreError
from prudent.experiments import RunConfig, load_runs
from prudent.experiments._runner import attempt
from prudent.experiments.launch import LaunchOptions, Overview, launch
from prudent.experiments.run import diagnose_run
from prudent.experiments.run import run_one as run
from prudent.experiments.store import failure, publish, states
from prudent.experiments.sweep import Sweep
from prudent.training import Options
from prudent.training.methods import METHODS

# One parameter, because a diagnosis in more takes seconds.
TINY = RunConfig("weinberg", "nre", 128, num_test=16, training=Options(epochs=2, batch_size=32))
FILES = {
    "config.json",
    "coverage.json",
    "data.json",
    "history.jsonl",
    "metrics.json",
    "model.safetensors",
    "timing.json",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / TINY.identity
    return run(TINY, path, progress=False)


def test_a_run_leaves_all_its_files_and_no_others(finished):
    assert {path.name for path in finished.path.iterdir()} == FILES
    assert not (finished.path.parent / ".work").exists()
    assert finished.config == TINY
    assert finished.metrics["num_pairs"] == 16
    assert len(finished.coverage["levels"]) == 99
    rows = [json.loads(s) for s in (finished.path / "history.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2]
    assert "seconds" not in rows[0]


def test_the_same_config_gives_the_same_bytes(finished, tmp_path):
    again = run(TINY, tmp_path / "again", progress=False)
    for name in FILES - {"timing.json"}:
        assert (again.path / name).read_bytes() == (finished.path / name).read_bytes(), name
    assert again.metrics == finished.metrics


def test_a_finished_run_is_read_not_repeated(finished, monkeypatch):
    monkeypatch.setattr("prudent.experiments.run.fit", None)
    before = {path.name: path.stat().st_mtime_ns for path in finished.path.iterdir()}
    assert run(TINY, finished.path, progress=False).metrics == finished.metrics
    assert {path.name: path.stat().st_mtime_ns for path in finished.path.iterdir()} == before


def test_another_config_in_the_same_place_is_refused(finished):
    other = dataclasses.replace(TINY, seed=1)
    with pytest.raises(InputError, match="seed: 0 there, 1 now"):
        run(other, finished.path, progress=False)


def test_a_directory_of_something_else_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="not a finished run"):
        run(TINY, tmp_path, progress=False)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.slow
def test_a_crash_before_the_end_leaves_no_run(tmp_path, monkeypatch):
    """At every file: the run is absent, and the next attempt finishes it."""
    for stop_at in range(1, len(FILES) + 1):
        path = tmp_path / str(stop_at) / "run"
        written = []

        def crash(target, data, written=written, stop_at=stop_at):
            written.append(target)
            if len(written) == stop_at:
                raise KeyboardInterrupt
            write_atomic(target, data)

        with monkeypatch.context() as patch:
            patch.setattr("prudent.experiments.store.write_atomic", crash)
            with pytest.raises(KeyboardInterrupt):
                run(TINY, path, progress=False)
        assert not path.exists()
    assert set(os.listdir(run(TINY, path, progress=False).path)) == FILES


def quickly(config, path, progress=None, num_simulations=None, inputs=None):
    """Take the place of the work, which is tested elsewhere."""
    if config.seed == 1:
        raise OverflowError("no luck")
    files = {"config.json": to_json(config.to_dict()), "coverage.json": b"{}\n"}
    publish(path, files, {"auc": 0.1}, {})


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="forks")
@pytest.mark.parametrize("fault", [None, errno.ENOSPC, errno.EROFS], ids=str)
@pytest.mark.parametrize("seed", [0, 1], ids=["a run", "a run that fails"])
def test_a_fault_at_any_write_of_an_attempt_is_survived(tmp_path, monkeypatch, seed, fault):
    monkeypatch.setattr("prudent.experiments.run._train_and_diagnose", quickly)
    config = dataclasses.replace(TINY, seed=seed)
    root = tmp_path / "runs"
    path = root / config.identity

    def prepare():
        shutil.rmtree(root, ignore_errors=True)

    def act():
        attempt(config, root)

    expected, number = "failed" if seed else "done", 0
    for _, code in fault_points(prepare, act, tmp_path / "log", fault):
        assert fault is not None or code == CRASHED
        number += 1
        before = states([config], root)[0].state
        assert before in ({"done"} if path.exists() else {"left", "interrupted", "failed"})
        assert attempt(config, root).state == expected
        assert states([config], root, verify=True)[0].state == expected
        assert (failure(path) == "OverflowError: no luck") == bool(seed)
        assert seed or not (root / ".work").exists()
    assert number >= 5


@pytest.mark.parametrize("name", ["config.json", "coverage.json", "metrics.json", "timing.json"])
def test_any_damage_is_noticed(finished, tmp_path, name):
    for source in finished.path.iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    load_runs(tmp_path)
    number = 0
    for damaged in mutations((finished.path / name).read_bytes(), 1000):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(StoreError):
            load_runs(tmp_path)
        number += 1
    assert number > 1000


@pytest.mark.parametrize("name", ["model.safetensors", "history.jsonl"])
def test_a_file_of_another_run_is_noticed(finished, tmp_path, name):
    other = run(dataclasses.replace(TINY, seed=1), tmp_path / "other", progress=False)
    (other.path / name).write_bytes((finished.path / name).read_bytes())
    with pytest.raises(StoreError, match=f"{name} does not match its checksum"):
        other.history() if name == "history.jsonl" else diagnose_run(other.path, 10, 0)


class Stop(BaseException):
    pass


def test_a_run_continues_from_its_checkpoint(finished, tmp_path, monkeypatch):
    monkeypatch.setattr("prudent.training.checkpoint.LONGEST_SECONDS", 0.0)

    def stop(row):
        raise Stop

    path = tmp_path / "run"
    with pytest.raises(Stop):
        run(TINY, path, progress=stop)
    assert not path.exists()
    assert len(list((tmp_path / ".work").glob("run.checkpoint/*"))) == 1
    epochs = []
    again = run(TINY, path, progress=lambda row: epochs.append("validation_loss" in row))
    assert sum(epochs) == 1
    assert again.metrics == finished.metrics
    assert again.file("model.safetensors") == finished.file("model.safetensors")
    assert not (tmp_path / ".work").exists()


def test_a_checkpoint_left_beside_a_finished_run_is_removed(finished, tmp_path):
    """A kill between publishing and cleaning up."""
    path = tmp_path / "run"
    run(TINY, path, progress=False)
    left = tmp_path / ".work" / "run.checkpoint"
    left.mkdir(parents=True)
    run(TINY, path, progress=False)
    assert not left.exists()


def test_a_sweep_removes_what_a_kill_left_beside_a_finished_run(tmp_path):
    path = tmp_path / TINY.identity
    quickly(TINY, path)
    left = tmp_path / ".work" / f"{TINY.identity}.checkpoint"
    left.mkdir(parents=True)
    (tmp_path / ".work" / f"{TINY.identity}.lock").touch()
    plan = Sweep("mine", (TINY,), 0, "mine.toml", {})
    found = states([TINY], tmp_path)
    assert launch(Overview(plan, tmp_path, LaunchOptions(), found)).counts["done"] == 1
    assert not (tmp_path / ".work").exists()


def test_loading(finished, tmp_path):
    assert load_runs(finished.path.parent)[0] == load_runs(finished.path)[0] == finished
    with pytest.raises(InputError, match="no finished runs"):
        load_runs(tmp_path)
    with pytest.raises(InputError, match="no directory"):
        load_runs(tmp_path / "missing")


def test_methods_come_in_the_order_of_their_table(tmp_path, monkeypatch):
    """Also those that somebody else added."""
    new = dataclasses.replace(METHODS["npe"], weight=1.0)
    monkeypatch.setitem(METHODS, "anew", new)
    expected = list(METHODS)
    for name in sorted(expected):
        config = dataclasses.replace(TINY, method=name)
        quickly(config, tmp_path / config.identity)
    assert [one.config.method for one in load_runs(tmp_path)] == expected


def test_a_stored_estimator_can_be_diagnosed_again(finished):
    result = diagnose_run(finished.path, 16, seed=0, progress=False)
    assert result.metrics() == {k: finished.metrics[k] for k in result.metrics()}
    assert diagnose_run(finished.path, 16, seed=5, progress=False).auc != result.auc


def test_test_pairs_are_not_training_pairs():
    problem = prudent.problems.get("gaussian")
    budget, test = draw_pairs(problem, 1000, 0).theta, problem.draw(1000, 0, "test")[0]
    assert not (budget[:, None] == test[None]).all(-1).any()


def test_identity():
    """Every setting is part of it; `identities.json` pins the values themselves."""
    assert TINY.identity == RunConfig.from_settings(TINY.to_dict()).identity
    others = [
        dataclasses.replace(TINY, training=Options(epochs=3, batch_size=32)),
        dataclasses.replace(TINY, problem="slcp"),
        dataclasses.replace(TINY, budget=129),
    ]
    assert len({TINY.identity, *(other.identity for other in others)}) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"problem": "gausian"}, "Did you mean `gaussian`"),
        ({"method": "nr"}, "Did you mean `nre`"),
        ({"budget": 0}, "`budget` is 0"),
        ({"budget": 1.5}, "`budget` is 1.5"),
        ({"seed": -1}, "`seed` is -1"),
        ({"threads": 0}, "`threads` is 0"),
    ],
)
def test_a_wrong_config_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        RunConfig(**{"problem": "gaussian", "method": "nre", "budget": 128, **change})


@pytest.mark.parametrize("other", [1, 2, 9])
def test_a_run_of_another_format_is_refused(other):
    with pytest.raises(StoreError, match=f"format {other}, this version reads format 3"):
        RunConfig.from_settings({**TINY.to_dict(), "format": other})


@pytest.mark.slow
def test_threads_are_set_for_the_run_and_given_back(tmp_path):
    before = torch.get_num_threads()
    run(dataclasses.replace(TINY, threads=before + 1), tmp_path / "run", progress=False)
    assert torch.get_num_threads() == before


class TestWriteAtomic:
    def test_replaces_and_leaves_nothing_else(self, tmp_path):
        path = tmp_path / "file"
        write_atomic(path, b"one")
        write_atomic(path, b"two")
        assert path.read_bytes() == b"two"
        assert os.listdir(tmp_path) == ["file"]

    def test_keeps_the_old_file_when_it_fails(self, tmp_path, monkeypatch):
        path = tmp_path / "file"
        write_atomic(path, b"old")

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(
            StoreError, match=r"No space left on device; needed 3 bytes, [\d,]+ are free"
        ):
            write_atomic(path, b"new")
        assert path.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["file"]

    def test_mode_follows_the_umask_and_links_stay_links(self, tmp_path):
        before = os.umask(0o027)
        try:
            write_atomic(tmp_path / "file", b"x")
        finally:
            os.umask(before)
        assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
        (tmp_path / "link").symlink_to(tmp_path / "file")
        write_atomic(tmp_path / "link", b"y")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "file").read_bytes() == b"y"

    def test_reaches_the_disk_before_it_takes_the_name(self, tmp_path, monkeypatch):
        events = []
        real_fsync, real_replace = os.fsync, os.replace
        monkeypatch.setattr(os, "fsync", lambda f: (events.append("fsync"), real_fsync(f)))
        monkeypatch.setattr(
            os, "replace", lambda a, b: (events.append("name"), real_replace(a, b))
        )
        write_atomic(tmp_path / "file", b"x")
        assert events == ["fsync", "name", "fsync"]
