"""A method is a row of the table: one that is added from outside goes all the way."""

import pytest

import prudent
from prudent.errors import InputError
from prudent.experiments import RunConfig, load_results, load_runs, run_one
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


def test_the_objective_of_a_row(added):
    prior = prudent.problems.get("gaussian").prior
    assert repr(added.objective(prior, Options())) == "1 nll + 3 balance"
    assert repr(added.objective(prior, Options(weight=2.0))) == "1 nll + 2 balance"
    # The penalty is not made where it is not used: this proposal would be refused.
    methods.get("nre").objective(prior, Options(proposal="model"))
    with pytest.raises(InputError, match="needs a flow"):
        methods.get("calnre").objective(prior, Options(proposal="model"))


def test_order_and_looks(added, monkeypatch):
    monkeypatch.setitem(METHODS, "other", added)
    assert methods.position("nre") == 0
    assert methods.position("other") == 7
    assert methods.position("of another version") == 8
    looks = [methods.look(name) for name in METHODS]
    assert len({look.label for look in looks}) == len({look.color for look in looks}) == 8
    assert len({look.marker for look in looks}) == 8
    assert methods.look("of another version") == Look("of another version", "#767676", ":", "x")


@pytest.mark.parametrize("name", ["calnre", "CalNRE", "CALNRE"])
def test_users_may_write_names_as_the_paper_does(name):
    assert methods.canonical(name) == "calnre"
    assert methods.get(name) is METHODS["calnre"]


def test_an_unknown_name():
    with pytest.raises(InputError, match="unknown method `CalNR`. Did you mean `calnre`"):
        methods.get("CalNR")
