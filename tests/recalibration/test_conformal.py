"""Regions that hold the truth as often as they say, whatever the posterior."""

import copy
import math

import pytest
import torch
from known_posteriors import gaussian

import prudent
from prudent.diagnostics import diagnose
from prudent.errors import InputError
from prudent.estimators import FlowEstimator
from prudent.recalibration import conformalize
from prudent.recalibration.conformal import Levels, alphas_of

PROBLEM = prudent.problems.get("gaussian")
LEVELS = (0.5, 0.8, 0.9, 0.95)
MANY = (0.01, *(round(0.05 * step, 2) for step in range(1, 20)), 0.99)
NUM_CALIBRATION, NUM_NEW, REPETITIONS = 79, 40, 200


def covered(estimator, repetition):
    """The share of new pairs inside the regions of each level."""
    calibration = PROBLEM.draw(NUM_CALIBRATION, 10 + repetition)
    theta, x = PROBLEM.draw(NUM_NEW, 10_000 + repetition)
    torch.manual_seed(repetition)
    posterior = conformalize(estimator, *calibration, seed=repetition)(x)
    return [float(posterior.contains(theta, level).double().mean()) for level in LEVELS]


@pytest.mark.slow
@pytest.mark.parametrize("widen", [0.6, 1.5])
def test_coverage_is_exact(widen):
    """Coverage given the calibration pairs is Beta distributed; its mean is known exactly."""
    shares = torch.tensor([covered(gaussian(widen=widen), r) for r in range(REPETITIONS)])
    plain = alphas_of(gaussian(widen=widen)(PROBLEM.draw(4000, 1)[1]), PROBLEM.draw(4000, 1)[0])
    number = NUM_CALIBRATION + 1
    for index, level in enumerate(LEVELS):
        rank = math.floor(round(number * (1 - level), 9))
        mean = 1 - rank / number
        assert level <= mean < level + 1 / number
        # The variance of the Beta distribution, and of the new pairs given it.
        spread = mean * (1 - mean) / (number + 1)
        variance = spread + (mean * (1 - mean) - spread) / NUM_NEW
        error = math.sqrt(variance / REPETITIONS)
        assert abs(float(shares[:, index].mean()) - mean) < 3.5 * error
        # The credible regions of the same posterior would fail.
        assert abs(float((plain >= 1 - level).double().mean()) - mean) > 3.5 * error


def test_ranks_by_hand():
    alphas = torch.linspace(0.01, 0.99, 99)
    ends = torch.full((1, 2), torch.inf)
    levels = Levels([alphas], -ends, ends)
    x = torch.zeros(3, 2)
    assert levels.least_alpha(0.9, x).tolist() == pytest.approx([0.1] * 3)
    assert levels.least_alpha(0.999, x).tolist() == [-math.inf] * 3  # too few pairs: everything
    adjusted = levels.adjusted(torch.tensor([0.0, 0.1, 1.0]), x)
    assert adjusted.tolist() == pytest.approx([0.0, 0.1, 0.99], abs=0.011)


@pytest.mark.parametrize("share", [0.0, 0.18])
@pytest.mark.parametrize("max_regions", [1, 3])
def test_the_diagnosis_is_that_of_the_regions(share, max_regions):
    """At every level, also where truths lie beyond the last draw, as a fifth of them do here."""
    conformal = conformalize(
        gaussian(widen=0.5), *PROBLEM.draw(2000, 101), max_regions=max_regions
    )
    theta, x = PROBLEM.draw(1000, 103)
    far = torch.rand(1000, generator=torch.Generator().manual_seed(0)) < share
    theta = theta + 5 * 0.2 * far[:, None]
    posterior, options = conformal(x), {"levels": MANY, "progress": False}
    result = diagnose(conformal, theta, x, **options)
    inside = [posterior.contains(theta, level).float().mean() for level in MANY]
    torch.testing.assert_close(result.coverage.curve, torch.stack(inside))
    assert (result.verdict.kind == "over-confident") == bool(share)
    assert (float(result.coverage.curve[-2]) < 0.85) == bool(share)


def test_few_pairs_say_what_they_promise():
    """Where one minus the level is no multiple of one in n + 1, a region holds a little more."""
    conformal = conformalize(gaussian(), *PROBLEM.draw(49, 1))
    theta, x = PROBLEM.draw(300, 2)
    posterior, options = conformal(x), {"levels": MANY, "progress": False}
    result = diagnose(conformal, theta, x, **options)
    inside = [posterior.contains(theta, level).float().mean() for level in MANY]
    torch.testing.assert_close(result.coverage.curve, torch.stack(inside))
    assert float(result.coverage.curve[-1]) == 1.0  # everything, and said so


@pytest.mark.parametrize("wrap", ["conformal", "tempered", "alike"])
def test_a_verdict_stays_with_what_it_judged(wrap):
    inner = FlowEstimator(PROBLEM.prior, 2, (2,), hidden=(8,)).eval()
    diagnose(inner, *PROBLEM.draw(200, 1), progress=False)
    before = inner.info["verdict"]
    if wrap == "conformal":
        other = conformalize(inner, *PROBLEM.draw(200, 2))
    else:
        other = copy.copy(inner) if wrap == "alike" else inner.tempered(2.0)
    if wrap != "alike":
        assert "verdict" not in other.info
        assert other(PROBLEM.draw(1, 3)[1]).verdict.startswith("not measured")
    diagnose(other, *PROBLEM.draw(20, 3), progress=False)
    assert "20 test pairs" in other.info["verdict"]
    assert inner.info["verdict"] == before


def test_both_verdicts_are_saved(tmp_path):
    inner = FlowEstimator(PROBLEM.prior, 2, (2,), hidden=(8,)).eval()
    inner.info["verdict"] = "that of the flow"
    conformal = conformalize(inner, *PROBLEM.draw(50, 2))
    for expected in ("not measured", "that of the regions"):
        conformal.save(tmp_path / "model")
        again = prudent.load(tmp_path / "model")
        assert again(PROBLEM.draw(1, 3)[1]).verdict.startswith(expected)
        assert again.inner.info["verdict"] == "that of the flow"
        conformal.info["verdict"] = "that of the regions"


@pytest.mark.parametrize("warm", [False, True])
def test_what_cannot_be_saved_says_so(warm, tmp_path):
    def flat(theta, x):
        return torch.zeros(theta.shape[:-1])

    model = prudent.adapt(log_prob=flat, sample=draws_of_prior, prior=PROBLEM.prior)
    model = model.tempered(1.5) if warm else model
    with pytest.raises(InputError, match="saved by its own means") as caught:
        model.save(tmp_path / "model")
    assert ("`.tempered(1.5)`" in str(caught.value)) == warm
    with pytest.raises(InputError, match=r"saved with an estimator of prudent\.fit, not with <"):
        conformalize(model, *PROBLEM.draw(20, 2)).save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def draws_of_prior(number, x):
    return PROBLEM.prior.sample((number, len(x)))


def wrong_on_one_side(x):
    """Too narrow where x is positive, too wide elsewhere: right on average at most."""
    widen = torch.where(x[:, :1] > 0, 0.6, 1.6)
    exact = gaussian()(x).base_dist
    return torch.distributions.Independent(
        torch.distributions.Normal(exact.loc, widen * exact.scale), 1
    )


def test_regions_of_x_have_levels_of_their_own():
    estimator = gaussian()
    estimator.make = wrong_on_one_side
    theta, x = PROBLEM.draw(3000, 3)
    right = x[:, 0] > 0
    calibration = PROBLEM.draw(3000, 4)

    def by_side(max_regions):
        found = conformalize(estimator, *calibration, max_regions=max_regions)
        inside = found(x).contains(theta, 0.8).double()
        return float(inside[right].mean()), float(inside[~right].mean())

    one, several = by_side(1), by_side(8)
    assert min(one) < 0.72  # the guarantee is an average
    assert max(one) > 0.88
    assert all(0.76 < share < 0.86 for share in several)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["npe", "nre"])
def test_it_saves_loads_draws_and_is_diagnosed(method, tmp_path):
    options = {"method": method, "epochs": 8, "hidden": [32, 32], "progress": False}
    estimator = prudent.fit(*PROBLEM.draw(400, 0), PROBLEM.prior, **options)
    conformal = conformalize(estimator, *PROBLEM.draw(500, 1))
    conformal.save(tmp_path / "model")
    again = prudent.load(tmp_path / "model")
    theta, x = PROBLEM.draw(500, 2)
    with torch.no_grad():
        assert torch.equal(again(x).log_prob(theta), estimator(x).log_prob(theta))
    assert again(x[:3]).sample((5,)).shape == (5, 3, 2)
    region = again(x[:20]).region(0.9)
    torch.testing.assert_close(region.credibility, conformal(x[:20]).region(0.9).credibility)
    result = diagnose(again, theta, x, progress=False)
    assert float((result.coverage.curve - result.coverage.levels).abs().max()) < 0.09
    assert "500 pairs" in repr(again)


@pytest.mark.parametrize("foreign", [True, False])
def test_observations_of_any_kind_have_the_same_region(foreign):
    pandas = pytest.importorskip("pandas")
    own = FlowEstimator(PROBLEM.prior, 2, (2,), hidden=(8,)).eval()
    conformal = conformalize(gaussian() if foreign else own, *PROBLEM.draw(50, 1))
    x = PROBLEM.draw(2, 2)[1]
    expected = conformal(x).region(0.9).threshold
    kinds = [x.tolist(), x.numpy(), x.double().numpy(), pandas.DataFrame(x.numpy())]
    for same in kinds if foreign else [*kinds, x.double()]:  # ours has a type of its own
        torch.testing.assert_close(conformal(same).region(0.9).threshold, expected)


def test_mistakes_are_refused():
    posterior = conformalize(gaussian(), *PROBLEM.draw(50, 1))(PROBLEM.draw(2, 2)[1])
    with pytest.raises(InputError, match="between 0 and 1"):
        posterior.region(90)
