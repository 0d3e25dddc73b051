"""Models that draw and have no density: what is measured, what is said to be missing."""

import json
import math

import pytest
import torch
from known_posteriors import Known, SlcpTable, gaussian, prior_as_posterior

import prudent
from prudent.diagnostics.expected_coverage import measure
from prudent.errors import InputError
from prudent.problems.two_moons import CENTER, RADIUS, ROOT, SPREAD

NUM_PAIRS = 2000


class Only:
    """The draws of a posterior, and nothing else."""

    def __init__(self, posterior):
        self.sample = posterior.sample


def drawing(estimator):
    return Known(lambda x: Only(estimator(x)), estimator.prior)


class Moons:
    """Exact draws of `two_moons`, or of crescents that are shorter and thinner, or not."""

    def __init__(self, x, widen=1.0, shift=0.0):
        self.x, self.widen, self.shift = x, widen, shift

    def sample(self, shape=()):
        (number,) = shape
        trials = 30  # of which more than a half is good
        angle = math.pi * (torch.rand(number, trials, len(self.x)) - 0.5) * self.widen
        radius = RADIUS + self.widen * SPREAD * torch.randn_like(angle)
        total = ROOT * (radius * angle.cos() + CENTER - self.x[:, 0])
        sign = 2 * torch.randint(0, 2, total.shape) - 1
        difference = ROOT * (self.x[:, 1] - radius * angle.sin())
        pair = torch.stack((sign * total - difference, sign * total + difference), dim=-1) / 2
        good = (total >= 0) & (pair.abs() <= 1).all(-1)
        first = good.float().argmax(dim=1)[:, None, :, None].expand(-1, 1, -1, 2)
        return pair.gather(1, first)[:, 0] + self.shift


def moons(widen=1.0, shift=0.0):
    prior = prudent.problems.get("two_moons").prior
    return Known(lambda x: Moons(x, widen, shift), prior)


def slcp(widen=1.0):
    table = SlcpTable(1 / widen**2)
    return Known(table, prudent.problems.get("slcp").prior)


MODELS = {"gaussian": gaussian, "two_moons": moons, "slcp": slcp}
CASES = [
    ("gaussian", {}, "calibrated"),
    ("gaussian", {"widen": 0.8}, "over-confident"),
    ("gaussian", {"widen": 1.25}, "conservative"),
    ("gaussian", {"shift": 0.5}, "over-confident"),
    ("two_moons", {}, "calibrated"),
    ("two_moons", {"widen": 0.8}, "over-confident"),
    ("two_moons", {"shift": 0.02}, "over-confident"),
    ("slcp", {}, "calibrated"),
    ("slcp", {"widen": 0.8}, "over-confident"),
    ("slcp", {"widen": 1.25}, "conservative"),
]


@pytest.mark.parametrize(("name", "options", "expected"), CASES)
def test_the_verdict_on_known_draws(name, options, expected):
    pairs = prudent.problems.get(name).draw(NUM_PAIRS, 3)
    estimator = drawing(MODELS[name](**options))
    result = prudent.diagnose(estimator, *pairs, progress=False)
    assert result.verdict.kind == expected, result
    assert result.computed_by == "draws"


def test_what_cannot_be_had_is_said_once():
    problem = prudent.problems.get("gaussian")
    pairs = problem.draw(NUM_PAIRS, 3)
    result = prudent.diagnose(drawing(gaussian()), *pairs, progress=False)
    text = str(result)
    assert text.count("no density, draws alone") == 1
    assert "nan" not in text
    assert "log posterior  " not in text
    assert "90 % region  " not in text
    metrics = json.loads(json.dumps(result.metrics(), allow_nan=False))
    for name in ("log_posterior", "information_gain", "region_volume", "log_normalization"):
        assert metrics[name] is None
    assert metrics["num_invalid"] == metrics["num_unresolved"] == 0
    assert metrics["posterior_variance"] == pytest.approx([0.2, 0.2], rel=0.03)
    # Without a density nothing tells the prior from a posterior, and the printout says so.
    ignorant = prudent.diagnose(drawing(prior_as_posterior(problem)), *pairs, progress=False)
    assert ignorant.verdict.kind == "calibrated"
    assert "as wide as the prior passes" in str(ignorant)


def test_alphas_are_uniform_for_few_draws_too():
    """With five draws a plain share would have six values; alpha is continuous and uniform."""
    theta, x = prudent.problems.get("gaussian").draw(4000, 0)
    pairs = prudent.datasets.Pairs.of(theta, x)
    for widen, low, high in ((1.0, 0.0, 1.63), (0.8, 2.5, math.inf)):
        alpha = measure(drawing(gaussian(widen=widen)), pairs, num_draws=5, progress=False).alpha
        place = torch.arange(1, 4001) / 4000
        distance = float((alpha.sort().values - place).abs().max()) * 4000**0.5
        assert low < distance < high  # Kolmogorov-Smirnov, 1 %


def test_thorough_diagnoses_work_from_draws():
    pytest.importorskip("sklearn")
    pairs = prudent.problems.get("gaussian").draw(400, 3)
    found = {
        widen: prudent.diagnose(
            drawing(gaussian(widen=widen)), *pairs, thorough=True, progress=False
        ).results
        for widen in (1.0, 0.6)
    }
    assert found[1.0]["sbc"].ranks.names == ("theta_1", "theta_2")
    for name in ("sbc", "tarp"):
        assert found[1.0][name].p_value > 0.01 > found[0.6][name].p_value
    assert "local_coverage" in found[1.0]


def test_broken_draws_are_never_an_all_clear():
    pairs = prudent.problems.get("gaussian").draw(NUM_PAIRS, 3)

    def make(x):
        broken, exact = Only(gaussian()(x)), gaussian()(x)
        bad = (x[:, 0] > 0.8).unsqueeze(1)
        broken.sample = lambda shape: exact.sample(shape).masked_fill(bad, torch.nan)
        return broken

    result = prudent.diagnose(Known(make, gaussian().prior), *pairs, progress=False)
    assert result.num_invalid == int((pairs[1][:, 0] > 0.8).sum())
    assert result.verdict.kind == "over-confident"

    constant = Known(lambda x: Only(Point(x)), gaussian().prior)
    assert prudent.diagnose(constant, *pairs, progress=False).verdict.kind == "over-confident"


class Point:
    """An estimate without an error."""

    def __init__(self, x):
        self.x = x

    def sample(self, shape=()):
        return (0.8 * self.x).expand(*shape, *self.x.shape)


def test_what_needs_a_density_says_so():
    pairs = prudent.problems.get("gaussian").draw(NUM_PAIRS, 3)
    estimator = drawing(gaussian())
    for method in ("grid", "samples", "importance"):
        with pytest.raises(InputError, match="has no `log_prob`"):
            prudent.diagnose(estimator, *pairs, method=method, progress=False)
    with pytest.raises(InputError, match="needs the density"):
        prudent.recalibrate(estimator, *pairs)
    with pytest.raises(InputError, match="no `log_prob`"):
        prudent.recalibration.conformalize(estimator, *pairs)
    with pytest.raises(InputError, match="ratio draws by weights"):
        prudent.diagnose(gaussian(normalized=False), *pairs, method="draws", progress=False)


def test_densities_may_be_measured_by_draws_as_well():
    """The log posterior is then that of the truths; alpha agrees with the densest regions."""
    pairs = prudent.problems.get("gaussian").draw(NUM_PAIRS, 3)
    dense = prudent.diagnose(gaussian(widen=0.7), *pairs, method="samples", progress=False)
    drawn = prudent.diagnose(gaussian(widen=0.7), *pairs, method="draws", progress=False)
    assert drawn.log_posterior == dense.log_posterior
    assert drawn.auc == pytest.approx(dense.auc, abs=0.02)
    assert "log posterior  " in str(drawn)
