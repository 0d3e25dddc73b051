"""Posterior predictive checks: they err to the safe side, and see what x shows."""

import pytest
import torch
from known_posteriors import Known, gaussian, prior_as_posterior, share

import prudent
from prudent.diagnostics.predictive import predictive_check, summary_statistics
from prudent.errors import DataError, InputError

PROBLEM = prudent.problems.get("gaussian")


def check(estimator, x, **options):
    options = {"num_samples": 500, **options}
    return predictive_check(estimator, PROBLEM, x, progress=False, **options)


def rejected(estimator, number=100, **options):
    """By observation, with Holm over its statistics."""
    x = PROBLEM.draw(number, 0)[1]
    return share(
        check(estimator, x[i : i + 1], seed=i, **options).p_value < 0.05 for i in range(number)
    )


def test_the_exact_posterior_is_rarely_rejected():
    """The data is used twice: less than 5 %, not 5 %."""
    assert rejected(gaussian()) <= 0.05
    _, x = PROBLEM.draw(300, 1)
    tail = check(gaussian(), x, num_samples=200).tail
    # Uniform tails would have a standard deviation of 0.289.
    assert float(tail[0].std()) < 0.2


def test_a_posterior_elsewhere_is_rejected():
    assert rejected(gaussian(shift=5.0)) >= 0.95


def test_widths_and_the_prior_are_nearly_invisible():
    """Documented: this is not a test of calibration."""
    assert rejected(gaussian(widen=0.5)) <= 0.1
    assert rejected(prior_as_posterior(PROBLEM)) <= 0.1


def test_an_observation_the_simulator_cannot_make():
    """Two equal numbers never differ by seven standard deviations of the noise."""
    statistics = {"difference": lambda x: x[:, 0] - x[:, 1]}
    x = torch.tensor([[0.0, 0.1], [9.0, -9.0]])
    result = check(gaussian(), x, statistics=statistics)
    assert result.p_values.shape == (1, 2)
    assert result.p_values[0, 0] > 0.05
    assert result.p_values[0, 1] == pytest.approx(2 / 501)
    assert repr(result).startswith("<PredictiveCheck: not explained: difference of observation 1")


def test_statistics_by_default():
    names = list(summary_statistics((2, 2)))
    assert names == ["x[0]", "x[1]", "x[2]", "x[3]", "mean", "std", "min", "max"]
    assert list(summary_statistics((1,))) == ["x[0]"]
    assert list(summary_statistics((50, 50))) == ["mean", "std", "min", "max"]
    x = torch.tensor([[[1.0, 2.0], [3.0, 6.0]]])
    values = [float(function(x)) for function in summary_statistics((2, 2)).values()]
    assert values == pytest.approx([1, 2, 3, 6, 3, 2.1602468, 1, 6])


def test_discrete_statistics_err_to_the_safe_side():
    result = check(gaussian(), [[0.0, 0.0]], statistics={"one": lambda x: torch.ones(len(x))})
    assert result.p_value == 1
    assert float(result.tail) == 0.5


def test_draws_outside_the_prior_and_bad_simulations_are_counted():
    weinberg = prudent.problems.get("weinberg")

    class Leaking:
        def __init__(self, x):
            self.number = len(x)

        def sample(self, shape):
            return torch.rand(*shape, self.number, 1) * 2

    class Sometimes:
        def simulate(self, theta, generator):
            x = weinberg.simulate(theta, generator)
            return torch.where(theta > 1.9, torch.nan, x)

    x = weinberg.draw(2, 0)[1]
    result = predictive_check(Known(Leaking, weinberg.prior), Sometimes(), x, progress=False)
    assert all(90 < n < 160 for n in result.num_outside.tolist())
    assert all(30 < n < 75 for n in result.num_invalid.tolist())
    total = result.num_outside + result.num_invalid + result.num_simulated
    assert total.tolist() == [1000, 1000]
    assert "draws outside the prior" in result.verdict
    assert "simulations not finite" in result.verdict

    class Never:
        def simulate(self, theta, generator):
            return torch.full((len(theta), 20), torch.nan)

    with pytest.raises(InputError, match="hold NaN or infinity"):
        predictive_check(Known(Leaking, weinberg.prior), Never(), x, progress=False)


def test_too_few_simulations_to_tell_are_said():
    result = check(gaussian(), PROBLEM.draw(20, 0)[1], num_samples=50)
    assert "4,800 simulations are needed to tell" in result.verdict


def test_misuse_is_named():
    with pytest.raises(DataError, match=r"x\[None\]"):
        check(gaussian(), [0.0, 0.0])
    with pytest.raises(DataError, match="1 of 2 observations hold NaN"):
        check(gaussian(), [[0.0, torch.nan], [0.0, 0.0]])
    with pytest.raises(InputError, match="expected every statistic"):
        check(gaussian(), [[0.0, 0.0]], statistics={"x": lambda x: x})

    class Nowhere:
        def __init__(self, x):
            pass

        def sample(self, shape):
            return torch.full((*shape, 1, 2), torch.nan)

    with pytest.raises(InputError, match="none of 500 draws can be simulated"):
        check(Known(Nowhere, PROBLEM.prior), [[0.0, 0.0]])


def test_the_same_seed_gives_the_same_answer():
    x = PROBLEM.draw(3, 0)[1]
    one, two = check(gaussian(), x, seed=1), check(gaussian(), x, seed=1)
    assert torch.equal(one.tail, two.tail)
    assert not torch.equal(one.tail, check(gaussian(), x, seed=2).tail)
