r"""Points that stand for a posterior, and what can be read off them.

Each point carries a share of the posterior's mass and a share of the prior's. Cells of a grid,
draws from the posterior and weighted draws from elsewhere all have this form, so alpha, the volume
of a region, mean and variance are computed in one way for all of them.

The posterior is cut to the prior's support: points outside it carry no mass. So the region that is
measured is the one that a careful user would report, in which no parameter is impossible. What
was cut off is the leakage, and is reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from prudent.contracts import Posterior
from prudent.coverage import alpha

__all__ = ["Points", "Strategy", "moments", "randomized_alpha", "region_volume"]

# Densities are told apart in so many bins, down to so many nats below the highest.
NUM_BINS, DEEPEST = 512, 40.0


@dataclass(frozen=True)
class Points:
    """L points for each of N posteriors.

    Args:
        theta: The places of the points, (L, N, D).
        log_prob: The log-density of the posterior at each point, up to a constant per
            observation, (L, N).
        log_mass: The log of the posterior mass that each stands for, with the same constant,
            (L, N). Over all points it adds up to the mass on the prior's support.
        log_prior_mass: The log of the prior mass that each stands for, (L, N).
        resolved: Whether the points are dense enough, (N,), where that is known.
    """

    theta: Tensor
    log_prob: Tensor
    log_mass: Tensor
    log_prior_mass: Tensor
    resolved: Tensor | None = None

    @property
    def weight(self) -> Tensor:
        """The share of each point in the mass of its posterior, (L, N)."""
        nowhere = (self.log_mass == -torch.inf).all(dim=0)
        return self.log_mass.masked_fill(nowhere, 0.0).softmax(dim=0)


class Strategy(Protocol):
    """A way to choose points."""

    # The evaluations of one posterior in one call, which bound the rows of a batch.
    at_once: int

    def __call__(self, posterior: Posterior, x: Tensor) -> Points:
        """Points for the posteriors of a batch of observations."""
        ...


def randomized_alpha(log_prob: Tensor, points: Points, uniform: Tensor) -> Tensor:
    """The mass less dense than the truth plus a random share of the mass exactly as dense, (N,).

    Args:
        log_prob: The log-density of the truths, (N,).
        points: The points of their posteriors.
        uniform: The random shares, uniform on [0, 1], (N,).
    """
    mass = points.log_mass
    lower = alpha(log_prob, points.log_prob, mass, indicator="hard")
    # Ties are rare but for constant densities, and a second sum over all points is not free.
    tied = (points.log_prob == log_prob).any(dim=0)
    if not bool(tied.any()):
        return lower
    middle = alpha(log_prob, points.log_prob, mass, indicator="hard", midpoint=True)
    return (lower + 2 * (middle - lower) * uniform).clamp(0.0, 1.0)


def region_volume(points: Points, weight: Tensor, level: float) -> Tensor:
    """The share of the prior's mass inside the highest-density region of a level, (N,).

    With a uniform prior this is the region's volume in units of the prior's box. Shares need no
    box and no units, and can be counted with any kind of points.
    """
    # Counting by density takes a tenth of the time that sorting takes.
    below = points.log_prob.amax(dim=0) - points.log_prob
    place = (below * (NUM_BINS / DEEPEST)).nan_to_num(0.0).clamp(0, NUM_BINS - 1).long()
    empty = weight.new_zeros(NUM_BINS, weight.shape[1])
    mass = empty.scatter_add(0, place, weight)
    volume = empty.scatter_add(0, place, points.log_prior_mass.exp())
    before = mass.cumsum(dim=0) - mass
    # The last bin to enter counts in part, so that the region has exactly the mass it should.
    inside = ((level - before) / mass.clamp(min=1e-30)).clamp(0.0, 1.0)
    return (inside * volume).sum(dim=0)


def moments(points: Points, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each parameter, (N, D) each."""
    mean = torch.einsum("ln,lnd->nd", weight, points.theta)
    return mean, torch.einsum("ln,lnd->nd", weight, (points.theta - mean).square())
