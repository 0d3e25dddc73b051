"""Draws and densities of one posterior: told where they differ, silent where they do not."""

import pytest
import torch
from known_posteriors import NOISE, Known, box, boxed, boxed_pairs, gaussian
from torch.distributions import Independent, Normal

import prudent
from prudent.datasets import Pairs
from prudent.diagnostics.agreement import agreement
from prudent.diagnostics.expected_coverage import measure
from prudent.diagnostics.verdict import judge
from prudent.reports import cells

pytestmark = pytest.mark.usefixtures("any_theta")
NUM_PAIRS = 1000


class Both:
    """The density of one posterior and the draws of another one."""

    def __init__(self, density, draws):
        self.log_prob, self.sample = density.log_prob, draws.sample


def mixed(density, draws):
    """An estimator that is judged by one and draws from the other."""
    return Known(
        lambda x: Both(density(x), draws(x)), density.prior, normalized=density.normalized
    )


def diagnosed(estimator, dim, number=NUM_PAIRS):
    return prudent.diagnose(estimator, *boxed_pairs(number, dim), progress=False)


def compared(estimator, pairs, seeds=(0,)):
    pairs = Pairs(*pairs)
    measured = measure(estimator, pairs, progress=False)
    return [agreement(estimator, pairs, measured, seed) for seed in seeds]


# The widths of the density and of the draws.
APART = [(1.0, 0.5), (1.0, 0.8), (1.0, 1.25), (0.6, 1.0)]


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize(("own", "drawn"), APART)
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_draws_of_another_width_are_told(dim, own, drawn, normalized):
    estimator = mixed(
        boxed(dim=dim, widen=own, normalized=normalized), boxed(dim=dim, widen=drawn)
    )
    (found,) = compared(Known(estimator, box(dim), normalized=True), boxed_pairs(100, dim))
    if not normalized:  # judged by its draws, but nothing is said about an integral
        measured = measure(
            Known(estimator, box(dim)), Pairs(*boxed_pairs(100, dim)), progress=False
        )
        found = agreement(estimator, Pairs(*boxed_pairs(100, dim)), measured, 0)
        assert found["density_integral"] is None
    assert found["draws_p_value"] < 1e-5
    assert (found["draws_gap"] > 0) == (drawn < own)
    assert "log-density of draws is off" in found["disagreement"]


@pytest.mark.parametrize(("dim", "own", "drawn"), [(1, 1.0, 0.5), (2, 1.0, 0.5), (5, 0.6, 1.0)])
def test_a_disagreement_heads_the_verdict(dim, own, drawn):
    result = diagnosed(mixed(boxed(dim=dim, widen=own), boxed(dim=dim, widen=drawn)), dim, 2000)
    assert not result.verdict.trusted
    assert str(result).startswith("cannot be measured: draws and density disagree")
    assert result.metrics()["draws_p_value"] == result.draws_p_value < 1e-20


@pytest.mark.slow
def test_functions_that_disagree_are_told():
    def log_prob(theta, x):
        return Normal(x, NOISE).log_prob(theta).sum(dim=-1)

    def sample(number, x, width=NOISE):
        return x + width * torch.randn(number, *x.shape)

    def narrow(number, x):
        return sample(number, x, NOISE / 2)

    right, wrong = (
        diagnosed(prudent.adapt(prior=box(2), log_prob=log_prob, sample=draw), 2, 2000)
        for draw in (sample, narrow)
    )
    assert right.verdict.kind == "calibrated"
    assert "agree (p = " in str(right)
    assert "draws and density disagree" in wrong.verdict.text


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_a_density_too_high_is_told(dim):
    result = diagnosed(boxed(dim=dim, log_scale=10.0), dim)
    assert not result.verdict.trusted
    assert "the density integrates to" in result.verdict.text
    assert 1e4 < result.density_integral < 3e4
    assert result.draws_p_value > 1e-3
    (slightly,) = compared(boxed(dim=dim, log_scale=0.05), boxed_pairs(100, dim))
    assert slightly["disagreement"] is None


def test_a_mode_that_is_never_drawn_is_told():
    prior = box(2)

    class Modes:
        def __init__(self, x, places):
            self.x, self.places = x, places

        def _mode(self, place):
            return Independent(Normal(self.x + place, NOISE / 4), 1)

        def log_prob(self, theta):
            values = [self._mode(place).log_prob(theta) for place in (0.0, 2.0)]
            return torch.stack(values).logsumexp(dim=0) - torch.tensor(2.0).log()

        def sample(self, shape):
            parts = torch.stack([self._mode(place).sample(shape) for place in self.places])
            chosen = torch.randint(len(parts), parts.shape[1:3])[None, ..., None]
            return parts.gather(0, chosen.expand(-1, -1, -1, 2))[0]

    pairs = boxed_pairs(200)
    (right,), (wrong,) = (
        compared(Known(lambda x, p=places: Modes(x, p), prior), pairs)
        for places in ((0.0, 2.0), (2.0,))
    )
    assert right["disagreement"] is None
    assert "integrates to 0.5" in wrong["disagreement"]


def test_a_density_without_draws_is_told_by_the_grid():
    class Alone:
        def __init__(self, posterior):
            self.log_prob = posterior.log_prob

    for scale, told in ((0.0, False), (10.0, True)):
        exact = boxed(log_scale=scale)
        result = diagnosed(Known(lambda x, e=exact: Alone(e(x)), box(2)), 2)
        assert result.verdict.trusted != told
        assert ("the density integrates to 2.2e+04, not to 1" in str(result)) == told


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_opposite_errors_do_not_cancel(dim):
    class Mixed:
        def __init__(self, x):
            width = torch.where(x[:, :1] > x[:, :1].median(), 1.35, 0.7)
            self.sample = Independent(Normal(x, width * NOISE), 1).sample
            self.log_prob = Independent(Normal(x, NOISE), 1).log_prob

    (found,) = compared(Known(Mixed, box(dim)), boxed_pairs(1000, dim))
    assert found["draws_p_value"] < 1e-4
    assert found["disagreement"] is not None


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "repetitions"), [(1, 60), (2, 60), (3, 60), (5, 60), (10, 30)])
def test_exact_posteriors_agree(dim, repetitions):
    pairs = prudent.problems.get("gaussian", dim=dim).draw(100, 0)
    found = compared(gaussian(dim=dim), pairs, range(repetitions))
    assert all(one["disagreement"] is None for one in found)
    assert all(0.95 < one["density_integral"] < 1.05 for one in found)
    p_values = torch.tensor([one["draws_p_value"] for one in found])
    assert float((p_values < 0.05).double().mean()) <= 0.1
    assert float(p_values.min()) > 1e-3


def test_draws_outside_or_nowhere_are_told():
    exact = boxed()

    class Wrong:
        def __init__(self, x, change):
            self.posterior, self.change = exact(x), change
            self.log_prob = self.posterior.log_prob

        def sample(self, shape):
            return self.change(self.posterior.sample(shape))

    for change in (lambda theta: 1000 * theta, lambda theta: theta.fill_(torch.nan)):
        result = diagnosed(Known(lambda x, c=change: Wrong(x, c), box(2)), 2)
        assert not result.verdict.trusted
        assert "100 % of draws lie where there is none" in str(result)


def test_a_density_that_leaks_agrees_with_draws_that_do():
    problem = prudent.problems.get("gaussian")
    prior = Independent(torch.distributions.Uniform(-torch.ones(2), torch.ones(2)), 1)
    theta = prior.sample((200,))
    pairs = theta, theta + NOISE * torch.randn_like(theta)
    leaking = Known(lambda x: Independent(Normal(x, NOISE), 1), prior)
    assert problem.dim == 2
    result = prudent.diagnose(leaking, *pairs, progress=False)
    assert result.leakage > 0.1
    assert result.agreement["disagreement"] is None


@pytest.mark.slow
def test_own_estimators_agree():
    problem = prudent.problems.get("slcp")
    data, pairs, new = problem.draw(256, 0), problem.draw(100, 1), problem.draw(256, 2)
    options = {"epochs": 2, "progress": False}
    flow = prudent.fit(*data, problem.prior, method="npe", **options)
    paper = prudent.fit(*data, problem.prior, method="npe", networks="paper", **options)
    wide = flow.tempered(1.5)
    pairs = Pairs(*pairs)
    for estimator in (flow, paper, wide, prudent.recalibration.conformalize(flow, *new)):
        result = prudent.diagnose(estimator, pairs.theta, pairs.x, progress=False)
        assert result.draws_p_value > 1e-3
        assert result.agreement["disagreement"] is None
    assert paper.leaks
    ratio = prudent.fit(*data, problem.prior, method="nre", **options)
    assert not prudent.diagnose(ratio, pairs.theta, pairs.x, progress=False).agreement


def test_draws_alone_and_slow_densities_are_not_compared():
    class Only:
        def __init__(self, posterior):
            self.sample = posterior.sample

    class Slow(Both):
        slow_density = True

    exact = boxed()
    alone = diagnosed(Known(lambda x: Only(exact(x)), box(2)), 2, 200)
    assert not alone.agreement
    assert "draws and density" not in str(alone)
    slow = diagnosed(Known(lambda x: Slow(exact(x), exact(x)), box(2)), 2, 200)
    assert slow.metrics()["draws_gap"] is None
    assert "not compared, as the density is slow" in str(slow)


def test_the_comparison_is_saved_and_repeats(tmp_path):
    estimator = mixed(boxed(), boxed(widen=0.5))
    result, again = diagnosed(estimator, 2), diagnosed(estimator, 2)
    assert result.agreement == again.agreement
    result.save(tmp_path / "diagnosis")
    loaded = prudent.diagnostics.Diagnosis.load(tmp_path / "diagnosis")
    assert loaded.agreement == result.agreement
    assert loaded.verdict == result.verdict


def test_a_shortfall_is_said_before_a_disagreement():
    curves = {"levels": [0.5], "lower": [0.4], "upper": [0.6]}
    metrics = {"disagreement": "they differ"}
    verdicts = [judge(**curves, curve=[c], num_pairs=2000, metrics=metrics) for c in (0.3, 0.5)]
    assert [verdict.kind for verdict in verdicts] == ["over-confident", "cannot be measured"]


def test_one_seed_that_disagrees_is_told_for_all():
    curve = {"levels": [0.5], "curve": [0.5], "lower": [0.4], "upper": [0.6]}
    rows = [{"num_pairs": 2000, "disagreement": told} for told in (None, "they differ")]
    assert cells._judge(curve, rows, [1.0, 1.0]).text == "cannot be measured: they differ"
    assert cells._judge(curve, rows[:1], [1.0]).trusted
