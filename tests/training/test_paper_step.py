"""One training step of the paper's method against a straight-line transcription.

Nothing of the package is used on the second path but the network's own log ratio or log-density.
"""

import pytest
import torch

import prudent
from prudent.coverage import CoveragePenalty
from prudent.datasets import Pairs
from prudent.estimators import FlowEstimator, RatioEstimator
from prudent.training import balance, bce, nll, weighted_sum

PROBLEM = prudent.problems.get("two_moons")
NUMBER, DRAWS, WEIGHT = 32, 8, 5.0


def network(kind):
    torch.manual_seed(0)
    theta, x = PROBLEM.draw(NUMBER, 0)
    estimator = kind(PROBLEM.prior, 2, (2,), **{**kind.paper((2,)), "hidden": [24, 24]})
    estimator.adapt(theta, x)
    with torch.no_grad():  # away from the start, so that densities differ
        for parameter in estimator.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return estimator, theta, x


def density(kind, estimator, x, theta):
    """q(theta | x) in density space, one pair at a time as the paper writes it."""
    if kind is FlowEstimator:
        return estimator(x).log_prob(theta).exp()
    prior = PROBLEM.prior.log_prob(theta).exp()
    return prior * estimator(x).log_ratio(theta).exp()


def algorithm_1(kind, estimator, theta, x, draws):
    """Density-space indicator, draws from the prior, i/N, rectified, mean square."""
    nominal = density(kind, estimator, x, theta)
    drawn = torch.stack([density(kind, estimator, x, draw) for draw in draws])
    importance = torch.stack([PROBLEM.prior.log_prob(draw).exp() for draw in draws])
    alphas = []
    for i in range(NUMBER):
        above, below = 0.0, 0.0
        for j in range(DRAWS):
            surrogate = nominal[i] - drawn[j, i]
            step = (nominal[i] > drawn[j, i]).float() + surrogate - surrogate.detach()
            above = above + drawn[j, i] / importance[j, i] * step
            below = below + drawn[j, i] / importance[j, i]
        alphas.append(above / below)
    ordered = torch.stack(sorted(alphas, key=lambda value: float(value.detach())))
    level = torch.arange(1, NUMBER + 1) / NUMBER
    return torch.clamp(level - ordered, min=0).pow(2).mean()


def main_loss(kind, estimator, theta, x):
    if kind is FlowEstimator:
        return -estimator(x).log_prob(theta).mean()
    joint = torch.sigmoid(estimator(x).log_ratio(theta))
    apart = torch.sigmoid(estimator(x).log_ratio(theta.roll(1, 0)))
    return -(joint.log().mean() + (1 - apart).log().mean())


def gradients(value, estimator):
    return torch.cat(
        [g.flatten() for g in torch.autograd.grad(value, list(estimator.parameters()))]
    )


@pytest.mark.parametrize("kind", [RatioEstimator, FlowEstimator])
def test_the_step_of_calnre_and_calnpe(kind):
    estimator, theta, x = network(kind)
    loss = bce if kind is RatioEstimator else nll
    objective = weighted_sum((1.0, loss), (WEIGHT, CoveragePenalty.paper(PROBLEM.prior, DRAWS)))
    torch.manual_seed(7)
    ours = objective(estimator(x), theta)
    torch.manual_seed(7)
    draws = PROBLEM.prior.sample((DRAWS, NUMBER))
    regularizer = algorithm_1(kind, estimator, theta, x, draws)
    theirs = main_loss(kind, estimator, theta, x) + WEIGHT * regularizer
    assert float(regularizer.detach()) > 1e-3  # the term is alive
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    first, second = gradients(ours, estimator), gradients(theirs, estimator)
    torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-4)
    without = gradients(main_loss(kind, estimator, theta, x), estimator)
    assert (first - without).abs().max() > 1e-3


@pytest.mark.parametrize("kind", [RatioEstimator, FlowEstimator])
def test_the_step_of_bnre_and_bnpe(kind):
    """lambda (E_joint[d] + E_marginal[d] - 1)^2 with d = q / (q + p), p the prior."""
    estimator, theta, x = network(kind)
    loss = bce if kind is RatioEstimator else nll
    ours = weighted_sum((1.0, loss), (100.0, balance))(estimator(x), theta)
    classifiers = []
    for values in (theta, theta.roll(1, 0)):
        q = density(kind, estimator, x, values)
        p = PROBLEM.prior.log_prob(values).exp()
        classifiers.append((q / (q + p)).mean())
    term = (classifiers[0] + classifiers[1] - 1).pow(2)
    theirs = main_loss(kind, estimator, theta, x) + 100 * term
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        gradients(ours, estimator), gradients(theirs, estimator), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize(("kind", "terms"), [(RatioEstimator, 1), (FlowEstimator, 2)])
def test_terms_share_their_evaluation(kind, terms):
    """Loss and balance of BNRE need one evaluation of the ratio; a flow's loss is another."""
    estimator, theta, x = network(kind)
    calls = []
    seen = estimator._seen  # every evaluation begins with it
    estimator._seen = lambda *given: calls.append(1) or seen(*given)
    loss = bce if kind is RatioEstimator else nll
    weighted_sum((1.0, loss), (100.0, balance))(estimator(x), theta)
    assert len(calls) == terms


@pytest.mark.parametrize("kind", [RatioEstimator, FlowEstimator])
def test_x_is_embedded_once_for_all_evaluations(kind):
    estimator, theta, x = network(kind)
    calls = []
    estimator.embedding.register_forward_hook(lambda *_: calls.append(1))
    loss = bce if kind is RatioEstimator else nll
    objective = weighted_sum((1.0, loss), (5.0, CoveragePenalty(PROBLEM.prior)))
    objective(estimator(Pairs.of(theta, x).x), theta)
    assert len(calls) == 1
