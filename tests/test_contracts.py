"""Which posterior can do what, asked as the package asks it."""

import pytest
import torch
import zuko
from torch.distributions import Independent, Normal

import prudent
from prudent import contracts
from prudent.posteriors.density import Facts, facts_of

ABILITIES = {"Rows", "LogRatio", "SampleAndLogProb", "Reparametrized"}
X = torch.zeros(3, 2)


def flow():
    return prudent.estimators.FlowEstimator(PRIOR, 2, (2,), hidden=(4,))


def ratio():
    return prudent.estimators.RatioEstimator(PRIOR, 2, (2,), hidden=(4,))


PRIOR = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
CASES = {
    "ours": (lambda: flow()(X), ABILITIES),
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


FACTS = {
    "flow": (flow, Facts(noise=True, overhead=800)),
    "ratio": (ratio, Facts(ratio=True, overhead=2e7 / 25)),
    "ensemble": (lambda: pool(), Facts(noise=True)),
    "warm": (lambda: pool(temperature=2.0), Facts(noise=True, divided="pool")),
}


def pool(**options):
    return prudent.estimators.Ensemble([flow(), flow()], **options)


@pytest.mark.parametrize("name", FACTS)
def test_facts_of_ours(name):
    make, expected = FACTS[name]
    assert facts_of(make()(X)) == expected


def test_facts_of_others_are_seen_by_their_methods():
    class Slow:
        slow_density = True
        log_prob = from_noise = lambda *_: None

    assert facts_of(Slow()) == Facts(noise=True, slow=True)
    assert not facts_of(object()).density


@pytest.mark.parametrize("kind", [flow, ratio])
def test_estimators_and_priors(kind):
    estimator = kind()
    assert isinstance(estimator.prior, contracts.Prior)
    assert not isinstance(estimator.prior, contracts.SampleAndLogProb)
    assert not isinstance(object(), contracts.Posterior)
