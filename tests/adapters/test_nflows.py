"""Flows of nflows."""

import pytest
import torch
from peers import BOX, check_alpha, check_gradients, pairs, peer
from torch import nn

import prudent

pytestmark = pytest.mark.filterwarnings("ignore")  # those of nflows


@pytest.mark.parametrize("base", ["StandardNormal", "ConditionalDiagonalNormal"])
def test_flows(base):
    peer("nflows")
    from nflows import distributions, flows, transforms

    torch.manual_seed(0)
    steps = [
        transforms.MaskedAffineAutoregressiveTransform(2, 8, context_features=4),
        transforms.ReversePermutation(2),
    ]
    given = () if base == "StandardNormal" else (nn.Linear(4, 4),)
    noise = getattr(distributions, base)([2], *given)
    flow = flows.Flow(transforms.CompositeTransform(steps), noise, nn.Linear(2, 4))
    check_gradients(flow, BOX)
    check_alpha(flow, BOX, lambda theta, x: flow.log_prob(theta, context=x), normalized=True)
    adapted = prudent.adapt(flow, BOX)
    assert adapted(torch.zeros(2)).facts.noise is (base == "StandardNormal")
    found = prudent.diagnose(adapted, *pairs(BOX, 30, 0), progress=False)
    assert found.num_invalid == 0
