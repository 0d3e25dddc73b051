"""A temperature makes posteriors as wide as pairs that training did not see say they should be."""

from dataclasses import replace

import pytest
import torch
from known_posteriors import box, density, gaussian
from torch.distributions import Independent, Normal

import prudent
from prudent.datasets import Pairs
from prudent.diagnostics import diagnose, measure
from prudent.diagnostics._points import Samples
from prudent.errors import InputError
from prudent.priors.density import log_density
from prudent.problems.gaussian import NOISE, exact_posterior
from prudent.recalibration import conformalize, recalibrate, temperature
from prudent.recalibration.temperature import COSTLY, fit_temperature, is_safe, tempered

PROBLEM = prudent.problems.get("gaussian")
CALIBRATION, NEW = PROBLEM.draw(1000, 1), PROBLEM.draw(2500, 2)
FEW = tuple(values[:300] for values in CALIBRATION)


def trained_with(noise, method):
    """A good network for data with another noise: wrong in its width, not in its shape."""
    torch.manual_seed(0)
    theta = PROBLEM.prior.sample((6000,))
    x = theta + noise * NOISE * torch.randn(theta.shape)
    options = {"method": method, "epochs": 12, "hidden": [32, 32], "progress": False}
    return prudent.fit(theta, x, PROBLEM.prior, **options)


def worst(result):
    return float((result.coverage.curve - result.coverage.levels).abs().max())


@pytest.mark.slow
@pytest.mark.parametrize(("method", "noise"), [("npe", 0.7), ("npe", 1.4), ("nre", 0.6)])
def test_wrong_widths_are_mended(noise, method, tmp_path):
    estimator, new, calibration, bound = trained_with(noise, method), NEW, CALIBRATION, 0.04
    if method == "nre":  # slow to normalize: fewer pairs, whose coverage has larger errors
        new, calibration, bound = tuple(values[:250] for values in NEW), FEW, 0.09
    before = diagnose(estimator, *new, progress=False)
    assert worst(before) > bound + 0.02  # there is something to mend
    mended = recalibrate(estimator, *calibration, target="calibrated")
    after = diagnose(mended, *new, progress=False)
    assert worst(after) <= bound
    assert (mended.temperature > 1) == (noise < 1)
    assert after.log_posterior > before.log_posterior
    mended.save(tmp_path / "model")
    again = prudent.load(tmp_path / "model")
    with torch.no_grad():
        expected = mended(new[1][:20]).log_prob(new[0][:20])
        assert torch.equal(again(new[1][:20]).log_prob(new[0][:20]), expected)
    assert again(new[1][:3]).sample((10,)).shape == (10, 3, 2)


@pytest.mark.slow
@pytest.mark.parametrize("widen", [0.7, 1.0])
def test_conservative_posteriors_are_safe_on_new_pairs(widen):
    """Of a foreign density: over-confident ones are widened, and none is left short."""
    estimator = gaussian(widen=widen)
    mended = recalibrate(estimator, *FEW)
    assert isinstance(mended, prudent.adapters.Adapted)
    assert not mended.normalized
    result = diagnose(mended, *(values[:300] for values in NEW), progress=False)
    assert result.auc > 0
    assert result.worst_shortfall < 0.06
    assert result.verdict.kind != "over-confident"
    if widen < 1:
        assert mended.temperature > 1


def test_the_temperature_is_that_of_the_closed_form():
    """A normal q of width w s against a prior of width 1: precisions are mixed."""
    widen = 0.7
    shrink = 1 / (1 + NOISE**2)
    narrow = 1 / (widen**2 * NOISE**2 * shrink)
    true = 1 / (NOISE**2 * shrink)
    expected = (narrow - 1) / (true - 1)  # the power at which the precision is the true one
    pairs = Pairs(*PROBLEM.draw(500, 5))
    found, floor = fit_temperature([(gaussian(widen=widen), pairs)], target="calibrated")
    assert floor == 0
    # Alpha has an error over 500 pairs, which is 0.013 of 0.5, and its mean is pulled a little.
    assert found == pytest.approx(expected, rel=0.15)


def test_one_density_is_wider_and_inside_the_prior():
    prior = box(2)
    inner = density(lambda theta, x: exact_posterior(x).log_prob(theta), prior)
    hot = tempered(inner, 3.0)(NEW[1][:4])
    theta = 4.5 * torch.randn(200, 4, 2)
    known = log_density(prior, theta)
    expected = known + (exact_posterior(NEW[1][:4]).log_prob(theta) - known) / 3
    torch.testing.assert_close(
        hot.log_prob(theta), expected.masked_fill(known == -torch.inf, -torch.inf)
    )
    assert len(hot.rows(torch.tensor([2, 0]))) == 2
    assert hot.sample((50,)).shape == (50, 4, 2)


def test_safe_is_more_than_calibrated():
    torch.manual_seed(0)
    uniform = torch.rand(4000)
    assert not is_safe(uniform**1.2)
    assert not is_safe(uniform - 0.0)
    assert is_safe(uniform**0.8)


class Doubtful:
    """Draws of a normal of which the first of each hundred pairs are not resolved."""

    most_unresolved, at_once, name = 1.0, 256, "importance"

    def __init__(self, number):
        self.number = number

    def __call__(self, posterior, pairs, log_prob):
        points = Samples(posterior.prior)(posterior, pairs, log_prob)
        return replace(points, resolved=pairs.row_numbers % 100 >= self.number)


class Wide:
    """The exact posterior of the Gaussian problem, widened, whose prior is known."""

    prior = PROBLEM.prior
    normalized = False

    def __init__(self, widen=1.5, x=None):
        self.widen, self.x = widen, x
        self.known = None if x is None else gaussian(widen=widen)(x)

    def __call__(self, x):
        return Wide(self.widen, x)

    def log_prob(self, theta):
        return self.known.log_prob(theta)

    def sample(self, shape):
        return self.known.sample(shape)


def test_what_is_not_resolved_is_not_safe(monkeypatch):
    """It counts as not covered, and is left to the next way first, if there is one."""

    def fitted(*numbers):
        ways = [Doubtful(number) for number in numbers]
        monkeypatch.setattr(temperature, "choose", lambda *_, **__: iter(ways))
        return fit_temperature([(Wide(), Pairs(*FEW))])[0]

    expected = fitted(0)
    assert expected < 1
    with pytest.warns(UserWarning, match=r"6 of 300"):
        assert 1.03 * expected < fitted(2) < 2
    assert fitted(40, 0) == pytest.approx(expected, rel=0.1)
    with pytest.warns(UserWarning, match=r"30 of 300 posteriors are not resolved and count"):
        assert fitted(40, 10) == temperature.MOST
    with pytest.warns(UserWarning, match=r"300 of 300"):
        assert fitted(100) == temperature.MOST


def test_levels_are_not_undone_in_silence():
    conformal = conformalize(gaussian(), *PROBLEM.draw(50, 1))
    with pytest.raises(InputError, match=r"inside \(`.inner`\), and conformalize"):
        recalibrate(conformal, *FEW)
    again = conformalize(recalibrate(conformal.inner, *FEW), *PROBLEM.draw(50, 1))
    assert "verdict" not in again.info


def test_mistakes_are_refused():
    with pytest.raises(InputError, match="too few"):
        recalibrate(gaussian(), *PROBLEM.draw(10, 1))
    with pytest.raises(InputError, match="target"):
        recalibrate(gaussian(), *FEW, target="narrow")
    broken = density(lambda theta, x: theta.sum(-1) * torch.nan, PROBLEM.prior)
    with pytest.raises(InputError):
        recalibrate(broken, *FEW)


@pytest.mark.slow
def test_temperatures_agree_with_measured_ones():
    """Points at one temperature stand for another: the alphas are those of drawing there."""
    flow = trained_with(0.8, "npe")
    pairs = Pairs(*(values[:400] for values in NEW))
    found, _ = fit_temperature([(flow, pairs)], target="calibrated")
    alpha = measure(tempered(flow, found), pairs, progress=False).alpha
    assert float(alpha.mean()) == pytest.approx(0.5, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "expected"), [(0.0, False), (0.05, True)])
def test_a_few_wrong_posteriors_get_a_floor_and_not_a_fever(wrong, expected):
    """A twentieth of the truths are anywhere in the prior: no temperature mends that cheaply."""
    flow, (theta, x) = trained_with(1.0, "npe"), (values[:1000].clone() for values in NEW)
    some = slice(0, round(wrong * len(theta)))
    theta[some] = PROBLEM.prior.sample((len(theta[some]),))
    pairs = Pairs(theta, x)
    temperature, floor = fit_temperature([(flow, pairs)])
    assert (floor > 0) == expected
    with_floor = diagnose(tempered(flow, temperature, floor), theta, x, progress=False)
    assert with_floor.verdict.kind == "conservative"
    assert with_floor.num_unresolved == 0
    if expected:
        hot = (diagnose(tempered(flow, t), theta, x, progress=False) for t in (1.5, 2.0, 3.0, 4.0))
        least = next(one for one in hot if one.verdict.kind == "conservative")
        assert with_floor.log_posterior > least.log_posterior + COSTLY


@pytest.mark.slow
def test_the_recommended_estimator_is_one_word():
    problem = prudent.problems.get("slcp")
    theta, x = problem.draw(300, 0)
    estimator = prudent.fit(theta, x, problem.prior, epochs=15, progress=False)
    assert (len(estimator), estimator.info["method"]) == (5, "prudent")
    assert estimator.temperature == estimator.info["temperature"]
    found = estimator.out_of_fold
    assert found.num_pairs == 300
    assert torch.equal(found.pairs.theta, theta)
    assert "out-of-fold pairs" in str(found) or "cannot be measured" in str(found)
    assert str(found).startswith("at least this cautious: ")
    fast = prudent.fit(theta, x, problem.prior, preset="fast", epochs=3, progress=False)
    assert type(fast) is prudent.estimators.FlowEstimator
    assert fast.temperature == fast.info["temperature"]
    paper = prudent.fit(theta, x, problem.prior, preset="paper", epochs=1, progress=False)
    assert paper.info["method"] == "calnpe"
    assert paper.hidden == (64, 64)


def test_out_of_fold_means_out_of_fold():
    """The density of each pair is that of the member that did not train on it, and of no other."""
    prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    theta, x = PROBLEM.draw(90, 0)
    options = {"members": 3, "ensemble": "folds", "epochs": 2, "method": "npe", "hidden": [16]}
    estimator = prudent.fit(theta, x, prior, progress=False, **options)
    with torch.no_grad():
        each = torch.stack([member(x).log_prob(theta) for member in estimator])
    own = each.gather(0, estimator.fold[None])[0]
    found = estimator.out_of_fold.measurement.log_posterior
    torch.testing.assert_close(found, own, atol=1e-5, rtol=0)
    assert not torch.allclose(found, each[0], atol=1e-3)
