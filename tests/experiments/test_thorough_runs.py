"""Thorough runs keep their rank tests and one posterior, and tables show them."""

import pytest

import prudent.experiments
from prudent.errors import InputError
from prudent.experiments import RunConfig
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
