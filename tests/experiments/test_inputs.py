"""Runs on one's own files, on stores, and on the simulations that a sweep shares."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from click.testing import CliRunner

import prudent
from command import prudent as command
from faults import exit_code, in_child, tree_digest
from prudent import problems
from prudent.cli.entry import cli
from prudent.datasets import Store, _formats
from prudent.datasets.simulate import draw_pairs, simulate
from prudent.errors import InputError
from prudent.experiments import RunConfig, load_runs
from prudent.experiments._runner import attempt
from prudent.experiments.inputs import simulated
from prudent.experiments.run import run_one
from prudent.training import Options

TINY = ["--method", "npe", "--epochs", "2", "--batch-size", "64", "-q"]
OPTIONS = Options(epochs=1, batch_size=64)
PRIOR = 'kind = "box"\nlow = [-3, -3]\nhigh = [3, 3]\nnames = ["a", "b"]\n'


def ok(place, *arguments):
    result = command(*arguments, cwd=place)
    assert result.returncode == 0, result.stderr
    return result.stdout


def refused(place, *arguments):
    result = command(*arguments, cwd=place)
    assert result.returncode == 2, (result.stdout, result.stderr)
    return result.stderr


def metrics(path):
    found = json.loads((path / "metrics.json").read_text())
    return {key: value for key, value in found.items() if key not in ("files", "sha256")}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A store, test pairs of another seed, and a run on that store."""
    place = tmp_path_factory.mktemp("place")
    ok(place, "simulate", "slcp", "-n", "600", "-o", "sims.zarr", "-q")
    ok(place, "simulate", "slcp", "-n", "200", "--seed", "5", "-o", "test.zarr", "-q")
    ok(place, "train", "--data", "sims.zarr", "--num-test", "100", *TINY, "-o", "run")
    return place


def test_a_store_and_its_problem_give_the_same_run(place):
    arguments = ["--budget", "600", "--num-test", "100", *TINY]
    ok(place, "train", "slcp", *arguments, "-o", "simulated")
    for name in ("model.safetensors", "coverage.json", "history.jsonl"):
        assert (place / "run" / name).read_bytes() == (place / "simulated" / name).read_bytes()
    assert metrics(place / "run") == metrics(place / "simulated")
    configs = [load_runs(place / name)[0].config for name in ("run", "simulated")]
    assert configs[0].problem == configs[1].problem == "slcp"
    assert (len(configs[0].data), configs[1].data) == (64, "")
    assert configs[0].identity != configs[1].identity


def test_test_pairs_come_from_a_file_unless_they_were_trained_on(place):
    assert "200 test pairs" in ok(place, "diagnose", "run", "--data", "test.zarr", "-q")
    told = refused(place, "diagnose", "run", "--data", "sims.zarr", "-q")
    assert "600 of 600 test pairs are among the training pairs" in told
    # One of the old rows among new ones is enough.
    theta, x, _ = Store.open(place / "test.zarr").read(0, 200)
    old = Store.open(place / "sims.zarr").read(7, 8)
    np.savez(place / "mixed.npz", theta=torch.cat([theta, old[0]]), x=torch.cat([x, old[1]]))
    assert "1 of 201 test pairs" in refused(place, "diagnose", "run", "--data", "mixed.npz")
    ok(place, "simulate", "slcp", "-n", "256", "-o", "same.zarr", "-q")
    for name in ("run", "simulated"):
        if (place / name).exists():
            assert "are among" in refused(place, "diagnose", name, "--data", "same.zarr", "-q")


def own_files(place, number=500):
    problem = problems.custom(lambda theta: theta + 0.1 * torch.randn(len(theta), 2), box())
    pairs = draw_pairs(problem, number, 0)
    np.savez(place / "sims.npz", params=pairs.theta, data=pairs.x, seconds=np.zeros(number))
    with h5py.File(place / "test.h5", "w") as file:
        file["params"], file["data"] = (value.numpy() for value in problem.draw(120, 3))
    (place / "prior.toml").write_text(PRIOR)


def box():
    return problems.box([-3.0, -3.0], [3.0, 3.0])


def test_a_table_is_opened_and_parsed_once(tmp_path, monkeypatch):
    pairs = draw_pairs(problems.custom(lambda theta: theta + 1.0, box()), 500, 0)
    names = "theta_1,theta_2,x_1,x_2"
    table = torch.cat([pairs.theta, pairs.x], dim=1)
    np.savetxt(tmp_path / "sims.csv", table, delimiter=",", header=names, comments="")
    (tmp_path / "prior.toml").write_text(PRIOR)
    opened, parsed = [], []
    begin, numbers = Path.open, _formats._numbers

    def spied(path, *arguments, **more):
        opened.append(path.name)
        return begin(path, *arguments, **more)

    def parse(lines, *arguments):
        parsed.append(len(lines))
        return numbers(lines, *arguments)

    monkeypatch.setattr(Path, "open", spied)
    monkeypatch.setattr(_formats, "_numbers", parse)
    ok(tmp_path, "train", "--data", "sims.csv", "--prior", "prior.toml", *TINY, "-o", "run")
    assert opened.count("sims.csv") == 1
    assert parsed == [500]


def test_own_files_train_and_are_diagnosed_without_python(tmp_path):
    own_files(tmp_path)
    arguments = ["train", "--data", "sims.npz", "--prior", "prior.toml", *TINY]
    told = ok(tmp_path, *arguments, "-o", "run")
    assert "Test pairs: the last 100 rows of sims.npz, held out." in told
    (found,) = load_runs(tmp_path / "run")
    assert (found.config.problem, found.config.budget) == ("file:sims", 400)
    assert found.config.num_test == found.metrics["num_pairs"] == 100
    assert json.loads(found.file("data.json"))["parameter_names"] == ["a", "b"]
    assert "120 test pairs" in ok(tmp_path, "diagnose", "run", "--data", "test.h5", "-q")
    assert "are among" in refused(tmp_path, "diagnose", "run", "--data", "sims.npz", "-q")
    assert "give test pairs with --data" in refused(tmp_path, "diagnose", "run", "-q")
    # The same command reads the run; the same pairs elsewhere are the same run.
    before = tree_digest(tmp_path / "run")
    (tmp_path / "other").mkdir()
    shutil.move(tmp_path / "sims.npz", tmp_path / "other" / "sims.npz")
    arguments[2] = "other/sims.npz"
    ok(tmp_path, *arguments, "-o", "run")
    assert tree_digest(tmp_path / "run") == before
    again = ok(tmp_path, *arguments, "--test-data", "test.h5", "--budget", "300", "-o", "again")
    assert "held out" not in again
    (found,) = load_runs(tmp_path / "again")
    assert (found.config.budget, found.metrics["num_pairs"]) == (300, 120)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "sims.npz"], "pass --prior with a problem's name, a TOML file or module"),
        (["--data", "sims.npz", "--prior", "mg1"], "has 2 parameters, the prior has 3"),
        (["--data", "sims.npz", "--prior", "slpc"], "Did you mean `slcp`"),
        (["--data", "sims.npz", "--prior", "bad.toml"], "bad.toml:1:1: kind: unknown kind `bx`"),
        (["--data", "sims.npz", "--prior", "no.toml"], "no file no.toml"),
        (["--data", "none.npz", "--prior", "prior.toml"], "no file none.npz"),
        (["--data", "sims.csv", "--prior", "prior.toml"], "no file sims.csv"),
        (["--data", "sims.xls", "--prior", "prior.toml"], "no file sims.xls"),
        (["--data", "sims.npz", "--prior", "prior.toml", "--theta", "y"], "no `y` in sims.npz"),
        (["--data", "sims.npz", "--prior", "prior.toml", "--budget", "450"], "100 held out"),
        (["--data", "sims.npz", "--prior", "prior.toml", "--budget", "1"], "`budget` is 1"),
        (["mg1", "--data", "sims.npz"], "`mg1` has 3 and"),
        (["slcp", "--prior", "prior.toml"], "`--prior` needs --data"),
    ],
)
def test_mistakes_with_files_are_one_line(tmp_path, arguments, message):
    own_files(tmp_path)
    (tmp_path / "bad.toml").write_text('kind = "bx"\nlow = [0]\n')
    before = tree_digest(tmp_path)
    told = refused(tmp_path, "train", *arguments, *TINY, "-o", "run")
    assert message in told
    assert tree_digest(tmp_path) == before


def files(place, theta, x):
    np.savez(place / "sims.npz", theta=theta, x=x)
    (place / "prior.toml").write_text(PRIOR)


RNG = np.random.default_rng(0)
DRAWN = RNG.uniform(-3, 3, (500, 2))
SIMULATED = DRAWN + RNG.normal(size=(500, 2))
UNFIT = {
    "as they should be": (DRAWN, SIMULATED, 0, ""),
    "other units": (1000 * DRAWN, SIMULATED, 2, "have no density under the prior"),
    "test pairs in other units": (
        np.where(np.arange(500)[:, None] < 400, DRAWN, 1000 * DRAWN),
        SIMULATED,
        2,
        "100 of 100 rows of `theta` have no density",
    ),
    "constant theta": (np.ones((500, 2)), SIMULATED, 2, "`theta` is the same in all simulations"),
    "all rows the same": (np.ones((500, 2)), np.ones((500, 2)), 2, "are among the training pairs"),
    "test rows among the training rows": (
        np.tile(DRAWN[:100], (5, 1)),
        np.tile(SIMULATED[:100], (5, 1)),
        2,
        "100 of 100 test pairs are among the training pairs",
    ),
    "a huge spread": (DRAWN, 3e38 * np.sign(SIMULATED), 2, "`x` spans more than float32 holds"),
    "constant x": (DRAWN, np.ones((500, 2)), 0, "2 of 2 components of x are the same"),
    "a ninth of the box": (DRAWN / 3, SIMULATED, 0, "theta does not follow the prior (0 % of "),
    "rows that repeat": (
        np.concatenate([DRAWN[:200], DRAWN[:300]]),
        np.concatenate([SIMULATED[:200], SIMULATED[:300]]),
        0,
        "200 of 400 pairs repeat others",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
@pytest.mark.filterwarnings("always")
def test_a_dry_run_finds_what_the_run_would(name, tmp_path, monkeypatch, caplog, recwarn):
    theta, x, code, message = UNFIT[name]
    files(tmp_path, theta, x)
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "--data", "sims.npz", "--prior", "prior.toml", *TINY[:-1], "-o", "run"]
    for more in (["--dry-run"], []):
        caplog.clear()
        recwarn.clear()
        result = CliRunner().invoke(cli, [*arguments, *more])
        warned = " ".join(str(one.message) for one in recwarn.list)
        assert message in f"{result.exception} {caplog.text} {warned}"
        assert isinstance(result.exception, InputError) is (code == 2)
        assert (tmp_path / "run").exists() is (code == 0 and not more)


def test_diagnose_says_which_runs_there_are_and_what_they_are_of(place):
    told = refused(place, "diagnose", ".", "-q")
    assert "name one: run" in told
    told = refused(place, "diagnose", "run", "--problem", "gaussian", "-q")
    assert "was made with `slcp`, not `gaussian`" in told
    assert "is not a finished run" in refused(place, "diagnose", "sims.zarr", "-q")


def test_simulations_do_not_go_to_a_directory_that_looks_like_a_file(tmp_path):
    told = refused(tmp_path, "simulate", "slcp", "-n", "8", "-o", "s.npz")
    assert "such as s.zarr" in told
    assert not (tmp_path / "s.npz").exists()


SHARED = [
    RunConfig("gaussian", method, budget, num_test=8, training=OPTIONS)
    for method in ("nre", "npe")
    for budget in (100, 600)
]


@pytest.mark.slow
def test_runs_of_a_sweep_share_their_simulations(tmp_path, monkeypatch):
    alone = [run_one(config, tmp_path / "alone" / config.identity, False) for config in SHARED]
    calls = []
    original = problems.get("gaussian").simulator

    def counting(theta, generator):
        calls.append(len(theta))
        return original(theta, generator)

    gaussian = problems.get("gaussian")
    counted = prudent.problems.Problem(
        "gaussian", gaussian.prior, counting, (2,), gaussian.parameter_names
    )
    monkeypatch.setattr(problems, "get", lambda name: counted)
    root = tmp_path / "sweep"
    for config, other in zip(SHARED, alone, strict=True):
        assert attempt(config, root, 600).state == "done"
        for name in ("model.safetensors", "coverage.json", "data.json"):
            shared = (root / config.identity / name).read_bytes()
            assert shared == (other.path / name).read_bytes(), name
    assert calls.count(256) == 3, "blocks were simulated again"
    (store,) = (root / ".simulations").iterdir()
    assert store.name == "gaussian-0-600.zarr"
    # Damage is noticed, and the chunk made again.
    whole = tree_digest(store)
    (store / "x" / "c.1.0").write_bytes(b"damaged")
    shutil.rmtree(root / SHARED[1].identity)
    assert attempt(SHARED[1], root, 600).state == "done"
    assert calls.count(256) == 4
    assert tree_digest(store) == whole
    # What is worse than that costs only time.
    (store / "zarr.json").write_text("{}")
    shutil.rmtree(root / SHARED[1].identity)
    assert attempt(SHARED[1], root, 600).state == "done"
    model = (root / SHARED[1].identity / "model.safetensors").read_bytes()
    assert model == (alone[1].path / "model.safetensors").read_bytes()


def test_several_runs_fill_one_store(tmp_path):
    calls, gaussian = tmp_path / "calls", problems.get("gaussian")

    def counting(theta, generator):
        with calls.open("a") as file:
            file.write(f"{len(theta)}\n")
        return gaussian.simulator(theta, generator)

    counted = prudent.problems.Problem(
        "gaussian", gaussian.prior, counting, (2,), gaussian.parameter_names
    )

    def action():
        problems.get = lambda name: counted
        simulated(SHARED[1], tmp_path, 2560)

    children = [in_child(action) for _ in range(3)]
    assert [exit_code(child) for child in children] == [0, 0, 0]
    assert calls.read_text().split().count("256") == 3
    (store,) = (tmp_path / ".simulations").iterdir()
    assert len(Store.open(store).missing()) == 7
    simulate(gaussian, 2560, store, progress=False)
    simulate(gaussian, 2560, tmp_path / "whole", progress=False)
    assert tree_digest(store) == tree_digest(tmp_path / "whole")
