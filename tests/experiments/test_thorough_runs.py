"""Thorough runs keep their rank tests and one posterior, and tables show them."""

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal

import prudent.experiments
from prudent.diagnostics.registry import DIAGNOSTICS, Diagnostic
from prudent.errors import InputError
from prudent.experiments import RunConfig
from prudent.experiments.run import _details
from prudent.experiments.run import run_one as run
from prudent.problems.gaussian import exact_posterior
from prudent.training import Options

pytest.importorskip("pandas")

CONFIG = RunConfig(
    "gaussian", "npe", 256, num_test=120, thorough=True, training=Options(epochs=3, batch_size=32)
)


def test_too_few_test_pairs_are_refused_before_training():
    with pytest.raises(InputError, match="a thorough run needs 120 or more"):
        RunConfig("gaussian", "npe", 256, num_test=119, thorough=True)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    root = tmp_path_factory.mktemp("thorough")
    run(CONFIG, root / CONFIG.identity, progress=False)
    return prudent.experiments.load_results(root)


def test_rank_tests_are_kept(results):
    row = results.runs.iloc[0]
    assert row["thorough"]
    ranks = results.ranks
    assert set(ranks["parameter"]) == {"theta_1", "theta_2", "log_prob", "all"}
    assert (ranks["lower"] <= ranks["upper"]).all()
    by_test = ranks.groupby("test")["p_value"].min()
    assert by_test["sbc"] == pytest.approx(row["sbc_p_value"])
    assert by_test["tarp"] == pytest.approx(row["tarp_p_value"])


def test_exact_draws_follow_the_exact_posterior(results):
    import prudent

    problem = prudent.problems.get("gaussian")
    theta, x = problem.draw(120, 0, "test")
    wide = results.draws.pivot_table(index=["kind", "draw"], columns="parameter", values="value")
    assert wide.loc["truth"].to_numpy()[0] == pytest.approx(theta[0].numpy(), rel=1e-5)
    exact = exact_posterior(x[:1])
    drawn = wide.loc["exact"].to_numpy()
    assert len(drawn) == len(wide.loc["posterior"]) == 1000
    error = exact.stddev[0].numpy() / 1000**0.5
    assert abs(drawn.mean(0) - exact.mean[0].numpy()) == pytest.approx(
        0, abs=float(5 * error.max())
    )
    assert drawn.std(0) == pytest.approx(exact.stddev[0].numpy(), rel=0.12)


def test_exact_draws_of_a_narrow_posterior_are_independent_and_come_with_the_bounds():
    """A ten-thousandth of the prior has fewer candidates than draws: some come more than once."""

    def log_posterior(theta, x):
        return torch.where((theta.abs() < 0.01).all(dim=-1), 0.0, -torch.inf)

    problem = replace(prudent.problems.get("two_moons"), log_posterior=log_posterior)
    theta, x = problem.draw(1, 0, "test")
    found = SimpleNamespace(pairs=SimpleNamespace(theta=theta, x=x), results={})
    stored = _details(found, lambda x: Independent(Normal(theta, 0.1), 1), problem, 0)["draws"]
    known = {
        kind: np.array([one["values"] for one in stored if one["kind"] == kind])
        for kind in ("truth", "posterior", "exact", "bounds")
    }
    assert known["bounds"].tolist() == [[-1, 1], [-1, 1]]
    assert known["exact"].shape == (2, 1000)
    assert 50 < len(np.unique(known["exact"], axis=1).T) < 200
    assert abs(known["exact"]).max() < 0.01


def test_plain_runs_have_empty_tables(tmp_path):
    config = RunConfig(
        "weinberg", "npe", 128, num_test=16, training=Options(epochs=1, batch_size=32)
    )
    run(config, tmp_path / config.identity, progress=False)
    results = prudent.experiments.load_results(tmp_path)
    assert len(results.ranks) == len(results.draws) == 0
    assert {"run", "test", "level", "p_value"} <= set(results.ranks.columns)
    assert {"run", "kind", "parameter", "value"} <= set(results.draws.columns)
    assert len(results.history) == 1


@dataclass(frozen=True)
class Spreads:
    """A diagnostic from outside: how wide the posteriors are."""

    names: tuple[str, ...]
    spreads: tuple[float, ...]

    verdict = "as wide as they are"

    def metrics(self):
        return {"widest": max(self.spreads)}

    def rows(self):
        pairs = zip(self.names, self.spreads, strict=True)
        return [
            {"parameter": name, "quantile": [0.5, 0.9], "spread": [s, 2 * s]} for name, s in pairs
        ]


def spreads(evidence):
    measured = evidence.measurement
    return Spreads(evidence.names, tuple(measured.variance.mean(0).sqrt().tolist()))


def test_a_diagnostic_from_outside_is_followed_all_the_way(tmp_path, monkeypatch):
    """From its row to the scalars, the text, the stored records, a table and a figure by name."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from prudent.reports import figures
    from prudent.reports.figures.registry import Entry

    def picture(table):
        figure = Figure()
        for _, own in table.groupby("parameter"):
            figure.subplots().plot(own["quantile"], own["spread"])
        return figure

    monkeypatch.setitem(
        DIAGNOSTICS, "spreads", Diagnostic("spreads", "spreads", spreads, "picture")
    )
    entry = Entry(picture, "spreads", "How wide?", "Up is wider.")
    monkeypatch.setitem(figures.FIGURES, entry.name, entry)
    stored = run(CONFIG, tmp_path / CONFIG.identity, progress=False)
    assert stored.metrics["widest"] > 0
    results = prudent.experiments.load_results(tmp_path)
    assert results.runs["widest"].item() == stored.metrics["widest"]
    table = results.table("spreads")
    assert list(table["parameter"]) == ["theta_1", "theta_1", "theta_2", "theta_2"]
    assert set(table["test"]) == {"spreads"}
    assert table["spread"].max() == pytest.approx(2 * stored.metrics["widest"])
    name = DIAGNOSTICS["spreads"].figure
    (line, *_) = figures.draw(name, results).axes[0].lines
    assert list(line.get_ydata()) == list(table["spread"][:2])
    problem = prudent.problems.get("gaussian")
    estimator = prudent.load(tmp_path / CONFIG.identity / "model.safetensors")
    names = problem.parameter_names
    pairs = problem.draw(120, 1)
    text = str(prudent.diagnose(estimator, *pairs, thorough=True, names=names, progress=False))
    assert "spreads                 as wide as they are" in text


@pytest.fixture(scope="module")
def again(results):
    """What is found about the stored estimator with the pairs of its run."""
    (run,) = results.finished
    estimator = prudent.load(run.path / "model.safetensors")
    pairs = prudent.problems.get("gaussian").draw(120, CONFIG.seed, "test")
    return prudent.diagnose(estimator, *pairs, thorough=True, progress=False).results


@pytest.mark.parametrize("name", DIAGNOSTICS)
def test_every_diagnostic_keeps_the_contract(name, results, again):
    """Its table has rows that JSON can hold, its scalars are columns, its figure exists."""
    pytest.importorskip("matplotlib")
    from prudent.reports.figures import FIGURES

    diagnostic = DIAGNOSTICS[name]
    assert diagnostic.name == name
    assert diagnostic.figure is None or diagnostic.figure in FIGURES
    table = results.table(name)
    assert list(table.columns[:6]) == ["run", "problem", "method", "budget", "seed", "test"]
    assert set(table["test"]) == {name}
    assert (table["p_value"] <= 1).all()
    (run,) = results.finished
    result = again[name]
    assert result.metrics().items() <= run.metrics.items()
    assert json.loads(json.dumps(result.rows(), allow_nan=False)) == result.rows()
    assert "\n" not in result.verdict


def test_unknown_tables_are_named(results):
    with pytest.raises(InputError, match="Did you mean `local_coverage`"):
        results.table("local_coverag")
    with pytest.raises(AttributeError, match="no table `rank`"):
        results.rank  # noqa: B018


def test_they_are_read_without_torch(results):
    code = (
        "import sys, prudent.experiments as e\n"
        f"r = e.load_results({str(results.finished[0].path.parent)!r})\n"
        "print(len(r.runs), len(r.curves), len(r.history), len(r.ranks), len(r.draws))\n"
        "print(len(r.table('sbc')), len(r.table('tarp')))\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    known = [results.runs, results.curves, results.history, results.ranks, results.draws]
    known += [results.table("sbc"), results.table("tarp")]
    assert [int(word) for word in done.stdout.split()] == [len(table) for table in known]
    assert list(results.ranks["value"]) == [*known[5]["value"], *known[6]["value"]]
