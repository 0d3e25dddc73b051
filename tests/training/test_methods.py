"""A method is a row of the table: one that is added from outside goes all the way."""

import dataclasses
import itertools
import subprocess
import sys

import numpy as np
import pytest

import prudent
from command import prudent as command
from prudent.errors import InputError
from prudent.experiments import RunConfig, load_results, load_runs, run_one
from prudent.experiments.cost import seconds
from prudent.experiments.sweep import read_sweep
from prudent.reports import write_report
from prudent.training import Options, methods
from prudent.training.methods import METHODS, Look, Method


@pytest.fixture
def added(monkeypatch):
    row = Method("npe", "nll", "balance", 3.0, "posterior flow, somewhat balanced")
    monkeypatch.setitem(METHODS, "somewhat", row)
    return row


def test_a_row_trains_is_stored_loaded_and_reported(added, tmp_path):
    options = Options(epochs=1, batch_size=32)
    for method in ("somewhat", "npe"):
        config = RunConfig("gaussian", method, budget=64, num_test=60, training=options)
        run_one(config, tmp_path / "runs" / config.identity, progress=False)
    runs = load_runs(tmp_path / "runs")
    assert [run.config.method for run in runs] == ["npe", "somewhat"]
    assert {"nll", "balance"} <= set(runs[1].history()[0])
    estimator = prudent.load(runs[1].path / "model.safetensors")
    assert estimator.info["method"] == "somewhat"
    write_report(load_results(tmp_path / "runs"), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert methods.look("somewhat").color in page
    assert "SOMEWHAT" in page


SCRIPT = """
import sys
from pathlib import Path

from prudent.experiments import load_results
from prudent.experiments.launch import run_sweep
from prudent.reports import write_report
from prudent.training.methods import METHODS, Method

METHODS["somewhat"] = Method("npe", "nll", "balance", 3.0, "posterior flow, somewhat balanced")

if __name__ == "__main__":
    print(run_sweep("my.toml", "runs", progress=False, workers=1))
    write_report(load_results("runs"), "report.html")
"""
SWEEP = """
problem = "gaussian"
method = ["npe", "somewhat"]
budget = 64
num_test = 60
training = {epochs = 1, batch_size = 32}
"""


@pytest.mark.process
def test_a_row_of_a_script_goes_through_a_sweep(tmp_path):
    """Its workers are other processes, which import the script as well."""
    (tmp_path / "mine.py").write_text(SCRIPT)
    (tmp_path / "my.toml").write_text(SWEEP)
    words = [sys.executable, "mine.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "{'done': 2, 'running': 0, 'failed': 0" in done.stdout, done.stderr
    assert "SOMEWHAT" in (tmp_path / "report.html").read_text()


def test_a_row_is_planned_and_its_terms_cost_something(added, monkeypatch, tmp_path):
    monkeypatch.setitem(METHODS, "dear", dataclasses.replace(added, regularizer="a new term"))
    path = tmp_path / "my.toml"
    path.write_text(SWEEP.replace("somewhat", 'somewhat", "dear'))
    plain, known, new = (seconds(config) for config in read_sweep(path).configs)
    assert plain < known < new
    done = command("sweep", str(path), "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "method  npe somewhat dear" in done.stdout


def test_the_objective_of_a_row(added):
    prior = prudent.problems.get("gaussian").prior
    assert repr(added.objective(prior, Options())) == "1 nll + 3 balance"
    assert repr(added.objective(prior, Options(weight=2.0))) == "1 nll + 2 balance"
    # The penalty is not made where it is not used: this proposal would be refused.
    methods.get("nre").objective(prior, Options(proposal="model"))
    with pytest.raises(InputError, match="needs a flow"):
        methods.get("calnre").objective(prior, Options(proposal="model"))


def test_a_flow_takes_the_penalty_of_its_draws_alone():
    problem = prudent.problems.get("gaussian")
    fit = {"method": "calnpe", "epochs": 2, "hidden": [8], "progress": False}
    estimator = prudent.fit(*problem.draw(64, 0), problem.prior, proposal="draws", **fit)
    assert {"nll", "coverage", "validation_shortfall"} <= set(estimator.history[-1])
    with pytest.raises(InputError, match="needs a flow"):
        methods.get("calnre").objective(problem.prior, Options(proposal="draws"))


def test_flow_matching_is_no_method():
    problem = prudent.problems.get("gaussian")
    with pytest.raises(InputError, match="unknown method `fmpe`"):
        prudent.fit(*problem.draw(64, 0), problem.prior, method="fmpe")


def test_order_and_looks(added, monkeypatch):
    monkeypatch.setitem(METHODS, "other", added)
    assert methods.position("nre") == 0
    assert methods.position("other") == 8
    assert methods.position("of another version") == 9
    looks = [methods.look(name) for name in METHODS]
    assert len({look.label for look in looks}) == len({look.color for look in looks}) == 9
    assert len({look.marker for look in looks}) == 9
    assert methods.look("of another version") == Look("of another version", "#767676", ":", "x")


@pytest.mark.parametrize("name", ["calnre", "CalNRE", "CALNRE"])
def test_users_may_write_names_as_the_paper_does(name):
    assert methods.canonical(name) == "calnre"
    assert methods.get(name) is METHODS["calnre"]


def test_an_unknown_name():
    with pytest.raises(InputError, match="unknown method `CalNR`. Did you mean `calnre`"):
        methods.get("CalNR")


# Linear RGB as seen without one kind of cone (Machado, Oliveira and Fernandes 2009).
VISION = {
    "all cones": np.eye(3),
    "no long": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "no middle": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "no short": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
TO_XYZ = [[0.434, 0.376, 0.190], [0.213, 0.715, 0.072], [0.018, 0.109, 0.873]]  # white is 1, 1, 1
SHADES = [look.color for look in map(methods.look, METHODS)] + [row[0] for row in methods.SPARE]


def linear(color):
    values = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    low, high = sorted(float(linear(color) @ TO_XYZ[1]) + 0.05 for color in (one, other))
    return high / low


def difference(one, other, vision):
    """The distance of two colors in CIELAB, as somebody sees them."""
    seen = [np.array(VISION[vision]) @ linear(color) for color in (one, other)]
    roots = [np.cbrt(np.array(TO_XYZ) @ color.clip(1e-3, 1)) for color in seen]
    x, y, z = roots[0] - roots[1]
    return float(np.linalg.norm([116 * y, 500 * (x - y), 200 * (y - z)]))


@pytest.mark.parametrize("color", SHADES)
def test_lines_stand_out_on_white_and_on_a_dark_page(color):
    assert contrast(color, "#ffffff") >= 3
    assert color == "#000000" or contrast(color, "#14181d") >= 3  # black is drawn in the ink there


@pytest.mark.parametrize("vision", VISION)
def test_methods_are_told_apart_with_any_vision(vision):
    colors = [methods.look(name).color for name in METHODS]
    assert min(difference(*two, vision) for two in itertools.combinations(colors, 2)) > 15


def test_the_check_of_colors_can_fail():
    assert contrast("#E69F00", "#ffffff") == pytest.approx(2.25, abs=0.02)
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert (
        difference("#7A6410", "#D55E00", "no long")
        < 15
        < difference("#7A6410", "#D55E00", "all cones")
    )
