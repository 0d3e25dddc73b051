"""Verdicts on exact and wrong posteriors of problems, and their error rate."""

import math

import pytest
import torch
from known_posteriors import Known, gaussian, wrong
from torch.distributions import Independent, Normal

import prudent
from prudent.diagnostics import expected_coverage, judge

# Enough to call the right posterior calibrated; the wrong ones need fewer.
NUM_PAIRS, NUM_WRONG = 1000, 600
CASES = EXACT, NARROW, WIDE, MOVED = (
    (1.0, 0.0, "calibrated within"),
    (0.8, 0.0, "over-confident"),
    (1.25, 0.0, "conservative"),
    (1.0, 1.0, "over-confident"),
)


@pytest.mark.parametrize(
    ("widen", "shift", "words", "dim", "ratio"),
    [
        *((*case, dim, False) for case in CASES for dim in (1, 2, 5, 10)),
        *((*case, dim, True) for case in CASES for dim in (1, 2)),
        # Slow to normalize.
        pytest.param(*EXACT, 5, True, marks=pytest.mark.slow),
        pytest.param(*NARROW, 10, True, marks=pytest.mark.slow),
    ],
)
def test_verdicts_on_the_gaussian(widen, shift, words, dim, ratio):
    number = NUM_PAIRS if words.startswith("calibrated") else NUM_WRONG
    theta, x = prudent.problems.get("gaussian", dim=dim).draw(number, 0, "verdict")
    scale = {"normalized": not ratio, "log_scale": 3.0 * ratio}
    estimator = gaussian(dim=dim, widen=widen, shift=shift, **scale)
    result = prudent.diagnose(estimator, theta, x, progress=False)
    assert result.verdict.text.startswith(words)
    assert result.computed_by == ("importance" if ratio else "samples")
    # Four standard errors.
    bias = torch.tensor(result.posterior_bias) / torch.tensor(result.posterior_bias_error)
    assert bool((bias.abs() < 4).all()) == (shift == 0.0)


@pytest.mark.parametrize(
    ("name", "cases"),
    [
        pytest.param("slcp", (EXACT, NARROW), marks=pytest.mark.slow),
        ("weinberg", (EXACT, NARROW, WIDE, (1.0, 0.5, "over-confident"))),
    ],
)
def test_verdicts_on_exact_posteriors(name, cases):
    # Exact densities of `slcp` take their time: these are not enough to call them calibrated.
    enough, fewer = (200, 200) if name == "slcp" else (NUM_PAIRS, NUM_WRONG)
    theta, x = prudent.problems.get(name).draw(enough, 0, "verdict")
    for widen, moved, words in cases:
        number = enough if words.startswith("calibrated") else fewer
        estimator = wrong(name, widen, moved)
        result = prudent.diagnose(estimator, theta[:number], x[:number], progress=False)
        assert result.computed_by == "grid"
        # Half of the posteriors of `slcp` are ridges around an axis, some of them too thin for the
        # grid. These count against safety: then it may say that it cannot tell, never more.
        unsure = ("cannot be measured", "not enough test pairs")
        allowed = words if name != "slcp" or moved or widen < 1 else (words, *unsure)
        assert result.verdict.text.startswith(allowed), (name, widen, moved)
        if widen == 1.0 and not moved:
            assert result.log_normalization == pytest.approx(result.log_prior, abs=0.1)
            assert result.num_unresolved <= 0.1 * number


def verdict_of(number, power, seed=0, metrics=None):
    generator = torch.Generator().manual_seed(seed)
    curves = expected_coverage(torch.rand(number, generator=generator) ** power).curves()
    return judge(**curves, num_pairs=number, metrics=metrics)


@pytest.mark.parametrize(
    ("number", "power", "words"),
    [
        (2000, 1.0, "calibrated within ± 0.03"),
        (2000, 2.0, "over-confident: 90 % regions contain the truth 68 ± 2 %"),
        (
            2000,
            0.5,
            "conservative: worst shortfall 0.00 (chance explains 0.03), 90 % regions contain the",
        ),
        (64, 1.0, "not enough test pairs to tell"),
    ],
)
def test_words(number, power, words):
    found = verdict_of(number, power)
    assert str(found).startswith(words)
    assert words.startswith(found.kind)
    assert found.text.endswith(found.evidence)


PRIOR = {"log_posterior": -3.58, "log_prior": -3.58, "log_posterior_error": 0.02}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "uninformative: it says no more than the prior (log posterior -3.58, prior -3.58);"),
        ({"log_posterior": -3.9}, "uninformative"),
        ({"log_posterior": -3.5}, "calibrated within"),
        ({"log_posterior": -3.57, "information_gain_error": 0.001}, "calibrated within"),
        ({"log_posterior": None}, "calibrated within"),
    ],
)
def test_no_more_than_the_prior(change, words):
    """The error of the difference decides; stored runs may know the means alone."""
    assert verdict_of(2000, 1.0, metrics={**PRIOR, **change}).text.startswith(words)


def test_only_a_calibrated_posterior_is_called_uninformative():
    assert verdict_of(2000, 2.0, metrics=PRIOR).kind == "over-confident"
    assert verdict_of(2000, 0.5, metrics=PRIOR).kind == "conservative"
    assert verdict_of(64, 1.0, metrics=PRIOR).kind == "not enough test pairs"


@pytest.mark.parametrize(
    ("power", "share", "words"),
    [
        (1.0, 0.005, "calibrated within ± 0.04 at all levels"),
        (1.0, 0.1, "cannot be measured this way: 200 of 2,000 posteriors are not resolved"),
        (0.5, 0.02, "conservative: worst shortfall 0.00 (chance explains 0.05)"),
        (0.5, 0.1, "cannot be measured"),
        (2.0, 0.1, "over-confident: 90 % regions contain the truth 68 ± 2 %"),
        (2.0, 0.5, "cannot be measured this way: 1,000 of 2,000 posteriors are not resolved, so "
            "90 % regions contain the truth 18 to 100 % of the time"),
        (1.0, 1.0, "cannot be measured"),
    ],
)  # fmt: skip
def test_what_is_not_resolved_counts_against_safety(power, share, words):
    found = verdict_of(2000, power, metrics={"num_unresolved": round(share * 2000)})
    assert found.text.startswith(words)
    assert found.trusted == words.startswith(("calibrated", "conservative"))
    assert verdict_of(2000, power, metrics={"num_unresolved": 0}) == verdict_of(2000, power)


@pytest.mark.parametrize("widen", [0.8, 1.0])
@pytest.mark.slow
def test_a_narrow_ratio_of_many_parameters_is_never_called_safe(widen):
    """Version 0.1.0 called it conservative, from draws that were worth one a pair."""
    torch.manual_seed(0)
    theta = torch.randn(100, 15)
    x = theta + 0.1 * torch.randn(100, 15)

    def make(data):
        return Independent(Normal(data / 1.01, torch.full_like(data, widen * 0.1 / 1.01**0.5)), 1)

    prior = Independent(Normal(torch.zeros(15), torch.ones(15)), 1)
    result = prudent.diagnose(Known(make, prior, normalized=False), theta, x, progress=False)
    assert not result.verdict.trusted
    exact = float(make(x).log_prob(theta).mean())
    known = math.isfinite(result.log_posterior)
    assert not known or result.log_posterior == pytest.approx(exact, abs=0.5)


def test_a_verdict_keeps_its_error_rate():
    """Of 500 calibrated posteriors, at most about 5 % may be called anything else."""
    wrong_calls = sum(verdict_of(1000, 1.0, seed).kind != "calibrated" for seed in range(500))
    assert wrong_calls / 500 < 0.07


def test_evidence_names_the_level_that_falls_short():
    found = judge([0.5, 0.9], [0.3, 0.9], [0.29, 0.89], [0.31, 0.91], num_pairs=5000)
    assert found.kind == "over-confident"
    assert found.evidence.startswith("50 % regions contain the truth 30 ± 1 %")


def test_a_verdict_on_both_sides_names_both():
    found = judge([0.5, 0.9], [0.3, 1.0], [0.29, 0.99], [0.31, 1.0], num_pairs=5000)
    assert found.kind == "over-confident"
    assert found.text.startswith(
        "over-confident at some levels (short by 0.20) and conservative at others (above by 0.10):"
    )


def test_a_curve_on_the_diagonal_is_not_short_by_minus_zero():
    found = judge([0.5, 0.9], [0.5, 1.0], [0.49, 0.99], [0.51, 1.0], num_pairs=2000)
    assert found.evidence.startswith("worst shortfall 0.00 (chance explains 0.03)")
