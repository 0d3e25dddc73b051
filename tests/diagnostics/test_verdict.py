"""Verdicts on exact and wrong posteriors of problems, and their error rate."""

import pytest
import torch
from known_posteriors import gaussian, wrong

import prudent
from prudent.diagnostics import expected_coverage, judge

# Enough to call the right posterior calibrated; the wrong ones need fewer.
NUM_PAIRS, NUM_WRONG = 1000, 600
WRONG = [
    (1.0, 0.0, "calibrated within"),
    (0.8, 0.0, "over-confident"),
    (1.25, 0.0, "conservative"),
]


@pytest.mark.parametrize(
    ("dim", "ratio"),
    [
        *((dim, False) for dim in (1, 2, 5, 10)),
        *((dim, True) for dim in (1, 2)),
        *(pytest.param(dim, True, marks=pytest.mark.slow) for dim in (5, 10)),
    ],
)
@pytest.mark.parametrize(("widen", "shift", "words"), [*WRONG, (1.0, 1.0, "over-confident")])
def test_verdicts_on_the_gaussian(dim, widen, shift, words, ratio):
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
    ("name", "shift"), [pytest.param("slcp", 1.0, marks=pytest.mark.slow), ("weinberg", 0.5)]
)
def test_verdicts_on_exact_posteriors(name, shift):
    theta, x = prudent.problems.get(name).draw(NUM_PAIRS, 0, "verdict")
    for widen, moved, words in [*WRONG, (1.0, shift, "over-confident")]:
        number = NUM_PAIRS if words.startswith("calibrated") else NUM_WRONG
        estimator = wrong(name, widen, moved)
        result = prudent.diagnose(estimator, theta[:number], x[:number], progress=False)
        assert result.computed_by == "grid"
        assert result.verdict.text.startswith(words), (name, widen, moved)
        if widen == 1.0 and not moved:
            # Half of the posteriors of `slcp` are ridges around an axis, some of them very thin.
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
            "conservative: worst shortfall 0.00 ± 0.03, 90 % regions contain the truth 99",
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
    assert found.evidence.startswith("worst shortfall 0.00 ± 0.03")
