"""Draws from the prior times a ratio, by weighting and choosing prior draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from prudent.contracts import Prior
from prudent.errors import InputError

__all__ = ["Ratio", "SamplingReport", "candidates", "log_ratio", "resample"]

# Prior draws per observation, among which importance resampling chooses.
NUM_CANDIDATES = 8192
# Network evaluations at a time: bounds memory, and is fastest while activations fit the cache.
CHUNK = 2**16


class Ratio(Protocol):
    """What is needed of a posterior."""

    def log_ratio(self, theta: Tensor) -> Tensor:
        """Log of posterior over prior at ``theta`` (..., N, D) as (..., N)."""
        ...

    def rows(self, index: Tensor | slice) -> Ratio:
        """Some of the observations."""
        ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, eq=False, repr=False)
class SamplingReport:
    """How draws were made, and what they are worth.

    Attributes:
        method: ``"importance"`` or ``"mcmc"``.
        num_samples: Draws per observation.
        effective_sample_size: Independent draws that the answer is worth, (N,).
        acceptance: The share of accepted proposals, for a chain.
        num_steps: Steps of every walker after burn-in, for a chain.
        autocorrelation_time: Steps per independent draw, for a chain.
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
    """Draw ``(number, N, D)`` among prior draws, by weight; arguments as of `sampling.draw`."""
    rows_at_once = max(1, CHUNK // NUM_CANDIDATES)
    parts, sizes = [], []
    for start in range(0, len(posterior), rows_at_once):
        part = posterior.rows(slice(start, start + rows_at_once))
        theta, value = candidates(part, prior, like)
        weight = value.softmax(dim=0)
        chosen = torch.multinomial(weight.T, max(number, 1), replacement=True).T[:number]
        index = chosen.to(theta.device).unsqueeze(-1).expand(-1, -1, theta.shape[-1])
        parts.append(theta.gather(0, index))
        sizes.append(1 / weight.square().sum(0))
    report = SamplingReport("importance", number, torch.cat(sizes).cpu())
    return torch.cat(parts, dim=1), report


def candidates(posterior: Ratio, prior: Prior, like: Tensor | None) -> tuple[Tensor, Tensor]:
    """Prior draws (C, N, D) and their log ratios (C, N)."""
    theta = prior.sample((NUM_CANDIDATES, len(posterior)))
    value = log_ratio(posterior, theta, like)
    if bool((value == -torch.inf).all(dim=0).any()):
        raise InputError(
            f"a posterior is zero at all of {NUM_CANDIDATES:,} prior draws; expected a log ratio "
            "above minus infinity somewhere. Is the observation one that the prior allows?"
        )
    return theta, value


def log_ratio(posterior: Ratio, theta: Tensor, like: Tensor | None) -> Tensor:
    """The log ratio at theta, refused where it is not a number."""
    value = posterior.log_ratio(theta if like is None else theta.to(like))
    bad = value.isnan() | (value == torch.inf)
    if bool(bad.any()):
        raise InputError(
            f"the log ratio is NaN or infinite at {int(bad.sum()):,} of {bad.numel():,} points; "
            "expected numbers. Training diverged, or the weights are damaged: look at the "
            "estimator's `history` and train again."
        )
    return value
