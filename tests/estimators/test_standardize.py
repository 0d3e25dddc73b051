"""Standardisation: robust, one-to-one, finite on anything finite."""

import pytest
import torch

from prudent.estimators._standardize import Standardize


def test_outliers_do_not_move_it():
    torch.manual_seed(0)
    values = 5 + 3 * torch.randn(10_000, 2)
    clean, dirty = Standardize((2,), squash=True), Standardize((2,), squash=True)
    clean.adapt(values)
    values[:50] = 1e7
    dirty.adapt(values)
    torch.testing.assert_close(clean.location, dirty.location, atol=0.05, rtol=0)
    torch.testing.assert_close(clean.scale, dirty.scale, atol=0.05, rtol=0)
    assert (clean.scale - 3).abs().max() < 0.1
    # What mean and standard deviation would have made of it.
    assert values.std(0).min() > 1e5


@pytest.mark.parametrize("squash", [True, False])
def test_inverse(squash):
    torch.manual_seed(0)
    values = torch.randn(100, 3) * torch.tensor([1.0, 1e-3, 50.0])
    scale = Standardize((3,), squash=squash)
    scale.adapt(values)
    torch.testing.assert_close(scale.inverse(scale(values)), values)


@pytest.mark.parametrize(
    "column",
    [
        torch.full((64,), 3.0),
        torch.cat((torch.zeros(60), torch.ones(4))),
        torch.cat((torch.zeros(63), torch.tensor([1e30]))),
        torch.full((64,), 1e-42),
        torch.linspace(-1e30, 1e30, 64),
        torch.rand(64) * 1e-40,
        1 / torch.linspace(1e-6, 1, 64) ** 3,
    ],
    ids=["constant", "rare ones", "one outlier", "denormal", "huge", "tiny spread", "heavy tail"],
)
def test_extreme_columns_stay_finite(column):
    scale = Standardize((1,), squash=True)
    scale.adapt(column[:, None])
    result = scale(column[:, None])
    assert result.isfinite().all()
    assert result.abs().max() < 200


def test_structured_data_share_one_scale():
    values = torch.randn(50, 3, 8, 8) * 4 + 1
    scale = Standardize((), squash=True)
    scale.adapt(values)
    assert scale(values).shape == values.shape
    assert abs(float(scale.scale) - 4) < 0.5
