r"""Weighted draws from the prior times a ratio, which learn where it is.

A ratio cannot draw, so its draws come from a proposal I and have weights :math:`q / I`
(self-normalized importance sampling). The prior is a poor proposal: with ten parameters hardly any
of its draws falls where the posterior is. So the proposal learns, in rounds: the draws so far are
weighted, a normal distribution is fitted to them and widened, and the next draws come from it. All
draws of all rounds are kept, weighted by the mixture of the proposals that made them (the balance
heuristic). The prior stays in the mixture, so no weight exceeds the ratio times the number of
rounds, and a mode that the normal distribution misses keeps its prior draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

from prudent.contracts import LogRatio, Prior, Rows
from prudent.coverage.alpha import effective_size
from prudent.errors import InputError
from prudent.estimators.priors import log_prior

# The first round draws from the prior. The more parameters, the longer the way from there to the
# posterior.
NUM_ROUNDS, PARAMETERS_PER_ROUND = 4, 3
# The variance of the fitted normal is enlarged by this much: tails too thin make weights explode.
WIDEN = 1.3
# The power of the weights is halved so many times at most, until enough draws count for a fit.
MAX_HALVINGS = 30
# Draws per observation and round, among which resampling chooses.
NUM_PER_ROUND = 2048
# Network evaluations at a time: bounds memory, and is fastest while activations fit the cache.
CHUNK = 2**16


class Ratio(LogRatio, Rows, Sized, Protocol):
    """A posterior that is drawn from by its ratio to the prior."""


@dataclass(frozen=True, eq=False, repr=False)
class SamplingReport:
    """How draws were made, and what they are worth.

    Attributes:
        method: ``"importance"`` or ``"mcmc"``.
        num_samples: The number of draws per observation.
        effective_sample_size: The number of independent draws that they are worth, (N,).
        acceptance: The share of accepted proposals, for a chain.
        num_steps: The number of steps of every walker after burn-in, for a chain.
        autocorrelation_time: The number of steps per independent draw, for a chain.
    """

    method: str
    num_samples: int
    effective_sample_size: Tensor
    acceptance: float | None = None
    num_steps: int | None = None
    autocorrelation_time: float | None = None

    def __repr__(self) -> str:
        size = self.effective_sample_size
        text = f"<SamplingReport {self.method}: {self.num_samples:,} draws, "
        if self.acceptance is None:
            text += f"{len(size):,} observations, "
        text += f"effective sample size {size.min():,.0f}"
        if self.acceptance is not None:
            text += f", acceptance {self.acceptance:.2f}, {self.num_steps:,} steps per walker"
        return text + ">"


def resample(
    posterior: Ratio, prior: Prior, number: int, like: Tensor | None
) -> tuple[Tensor, SamplingReport]:
    """Choose ``(number, N, D)`` of the weighted draws; arguments as of `sampling.draw`."""

    def log_prob(theta: Tensor) -> Tensor:
        value = log_prior(prior, theta)
        inside = value > -torch.inf
        ratio = log_ratio(part, theta, like, inside).to(value)
        return torch.where(inside, value + ratio, value)

    rows_at_once = max(1, CHUNK // NUM_PER_ROUND)
    parts, sizes = [], []
    for start in range(0, len(posterior), rows_at_once):
        part = posterior.rows(slice(start, start + rows_at_once))
        draws = weighted_draws(log_prob, prior, len(part), NUM_PER_ROUND)
        theta, log_weight = draws.theta, draws.log_prob - draws.log_proposal
        if bool((log_weight == -torch.inf).all(dim=0).any()):
            raise InputError(zero_at_all(len(theta)))
        weight = log_weight.softmax(dim=0)
        chosen = torch.multinomial(weight.T, max(number, 1), replacement=True).T[:number]
        parts.append(theta.gather(0, chosen.unsqueeze(-1).expand(-1, -1, theta.shape[-1])))
        sizes.append(effective_size(weight))
    return torch.cat(parts, dim=1), SamplingReport("importance", number, torch.cat(sizes))


def log_ratio(
    posterior: Ratio, theta: Tensor, like: Tensor | None, inside: Tensor | None = None
) -> Tensor:
    """The log ratio at theta, refused where it is not a number, inside the prior."""
    value = posterior.log_ratio(theta if like is None else theta.to(like))
    bad = value.isnan() | (value == torch.inf)
    if inside is not None:
        bad &= inside.to(bad.device)
    if bool(bad.any()):
        raise InputError(
            f"the log ratio is NaN or infinite at {int(bad.sum()):,} of {bad.numel():,} points; "
            "expected numbers. Training diverged, or the weights are damaged: look at the "
            "estimator's `history` and train again."
        )
    return value


def zero_at_all(number: int) -> str:
    """The message for a posterior without mass at so many draws."""
    return (
        f"a posterior is zero at all of {number:,} draws; expected a log ratio above minus "
        "infinity somewhere. Is the observation one that the prior allows?"
    )


class WeightedDraws(NamedTuple):
    """The draws of all rounds, L for each of N posteriors.

    Args:
        theta: The draws, (L, N, D).
        log_prob: The log-density of the target at the draws, (L, N).
        log_prior: The log-density of the prior at the draws, (L, N).
        log_proposal: The log-density of the mixture of all proposals at the draws, (L, N).
    """

    theta: Tensor
    log_prob: Tensor
    log_prior: Tensor
    log_proposal: Tensor


def weighted_draws(
    log_prob: Callable[[Tensor], Tensor], prior: Prior, num_rows: int, per_round: int
) -> WeightedDraws:
    """Draw from the prior, then from what earlier draws say about the target.

    Args:
        log_prob: The log-density of the target at (L, N, D), up to a constant per row, as (L, N).
        prior: The first proposal.
        num_rows: The number of targets, N.
        per_round: The number of draws per target and round.
    """
    theta = prior.sample((per_round, num_rows))
    target = log_prob(theta)
    at_prior = log_prior(prior, theta)
    # The log-density of each proposal at each draw, (rounds, L, N).
    proposals = at_prior.unsqueeze(0)
    normals: list[_Normal] = []
    for _ in range(1, NUM_ROUNDS + theta.shape[-1] // PARAMETERS_PER_ROUND):
        normal = _Normal.fit(theta, target - _mixture(proposals))
        draws = normal.sample(per_round)
        drawn_prior = log_prior(prior, draws)
        at_draws = torch.stack([drawn_prior, *(n.log_prob(draws) for n in normals)])
        proposals = torch.cat((proposals, at_draws), dim=1)
        theta = torch.cat((theta, draws))
        proposals = torch.cat((proposals, normal.log_prob(theta).unsqueeze(0)))
        target = torch.cat((target, log_prob(draws)))
        at_prior = torch.cat((at_prior, drawn_prior))
        normals.append(normal)
    return WeightedDraws(theta, target, at_prior, _mixture(proposals))


def _mixture(proposals: Tensor) -> Tensor:
    """The log-density of the mixture of all rounds at every draw, (L, N)."""
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
        for halvings in range(1, MAX_HALVINGS):
            few = effective_size(weight) < 4 * dim + 10
            if not bool(few.any()):
                break
            weight = torch.where(few, (0.5**halvings * log_weight).softmax(dim=0), weight)
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
        noise = torch.randn(number, *self.mean.shape, dtype=self.mean.dtype)
        return self.mean + torch.einsum("nde,lne->lnd", self.factor, noise)

    def log_prob(self, theta: Tensor) -> Tensor:
        """The log-density at (L, N, D), as (L, N)."""
        centred = (theta - self.mean).permute(1, 2, 0)
        scaled: Tensor = torch.linalg.solve_triangular(self.factor, centred, upper=False)
        log_scale = self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        constant = 0.5 * self.mean.shape[1] * math.log(2 * math.pi)
        return -0.5 * scaled.square().sum(dim=1).T - log_scale - constant
