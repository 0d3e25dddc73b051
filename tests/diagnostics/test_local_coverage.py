"""Local coverage: planted defects are found where they are, and none where there is none."""

import sys

import pytest
import torch
from known_posteriors import SPREAD, Known, gaussian, share
from torch.distributions import Independent, Normal

import prudent
from prudent.datasets import Pairs
from prudent.diagnostics import measure
from prudent.diagnostics.local_coverage import Region, local_coverage
from prudent.errors import DataError, InputError
from prudent.problems.gaussian import NOISE


def alphas_of(estimator, theta, x):
    return measure(estimator, Pairs.of(theta, x), "samples", progress=False).alpha


def exact_alphas(theta, x, scale=1.0):
    """In closed form for two parameters: the mass outside an ellipse is exp(-r^2 / 2)."""
    residual = (theta - x / (1 + NOISE**2)) / (SPREAD * scale)
    return (-residual.square().sum(1) / 2).exp()


def planted(x, scale):
    """A factor on the width where x[0] > 1: one observation in five or so."""
    return torch.where(x[:, :1] > 1, scale, 1.0)


def pairs(number, seed):
    return prudent.problems.get("gaussian").draw(number, seed)


@pytest.mark.slow
def test_size_on_exact_posteriors():
    """500 repetitions of 200 pairs: sameness is tested exactly, Holm errs to the safe side."""
    theta, x = pairs(500 * 200, 0)
    alphas = exact_alphas(theta, x)
    results = [
        local_coverage(a, f, seed=seed)
        for seed, (a, f) in enumerate(zip(alphas.split(200), x.split(200), strict=True))
    ]
    assert 0.03 <= share(result.p_same <= 0.05 for result in results) <= 0.07
    assert 0.01 <= share(len(result.wrong) > 0 for result in results) <= 0.07


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "size"), [(0.6, 1000), (0.8, 4000), (1.25, 4000), (1.6, 1000)])
def test_power_on_planted_defects(scale, size):
    """The first region named is where the defect was planted, in 19 of 20 repetitions or more."""
    found, same = [], []
    for seed in range(20):
        theta, x = pairs(size, seed)
        result = local_coverage(exact_alphas(theta, x, planted(x, scale)), x, seed=seed)
        low = result.wrong[0].bounds.get("x[0]", (-9.0, 9.0))[0] if result.wrong else -9.0
        found.append(low > 0.5)
        same.append(result.p_same <= 0.05)
    assert share(found) >= 0.95
    assert share(same) >= 0.95


def test_a_defect_that_cancels_in_the_average():
    """Too narrow here, too wide there: global coverage is fine, local coverage is not."""
    theta, x = pairs(4000, 0)
    scale = torch.where(x[:, :1] > 0, 0.85, 1.41)
    alphas = exact_alphas(theta, x, scale)
    assert abs(float((alphas >= 0.1).double().mean()) - 0.9) < 0.015
    result = local_coverage(alphas, x)
    assert result.p_same == 0.001
    narrow = [r for r in result.wrong if r.coverage < r.level]
    wide = [r for r in result.wrong if r.coverage > r.level]
    assert all(region.bounds["x[0]"][0] > -0.3 for region in narrow)
    assert all(region.bounds["x[0]"][1] < 0.3 for region in wide)
    assert narrow
    assert wide


def test_a_posterior_wrong_everywhere_is_the_same_everywhere():
    theta, x = pairs(2000, 0)
    result = local_coverage(exact_alphas(theta, x, 0.7), x)
    assert len(result.wrong) == len(result.regions)
    assert result.p_same > 0.05
    assert "more regions are wrong" in result.verdict


def test_in_theta_even_the_exact_posterior_differs():
    """Documented: prior tails are rarely covered, because the truth chose the region."""
    theta, x = pairs(4000, 1)
    alphas = exact_alphas(theta, x)
    assert not local_coverage(alphas, x).wrong
    by_theta = local_coverage(alphas, theta, names=["a", "b"])
    assert by_theta.p_same == 0.001
    assert set(by_theta.wrong[0].bounds) <= {"a", "b"}


def test_with_alphas_of_an_estimator():
    def make(x):
        scale = SPREAD * planted(x, 0.5).expand(-1, 2)
        return Independent(Normal(x / (1 + NOISE**2), scale), 1)

    theta, x = pairs(1500, 0)
    result = local_coverage(alphas_of(Known(make, gaussian().prior), theta, x), x)
    assert str(result.regions[0]).startswith("x[0] > ")
    assert "90 % regions contain the truth" in repr(result)
    assert not local_coverage(alphas_of(gaussian(), theta, x), x).wrong


def test_words():
    region = Region(
        {"x[3]": (1.2, torch.inf), "x[0]": (-torch.inf, 0.1)}, 0.9, 0.61, 0.05, 0.0, 180
    )
    assert str(region) == (
        "x[3] > 1.2 and x[0] <= 0.1: 90 % regions contain the truth 61 ± 5 % of the time "
        "(180 pairs)"
    )
    assert Region({"a": (0.0, 1.0)}, 0.9, 0.9, 0.1, 1.0, 9).where == "0 < a <= 1"
    assert Region({}, 0.9, 0.9, 0.1, 1.0, 9).where == "everywhere"


def test_the_level_that_is_wrong_is_named():
    """Coverage of 90 % is right; that of 50 % is not."""
    generator = torch.Generator().manual_seed(0)
    alphas, x = torch.rand(4000, generator=generator), torch.rand(4000, 1, generator=generator)
    alphas = torch.where((alphas > 0.15) & (alphas < 0.6), 0.55 + alphas / 100, alphas)
    region = local_coverage(alphas, x).wrong[0]
    assert region.level != 0.9
    assert abs(region.coverage - region.level) > 0.1


def test_images_are_flattened_and_constant_features_make_one_region():
    alphas = torch.rand(300, generator=torch.Generator().manual_seed(0))
    assert local_coverage(alphas, torch.rand(300, 2, 3)).num_pairs == 150
    constant = local_coverage(alphas, torch.ones(300, 2))
    assert len(constant.regions) == 1
    assert constant.p_same == 1
    assert constant.regions[0].where == "everywhere"


def test_bad_values_are_counted():
    generator = torch.Generator().manual_seed(0)
    alphas, x = torch.rand(2000, generator=generator), torch.randn(2000, 2, generator=generator)
    broken = x[:, 0] > 1.2
    alphas[broken] = torch.nan
    x[:5, 1] = torch.inf
    result = local_coverage(alphas, x)
    assert result.num_invalid == int(broken.sum())
    assert result.num_excluded == 5
    # NaN counts as not covered.
    assert result.wrong[0].coverage < 0.1
    assert "alpha NaN" in result.verdict
    assert "5 pairs with features not finite" in result.verdict
    with pytest.raises(InputError, match="all 2,000 alphas are NaN"):
        local_coverage(alphas * torch.nan, x)
    with pytest.raises(DataError, match="0 of 2,000 pairs have finite features"):
        local_coverage(alphas, x * torch.nan)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": ["a"]}, "expected 2 feature names"),
        ({"level": 1.5}, "between 0 and 1"),
    ],
)
def test_misuse_is_named(options, message):
    with pytest.raises(InputError, match=message):
        local_coverage(torch.rand(200), torch.rand(200, 2), **options)
    with pytest.raises(DataError, match="expected `alphas`"):
        local_coverage(torch.rand(200), torch.rand(100, 2))


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.tree", None)
    with pytest.raises(InputError, match=r"pip install .*\[distances\]"):
        local_coverage(torch.rand(200), torch.rand(200, 2))
