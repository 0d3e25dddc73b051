"""Which posterior can do what, asked as the package asks it."""

import pytest
import torch
import zuko
from torch.distributions import Independent, Normal

import prudent
from prudent import contracts

ABILITIES = {"Rows", "LogRatio", "SampleAndLogProb", "Reparametrized", "FromNoise"}
ABILITIES |= {"Normalizable"}
FLOW, POOL = ABILITIES, {"Rows", "LogRatio", "FromNoise", "Normalizable"}
X = torch.zeros(3, 2)


def flow():
    return prudent.estimators.FlowEstimator(PRIOR, 2, (2,), hidden=(4,))


def ratio():
    return prudent.estimators.RatioEstimator(PRIOR, 2, (2,), hidden=(4,))


PRIOR = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
CASES = {
    "flow": (lambda: flow()(X), FLOW),
    "ratio": (lambda: ratio()(X), {"Rows", "LogRatio"}),
    "ensemble": (lambda: prudent.estimators.Ensemble([flow(), flow()])(X), POOL),
    "zuko": (lambda: zuko.flows.NSF(2, 2, hidden_features=(4,))(X), {"Reparametrized"}),
    "torch": (
        lambda: Independent(Normal(torch.zeros(3, 2), torch.ones(3, 2)), 1),
        {"Reparametrized"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_abilities(name):
    make, expected = CASES[name]
    posterior = make()
    assert isinstance(posterior, contracts.Posterior)
    found = {
        ability for ability in ABILITIES if isinstance(posterior, getattr(contracts, ability))
    }
    assert found == expected


@pytest.mark.parametrize("kind", [flow, ratio])
def test_estimators_and_priors(kind):
    estimator = kind()
    assert isinstance(estimator.prior, contracts.Prior)
    assert not isinstance(estimator.prior, contracts.SampleAndLogProb)
    assert not isinstance(object(), contracts.Posterior)
