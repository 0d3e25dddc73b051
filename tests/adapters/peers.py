"""Pairs of a small problem, and what must hold for every model that is adapted."""

import pytest
import torch
from torch.distributions import Independent, Normal, Uniform

import prudent
from prudent.coverage import CoveragePenalty, Nominal, alpha
from prudent.priors.density import log_density

NOISE = 0.4
BOX = Independent(Uniform(-torch.ones(2), torch.ones(2)), 1)
NORMAL = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)


def pairs(prior, number, seed, noise=NOISE):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        theta = prior.sample((number,))
        return theta, theta + noise * torch.randn(number, 2)


def peer(name):
    """A library, or a skip of the test without it."""
    return pytest.importorskip(name)


def check_gradients(model, prior, seed=0):
    """The penalty is finite and its gradient, with that of the loss, reaches all weights."""
    adapted = prudent.adapt(model, prior).train()
    weights = [weight for weight in adapted.parameters() if weight.requires_grad]
    assert weights
    for weight in weights:
        weight.grad = None
    theta, x = pairs(BOX, 64, seed)
    torch.manual_seed(seed)
    penalty = CoveragePenalty("model" if adapted.normalized else Nominal(prior))
    posterior = adapted(x)
    value = penalty(posterior, theta)
    assert bool(value.isfinite())
    assert value.requires_grad
    (5 * value - posterior.log_prob(theta).mean()).backward()
    assert [w.shape for w in weights if w.grad is None or not w.grad.isfinite().all()] == []
    assert sum(float(weight.grad.abs().sum()) for weight in weights) > 0
    adapted.eval()


def check_alpha(model, prior, log_prob, normalized):
    """Alpha by the adapted densities is that by the library's own.

    ``log_prob`` maps flat theta (M, D) and x (M, ...) to log-densities or, without ``normalized``,
    to log ratios (M,).
    """
    adapted = prudent.adapt(model, prior)
    assert adapted.normalized is normalized
    theta, x = pairs(BOX, 32, 1)
    draws = prior.sample((16, 32))
    every = torch.cat((theta[None], draws))
    with torch.no_grad():
        posterior = adapted(x)
        ours = (posterior.unnormalized() if normalized else posterior).log_prob(every)
        flat = log_prob(every.flatten(0, 1), x.expand(17, *x.shape).flatten(0, 1))
    theirs = flat.reshape(17, 32) + (0 if normalized else log_density(prior, every))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    weight = theirs[1:] - log_density(prior, draws)
    expected = alpha(theirs[0], theirs[1:], weight, indicator="hard")
    found = alpha(ours[0], ours[1:], ours[1:] - log_density(prior, draws), indicator="hard")
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
