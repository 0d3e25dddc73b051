"""One call with everything: coverage, SBC, TARP, and where the posterior is wrong."""

import json
import sys

import pytest
import torch
from torch.distributions import Independent, Normal

import prudent
from prudent.diagnostics import posterior_ranks, sbc, tarp
from prudent.errors import InputError
from prudent.problems.gaussian import exact_posterior


class Estimator:
    """The exact posterior, too narrow where the first observation is large."""

    normalized = True

    def __init__(self, narrow):
        self.narrow = narrow
        self.prior = prudent.problems.get("gaussian").prior

    def __call__(self, x):
        exact = exact_posterior(x).base_dist
        factor = torch.where(x[:, :1] > 0.5, self.narrow, 1.0)
        return Independent(Normal(exact.loc, exact.scale * factor), 1)


@pytest.fixture(scope="module")
def pairs():
    return prudent.problems.get("gaussian").draw(1500, 3)


def test_the_exact_posterior_passes_everything(pairs):
    result = prudent.diagnose(Estimator(1.0), *pairs, thorough=True, progress=False)
    assert result.verdict.kind == "calibrated"
    assert result.results["sbc"].p_value > 0.05
    assert result.results["tarp"].p_value > 0.05
    assert not result.results["local_coverage"].wrong
    metrics = result.metrics()
    json.dumps(metrics, allow_nan=False)
    assert {"sbc_p_value", "sbc_worst", "tarp_p_value", "local_p_value"} <= set(metrics)


def test_a_defect_is_found_where_it_is(pairs):
    names = ("mass", "spin")
    result = prudent.diagnose(Estimator(0.4), *pairs, thorough=True, names=names, progress=False)
    assert result.verdict.kind == "over-confident"
    assert result.results["sbc"].p_value < 0.01
    assert result.results["sbc"].ranks.names == (*names, "log_prob")
    assert result.results["local_coverage"].p_same < 0.01
    assert result.results["local_coverage"].wrong
    for region in result.results["local_coverage"].wrong:
        assert region.bounds["x[0]"][0] > 0.3
    text = str(result)
    for part in ("SBC", "TARP", "by region", "x[0]"):
        assert part in text


def test_without_the_word_nothing_more_is_done(pairs):
    result = prudent.diagnose(Estimator(1.0), *pairs, progress=False)
    assert not result.results
    assert "sbc_p_value" not in result.metrics()


def test_regions_of_a_large_observation_are_those_of_the_posterior_mean(pairs):
    theta, x = pairs
    wide = torch.cat((x, torch.zeros(len(x), 200)), dim=1)

    class Wide(Estimator):
        def __call__(self, data):
            return super().__call__(data[:, :2])

    result = prudent.diagnose(Wide(0.4), theta, wide, thorough=True, progress=False)
    assert result.results["local_coverage"].wrong
    for region in result.results["local_coverage"].wrong:
        assert region.bounds["posterior mean of theta_1"][0] > 0.2


def test_both_tests_share_their_draws(pairs):
    calls = []

    class Counting(Estimator):
        def __call__(self, x):
            posterior = super().__call__(x)
            calls.append(len(x))
            return posterior

    ranks = posterior_ranks(Counting(1.0), *pairs, num_samples=20, progress=False)
    assert sum(calls) == len(pairs[0])
    assert ranks.names == ("theta_1", "theta_2", "log_prob", "tarp")
    assert sbc(ranks).ranks.names == ranks.names[:-1]
    assert tarp(ranks).ranks.names == ranks.names[-1:]


def test_a_missing_library_is_named_before_the_work(pairs, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(InputError, match=r'-e "\.\[distances\]"'):
        prudent.diagnose(Estimator(1.0), *pairs, thorough=True, progress=False)
