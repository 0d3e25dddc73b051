"""Our densities of spline flows are zuko's, and so are their gradients."""

import pytest
import torch
import zuko
from torch import nn

from prudent.estimators import _splines

SHAPES = [(16, 2), (3, 16, 2), (2, 3, 16, 2), (5, 1, 2)]


def flow_of(dim, passes=None, hidden=(32, 32), context=3):
    torch.manual_seed(1)
    flow = zuko.flows.NSF(dim, context, transforms=2, hidden_features=hidden, passes=passes)
    for parameter in flow.parameters():
        parameter.data.mul_(2.0)  # splines that are far from straight
    return flow.double()


@pytest.mark.parametrize("hidden", [(32, 32), (16,), ()])
@pytest.mark.parametrize(("dim", "passes"), [(2, None), (2, 2), (3, None), (5, 2)])
def test_densities_and_gradients_are_those_of_zuko(dim, passes, hidden):
    flow = flow_of(dim, passes, hidden)
    context = torch.randn(16, 3, dtype=torch.float64, requires_grad=True)
    # Some lie beyond the splines, where the flow is the identity.
    theta = (3 * torch.randn(4, 16, dim, dtype=torch.float64)).requires_grad_()
    found, expected = _splines.log_prob(flow, context, theta), flow(context).log_prob(theta)
    torch.testing.assert_close(found, expected)
    inputs = [theta, context, *flow.parameters()]
    weights = torch.randn_like(found)
    for one, other in zip(
        torch.autograd.grad((weights * found).sum(), inputs),
        torch.autograd.grad((weights * expected).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_are_those_of_zuko(shape):
    flow, theta = flow_of(2), torch.randn(shape, dtype=torch.float64)
    context = torch.randn(16, 3, dtype=torch.float64)
    expected = flow(context).log_prob(theta)
    torch.testing.assert_close(_splines.log_prob(flow, context, theta), expected)


def test_edges_of_the_splines_have_finite_gradients():
    flow = flow_of(2)
    theta = torch.tensor([[-5.0, 5.0], [5.0, -5.0], [1e9, 0.0]], dtype=torch.float64)
    theta.requires_grad_()
    value = _splines.log_prob(flow, torch.zeros(3, 3, dtype=torch.float64), theta)
    assert bool(torch.autograd.grad(value.sum(), theta)[0].isfinite().all())


def test_other_flows_are_left_to_zuko():
    assert _splines.agrees(flow_of(2).float(), 3, 2)
    affine = zuko.flows.MAF(2, 3)
    smooth = zuko.flows.NSF(2, 3, activation=nn.ELU)
    steep = zuko.flows.NSF(2, 3, slope=0.1)
    single = zuko.flows.NSF(1, 3)
    flows = {affine: 2, smooth: 2, steep: 2, single: 1}
    assert not any(_splines.agrees(flow, 3, dim) for flow, dim in flows.items())
