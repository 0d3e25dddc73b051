"""Models of lampe, and its losses with the penalty."""

import pytest
import torch
from peers import BOX, check_alpha, check_gradients, pairs, peer
from torch import nn
from torch.distributions import Independent, Uniform

import prudent
from prudent.adapters.lampe import DCPNPELoss, DCPNRELoss

pytestmark = pytest.mark.filterwarnings("ignore")  # those of lampe


def model(kind):
    torch.manual_seed(0)
    return getattr(peer("lampe.inference"), kind)(2, 2, hidden_features=(8, 8))


@pytest.mark.parametrize("kind", ["NPE", "NRE", "AMNRE"])
def test_models(kind):
    made = model(kind)
    check_gradients(made, BOX)
    every = {"AMNRE": (torch.tensor([True, True]),)}.get(kind, ())
    check_alpha(made, BOX, lambda theta, x: made(theta, x, *every), normalized=kind == "NPE")


def test_flow_matching_draws_and_has_a_slow_density():
    made = model("FMPE")
    check_gradients(made, BOX)
    found = prudent.diagnose(prudent.adapt(made, BOX), *pairs(BOX, 8, 0), progress=False)
    assert found.computed_by == "draws"
    assert found.measurement.has_density


def test_an_embedding_goes_before_the_model():
    embedding = nn.Linear(3, 2)
    adapted = prudent.adapt(model("NPE"), BOX, embedding=embedding)
    assert adapted(torch.zeros(4, 3)).mean().shape == (4, 2)


# In float64 two ways to compute a density agree in all comparisons.
WIDE = Independent(Uniform(-2 * torch.ones(2).double(), 2 * torch.ones(2).double()), 1)


@pytest.mark.parametrize("calibration", [False, True])
@pytest.mark.parametrize("case", ["ratio", "ratio, proposal", "flow", "flow, proposal"])
def test_losses_are_those_of_lampe(case, calibration):
    """On fixed tensors and draws: the value, and the gradient of every weight.

    Draws are many and pairs are few, so that no two alphas are equal: of those the two sorts take
    different ones first, which changes nothing but whose gradient is whose.
    """
    peer("torchsort")
    theirs = peer("lampe.inference")
    kind, _, proposed = case.partition(", ")
    made = model("NRE" if kind == "ratio" else "NPE").double()
    proposal = WIDE if proposed else None
    options = {"proposal": proposal, "lmbda": 3.0, "n_samples": 512, "calibration": calibration}
    theta, x = (values.double() for values in pairs(BOX, 8, 0))
    prior = (Independent(Uniform(-torch.ones(2).double(), torch.ones(2).double()), 1),)
    if proposed and kind == "ratio":
        prior = (WIDE,)  # lampe refuses draws outside the prior
    found = []
    for library in (DCPNRELoss, DCPNPELoss), (theirs.DCPNRELoss, theirs.DCPNPELoss):
        ratio, flow = library
        loss = ratio(made, *prior, **options) if kind == "ratio" else flow(made, **options)
        torch.manual_seed(1)
        value = loss(theta, x)
        found.append((value.detach(), torch.autograd.grad(value, list(made.parameters()))))
    (ours, our_slopes), (other, slopes) = found
    torch.testing.assert_close(ours, other)
    for mine, slope in zip(our_slopes, slopes, strict=True):
        torch.testing.assert_close(mine, slope)
    assert float(torch.cat([slope.flatten() for slope in slopes]).abs().max()) > 0


def test_losses_need_no_torchsort():
    made = model("NRE")
    theta, x = pairs(BOX, 32, 0)
    value = DCPNRELoss(made, BOX)(theta, x)
    value.backward()
    assert all(weight.grad is not None for weight in made.parameters())
