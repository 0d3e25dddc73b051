"""Coverage near one observation: found where it is wrong, silent where it is right."""

import pytest
import torch

import prudent
from prudent._randomness import seeded
from prudent.estimators.nearby import LONELY, NUM_NEAREST, Nearby
from prudent.estimators.novelty import Novelty


def judged(power, number=2000, seed=0):
    """Pairs whose posteriors are too narrow by a power of alpha where the first x is above one."""
    with seeded(seed, "nearby test"):
        x, alphas = torch.randn(number, 3), torch.rand(number)
        alphas = torch.where(x[:, 0] > 1, alphas**power, alphas)
        test = Novelty.of(torch.randn(number, 3))
    return test, Nearby.of(test, x, alphas)


def words(test, near, *x):
    return near.words(test.components(torch.tensor([x]))[0])


def test_the_place_where_regions_fall_short_is_told():
    test, near = judged(6)
    told, warnings = words(test, near, 1.8, 0.0, 0.0)
    assert "90 % regions contain the truth" in told
    assert f"the {NUM_NEAREST} of 2,000 judged pairs" in told
    assert len(warnings) == 1
    assert warnings[0].startswith("near the observation regions fall short (p = ")
    assert words(test, near, -1.0, 0.0, 0.0)[1] == []
    # Inside is an alpha whose sixth power is at least 0.1: a share of 0.32.
    assert int(told.split("truth ")[1][:2]) == pytest.approx(32, abs=15)


def test_exact_posteriors_are_rarely_warned_about():
    """The chance of an alarm is one in a hundred, that of being called lonely one in twenty."""
    short = lonely = 0
    for seed in range(10):
        test, near = judged(1, seed=seed)
        with seeded(seed, "observations"):
            x = torch.randn(100, 3)
        found = [near.words(row)[1] for row in test.components(x)]
        short += sum("fall short" in note for notes in found for note in notes)
        lonely += sum("hardly any" in note for notes in found for note in notes)
    assert short / 1000 < 0.03  # neighbors share their pairs
    assert 0.01 < lonely / 1000 < 2 * LONELY


def test_an_observation_without_neighbors_is_told():
    test, near = judged(1)
    _, warnings = words(test, near, 8.0, 8.0, 8.0)
    assert warnings[0].startswith("hardly any judged pairs are like the observation: 100 %")


def test_few_pairs_say_nothing():
    test = Novelty.of(torch.randn(100, 3))
    assert Nearby.of(test, torch.randn(4 * NUM_NEAREST - 1, 3), torch.rand(199)) is None
    assert Nearby.of(None, torch.randn(1000, 3), torch.rand(1000)) is None


@pytest.mark.slow
def test_a_posterior_says_what_is_known_near_its_observation(tmp_path):
    problem = prudent.problems.get("gaussian")
    options = {"members": 2, "epochs": 15, "progress": False}
    estimator = prudent.fit(*problem.draw(400, 0), problem.prior, **options)
    x = torch.zeros(1, *estimator.x_shape)
    assert "of 400 judged pairs most like it" in str(estimator(x))
    assert "Near this observation" in estimator(x)._repr_html_()
    estimator.save(tmp_path / "model")
    assert prudent.load(tmp_path / "model")(x).near == estimator(x).near
    assert estimator(torch.cat((x, x))).near is None
    far = estimator(x + 50)
    assert any("hardly any judged pairs" in note for note in far.notes())
