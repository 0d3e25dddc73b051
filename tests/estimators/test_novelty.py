"""Observations unlike the simulations are told, and simulations rarely are."""

import pytest
import torch
from scipy.stats import binom

import prudent
from prudent._randomness import seeded
from prudent.estimators.novelty import MOST_KEPT, RATE, Novelty
from prudent.recalibration import conformalize

PROBLEMS = ("slcp", "weinberg", "mg1", "two_moons", "gaussian")


def alarms(test, x):
    return test.p_value(x) <= test.rate


def off(x, distance):
    """Observations that lie this many standard deviations away, in all directions."""
    direction = torch.randn(x.shape)
    return x + distance * direction / direction.norm(dim=1, keepdim=True) * x.std(dim=0)


@pytest.mark.parametrize("name", PROBLEMS)
def test_rates_are_those_that_are_said(name):
    problem = prudent.problems.get(name)
    false, found, number = 0, [], 10
    with seeded(0, "novelty test"):
        for seed in range(number):
            test = Novelty.of(problem.draw(1024, seed)[1], seed)
            new = problem.draw(200, 1000 + seed)[1]
            false += int(alarms(test, new).sum())
            found.append(alarms(test, off(new, 10.0)).float().mean())
    # Alarms of one test come together: its threshold is that of 512 simulations.
    assert false <= binom.ppf(0.9999, number * 200, 2 * RATE)
    assert torch.stack(found).mean() >= 0.95
    with seeded(1, "novelty test"):  # and those that are hardly off are not all told
        assert alarms(test, off(new, 0.1)).float().mean() < 0.1


@pytest.mark.slow
def test_the_rate_is_exact_over_tests():
    """Of 49 scores and a new one, the new one is the largest once in fifty."""
    torch.manual_seed(0)
    number = 1500
    false = sum(
        int(alarms(Novelty.of(torch.randn(98, 2), seed), torch.randn(1, 2))[0])
        for seed in range(number)
    )
    assert binom.ppf(0.001, number, 1 / 50) <= false <= binom.ppf(0.999, number, 1 / 50)


def test_pixels_and_extremes():
    torch.manual_seed(0)
    images = torch.randn(500, 1, 12, 12).cumsum(-1)
    test = Novelty.of(images)
    other = images[:50].flip(-1) + 5 * torch.randn(50, 1, 12, 12)
    assert alarms(test, other).float().mean() > 0.95
    heavy = torch.randn(400, 3) / torch.rand(400, 3) ** 8
    test = Novelty.of(heavy)
    assert bool(alarms(test, torch.full((1, 3), 3e38)).all())
    assert not bool(alarms(test, heavy.median(dim=0).values.unsqueeze(0)).any())
    constant = Novelty.of(torch.cat((torch.randn(300, 1), torch.ones(300, 1)), dim=1))
    assert bool(alarms(constant, torch.tensor([[0.0, 2.0]])).all())
    assert not bool(alarms(constant, torch.tensor([[0.0, 1.0]])).any())


def test_few_simulations_say_nothing_and_many_are_not_kept():
    assert Novelty.of(torch.randn(20, 2)) is None
    assert len(Novelty.of(torch.randn(9000, 2)).tensors["points"]) == MOST_KEPT // 2


@pytest.fixture(scope="module")
def estimator():
    problem = prudent.problems.get("gaussian")
    options = {"method": "npe", "epochs": 2, "hidden": [8], "progress": False}
    return prudent.fit(*problem.draw(600, 0), problem.prior, **options)


def test_it_is_told_with_the_posterior_also_by_a_model_that_was_saved(estimator, tmp_path):
    estimator.save(tmp_path / "model")
    for one in (estimator, prudent.load(tmp_path / "model")):
        far = one([40.0, -40.0])
        assert far.p_value.shape == (1,)
        assert "unlike the simulations: less than 1 % of them" in str(far)
        assert "unlike the simulations" in far._repr_html_()
        with pytest.warns(UserWarning, match="unlike the simulations"):
            far.sample(3)
        with pytest.warns(UserWarning, match="unlike the simulations"):
            far.mean()
        assert "unlike" not in str(one([0.2, -0.1]))


def test_several_observations_are_told_if_they_are_more_than_chance(estimator):
    new = prudent.problems.get("gaussian").draw(400, 1)[1]
    posterior = estimator(new)
    assert posterior.p_value.shape == (400,)
    assert posterior.notes() == []
    moved = torch.cat((new, new[:40] + 30))
    assert "unlike the simulations" in estimator(moved).notes()[0]
    some = estimator(moved).rows(torch.arange(400, 440))
    assert bool((some.p_value <= some.rate).all())


def test_training_does_not_pay_for_it(estimator):
    assert estimator.train()(torch.zeros(2, 2)).p_value is None
    estimator.eval()


def test_nobody_pays_who_does_not_ask(estimator, monkeypatch):
    problem, asked = prudent.problems.get("gaussian"), []
    compare = Novelty.p_value
    monkeypatch.setattr(
        Novelty, "p_value", lambda test, x: asked.append(len(x)) or compare(test, x)
    )
    before = dict(estimator.info)
    prudent.diagnose(estimator, *problem.draw(100, 2), progress=False)
    estimator.info = before
    posterior = estimator(torch.zeros(5, 2))
    posterior.log_prob(torch.zeros(5, 2))
    assert asked == []
    assert posterior.rows(slice(1, 3)).p_value.shape == (2,)
    posterior.notes()
    posterior.notes()
    assert asked == [2, 5]


def test_what_becomes_of_the_observation_later_does_not_matter(estimator):
    x = torch.tensor([[40.0, -40.0]])
    posterior = estimator(x)
    x.zero_()
    assert "unlike the simulations" in str(posterior)


def test_a_component_along_an_axis_is_the_axis():
    """Nothing of it is left over."""
    torch.manual_seed(0)
    x = torch.randn(300, 50) @ torch.randn(50, 50)
    test = Novelty.of(x[:200])
    mean, axes = test.tensors["mean"], test._inverse
    along = test.components(test.standardize.inverse(mean + axes))
    torch.testing.assert_close(along[:, :-1], torch.eye(len(axes)), atol=1e-4, rtol=0)
    assert along[:, -1].max() < 1e-3


def test_conformal_posteriors_tell_it_too(estimator):
    own = conformalize(estimator, *prudent.problems.get("gaussian").draw(99, 1))
    assert "unlike the simulations" in str(own([40.0, -40.0]))
    assert "unlike" not in str(own([0.2, -0.1]))
    assert bool((own(torch.full((3, 2), 40.0)).rows(slice(0, 2)).p_value <= RATE).all())


def test_the_verdict_travels_and_is_not_that_of_another_temperature(estimator, tmp_path):
    problem = prudent.problems.get("gaussian")
    assert "Verdict: not measured" in str(estimator([0.0, 0.0]))
    found = prudent.diagnose(estimator, *problem.draw(300, 2), progress=False)
    estimator.save(tmp_path / "model")
    again = prudent.load(tmp_path / "model")
    assert str(again([0.0, 0.0])).startswith(f"Verdict: {found.verdict}")
    warm = prudent.recalibrate(again, *problem.draw(200, 3))
    assert "Verdict: not measured" in str(warm([0.0, 0.0]))
    assert bool((warm([40.0, -40.0]).p_value <= RATE).all())
