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
    return prudent.problems.get("gaussian").draw(2500, 4)


def test_the_exact_posterior_passes_everything(pairs):
    result = prudent.diagnose(Estimator(1.0), *pairs, thorough=True, progress=False)
    assert result.verdict.kind == "calibrated"
    assert result.results["sbc"].p_value > 0.05
    assert result.results["tarp"].p_value > 0.05
    assert not result.results["local_coverage"].wrong
    metrics = result.metrics()
    json.dumps(metrics, allow_nan=False)
    assert {"sbc_p_value", "sbc_worst", "tarp_p_value", "local_p_value"} <= set(metrics)


def test_the_estimator_knows_the_names_of_its_parameters(pairs):
    estimator, some = Estimator(1.0), [values[:200] for values in pairs]
    estimator.info = {"parameter_names": ["mass", "spin"]}
    result = prudent.diagnose(estimator, *some, thorough=True, progress=False)
    assert result.results["sbc"].ranks.names == ("mass", "spin", "log_prob")
    assert result.to_arviz()["prior_sbc"]["parameter"].values.tolist()[:2] == ["mass", "spin"]


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


class Sampled(Estimator):
    """Counts the draws and the densities that a thorough diagnosis asks for."""

    def __init__(self, narrow, normalized):
        super().__init__(narrow)
        self.normalized, self.calls = normalized, []
        if not normalized:
            edges = torch.full((2,), 6.0)
            self.prior = Independent(torch.distributions.Uniform(-edges, edges), 1)

    def __call__(self, x):
        exact, calls = super().__call__(x), self.calls

        class Posterior:
            def log_prob(self, theta):
                calls.append(theta.shape[:-1].numel())
                return exact.log_prob(theta)

            def sample(self, shape=()):
                calls.append(torch.Size(shape).numel() * len(x))
                return exact.sample(shape)

        return Posterior()


@pytest.mark.usefixtures("any_theta")
@pytest.mark.parametrize("normalized", [True, False], ids=["flow", "ratio"])
def test_ranks_take_no_evaluations_beside_those_of_coverage(pairs, normalized):
    theta, x = (part[:200] for part in pairs)
    counts, alphas = [], []
    for thorough in (False, True):
        estimator = Sampled(1.0, normalized)
        result = prudent.diagnose(estimator, theta, x, thorough=thorough, progress=False)
        counts.append(sum(estimator.calls))
        alphas.append(result.measurement.alpha)
    assert counts[0] == counts[1] > 0
    assert torch.equal(*alphas)


@pytest.mark.usefixtures("any_theta")
@pytest.mark.parametrize("normalized", [True, False], ids=["flow", "ratio"])
def test_shared_ranks_are_those_of_draws_of_their_own(pairs, normalized):
    """Compared with the exact distribution function of each parameter at the truths."""
    found = {}
    for narrow in (1.0, 0.4):
        estimator = Sampled(narrow, normalized)
        result = prudent.diagnose(estimator, *pairs, thorough=True, progress=False)
        shared = result.results["sbc"].ranks
        exact = Estimator(narrow)(pairs[1]).base_dist
        truth = exact.cdf(pairs[0]).T
        # A rank among 100 draws is binomial: its share has a variance of p (1 - p) / 100.
        error = shared.ranks[:2] / shared.num_samples - truth
        assert shared.num_pairs == len(pairs[0])
        assert error.square().mean() < 1.2 * (truth * (1 - truth)).mean() / 100
        assert error.mean().abs() < 0.004
        found[narrow] = result.results
    # The density's rank is alpha, and the narrow posterior fails every test of ranks.
    alpha = result.measurement.alpha
    assert (shared.select(["log_prob"]).ranks[0] / 100 - alpha).abs().mean() < 0.04
    assert found[1.0]["sbc"].p_value > 0.01 > found[0.4]["sbc"].p_value
    assert found[1.0]["tarp"].p_value > 0.01 > found[0.4]["tarp"].p_value


def test_a_missing_library_is_named_before_the_work(pairs, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(InputError, match=r'-e "\.\[distances\]"'):
        prudent.diagnose(Estimator(1.0), *pairs, thorough=True, progress=False)
