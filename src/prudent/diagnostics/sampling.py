r"""Draws that stand for a posterior: its own, or weighted ones from elsewhere.

Draws from the posterior have equal weights; those outside the prior's support have none. A flow
makes its draws from standard normal noise. Where it takes the noise from us (``from_noise``), the
noise is a Sobol sequence, shifted at random for each observation: it fills space more evenly than
random numbers do, so that with two parameters 256 draws are worth more than 1,024 random ones.

A ratio cannot draw, so its draws come from a proposal I and have weights :math:`q / I`
(self-normalised importance sampling). The prior is a poor proposal: with ten parameters hardly any
of its draws falls where the posterior is. So the proposal learns, in rounds: the draws so far are
weighted, a normal distribution is fitted to them and widened, and the next draws come from it. All
draws of all rounds are kept, weighted by the mixture of the proposals that made them (the balance
heuristic). The prior stays in the mixture, so no weight exceeds the ratio times the number of
rounds, and a mode that the normal distribution misses keeps its prior draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from prudent.contracts import Posterior, Prior
from prudent.diagnostics.points import Points, effective_size
from prudent.estimators.priors import log_prior

__all__ = ["Importance", "Samples"]

NUM_DRAWS = 1024
# Draws that are worth as much if their noise is even: up to so many parameters, so many.
NUM_EVEN_DRAWS = {2: 256, 5: 512}
# Importance sampling: draws in each round, and rounds, the first of which draws from the prior.
# The more parameters, the longer the way from there to the posterior.
NUM_PER_ROUND = 512
NUM_ROUNDS, PARAMETERS_PER_ROUND = 4, 3
# The variance of the fitted normal is enlarged by this much: tails too thin make weights explode.
WIDEN = 1.3
# Powers of the weights, to flatten them until enough draws count for a fit.
POWERS = tuple(0.5**step for step in range(8))


class Samples:
    """Draws from the posterior.

    Args:
        prior: Outside its support, draws have no weight.
        even_dim: The number of parameters, if the posteriors have
            ``from_noise(noise) -> (theta, log_prob)``, which maps standard normal noise (L, N, D)
            to draws and their log-density.
    """

    def __init__(self, prior: Prior, even_dim: int | None = None) -> None:
        self.prior, self.at_once, self.sequence = prior, NUM_DRAWS, None
        if even_dim is not None:
            enough = [number for dim, number in NUM_EVEN_DRAWS.items() if even_dim <= dim]
            self.at_once = min(enough, default=NUM_DRAWS)
            engine = torch.quasirandom.SobolEngine(even_dim)
            self.sequence = engine.draw(self.at_once, dtype=torch.float64).unsqueeze(1)

    def __call__(self, posterior: Any, num_rows: int) -> Points:
        """Draws and their densities, in one go where the posterior can do that."""
        if self.sequence is not None:
            theta, log_prob = posterior.from_noise(_shifted_noise(self.sequence, num_rows))
        elif hasattr(posterior, "sample_and_log_prob"):
            theta, log_prob = posterior.sample_and_log_prob((self.at_once,))
        else:
            theta = posterior.sample((self.at_once,))
            log_prob = posterior.log_prob(theta)
        prior = log_prior(self.prior, theta)
        share = torch.full_like(log_prob, -math.log(self.at_once))
        log_mass = share.masked_fill(prior == -torch.inf, -torch.inf)
        return Points(theta, log_prob, log_mass, prior - log_prob + share)


def _shifted_noise(sequence: Tensor, num_rows: int) -> Tensor:
    """Standard normal noise (L, N, D) from uniform points (L, 1, D), shifted at random per row."""
    shift = torch.rand(num_rows, sequence.shape[-1], dtype=torch.float64)
    # Past seven standard deviations float32 has no noise to offer.
    uniform = ((sequence + shift) % 1.0).clamp(1e-12, 1 - 1e-12)
    noise: Tensor = torch.special.ndtri(uniform)
    return noise.float()


class Importance:
    """Draws from the prior, then from what earlier draws say about the posterior.

    Args:
        prior: The first proposal.
    """

    def __init__(self, prior: Prior) -> None:
        self.prior, self.at_once = prior, NUM_PER_ROUND

    def __call__(self, posterior: Posterior, num_rows: int) -> Points:
        """Draws of all rounds with their weights."""
        theta = self.prior.sample((NUM_PER_ROUND, num_rows))
        log_prob = posterior.log_prob(theta)
        prior = log_prior(self.prior, theta)
        # Log-density of each proposal at each draw, (rounds, L, N).
        proposals = prior.unsqueeze(0)
        normals: list[_Normal] = []
        for _ in range(1, NUM_ROUNDS + theta.shape[-1] // PARAMETERS_PER_ROUND):
            normal = _Normal.fit(theta, log_prob - _mixture(proposals))
            draws = normal.sample(NUM_PER_ROUND)
            drawn_prior = log_prior(self.prior, draws)
            at_draws = torch.stack([drawn_prior, *(n.log_prob(draws) for n in normals)])
            proposals = torch.cat((proposals, at_draws), dim=1)
            theta = torch.cat((theta, draws))
            proposals = torch.cat((proposals, normal.log_prob(theta).unsqueeze(0)))
            log_prob = torch.cat((log_prob, posterior.log_prob(draws)))
            prior = torch.cat((prior, drawn_prior))
            normals.append(normal)
        log_proposal = _mixture(proposals) + math.log(len(theta))
        log_mass = (log_prob - log_proposal).masked_fill(prior == -torch.inf, -torch.inf)
        return Points(theta, log_prob, log_mass, prior - log_proposal)


def _mixture(proposals: Tensor) -> Tensor:
    """Log-density of the mixture of all rounds at every draw, (L, N)."""
    return proposals.logsumexp(dim=0) - math.log(len(proposals))


@dataclass(frozen=True)
class _Normal:
    """N normal distributions: means (N, D) and Cholesky factors of their covariances (N, D, D)."""

    mean: Tensor
    factor: Tensor

    @classmethod
    def fit(cls, theta: Tensor, log_weight: Tensor) -> Self:
        """Match weighted draws (L, N, D)."""
        dim = theta.shape[-1]
        log_weight = log_weight.nan_to_num(-torch.inf, -torch.inf, -torch.inf)
        nowhere = (log_weight == -torch.inf).all(dim=0)
        log_weight = log_weight.masked_fill(nowhere, 0.0)
        weight = log_weight.softmax(dim=0)
        for power in POWERS:
            few = effective_size(weight) < 4 * dim + 10
            weight = torch.where(few, (power * log_weight).softmax(dim=0), weight)
        mean = torch.einsum("ln,lnd->nd", weight, theta)
        centred = theta - mean
        covariance = torch.einsum("ln,lnd,lne->nde", weight, centred, centred)
        # With few effective draws correlations are noise: they shrink towards none.
        shrink = (dim / (dim + effective_size(weight)))[:, None, None]
        variance = covariance.diagonal(dim1=-2, dim2=-1).clamp(min=1e-20)
        covariance = torch.lerp(covariance, torch.diag_embed(variance), shrink)
        return cls(mean, torch.linalg.cholesky(WIDEN * covariance))

    def sample(self, number: int) -> Tensor:
        """Draws (number, N, D)."""
        noise = torch.randn(number, *self.mean.shape)
        return self.mean + torch.einsum("nde,lne->lnd", self.factor, noise)

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log-density at (L, N, D), as (L, N)."""
        centred = (theta - self.mean).permute(1, 2, 0)
        scaled: Tensor = torch.linalg.solve_triangular(self.factor, centred, upper=False)
        log_scale = self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        constant = 0.5 * self.mean.shape[1] * math.log(2 * math.pi)
        return -0.5 * scaled.square().sum(dim=1).T - log_scale - constant
