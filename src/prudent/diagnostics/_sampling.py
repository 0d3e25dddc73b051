r"""Draws that stand for a posterior: its own, or weighted ones from elsewhere.

Draws from the posterior have equal weights; those outside the prior's support have none. A flow
makes its draws from standard normal noise. Where it takes the noise from us (``from_noise``), the
noise is a Sobol sequence, shifted at random for each observation: it fills space more evenly than
random numbers do, so that with two parameters 256 draws are worth more than 1,024 random ones.

A ratio cannot draw, so its draws are weighted (:mod:`prudent.estimators.importance`).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from prudent.contracts import Posterior, Prior, SampleAndLogProb
from prudent.diagnostics._points import Points
from prudent.estimators.importance import weighted_draws
from prudent.estimators.priors import log_prior

__all__ = ["Importance", "Samples"]

NUM_DRAWS = 1024
# Draws that are worth as much if their noise is even: up to so many parameters, so many.
NUM_EVEN_DRAWS = {2: 256, 5: 512}
# Weighted draws in each round of importance sampling.
NUM_PER_ROUND = 512


class Samples:
    """Draws from the posterior.

    Args:
        prior: The prior; outside its support, draws have no weight.
        even_dim: The number of parameters, if the posteriors take their noise from the caller.
    """

    def __init__(self, prior: Prior, even_dim: int | None = None) -> None:
        self.prior, self.at_once, self.sequence = prior, NUM_DRAWS, None
        if even_dim is not None:
            enough = [number for dim, number in NUM_EVEN_DRAWS.items() if even_dim <= dim]
            self.at_once = min(enough, default=NUM_DRAWS)
            engine = torch.quasirandom.SobolEngine(even_dim)
            self.sequence = engine.draw(self.at_once, dtype=torch.float64).unsqueeze(1)

    def __call__(self, posterior: Any, x: Tensor) -> Points:
        """Draws and their densities, in one go where the posterior can do that."""
        if self.sequence is not None:
            theta, log_prob = posterior.from_noise(_shifted_noise(self.sequence, len(x)))
        elif isinstance(posterior, SampleAndLogProb):
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
    """Weighted draws that learn where the posterior is.

    Args:
        prior: The prior, from which the first draws come.
    """

    def __init__(self, prior: Prior) -> None:
        self.prior, self.at_once = prior, NUM_PER_ROUND

    def __call__(self, posterior: Posterior, x: Tensor) -> Points:
        """The draws of all rounds with their weights."""
        draws = weighted_draws(posterior.log_prob, self.prior, len(x), NUM_PER_ROUND)
        log_share = draws.log_proposal + math.log(len(draws.theta))
        outside = draws.log_prior == -torch.inf
        log_mass = (draws.log_prob - log_share).masked_fill(outside, -torch.inf)
        return Points(draws.theta, draws.log_prob, log_mass, draws.log_prior - log_share)
