"""Draws from the prior times a ratio: weighted ones, of which some are chosen."""

from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from prudent.contracts import LogRatio, Prior, Rows
from prudent.coverage.alpha import effective_size
from prudent.errors import InputError
from prudent.estimators.learning import at_least, gathered
from prudent.estimators.looks import DRAWN, NUM_FRESH, two_looks
from prudent.priors.density import log_density

# Draws at a time, of all targets together.
MOST_DRAWS = 2**16


class Ratio(LogRatio, Rows, Sized, Protocol):
    """A posterior that is drawn from by its ratio to the prior."""


@dataclass(frozen=True, eq=False, repr=False)
class SamplingReport:
    """How draws were made, and what they are worth.

    Attributes:
        method: ``"importance"``, ``"rejection"`` or ``"mcmc"``.
        num_samples: The number of draws per observation.
        effective_sample_size: The number of independent draws that they are worth, (N,); 1 where
            two independent looks at the posterior disagree.
        acceptance: The share of accepted proposals, for rejection and for a chain.
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
        if self.num_steps is None:
            text += f"{len(size):,} observations, "
        text += f"effective sample size {size.min():,.0f}"
        if self.acceptance is not None:
            text += f", acceptance {self.acceptance:.2f}"
        if self.num_steps is not None:
            text += f", {self.num_steps:,} steps per walker"
        return text + ">"


def joined(reports: Sequence[SamplingReport | None]) -> SamplingReport | None:
    """The report of draws that were made in pieces, None if they are exact by themselves."""
    known = [report for report in reports if report is not None]
    if not known:
        return None
    worth = torch.stack([report.effective_sample_size for report in known]).sum(dim=0)
    number = sum(report.num_samples for report in known)
    return replace(known[0], num_samples=number, effective_sample_size=worth)


def resample(
    posterior: Ratio, prior: Prior, number: int, like: Tensor | None
) -> tuple[Tensor, SamplingReport]:
    """Choose ``(number, N, D)`` of the weighted draws; arguments as of `sampling.draw`."""

    def log_prob(theta: Tensor, rows: Tensor) -> Tensor:
        value = log_density(prior, theta)
        inside = value > -torch.inf
        some = part if len(rows) == len(part) else part.rows(rows)
        ratio = log_ratio(some, theta, like, inside).to(value)
        return torch.where(inside, value + ratio, value)

    per_row = max(number, at_least(DRAWN, prior.sample((1,)).shape[-1]))
    rows_at_once = max(1, MOST_DRAWS // per_row)
    parts, sizes = [], []
    for start in range(0, len(posterior), rows_at_once):
        part = posterior.rows(slice(start, start + rows_at_once))
        draws = two_looks(log_prob, prior, len(part), num_fresh=max(number, NUM_FRESH))
        theta, log_weight = draws.theta, draws.log_weight
        if bool((draws.log_prob == -torch.inf).all(dim=0).any()):
            raise InputError(zero_at_all(len(theta)))
        weight = log_weight.softmax(dim=0)
        parts.append(chosen_draws(theta, weight, number))
        # Draws of which two looks disagree are worth nothing that is known.
        sizes.append(effective_size(weight).where(draws.resolved, 1.0))
    return torch.cat(parts, dim=1), SamplingReport("importance", number, torch.cat(sizes))


def chosen_draws(theta: Tensor, weight: Tensor, number: int) -> Tensor:
    """Draws of equal weight (number, N, D) from weighted ones (L, N, D) with weights (L, N).

    Even steps through the draws in random order: one comes twice only if its weight is larger
    than that of one draw.
    """
    return gathered(theta, chosen_places(weight, number))


def chosen_places(weight: Tensor, number: int) -> Tensor:
    """The numbers (number, N) of the draws that :func:`chosen_draws` chooses."""
    order = torch.randperm(len(weight))
    steps = (torch.arange(number, dtype=weight.dtype) + torch.rand(1, dtype=weight.dtype)) / number
    ends = weight[order].cumsum(dim=0).T.contiguous()
    place = torch.searchsorted(ends, steps.expand(len(ends), -1).contiguous()).T
    return order[place.clamp(max=len(weight) - 1)]


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
