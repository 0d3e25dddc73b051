"""Code of users that changes the directory, or raises what nobody expects."""

import json
import sys

import numpy as np
import pytest
from sweeping import finish, start

from command import prudent, prudent_process
from prudent import problems
from prudent.errors import InputError
from prudent.experiments import RunConfig
from prudent.experiments._runner import MOST_DETAILS, attempt
from prudent.experiments.engines import Stopped
from prudent.experiments.store import ERROR, unfinished_path

TINY = ("--method", "npe", "--epochs", "2", "--batch-size", "32", "--num-test", "16")
# It moves when it is imported, when it simulates, and when somebody wants the prior's density.
MOVES = """
import os
import torch
from torch.distributions import Independent, Uniform
from prudent import problems

def move():
    os.makedirs("elsewhere", exist_ok=True)
    os.chdir("elsewhere")

class Prior(Independent):
    def log_prob(self, value):
        move()
        return super().log_prob(value)

def simulate(theta):
    move()
    return theta + 0.1 * torch.randn(len(theta), 1)

move()
prior = Prior(Uniform(torch.zeros(1), torch.ones(1)), 1)
problem = problems.custom(simulate, prior)
"""
RAISES = """
import sys
import torch
from prudent import problems

class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no text")

class Uncaught(BaseException):
    pass

ERRORS = {
    "unprintable": Unprintable(),
    "uncaught": Uncaught("mine"),
    "interrupt": KeyboardInterrupt(),
    "leaves": SystemExit(0),
    "long": ValueError("x" * 1_000_000),
}

def simulator(name):
    tried = []
    def simulate(theta):
        if tried and name in ERRORS:
            raise ERRORS[name]
        return theta + 0.1 * torch.randn(len(theta), 1)
    made = problems.custom(simulate, problems.box([0.0], [1.0]), batched=True)
    tried.append(True)
    return made

def __getattr__(name):
    if name.startswith("import_"):
        raise ERRORS[name.removeprefix("import_")]
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda: simulator(name)
"""
SWEEP = """
problem = {problems}
method = "npe"
budget = {budgets}
num_test = 16
training.epochs = 2
training.batch_size = 32
"""


def write_sweep(place, names, budgets):
    text = SWEEP.format(problems=json.dumps(names), budgets=json.dumps(budgets))
    (place / "my.toml").write_text(text)


def check_stays(place, output):
    """Everything is where it belongs, and no file says where that is on this machine."""
    assert not [path for path in place.rglob("elsewhere/*") if path.name != "elsewhere"]
    files = [path for path in (place / output).rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert str(place).encode() not in path.read_bytes(), path


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="starts sessions")
@pytest.mark.parametrize("engine", ["local", "dask"])
def test_a_sweep_stays_where_it_is(tmp_path, engine):
    if engine == "dask":
        pytest.importorskip("distributed")
    (tmp_path / "moves.py").write_text(MOVES)
    write_sweep(tmp_path, ["moves:problem"], [160, 161])
    code, out, err = finish(start(tmp_path, "--engine", engine, workers=1))
    assert code == 0, err
    assert "2 of 2 runs done: runs\nNext: prudent report runs -o report.html\n" in out
    assert str(tmp_path) not in out + err
    assert len(list(tmp_path.glob("runs/*/metrics.json"))) == 2
    check_stays(tmp_path, "runs")


@pytest.mark.parametrize("source", ["simulated", "files"])
def test_a_run_stays_where_it_is(tmp_path, source):
    (tmp_path / "moves.py").write_text(MOVES)
    arguments = ["moves:problem", "--budget", "160"]
    if source == "files":
        for name, number in (("sims.npz", 160), ("test.npz", 16)):
            theta = np.random.default_rng(number).random((number, 1))
            np.savez(tmp_path / name, theta=theta, x=theta + 0.1)
        arguments = ["--data", "sims.npz", "--test-data", "test.npz", "--prior", "moves:prior"]
    done = prudent("train", *arguments, *TINY, "-o", "runs/first", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Results: runs/first\n" in done.stdout
    assert str(tmp_path) not in done.stdout + done.stderr
    assert (tmp_path / "runs" / "first" / "metrics.json").is_file()
    check_stays(tmp_path, "runs")
    again = prudent("train", *arguments, *TINY, "-o", "runs/first", cwd=tmp_path)
    assert again.returncode == 0, again.stderr


@pytest.mark.process
@pytest.mark.parametrize("workers", ["1", "2"])
def test_simulations_stay_where_they_are(tmp_path, workers):
    pytest.importorskip("zarr")
    (tmp_path / "moves.py").write_text(MOVES)
    arguments = ["moves:problem", "-n", "600", "-o", "sims.zarr", "--workers", workers]
    done = prudent_process("simulate", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "sims.zarr" / "zarr.json").is_file()
    check_stays(tmp_path, "sims.zarr")


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="starts sessions")
def test_whatever_one_simulator_raises_the_others_finish(tmp_path):
    (tmp_path / "raises.py").write_text(RAISES)
    bad = {
        "unprintable": "The first error: Unprintable.",
        "uncaught": "The first error: Uncaught: mine.",
        "leaves": "The first error: SystemExit: 0.",
        "interrupt": "KeyboardInterrupt",
        "long": "The first error: ValueError: xxx",
        "import_uncaught": "raises Uncaught: mine.",
        "import_unprintable": "raises Unprintable.",
        "import_leaves": "raises SystemExit: 0.",
    }
    write_sweep(tmp_path, [f"raises:{name}" for name in ("good", *bad)], [160])
    code, out, err = finish(start(tmp_path))
    assert code == 1, err
    assert f"1 of {len(bad) + 1} runs done, {len(bad)} failed: runs" in out
    for name, text in bad.items():
        (line,) = [line for line in out.splitlines() if f"failed  raises:{name} npe" in line]
        assert text in line
        assert len(line) < 700
    assert "Traceback" not in out + err
    assert len(out + err) < 20_000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("uncaught", "The first error: Uncaught: mine."),
        ("leaves", "The first error: SystemExit: 0."),
        ("import_uncaught", "`raises:import_uncaught` cannot be made; it raises Uncaught: mine."),
        ("import_leaves", "`raises:import_leaves` cannot be made; it raises SystemExit: 0."),
        ("import_long", "it raises ValueError: xxx"),
    ],
)
def test_one_run_fails_in_one_line(tmp_path, name, text):
    (tmp_path / "raises.py").write_text(RAISES)
    arguments = ["train", f"raises:{name}", "--budget", "160", *TINY, "-o", "run"]
    done = prudent(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("Error: ")
    assert text in last
    assert len(done.stderr) < 4000
    assert "bug in prudent" not in done.stderr


def test_the_whole_of_an_error_is_kept_within_bounds(tmp_path, monkeypatch):
    """An error of 50 kilobytes whole, one of a megabyte in part, and never more than a line."""
    config = RunConfig("gaussian", "npe", 128)
    for length in (50_000, 1_000_000):

        def fail(*_, length=length):
            raise ValueError("y" * length)

        monkeypatch.setattr("prudent.experiments.run._train_and_diagnose", fail)
        outcome = attempt(config, tmp_path)
        assert outcome.state == "failed"
        assert len(outcome.reason) == 500
        kept = (unfinished_path(tmp_path / config.identity) / ERROR).read_text()
        assert ("y" * length in kept) == (length < MOST_DETAILS)
        assert len(kept) < MOST_DETAILS + 1000


def test_an_error_that_is_its_own_cause(tmp_path, monkeypatch):
    def fail(*_):
        error = ValueError("again")
        raise error from error

    monkeypatch.setattr("prudent.experiments.run._train_and_diagnose", fail)
    assert attempt(RunConfig("gaussian", "npe", 128), tmp_path).reason == "ValueError: again"


def test_who_is_stopped_has_not_failed(tmp_path, monkeypatch):
    def stop(*_):
        raise Stopped

    monkeypatch.setattr("prudent.experiments.run._train_and_diagnose", stop)
    with pytest.raises(Stopped):
        attempt(RunConfig("gaussian", "npe", 128), tmp_path)
    assert not list(tmp_path.rglob(ERROR))


def test_ctrl_c_at_an_import_is_no_mistake_of_the_module(tmp_path, monkeypatch):
    (tmp_path / "interrupted.py").write_text("raise KeyboardInterrupt\n")
    (tmp_path / "mistaken.py").write_text("raise RuntimeError('no')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        problems.get("interrupted:problem")
    with pytest.raises(InputError, match="`mistaken:problem` cannot be made; it raises Runt"):
        problems.get("mistaken:problem")
