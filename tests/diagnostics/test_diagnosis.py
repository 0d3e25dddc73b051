"""The numbers of a diagnosis against closed forms, and what is done with broken input."""

import json
import math

import numpy as np
import pytest
import torch
import zuko
from known_posteriors import SPREAD, Known, box, boxed, boxed_pairs, gaussian

import prudent
from prudent.contracts import Rows
from prudent.diagnostics import Coverage, Diagnosis, expected_coverage
from prudent.diagnostics.verdict import Verdict, band
from prudent.errors import InputError
from prudent.problems.gaussian import NOISE

pytestmark = pytest.mark.usefixtures("any_theta")


def diagnose(estimator, pairs, **options):
    return prudent.diagnose(estimator, *pairs, progress=False, **options)


CASES = [
    ("boxed", "grid", {}),
    ("boxed", "grid", {"normalized": False, "log_scale": 3.0}),
    ("gaussian", "samples", {}),
    pytest.param(
        *("gaussian", "importance", {"normalized": False, "log_scale": -7.0}),
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize(("kind", "method", "options"), CASES)
def test_scalars_against_closed_forms(kind, method, options):
    """The exact posterior is a normal of known width, whatever its raw scale."""
    if kind == "boxed":
        sigma, pairs = NOISE, boxed_pairs(2000)
        result = diagnose(boxed(**options), pairs, method=method)
        region = math.pi * sigma**2 * -2 * math.log(0.1) / 64  # of the box; chi-square, 2 degrees
        assert result.region_volume == pytest.approx(region, rel=0.02)
    else:
        sigma, pairs = SPREAD, prudent.problems.get("gaussian").draw(2000, 0)
        result = diagnose(gaussian(**options), pairs, method=method)
        assert 0.2 < result.region_volume < 0.25
    expected = -2 * (math.log(sigma) + math.log(2 * math.pi) / 2 + 0.5)
    assert result.computed_by == method
    assert abs(result.log_posterior - expected) < 4 * result.log_posterior_error
    assert result.log_posterior_error == pytest.approx(1 / 2000**0.5, rel=0.1)
    assert result.log_posterior_finite == result.log_posterior
    assert result.information_gain == pytest.approx(result.log_posterior - result.log_prior)
    assert abs(result.auc) < 4 * result.auc_error < 0.03
    assert result.posterior_variance == pytest.approx([sigma**2] * 2, rel=0.02)
    for bias, error in zip(result.posterior_bias, result.posterior_bias_error, strict=True):
        assert abs(bias) < 4 * error
        assert error == pytest.approx(sigma / 2000**0.5, rel=0.1)
    if options:
        assert result.log_normalization == pytest.approx(options["log_scale"], abs=0.01)
        assert result.log_normalization_error < 0.001
        assert "log normalisation" in str(result)
    else:
        assert result.log_normalization is None
    assert result.leakage < 0.005
    assert result.effective_size > 500
    assert result.num_unresolved == result.num_zero_density == result.num_excluded == 0


def test_a_shifted_posterior_has_a_bias():
    result = diagnose(boxed(shift=0.5), boxed_pairs(500))
    for bias, error in zip(result.posterior_bias, result.posterior_bias_error, strict=True):
        assert abs(bias - 0.5 * NOISE) < 4 * error < 0.25 * NOISE


def test_scalars_by_hand():
    levels = torch.tensor([0.2, 0.5, 0.8])
    curve = torch.tensor([0.3, 0.4, 0.7])
    coverage = Coverage(levels, curve, curve, curve, 100)
    assert coverage.auc == pytest.approx(-0.1 / 3, abs=1e-7)
    assert coverage.calibration_error == pytest.approx(0.1, abs=1e-7)
    assert coverage.conservativeness_error == pytest.approx(0.2 / 3, abs=1e-7)
    assert coverage.worst_shortfall == pytest.approx(0.1, abs=1e-7)
    assert coverage.worst_excess == pytest.approx(0.1, abs=1e-7)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_error_of_the_auc_equals_its_bootstrap(power):
    torch.manual_seed(0)
    alphas = torch.rand(400) ** power
    closed = expected_coverage(alphas).auc_error
    draws = alphas[torch.randint(400, (2000, 400))]
    values = torch.tensor([expected_coverage(row).auc for row in draws])
    # The standard deviation of 2,000 values is known to 1.6 %.
    assert closed == pytest.approx(float(values.std()), rel=0.06)
    assert closed != pytest.approx(expected_coverage(alphas[:200]).auc_error, rel=0.2)


STABLE = [
    "auc", "calibration_error", "conservativeness_error", "worst_shortfall", "worst_excess",
    "log_posterior", "log_posterior_error", "log_prior", "num_pairs", "num_invalid", "computed_by",
]  # fmt: skip


@pytest.mark.parametrize("normalized", [True, False])
def test_metrics_are_json_with_stable_names(normalized):
    metrics = diagnose(boxed(normalized=normalized), boxed_pairs(50)).metrics()
    assert set(STABLE) <= set(metrics)
    assert json.loads(json.dumps(metrics, allow_nan=False)) == metrics


class _Broken:
    def __init__(self, distribution, bad, value):
        self.distribution, self.bad, self.value = distribution, bad, value

    def log_prob(self, points):
        return self.distribution.log_prob(points).masked_fill(self.bad, self.value)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_densities_that_are_no_numbers_are_counted_and_never_cover(value):
    theta, x = boxed_pairs(200)
    make = boxed().make
    broken = Known(lambda data: _Broken(make(data), data[:, 0] > 0.5, value), box(2))
    bad = int((x[:, 0] > 0.5).sum())
    result = diagnose(broken, (theta, x))
    assert result.num_invalid == bad > 20
    assert "density NaN" in str(result)
    assert float(result.coverage.curve.max()) <= 1 - bad / 200 + 1e-6
    assert all(v is not None for v in result.metrics()["posterior_bias"])
    assert math.isfinite(result.log_posterior)
    everything = Known(
        lambda data: _Broken(make(data), torch.ones(len(data), dtype=torch.bool), value), box(2)
    )
    with pytest.raises(InputError, match="all 200 test pairs is NaN or infinite"):
        diagnose(everything, (theta, x))


def test_density_zero_at_a_truth_is_reported_not_hidden():
    theta, x = boxed_pairs(50)

    class Nowhere:
        def log_prob(self, points):
            return torch.where(points[..., 0] > 0.5, -torch.inf, 0.0)

    result = diagnose(Known(lambda data: Nowhere(), box(2)), (theta, x))
    beyond = theta[:, 0] > 0.5
    assert result.num_zero_density == int(beyond.sum()) > 5
    assert result.log_posterior == -math.inf
    assert result.metrics()["log_posterior"] is None
    assert result.log_posterior_finite == 0.0
    assert f"density zero at {int(beyond.sum())} truths; 0.00 at the others" in str(result)
    assert float(result.coverage.curve.max()) <= 1 - float(beyond.float().mean()) + 1e-6


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_observations_that_are_no_numbers_are_counted_and_left_out(value):
    theta, x = boxed_pairs(60)
    x[7, 1] = x[9, 0] = value
    with pytest.warns(UserWarning, match="left out 2 of 60 test pairs"):
        result = diagnose(boxed(), (theta, x))
    assert (result.num_pairs, result.num_excluded) == (58, 2)
    assert "pairs with x not finite" in str(result)
    with pytest.raises(InputError, match="none of 60 simulations"):
        diagnose(boxed(), (theta, torch.full_like(x, value)))


def test_parameters_outside_the_prior_are_refused():
    theta, x = boxed_pairs(20)
    theta[3] = 9.0
    with pytest.raises(InputError, match="1 of 20 rows of `theta` have no density"):
        diagnose(boxed(), (theta, x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "gird"}, "Did you mean `grid`"),
        ({"levels": [0.5, 1.5]}, "between 0 and 1"),
        ({"levels": []}, "between 0 and 1"),
    ],
)
def test_misuse_is_named(options, message):
    with pytest.raises(InputError, match=message):
        diagnose(boxed(), boxed_pairs(10), **options)


def test_any_levels_and_a_readable_result():
    result = diagnose(boxed(), boxed_pairs(100), levels=[0.5, 0.68])
    assert result.coverage.levels.tolist() == pytest.approx([0.5, 0.68])
    assert repr(result).startswith("<Diagnosis:")
    assert "coverage AUC" in str(result)
    assert "grid, worth" in str(result)


def test_a_picture():
    figure = diagnose(boxed(), boxed_pairs(100)).plot()
    (axis,) = figure.axes
    result = diagnose(boxed(), boxed_pairs(100))
    drawn = axis.lines[-1]
    assert list(drawn.get_ydata()) == pytest.approx(result.coverage.curve.tolist())
    assert axis.get_xlabel() == "credibility level"
    assert "not enough" in figure.get_suptitle()
    assert axis.get_ylabel() == "share of truths inside the region"
    (drawn,) = (one.get_paths()[0].vertices for one in axis.collections if one.get_alpha() == 0.35)
    levels = tuple(np.arange(1, 100) / 100)
    for end in band(100, levels):
        corners = {(round(x, 6), round(y, 6)) for x, y in drawn.tolist()}
        assert set(zip(levels, end.round(6).tolist(), strict=True)) <= corners
    assert "(100 test pairs)" in figure.legends[0].get_title().get_text()
    thorough = diagnose(boxed(), boxed_pairs(200), thorough=True)
    titles = [axis.get_title().split(",")[0] for axis in thorough.plot().axes]
    assert titles == ["coverage", "SBC theta_1", "SBC theta_2", "SBC log_prob", "TARP"]


def test_a_notebook_shows_a_picture_and_the_verdict_first(monkeypatch):
    result = diagnose(boxed(), boxed_pairs(100))
    assert result.plot()._repr_png_().startswith(b"\x89PNG")
    shown = result._repr_html_()
    assert shown.startswith(f"<p><strong>{result.verdict.text}</strong></p><table>")
    assert "coverage AUC" in shown
    hostile = Verdict.of("<b>bad", "<script>")
    monkeypatch.setattr(Diagnosis, "verdict", hostile)
    assert "&lt;b&gt;bad: &lt;script&gt;" in result._repr_html_()
    assert "<script" not in result._repr_html_()


def test_the_display_of_notebooks_needs_no_magic():
    formatter = pytest.importorskip("IPython.core.formatters").DisplayFormatter()
    result = diagnose(boxed(), boxed_pairs(100))
    shown, _ = formatter.format(result.plot())
    assert shown["image/png"].startswith((b"\x89PNG", "iVBOR"))
    shown, _ = formatter.format(result)
    assert result.verdict.text in shown["text/html"]


def test_no_number_of_a_diagnosis_is_minus_zero(monkeypatch):
    result = diagnose(boxed(), boxed_pairs(100))
    for name in ("auc", "worst_shortfall", "log_posterior", "log_prior"):
        monkeypatch.setattr(Diagnosis, name, -1e-9)
    assert "-0.0" not in str(result)
    assert "+0.000 ±" in str(result)


@pytest.mark.slow
def test_a_flow_of_zuko_is_diagnosed_as_it_is():
    """Its posteriors have `log_prob` and `sample` alone: rows are conditioned again."""
    problem = prudent.problems.get("two_moons")
    theta, x = problem.draw(1000, 0)
    torch.manual_seed(0)
    flow = zuko.flows.MAF(features=2, context=2, transforms=2, hidden_features=(32, 32))
    optimizer = torch.optim.Adam(flow.parameters(), 5e-3)
    for _ in range(100):
        loss = -flow(x).log_prob(theta).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    flow.prior, flow.normalized = problem.prior, True
    assert not isinstance(flow(x[:2]), Rows)
    pairs = problem.draw(150, 0, "test")
    grid, drawn = (diagnose(flow, pairs, method=method) for method in ("auto", "samples"))
    assert (grid.computed_by, drawn.computed_by) == ("grid", "samples")
    assert grid.num_invalid == 0
    assert abs(grid.auc - drawn.auc) < 0.02
    assert grid.log_posterior == drawn.log_posterior > grid.log_prior
    thorough = diagnose(flow, pairs, thorough=True)
    assert thorough.results["sbc"].ranks.names == ("theta_1", "theta_2", "log_prob")
    assert thorough.metrics()["auc"] == grid.auc
