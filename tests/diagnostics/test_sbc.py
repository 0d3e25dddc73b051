"""SBC on posteriors whose truth is known: size where exact, power where wrong."""

import logging
import math

import pytest
import torch
from known_posteriors import (
    SPREAD,
    Known,
    gaussian,
    groups,
    prior_as_posterior,
    resampled,
    share,
)
from torch.distributions import MultivariateNormal

import prudent
from prudent.diagnostics import Ranks, ReferenceDistance, parameters, posterior_ranks
from prudent.diagnostics.sbc import SBC, sbc
from prudent.diagnostics.tarp import tarp
from prudent.errors import DataError, InputError
from prudent.problems.gaussian import NOISE


def pairs(dim, number, seed=0):
    return prudent.problems.get("gaussian", dim=dim).draw(number, seed)


def run(estimator, dim, number, num_samples=49, **functions):
    return posterior_ranks(
        estimator,
        *pairs(dim, number),
        {**parameters(dim), **functions},
        num_samples=num_samples,
        progress=False,
    )


def rejections(ranks, size):
    """Of each test, the share of repetitions with p < 0.05: overall, and by function."""
    results = [sbc(part) for part in groups(ranks, size)]

    def rate(name):
        return float((torch.stack([getattr(r, name) for r in results]) < 0.05).double().mean())

    return {"overall": share(r.p_value < 0.05 for r in results), "each": rate("p_values")}


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 2, 5, 10])
def test_size_on_exact_posteriors(dim):
    """500 repetitions of 60 pairs."""
    ranks = run(gaussian(dim=dim), dim, 500 * 60, num_samples=48, density="log_prob")
    for name, rate in rejections(ranks, 60).items():
        assert 0.03 <= rate <= 0.07, name


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 2, 5, 10])
@pytest.mark.parametrize("options", [{"widen": 0.8}, {"widen": 1.25}, {"shift": 0.5}])
def test_power_on_wrong_posteriors(dim, options):
    """1,000 pairs: overall, and by chi-square or KS in a single parameter."""
    ranks = run(gaussian(dim=dim, **options), dim, 60 * 1000)
    rates = rejections(ranks, 1000)
    assert min(rates.values()) >= 0.95


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "no defect seen"),
        ({"widen": 0.7}, "is too narrow"),
        ({"widen": 1.4}, "is too wide"),
        ({"shift": 0.5}, "of the truth lies below that of the draws"),
        ({"shift": -0.5}, "of the truth lies above that of the draws"),
    ],
)
def test_verdicts(options, words):
    result = sbc(run(gaussian(**options), 2, 1000, 99))
    assert words in result.verdict
    assert repr(result) == f"<SBC: {result.verdict}>"
    assert "\n" not in result.verdict
    assert (result.p_value < 0.05) == bool(options)
    inside = (result.difference >= result.lower) & (result.difference <= result.upper)
    assert bool(inside.all()) != bool(options)
    harmful = bool(options) and "too wide" not in words
    assert (result.metrics()["sbc_harm_p_value"] < 0.05) == harmful
    assert words in result.metrics()["sbc_harm"] or not harmful


def test_the_worst_function_is_named():
    def make(x):
        exact = gaussian(dim=3)(x)
        scale = SPREAD * torch.tensor([1.0, 1.6, 1.0])
        return MultivariateNormal(exact.mean, scale_tril=torch.diag(scale))

    estimator = Known(make, gaussian(dim=3).prior)
    names = ["a", "b", "c"]
    ranks = posterior_ranks(estimator, *pairs(3, 600), names=names, num_samples=99, progress=False)
    result = sbc(ranks, names)
    assert result.worst == "b"
    assert result.verdict.startswith("not calibrated in b: b is too wide")


def test_the_prior_as_posterior_passes_unless_a_function_knows_the_data():
    """The documented trap, and its remedy."""
    problem = prudent.problems.get("gaussian")
    functions = {
        "log_prob": "log_prob",
        "log_likelihood": lambda theta, x: -(theta - x).square().sum(-1) / NOISE**2 / 2,
    }
    ranks = run(prior_as_posterior(problem), 2, 100 * 200, **functions)
    blind = ranks.select(["theta_1", "theta_2", "log_prob"])
    assert share(sbc(part).p_value < 0.05 for part in groups(blind, 200)) <= 0.1
    result = sbc(ranks)
    assert result.worst == "log_likelihood"
    assert result.p_value < 1e-12


def test_a_wrong_correlation_shows_in_the_density_alone():
    covariance = SPREAD**2 * torch.tensor([[1.0, 0.7], [0.7, 1.0]])

    def make(x):
        return MultivariateNormal(x / (1 + NOISE**2), covariance)

    estimator = Known(make, gaussian().prior)
    result = sbc(run(estimator, 2, 2000, 99, density="log_prob"))
    assert (result.p_values[:2] > 0.01).all()
    assert result.p_values[2] < 1e-6


def test_ties_are_broken_at_random():
    """A constant, and a function with few values, have uniform ranks under the exact posterior."""
    functions = {
        "constant": lambda theta, x: torch.zeros(theta.shape[:-1]),
        "sign": lambda theta, x: theta[..., 0].sign(),
    }
    ranks = run(gaussian(dim=1), 1, 20_000, num_samples=9, **functions)
    result = sbc(ranks)
    assert (result.p_values > 0.01).all()
    assert set(ranks.ranks[1].tolist()) == set(range(10))


def test_few_candidates_look_like_a_narrow_posterior():
    """What resampling does to ranks: many draws of few candidates fail, few draws pass."""
    estimator = resampled(200)
    theta, x = pairs(2, 2000)
    many = sbc(posterior_ranks(estimator, theta, x, num_samples=500, progress=False))
    assert many.p_value < 0.01
    assert "is too narrow" in many.verdict
    assert "% of the draws are duplicates" in many.verdict
    assert many.ranks.duplicates > 0.8
    few = posterior_ranks(resampled(8192), theta[:500], x[:500], num_samples=100, progress=False)
    assert sbc(few).p_value > 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("widen", "least", "most"), [(1.0, 0, 2), (0.7, 8, 8)])
def test_ratios_are_ranked_among_draws_that_do_not_repeat(widen, least, most):
    """Eight repetitions of 125 pairs: an exact ratio passes, one that is too narrow never does."""
    estimator = gaussian(dim=2, widen=widen, normalized=False)
    ranks = posterior_ranks(estimator, *pairs(2, 1000), progress=False)
    assert ranks.num_samples == 100
    assert ranks.duplicates < 0.02
    for test in (sbc, tarp):
        rejected = sum(test(part).p_value < 0.05 for part in groups(ranks, 125))
        assert least <= rejected <= most


@pytest.mark.usefixtures("disagreeing")
def test_ratios_that_cannot_be_drawn_from_are_not_judged():
    ranks = posterior_ranks(gaussian(dim=2, normalized=False), *pairs(2, 20), progress=False)
    assert ranks.num_unresolved == 20
    assert sbc(ranks).verdict.startswith("cannot be measured this way")
    assert tarp(ranks).verdict.startswith("cannot be measured this way")


def test_thinning_helps_a_markov_chain():
    class Chain:
        def __init__(self, x):
            self.x, self.exact = x, gaussian(dim=1)(x)

        def sample(self, shape):
            """An autoregressive chain with the right stationary law."""
            noise = torch.randn(shape[0], len(self.x), 1)
            state = torch.randn(len(self.x), 1)
            values = []
            for step in noise:
                state = 0.9 * state + (1 - 0.81) ** 0.5 * step
                values.append(state)
            return self.exact.mean + SPREAD * torch.stack(values)

    estimator = Known(Chain, gaussian(dim=1).prior)
    theta, x = pairs(1, 2000)
    p_values = {
        thin: sbc(
            posterior_ranks(estimator, theta, x, num_samples=20, thin=thin, progress=False),
            ["theta_1"],
        ).p_value
        for thin in (1, 40)
    }
    assert p_values[1] < 1e-3
    assert p_values[40] > 0.01


def test_the_same_seed_gives_the_same_ranks_and_leaves_the_stream_alone():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, again = run(gaussian(), 2, 50), run(gaussian(), 2, 50)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.ranks, again.ranks)
    options = {"num_samples": 49, "progress": False, "seed": 1}
    assert not torch.equal(
        posterior_ranks(gaussian(), *pairs(2, 50), **options).ranks, first.ranks
    )


def test_non_finite_pairs_are_counted_and_reported():
    theta, x = pairs(2, 400)
    x = x.clone()
    x[:7, 0] = torch.nan
    x[7:9, 1] = torch.inf

    class Broken:
        def __init__(self, data):
            self.bad, self.exact = data[:, 0] > 1.5, gaussian()(data)

        def sample(self, shape):
            return self.exact.sample(shape).masked_fill(self.bad[:, None], torch.nan)

    estimator = Known(Broken, gaussian().prior)
    options = {"num_samples": 50, "progress": False}
    result = sbc(posterior_ranks(estimator, theta, x, **options))
    bad = int((x[9:, 0] > 1.5).sum())
    assert result.ranks.invalid == {"x": 9, "draws": bad, "functions": 0}
    assert result.ranks.num_pairs == 400 - 9 - bad
    assert "9 pairs left out: x not finite" in repr(result)
    assert f"{bad} pairs left out: draws not finite" in repr(result)
    nothing = Known(lambda x: Broken(x * 0 + 2), gaussian().prior)
    with pytest.raises(InputError, match="none of 400 pairs can be ranked"):
        posterior_ranks(nothing, theta, torch.zeros_like(x), **options)
    with pytest.raises(DataError, match="none of 400 simulations is finite"):
        posterior_ranks(estimator, theta, x * torch.nan, **options)
    with pytest.raises(DataError, match="`theta` are not finite"):
        posterior_ranks(estimator, theta / 0, x.nan_to_num(), **options)


def test_functions_that_are_nan_and_draws_outside_the_prior_are_counted():
    prior = prudent.problems.get("weinberg").prior

    class Leaking:
        def __init__(self, x):
            self.number = len(x)

        def sample(self, shape):
            return torch.rand(*shape, self.number, 1) * 2

    theta = prior.sample((100,))
    functions = {"root": lambda theta, x: (theta[..., 0] - 1e-3).sqrt()}
    ranks = posterior_ranks(
        Known(Leaking, prior),
        theta,
        torch.zeros(100, 1),
        functions,
        num_samples=99,
        progress=False,
    )
    assert 0 < ranks.invalid["functions"] < 30
    assert ranks.leakage == pytest.approx(0.125, abs=0.02)
    assert "outside the prior" in ranks.caveats


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"functions": {"f": "log_prop"}}, "Did you mean `log_prob`"),
        ({"functions": {}}, "empty"),
        ({"functions": {"f": lambda theta, x: theta}}, "expected the function `f`"),
        ({"num_samples": 0}, "whole number >= 1"),
        ({"thin": 0}, "whole number >= 1"),
    ],
)
def test_misuse_is_named(options, message):
    with pytest.raises(InputError, match=message):
        posterior_ranks(gaussian(), *pairs(2, 10), progress=False, **options)
    with pytest.raises(InputError, match="expected 2 parameter names"):
        posterior_ranks(gaussian(), *pairs(2, 10), names=["a"], progress=False)
    ranks = run(gaussian(), 2, 10)
    with pytest.raises(InputError, match="unknown function"):
        ranks.select(["theta_3"])


@pytest.mark.parametrize(("number", "num_samples"), [(1, 1), (3, 1), (2, 1000), (5, 4)])
def test_tiny_inputs_work(number, num_samples):
    result = sbc(run(gaussian(), 2, number, num_samples))
    assert isinstance(result, SBC)
    assert 0 <= result.p_value <= 1
    assert result.p_value > 0.01


def test_memory_does_not_grow_with_pairs():
    """The most draws held at once."""
    largest = []

    class Counting:
        def __init__(self, x):
            self.exact = gaussian()(x)

        def sample(self, shape):
            draws = self.exact.sample(shape)
            largest.append(draws.shape[0] * draws.shape[1])
            return draws

    run(Known(Counting, gaussian().prior), 2, 3000, 500)
    assert max(largest) <= 2**14
    assert sum(largest) == 3000 * 500


def test_a_flow_ranks_quickly(caplog):
    """1,000 pairs x 100 draws; ten times the draws take ten times as long."""
    problem = prudent.problems.get("gaussian")
    estimator = prudent.fit(*problem.draw(256, 0), problem.prior, method="npe", epochs=1)
    rows = []
    with caplog.at_level(logging.INFO):
        ranks = posterior_ranks(
            estimator, *problem.draw(1000, 1), num_samples=100, progress=rows.append
        )
    assert ranks.names == ("theta_1", "theta_2", "log_prob", "tarp")
    assert ranks.num_pairs == 1000
    assert len(rows) == 7


class ForSbi:
    """What sbi's diagnostics ask of a posterior."""

    def __init__(self, seed=0):
        self.generator = torch.Generator().manual_seed(seed)

    def sample_batched(self, shape, x, **options):
        exact = gaussian()(x)
        return exact.mean + exact.stddev * torch.randn(
            *shape, *exact.mean.shape, generator=self.generator
        )


def test_agreement_with_sbi():
    """The same draws, the same ranks."""
    module = pytest.importorskip("sbi.diagnostics.sbc")
    theta, x = pairs(2, 300)
    theirs, _ = module.run_sbc(
        theta, x, ForSbi(), num_posterior_samples=200, show_progress_bar=False
    )
    draws = ForSbi().sample_batched((200,), x)
    ours = posterior_ranks(draws, theta, x, progress=False)
    assert torch.equal(ours.ranks.T.float(), theirs)


def test_draws_made_elsewhere_are_ranked_as_those_of_an_estimator():
    """The rows of an array follow the pairs, also past those that are left out."""
    theta, x = pairs(2, 300)
    x = x.clone()
    x[:200:3] = torch.nan
    draws = gaussian()(x.nan_to_num()).sample((99,))

    class Fixed:
        def __init__(self, data):
            rows = (x[:, None] == data[None]).all(-1).float().argmax(0)
            self.draws = draws[:, rows]

        def sample(self, shape):
            return self.draws

    functions = {**parameters(2), "tarp": ReferenceDistance(gaussian().prior)}
    made, given = (
        posterior_ranks(source, theta, x, functions, num_samples=99, progress=False)
        for source in (Known(Fixed, gaussian().prior), draws.numpy())
    )
    assert torch.equal(made.ranks, given.ranks)
    assert (given.num_samples, given.invalid["x"]) == (99, 67)
    assert math.isnan(given.leakage)
    thinned = posterior_ranks(draws, theta, x, thin=11, progress=False)
    assert (thinned.names, thinned.num_samples) == (("theta_1", "theta_2"), 9)
    with pytest.raises(InputError, match="no density to rank"):
        posterior_ranks(draws, theta, x, {"density": "log_prob"}, progress=False)
    with pytest.raises(InputError, match="expected draws of shape"):
        posterior_ranks(draws[..., :1], theta, x, progress=False)


def test_a_model_without_a_prior_can_be_ranked():
    estimator = Known(gaussian().make, None)
    ranks = posterior_ranks(estimator, *pairs(2, 50), num_samples=19, progress=False)
    assert ranks.names == ("theta_1", "theta_2", "log_prob")
    assert math.isnan(ranks.leakage)
    assert not ranks.caveats


def test_uniform_ranks_by_hand():
    ranks = Ranks(("a",), torch.arange(50).repeat(1, 4), 49, {}, 0.0, 0.0)
    result = sbc(ranks)
    assert result.difference.abs().max() < 1e-9
    assert result.p_value == pytest.approx(1)
