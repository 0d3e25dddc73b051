"""Modes that no truth gives away, and flat posteriors, whose modes have no slope."""

import pytest
import torch
from shapes import FLAT, Case
from torch.distributions import Independent, Normal

import prudent
from prudent.diagnostics.expected_coverage import MISSED_SHARE

pytestmark = pytest.mark.usefixtures("any_theta")
# Parameters, and the width of a spurious mode in a box of side ten.
SPURIOUS = [(1, 0.01), (2, 0.03), (3, 0.2), (3, 0.1), (4, 0.2), (4, 0.1), (5, 0.2)]


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "width"), SPURIOUS)
def test_a_spurious_mode_far_from_all_truths_is_found_or_said_to_be_missed(dim, width):
    """Half of the mass at 2.2 in every parameter, where no truth lies."""
    case = Case(
        (0.4, width, 2.2 * dim**0.5), dim, 1.0, 0.0, normalized=False, number=60,
        truth=Independent(Normal(torch.zeros(dim), torch.full((dim,), 0.4)), 1),
    )  # fmt: skip
    result = prudent.diagnose(case.estimator, case.theta, case.x, progress=False)
    assert result.verdict.kind in ("over-confident", "cannot be measured")
    measured = result.measurement
    wrong = (measured.alpha - case.alpha).abs() > 0.1
    assert (wrong & measured.resolved).double().mean() <= MISSED_SHARE


@pytest.mark.parametrize(("dim", "width"), [(2, 0.2), (4, 0.3)])
def test_a_second_mode_that_is_known_is_not_held_against_the_posterior(dim, width):
    """The same with truths in both modes: exact, and measured."""
    shape = (0.4, width, 2.2 * dim**0.5)
    case = Case(shape, dim, 1.0, 0.0, normalized=False, number=40)
    result = prudent.diagnose(case.estimator, case.theta, case.x, progress=False)
    assert result.num_unresolved == 0
    assert (result.measurement.alpha - case.alpha).abs().mean() <= 0.02


@pytest.mark.slow
@pytest.mark.parametrize("widen", [1.0, 0.8])
@pytest.mark.parametrize("name", FLAT)
def test_flat_ratios_of_three_parameters_are_measured(name, widen):
    """They have no slope, and none of a few hundred points may fall on one."""
    case = Case(name, 3, widen, 0.0, normalized=False, number=60)
    result = prudent.diagnose(case.estimator, case.theta, case.x, progress=False)
    measured = result.measurement
    assert bool(measured.valid.all())
    assert not bool((measured.log_norm[measured.resolved].abs() > 0.2).any())
    if widen == 1:
        assert result.num_unresolved == 0
        assert abs(result.auc) <= 4 * 12**-0.5 / 60**0.5
    else:
        assert result.verdict.kind in ("over-confident", "cannot be measured")
