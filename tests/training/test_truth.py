"""Training against posteriors that are known in closed form."""

import pytest
import torch
from torch import nn
from torch.distributions import Independent, MultivariateNormal, Normal

import prudent
from prudent import fit
from prudent.coverage import CoveragePenalty
from prudent.datasets import Pairs
from prudent.estimators import FlowEstimator
from prudent.problems.gaussian import exact_posterior
from prudent.training import Options, nll, train, weighted_sum

# KL(exact || learned) per dimension, in nats; that of the prior is 0.8 per parameter.
KL_BOUNDS = {1: 0.008, 5: 0.05}


def divergence(estimator, dim, number=2000):
    """KL from the exact posterior to the learned one, averaged over observations."""
    _, x = prudent.problems.get("gaussian", dim=dim).draw(number, 1)
    exact = exact_posterior(x)
    with torch.no_grad():
        theta = exact.sample((4,))
        return float((exact.log_prob(theta) - estimator(x).log_prob(theta)).mean())


@pytest.mark.slow
@pytest.mark.parametrize("dim", KL_BOUNDS)
def test_npe_recovers_the_exact_posterior(dim):
    problem = prudent.problems.get("gaussian", dim=dim)
    theta, x = problem.draw(20480, 0)
    options = {"method": "npe", "batch_size": 256, "learning_rate": 2e-3, "progress": False}
    estimator = fit(theta, x, problem.prior, epochs=15, **options)
    assert 0 < divergence(estimator, dim) + 1e-3 < KL_BOUNDS[dim]
    barely = fit(theta[:512], x[:512], problem.prior, epochs=1, **options)
    assert divergence(barely, dim) > KL_BOUNDS[dim]


DIM = 5
PRIOR = MultivariateNormal(torch.zeros(DIM), 0.05 * torch.eye(DIM) + 0.95)


def correlated(number, seed):
    """Parameters that hang together, each measured with noise: the posterior is correlated."""
    torch.manual_seed(seed)
    theta = PRIOR.sample((number,))
    return theta, theta + torch.randn(number, DIM)


class MeanField(FlowEstimator):
    """Independent normals with linear means: this family cannot hold a correlation."""

    def make_head(self, num_features):
        self.mean = nn.Linear(DIM, DIM)
        self.log_width = nn.Parameter(torch.zeros(DIM))
        return nn.Identity()

    def forward(self, x):
        return Independent(Normal(self.mean(x), self.log_width.exp().expand(len(x), DIM)), 1)


def mean_field(weight):
    theta, x = correlated(2048, 0)
    training, validation = Pairs.of(theta, x).split(0.2, 0)
    torch.manual_seed(0)
    estimator = MeanField(PRIOR, DIM, (DIM,))
    penalty = CoveragePenalty("model-rsample", num_samples=64)
    train(
        estimator,
        weighted_sum((1.0, nll), (weight, penalty)),
        training,
        validation,
        options=Options(epochs=30, learning_rate=0.02),
        seed=0,
        progress=False,
    )
    seen = prudent.diagnose(estimator, training.theta, training.x, progress=False)
    return seen, prudent.diagnose(estimator, *correlated(4000, 1), progress=False)


@pytest.mark.slow
def test_the_penalty_widens_a_family_that_is_over_confident_on_its_training_pairs():
    seen, result = mean_field(0.0)
    assert seen.worst_shortfall > 0.05
    assert result.worst_shortfall > 0.05
    assert result.verdict.kind == "over-confident"
    seen, result = mean_field(100.0)
    # Of 64 draws hardly one lies beyond these levels, so that the penalty does not see the tails.
    levels, curve = result.coverage.levels, result.coverage.curve
    assert bool((curve >= levels)[levels <= 0.95].all())
    assert result.worst_shortfall < 0.02
