"""Theta that follow the prior pass, whatever the prior; others, and rows that repeat, do not."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import (
    Bernoulli,
    Beta,
    Cauchy,
    Dirichlet,
    Gamma,
    Independent,
    MultivariateNormal,
    Normal,
    Poisson,
)

import prudent
from known_priors import PRIORS as EVERY
from known_priors import made
from prudent.datasets import Pairs, Stream, provenance
from prudent.datasets.provenance import checked, distinct, refuse_seen, remembered, strays
from prudent.errors import DataError, InputError
from prudent.priors.checks import check_prior, of_any_shape
from prudent.priors.families import LogUniform, Product, RowPrior, Truncated
from prudent.problems import box

SQUARE = box([-3.0, -3.0], [3.0, 3.0])
CORRELATED = MultivariateNormal(torch.zeros(2), torch.tensor([[1.0, 0.9], [0.9, 1.0]]))
PRIORS = {
    "box": SQUARE,
    "box of 20": box([0.0] * 20, [1.0] * 20),
    "box far from zero": box([1000.0], [1001.0]),
    "correlated": CORRELATED,
    "simplex": Dirichlet(torch.ones(4)),
    "heavy-tailed": Independent(Cauchy(torch.zeros(2), torch.ones(2)), 1),
    "product": Product([Beta(0.5, 0.5), LogUniform(1e-3, 1e3), Truncated(Gamma(2.0, 1.0), 1.0)]),
    "counts": Independent(Poisson(torch.tensor([3.0, 0.1])), 1),
    "two values": Independent(Bernoulli(torch.tensor([0.3])), 1),
    "rows": RowPrior(SQUARE, 2),
}


def of(theta, seed=0):
    """Pairs with these theta, whose x is another number each."""
    generator = torch.Generator().manual_seed(seed)
    return Pairs(theta, torch.rand(len(theta), 1, generator=generator))


@pytest.mark.parametrize("name", PRIORS)
def test_draws_of_the_prior_pass(name):
    prior = PRIORS[name]
    for seed, number in enumerate((1, 2, 30, 256, 2000, 20_000)):
        torch.manual_seed(seed)
        assert strays(of(prior.sample((number,)).float()), prior) == ""


@pytest.mark.parametrize("name", EVERY)
def test_every_prior_that_people_write_is_compared(name):
    prior = made(name)
    prior = of_any_shape(prior, check_prior(prior))
    torch.manual_seed(0)
    theta = prior.sample((2000,))
    assert checked(of(theta), prior, None)[1] == ""
    with pytest.warns(UserWarning, match="does not follow the prior"):
        assert strays(of(theta[(theta[:, 0] > theta[:, 0].median())]), prior)
    if name != "mixture":
        with pytest.raises(DataError, match="1 of 2,000 rows of `theta` have no density"):
            checked(of(torch.cat((theta[1:], theta[:1] - 100))), prior, None)


@pytest.mark.parametrize("name", ["box", "correlated", "heavy-tailed"])
def test_false_alarms_are_rarer_than_promised(name, monkeypatch):
    """At a rate of one in five: a test that rings always, or more often than that, is seen."""
    monkeypatch.setattr(provenance, "RARE", 0.2)
    monkeypatch.setattr(provenance, "NUM_DRAWS", 4000)
    torch.manual_seed(0)
    number, prior = 60, PRIORS[name]
    drawn = [of(prior.sample((300,))) for _ in range(number)]
    monkeypatch.setattr(provenance.warnings, "warn", lambda *args, **options: None)
    alarms = sum(strays(pairs, prior) != "" for pairs in drawn)
    assert alarms / number < 0.2 + 3 * math.sqrt(0.2 * 0.8 / number)
    wrong = sum(strays(of(pairs.theta * 0.5), prior) != "" for pairs in drawn)
    assert wrong == number


def sobol(number):
    return 6 * torch.quasirandom.SobolEngine(2, scramble=True, seed=0).draw(number) - 3


TORCH = torch.Generator().manual_seed(0)
DRAWN = 6 * torch.rand(4000, 2, generator=TORCH) - 3
HARMLESS = {
    "a part": DRAWN[:300],
    "every tenth": DRAWN[::10],
    "sorted": DRAWN[DRAWN[:, 0].argsort()],
    "evenly spread": sobol(1024),
    "rounded": DRAWN.mul(100).round().div(100),
    "of float64": DRAWN.double(),
    "each with 50 x": DRAWN[:40].repeat_interleave(50, dim=0),
    "very many": DRAWN.repeat(20, 1) + 0.01 * torch.randn(80_000, 2, generator=TORCH).clamp(-3, 3),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_other_ways_to_draw_from_the_prior_pass(name):
    assert strays(of(HARMLESS[name].clamp(-3, 3)), SQUARE) == ""


def copula(correlation, number=1000):
    """Theta with the marginals of the square, and such a correlation of their normal scores."""
    covariance = torch.tensor([[1.0, correlation], [correlation, 1.0]])
    torch.manual_seed(0)
    normal = MultivariateNormal(torch.zeros(2), covariance).sample((number,))
    return 6 * Normal(0.0, 1.0).cdf(normal) - 3


WRONG = {
    "a ninth of the box": (SQUARE, DRAWN[:256] / 3, "0 % of theta_1 are at most"),
    "nine tenths of the box": (SQUARE, DRAWN[:1000] * 0.9, "0 % of theta_"),
    "a parameter that is constant": (SQUARE, DRAWN[:256] * torch.tensor([1.0, 0.0]), "theta_2"),
    "a wide prior": (box([-1e3] * 2, [1e3] * 2), DRAWN[:256], "where the prior has"),
    "correlated": (SQUARE, copula(0.7), "theta_1 and theta_2 are on one side"),
    "not correlated": (CORRELATED, DRAWN[:1000] / 2, "where the prior has"),
    "other counts": (PRIORS["counts"], torch.poisson(torch.full((3000, 2), 3.0)), "theta_2"),
}


@pytest.mark.parametrize("name", WRONG)
def test_theta_from_elsewhere_are_told(name):
    prior, theta, words = WRONG[name]
    with pytest.warns(UserWarning, match="theta does not follow the prior"):
        told = strays(of(theta), prior)
    assert words in told


def test_names_are_used():
    with pytest.warns(UserWarning, match=r"\(0 % of mass are at most -\S*, where the prior has"):
        strays(of(DRAWN[:256] * torch.tensor([1 / 3, 1.0])), SQUARE, ["mass", "spin"])


def test_failed_simulations_count():
    """Where simulations fail for small theta, those that are left do not follow the prior."""
    valid = DRAWN[:, 0] > 0
    whole = Pairs.among(DRAWN, DRAWN + 1, valid)
    assert strays(whole, SQUARE) == ""
    with pytest.warns(UserWarning, match="does not follow"):
        assert strays(Pairs(whole.theta, whole.x), SQUARE)


def test_global_state_is_left_alone():
    before = torch.random.get_rng_state()
    strays(of(DRAWN), SQUARE)
    assert torch.equal(torch.random.get_rng_state(), before)


# ---- Rows that repeat


def test_rows_that_repeat_are_left_out_and_told():
    once = of(DRAWN[:40])
    with pytest.warns(UserWarning, match="1,960 of 2,000 pairs repeat others and are left out"):
        found = distinct(Pairs(once.theta.repeat(50, 1), once.x.repeat(50, 1)))
    assert torch.equal(found.theta, once.theta)
    assert torch.equal(found.x, once.x)
    assert distinct(once) is once


def test_failed_simulations_that_repeat_are_left_out_too():
    once = of(DRAWN[:40])
    x = torch.where(once.theta[:, :1] > 0, once.x, torch.nan)
    single = Pairs.among(once.theta, x, once.theta[:, 0] > 0)
    twice = Pairs.among(once.theta.repeat(2, 1), x.repeat(2, 1), once.theta[:, 0].repeat(2) > 0)
    with pytest.warns(UserWarning, match="repeat others"):
        found = distinct(twice)
    assert (len(found), found.num_invalid) == (len(single), single.num_invalid)


def counts(number, seed):
    rows = np.random.default_rng(seed).integers(0, 40, size=(number, 2)).astype(np.float32)
    return Pairs(torch.from_numpy(rows[:, :1]), torch.from_numpy(rows[:, 1:]))


@pytest.mark.parametrize("number", [200, 2000, 20_000])
def test_numbers_of_few_values_may_repeat(number):
    pairs = counts(number, 0)
    assert distinct(pairs) is pairs


def test_one_theta_with_several_observations_stays():
    pairs = of(DRAWN[:40].repeat(50, 1))
    assert distinct(pairs) is pairs


def test_a_stream_with_repeats_is_refused():
    class Rows:
        path, chunk_size, dim, x_shape = "sims.h5", 10, 2, (1,)
        theta, x = DRAWN[:20].repeat(2, 1), of(DRAWN[:20]).x.repeat(2, 1)

        def __len__(self):
            return 40

        def read(self, start, stop):
            part = slice(start, stop)
            return self.theta[part], self.x[part], torch.zeros(stop - start)

    with pytest.raises(DataError, match=r"20 of 40 pairs repeat others, .* in sims.h5"):
        distinct(Stream(Rows()))


# ---- Pairs that trained


def test_pairs_of_few_values_are_known_by_chance():
    known = remembered(counts(2000, 0))
    refuse_seen(known, counts(1000, 2))
    with pytest.raises(InputError, match="1,000 of 1,000 test pairs are among the training pairs"):
        refuse_seen(remembered(of(DRAWN)), of(DRAWN)[:1000])
    refuse_seen(remembered(of(DRAWN)), of(DRAWN, 1))
    with pytest.raises(InputError, match="1 of 1 test pairs"):
        refuse_seen(remembered(of(DRAWN)), of(DRAWN)[:1])


def test_of_many_rows_some_are_remembered():
    many = of(DRAWN.repeat(5, 1))
    known = remembered(many)
    assert len(known) == 4000
    with pytest.raises(InputError, match="200 of 1,000 test pairs"):
        refuse_seen(known, many[:1000])


# ---- What people call


def fitted(theta, x, prior=SQUARE, **options):
    options = {"method": "npe", "epochs": 2, "hidden": [16], "progress": False, **options}
    return prudent.fit(theta, x, prior, **options)


def simulated(theta, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return theta, theta + 0.3 * torch.randn(theta.shape, generator=generator)


@pytest.fixture(scope="module")
def estimator():
    return fitted(*simulated(DRAWN[:256]))


def test_a_training_on_theta_from_elsewhere_is_told_for_ever(tmp_path):
    folds = {"members": 2, "ensemble": "folds"}
    with pytest.warns(UserWarning, match="theta does not follow the prior"):
        wrong = fitted(*simulated(DRAWN[:256] / 3), **folds)
    right = fitted(*simulated(DRAWN[:256]), **folds)
    for name, fit in (("wrong", wrong), ("right", right)):
        fit.save(tmp_path / name)
        for found in (fit, prudent.load(tmp_path / name)):
            astray = found.out_of_fold.verdict.text.startswith("cannot be measured by these pairs")
            assert astray == ("strays" in found.info) == (name == "wrong")
    assert "theta does not follow" in wrong.summary()


def test_pairs_from_elsewhere_judge_nothing(estimator, tmp_path):
    with pytest.warns(UserWarning, match="theta does not follow the prior"):
        found = prudent.diagnose(estimator, *simulated(DRAWN[300:2300] / 3, 1), progress=False)
    assert found.verdict.kind == "cannot be measured"
    assert not found.verdict.trusted
    assert "theta does not follow the prior (0 % of theta_" in found.verdict.text
    assert estimator.info["verdict"] == found.verdict.text
    found.save(tmp_path / "diagnosis")
    again = prudent.diagnostics.Diagnosis.load(tmp_path / "diagnosis")
    assert again.verdict == found.verdict
    right = prudent.diagnose(estimator, *simulated(DRAWN[300:2300], 1), progress=False)
    assert right.strays == ""
    assert "does not follow" not in right.verdict.text


def test_failed_test_pairs_are_no_false_alarm(estimator):
    theta, x = simulated(DRAWN[300:1300], 1)
    x[theta[:, 0] < 0] = torch.nan
    with pytest.warns(UserWarning, match="left out"):
        found = prudent.diagnose(estimator, theta, x, progress=False)
    assert found.strays == ""
    valid = theta[:, 0] >= 0
    with pytest.warns(UserWarning, match="does not follow"):
        prudent.diagnose(estimator, theta[valid], x[valid], progress=False)


def test_pairs_that_repeat_count_once(estimator):
    theta, x = simulated(DRAWN[300:340], 1)
    with pytest.warns(UserWarning, match="1,960 of 2,000 pairs repeat others"):
        many = prudent.diagnose(estimator, theta.repeat(50, 1), x.repeat(50, 1), progress=False)
    assert many.num_pairs == 40
    once = prudent.diagnose(estimator, Pairs(theta, x), progress=False)
    assert many.metrics() == once.metrics()


def test_a_training_on_rows_that_repeat_is_that_on_each_once():
    theta, x = simulated(DRAWN[:100])
    with pytest.warns(UserWarning, match="100 of 200 pairs repeat others"):
        twice = fitted(theta.repeat(2, 1), x.repeat(2, 1))
    once = fitted(theta, x)
    assert twice.info["num_simulations"] == once.info["num_simulations"] == 100
    state = once.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in twice.state_dict().items())


def test_theta_that_are_all_the_same_are_refused():
    with pytest.raises(DataError, match="`theta` is the same in all simulations"):
        fitted(torch.zeros(50, 2), DRAWN[:50])


def test_training_pairs_are_refused_in_python(estimator, tmp_path):
    seen, new = simulated(DRAWN[:256]), simulated(DRAWN[300:400], 1)
    estimator.save(tmp_path / "model")
    repaired = prudent.recalibrate(estimator, *new)
    conformal = prudent.recalibration.conformalize(estimator, *new)
    calls = (prudent.diagnose, prudent.recalibrate, prudent.recalibration.conformalize)
    for model in (estimator, prudent.load(tmp_path / "model"), repaired, conformal):
        for call in calls[: 1 if model is conformal else 3]:
            with pytest.raises(InputError, match="256 of 256 test pairs are among the training"):
                call(model, *seen)
    mixed = (torch.cat(values) for values in zip(new, (v[:1] for v in seen), strict=True))
    with pytest.raises(InputError, match="1 of 101 test pairs"):
        prudent.diagnose(estimator, *mixed)
    assert prudent.diagnose(repaired, *simulated(DRAWN[400:500], 2), progress=False).num_pairs
