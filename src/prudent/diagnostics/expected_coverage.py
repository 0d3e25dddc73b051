r"""Expected coverage of highest-density regions, measured on test pairs.

A region of credibility :math:`\ell` contains the truth when at most a share :math:`\ell` of the
posterior is denser than it, that is, when :math:`\alpha_i \ge 1 - \ell`. Three ways to find alpha,
all through :func:`prudent.coverage.alpha`:

- ``grid``: the box of a uniform prior is cut into cells, and the cells that hold most of the
  mass are cut again. The cells sorted by density and cumulated give the region's threshold;
  comparing every cell with the truth and adding up the masses is the same without the sort.
  Independent of the estimate used in training.
- ``samples``: draws from the posterior, equal weights; for flows.
- ``importance``: draws from the prior, weighted by the ratio; for ratios without a box.

Ties count at random: where part of the posterior has exactly the density of the truth, a
uniform share of that part is taken. So a constant density, the prior on a box for instance, has
the coverage of the prior, which is calibrated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.distributions import Independent, Uniform

from prudent.contracts import Estimator, Posterior, Prior
from prudent.coverage import alpha
from prudent.datasets import Pairs
from prudent.errors import InputError, unknown_name
from prudent.progress import Progress, Reporter
from prudent.randomness import generator, seeded

__all__ = ["Coverage", "Measurement", "expected_coverage", "measure"]

METHODS = ("grid", "samples", "importance")
LEVELS = tuple(round(0.05 * step, 2) for step in range(1, 20))
# By number of parameters: cells a side of the first grid, and how many are cut again, into SPLIT
# parts a side. With two parameters this resolves the mass as finely as the paper's 90 x 90 cells.
COARSE = {1: 128, 2: 24}
REFINED = {1: 64, 2: 48}
SPLIT = 4
NUM_DRAWS = 1024
# Evaluations at a time: activations of this many rows stay in cache.
CHUNK = 2**14
NORMAL_95 = 1.959964


@dataclass(frozen=True)
class Measurement:
    """What is known of each test pair.

    Args:
        alpha: Posterior mass of lower density than the truth, (N,).
        log_posterior: Normalised log-density of the truth, (N,).
        method: How both were computed.
    """

    alpha: Tensor
    log_posterior: Tensor
    method: str


@dataclass(frozen=True)
class Coverage:
    """A coverage curve with its uncertainty.

    Args:
        levels: Credibility levels (K,).
        curve: The share of test pairs inside the region of each level, (K,).
        lower: Lower end of a 95 % interval for each point of the curve, (K,).
        upper: Its upper end, (K,).
        num_pairs: Test pairs.
    """

    levels: Tensor
    curve: Tensor
    lower: Tensor
    upper: Tensor
    num_pairs: int

    def curves(self) -> dict[str, list[float]]:
        """Levels, curve and interval as JSON holds them, to six digits."""
        return {
            name: [round(value, 6) for value in getattr(self, name).tolist()]
            for name in ("levels", "curve", "lower", "upper")
        }


def expected_coverage(alphas: Tensor, levels: Tensor | None = None) -> Coverage:
    """The coverage curve of some alphas, with pointwise 95 % Wilson intervals.

    An alpha that is NaN counts as not covered.

    >>> expected_coverage(torch.tensor([0.0, 0.3, 0.6, 0.9]), torch.tensor([0.5])).curve
    tensor([0.5000])
    """
    levels = torch.tensor(LEVELS) if levels is None else levels
    number = len(alphas)
    # Compared in float64, so that 1 - 0.05 meets an alpha of 0.95 as users would expect.
    below = 1 - levels.double().mul(1e6).round().div(1e6)
    curve = (alphas.double() >= below[:, None] - 1e-9).double().mean(dim=1)
    squared = NORMAL_95**2 / number
    centre = (curve + squared / 2) / (1 + squared)
    half = (squared * (curve * (1 - curve) + squared / 4)).sqrt() / (1 + squared)
    return Coverage(
        levels=levels,
        curve=curve.float(),
        lower=(centre - half).clamp(min=0).float(),
        upper=(centre + half).clamp(max=1).float(),
        num_pairs=number,
    )


@torch.no_grad()
def measure(
    estimator: Estimator,
    pairs: Pairs,
    method: str = "auto",
    *,
    seed: int = 0,
    progress: Reporter = None,
) -> Measurement:
    """Alpha and normalised log posterior of every test pair.

    Args:
        estimator: Any estimator.
        pairs: Test pairs, which training never saw.
        method: ``grid``, ``samples``, ``importance``, or ``auto``: the grid for one or two
            parameters in a box, otherwise samples for flows and importance for ratios.
        seed: Of draws and ties.
        progress: See :class:`prudent.progress.Progress`.
    """
    bounds = box_bounds(estimator.prior)
    if method == "auto":
        small = bounds is not None and pairs.theta.shape[1] in COARSE
        method = "grid" if small else "samples" if estimator.normalized else "importance"
    if method not in METHODS:
        raise unknown_name("coverage method", method, [*METHODS, "auto"])
    if method == "samples" and not estimator.normalized:
        method = "importance"
    if method == "grid":
        points: _Points = _Grid(bounds, pairs.theta.shape[1])
    else:
        points = _Draws(estimator.prior, from_model=method == "samples")
    alphas: list[Tensor] = []
    log_posteriors: list[Tensor] = []
    with seeded(seed, "diagnostics"), Progress("diagnosing", len(pairs), progress, "pair") as bar:
        for batch in pairs.batches(max(1, CHUNK // points.number)):
            posterior = estimator(batch.x)
            log_prob = posterior.log_prob(batch.theta)
            log_points, log_weight = points(posterior, len(batch))
            # A normalised density has weights that add up to one, but for what the grid misses.
            log_norm = 0.0 if estimator.normalized else log_weight.logsumexp(dim=0)
            alphas.append(_randomised_alpha(log_prob, log_points, log_weight, seed, len(alphas)))
            log_posteriors.append(log_prob - log_norm)
            bar.advance({}, len(batch))
    return Measurement(torch.cat(alphas), torch.cat(log_posteriors), method)


def box_bounds(prior: Prior) -> tuple[Tensor, Tensor] | None:
    """The corners of the box that a uniform prior lives on, or None."""
    if isinstance(prior, Independent) and isinstance(prior.base_dist, Uniform):
        return prior.base_dist.low, prior.base_dist.high
    return None


class _Points(Protocol):
    """Points that stand for a posterior, with weights that add up to its mass."""

    number: int

    def __call__(self, posterior: Posterior, num_rows: int) -> tuple[Tensor, Tensor]:
        """Log-density and log weight of the points of each row, (L, N) each."""
        ...


class _Draws:
    """Draws from the posterior, or from the prior."""

    def __init__(self, prior: Prior, *, from_model: bool) -> None:
        self.prior, self.from_model, self.number = prior, from_model, NUM_DRAWS

    def __call__(self, posterior: Posterior, num_rows: int) -> tuple[Tensor, Tensor]:
        if self.from_model:
            log_points = posterior.log_prob(posterior.sample((self.number,)))
            return log_points, torch.full_like(log_points, -math.log(self.number))
        draws = self.prior.sample((self.number, num_rows))
        log_points = posterior.log_prob(draws)
        return log_points, log_points - self.prior.log_prob(draws) - math.log(self.number)


class _Grid:
    """Cell centres of a box, coarse, then fine where the mass is."""

    def __init__(self, bounds: tuple[Tensor, Tensor] | None, dim: int) -> None:
        if bounds is None or dim not in COARSE:
            raise InputError(
                "the grid needs a uniform prior on a box with one or two parameters; "
                'use method="samples".'
            )
        low, high = bounds
        side = (high - low) / COARSE[dim]
        self.centres = low + side * _unit_cells(COARSE[dim], dim)
        self.offsets = side * (_unit_cells(SPLIT, dim) / SPLIT - 0.5)
        self.log_cell = float(side.log().sum())
        self.log_part = self.log_cell - dim * math.log(SPLIT)
        self.refined = REFINED[dim]
        self.number = len(self.centres) + self.refined * len(self.offsets)

    def __call__(self, posterior: Posterior, num_rows: int) -> tuple[Tensor, Tensor]:
        coarse = posterior.log_prob(self.centres.unsqueeze(1).expand(-1, num_rows, -1))
        dense = coarse.topk(self.refined, dim=0).indices
        parts = self.centres[dense].unsqueeze(1) + self.offsets[:, None]
        fine = posterior.log_prob(parts.flatten(0, 1))
        left = (coarse + self.log_cell).scatter(0, dense, -torch.inf)
        return torch.cat((coarse, fine)), torch.cat((left, fine + self.log_part))


def _unit_cells(side: int, dim: int) -> Tensor:
    """Centres of side^dim cells of unit size, (cells, D)."""
    axis = torch.arange(side) + 0.5
    return torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)


def _randomised_alpha(
    log_prob: Tensor, log_points: Tensor, log_weight: Tensor, seed: int, chunk: int
) -> Tensor:
    lower = alpha(log_prob, log_points, log_weight, indicator="hard")
    middle = alpha(log_prob, log_points, log_weight, indicator="hard", midpoint=True)
    tied = 2 * (middle - lower)
    return lower + tied * torch.rand(len(lower), generator=generator(seed, "ties", chunk))
