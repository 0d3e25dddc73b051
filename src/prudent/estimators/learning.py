r"""Weighted draws from a density that cannot draw, which learn from every evaluation.

Draws from a proposal I have weights :math:`q / I` (self-normalized importance sampling). The prior
is a poor proposal: hardly any of its draws falls where a narrow posterior is. So the proposal
learns, in rounds, and no evaluation is lost:

1. A scan of the prior gives the first points, in unbounded coordinates: a box becomes the whole
   space, so that a posterior that ends at its edge has tails, and no cliff.
2. A mixture of Student distributions is fitted to all points so far by their weights, and new
   points are drawn from it, evenly. As long as too few points carry the weight, the weights are
   flattened to a power: a bridge from where the points are to where the posterior is.
3. All points together are a sample of the mixture of the scan and of all fits (the deterministic
   mixture of Owen and Zhou 2000), so the weight of a point is the density there divided by that
   of this mixture. A point of the scan in a mode that no fit has seen has a large weight: it draws
   the next fit there, and the posterior is not done before.

A posterior is resolved if enough points carry its weight, and so many of those of the last round,
which no fit has seen, that the fit looks like the posterior, and if these alone find the same
integral. Something narrower may hide between the points. The truth of a test pair gives it away:
if a single draw at its place would carry much of the weight, something was missed there. What is
not resolved is left to two looks that must agree (:mod:`prudent.estimators.looks`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.distributions import IndependentTransform, Transform, biject_to

from prudent._randomness import even_noise
from prudent._students import Students
from prudent.contracts import Prior, SampleAndLogProb
from prudent.coverage.alpha import effective_size
from prudent.coverage.proposals import even_if_possible
from prudent.priors.checks import check_prior
from prudent.priors.density import log_density, support_of

# Each number of points is at least the first, and the second for each parameter: those of the
# scan and of the first round; those that carry the flattened weight in the first fit; and those
# of the largest weight, which a fit sees.
SCANNED, DRAWN, FITTED, SEEN = (384, 64), (96, 24), (45, 15), (256, 128)
# Shares by which the numbers grow from round to round: of draws, twice as many at most, and of
# those that carry the weight.
MORE_DRAWN, MOST_DRAWN, MORE_FITTED = 0.25, 2.0, 0.2
# Students in a mixture, of few parameters and of more, the width of the first in units of the
# spread, and fits in a round.
FEW_PARAMETERS, NUM_STUDENTS, NARROW, NUM_FITS = 3, (4, 2), 0.4, 4
# The least variance of a first fit, in that of the prior.
LEAST_VARIANCE = 1e-6
# A posterior is done if so many points carry its weight, at least the first and the second for
# each parameter, and this share of the last ones; rounds at most.
ENOUGH, GOOD_SHARE, MAX_ROUNDS = (500, 100), 0.3, 20
# Integrals agree if their logs differ by less than a tolerance and so many standard errors.
TOLERANCE, NUM_ERRORS = 0.05, 4.0
# A truth gives away what was missed if one draw there would carry this share of the weight.
MISSED = 0.05
# Prior draws that tell its spread.
NUM_SPREAD = 510
# A power of the weights is halved at most so often until enough of them count.
MAX_HALVINGS = 30
# Evaluations at a time: activations of so many rows stay in cache.
CHUNK = 2**13

# The log-density of the targets with these numbers (n,) at (L, n, D), as (L, n).
Target = Callable[[Tensor, Tensor], Tensor]


class WeightedDraws(NamedTuple):
    """L draws for each of N targets; those that were done sooner have fewer that weigh anything.

    Args:
        theta: The draws, (L, N, D).
        log_prob: The log-density of the target at the draws, (L, N).
        log_share: The log of the number of draws per unit of volume there, (L, N).
        resolved: Whether the draws show the target, as far as they can tell, (N,).
        missed: Whether a known point gave away something that draws of the prior missed, (N,).
    """

    theta: Tensor
    log_prob: Tensor
    log_share: Tensor
    resolved: Tensor
    missed: Tensor

    @property
    def log_weight(self) -> Tensor:
        """The log of the weight of each draw; the weights sum to the integral, (L, N)."""
        return weights(self.log_prob - self.log_share)

    def rows(self, index: Tensor) -> Self:
        """The draws of some targets."""
        theta, *others = self
        return type(self)(theta[:, index], *(part[..., index] for part in others))

    def replace(self, index: Tensor, other: Self) -> Self:
        """These draws, with those of some targets from elsewhere."""
        axes = (1, 1, 1, 0, 0)
        parts = zip(self, axes, other, strict=True)
        return type(self)(*(mine.index_copy(axis, index, new) for mine, axis, new in parts))


def one_look(target: Target, prior: Prior, num_rows: int, point: Tensor) -> WeightedDraws:
    """Draw from mixtures that start from the prior, in the precision of the points.

    The random numbers come from torch's global generator.

    Args:
        target: The log-densities, each up to a constant.
        prior: The prior: where the mixtures start, and the unit of lengths.
        num_rows: The number of targets, N.
        point: For each target a point (N, D) that would give away what was missed.
    """
    space = Space.of(prior, num_rows, point.dtype)
    known = space.inside.inv(point).unsqueeze(0)

    groups = list(_learned(target, space))
    most = max(len(points.place) for points, _ in groups)
    found = WeightedDraws(
        point.expand(most, -1, -1).clone(),
        torch.full((most, num_rows), -torch.inf, dtype=point.dtype),
        torch.full((most, num_rows), torch.inf, dtype=point.dtype),
        *torch.zeros(2, num_rows, dtype=torch.bool),
    )
    for points, rows in groups:
        number = len(points.place)
        theta, log_volume = space.placed(points.place)
        # A fit that has shrunk to a point has no density that is a number.
        log_share = (points.log_sum - log_volume).nan_to_num(torch.inf, torch.inf, torch.inf)
        found.theta[:number, rows] = theta
        found.log_prob[:number, rows] = points.log_prob
        found.log_share[:number, rows] = log_share
        at_point = space.density(target, known[:, rows], rows)[1]
        at_point = at_point - points.log_mixture(known[:, rows])
        total = points.log_weight.logsumexp(dim=0)
        found.missed[rows] = at_point[0] > total + math.log(MISSED)
        found.resolved[rows] = points.good & ~found.missed[rows]
    return found


def _learned(target: Target, space: Space) -> Iterator[tuple[_Points, Tensor]]:
    """The points of all targets, in groups that took as many rounds, and their numbers."""
    rows, dim = torch.arange(space.num_rows), len(space.scale)
    place = space.sample(at_least(SCANNED, dim), even=True)
    points = _Points.scan(space, place, space.density(target, place, rows))
    fit = points.first_fit()
    for step in range(MAX_ROUNDS):
        fit = points.fitted(fit, at_least(FITTED, dim) * (1 + MORE_FITTED * step))
        grown = min(1 + MORE_DRAWN * step, MOST_DRAWN)
        place = fit.sample(round(at_least(DRAWN, dim) * grown), even_noise)
        points = points.joined(fit, place, space.density(target, place, rows))
        ready = points.good | (step == MAX_ROUNDS - 1)
        if bool(ready.any()):
            yield points.rows(ready), rows[ready]
            points, fit, rows = points.rows(~ready), fit.rows(~ready), rows[~ready]
        if len(rows) == 0:
            break


@dataclass(frozen=True)
class _Points:
    """L points of N targets, drawn from a scan and from fits.

    Args:
        place: The points, (L, N, D).
        log_prob: The log-density of theta there, (L, N).
        log_place: The log-density of places there, (L, N).
        log_sum: The log of the sum of the densities of all sources, each times its number of
            points, (L, N).
        space: The prior, which was scanned.
        fits: The mixtures that the points were drawn from after the scan.
        numbers: The number of points of the scan, and of each fit.
        good: Whether the points are enough, and agree, (N,).
    """

    place: Tensor
    log_prob: Tensor
    log_place: Tensor
    log_sum: Tensor
    space: Space
    fits: tuple[Students, ...]
    numbers: tuple[int, ...]
    good: Tensor

    @classmethod
    def scan(cls, space: Space, place: Tensor, density: tuple[Tensor, Tensor]) -> Self:
        """The points that fill the prior."""
        log_sum = space.log_prob(place) + math.log(len(place))
        never = torch.zeros(place.shape[1], dtype=torch.bool)
        return cls(place, *density, log_sum, space, (), (len(place),), never)

    @property
    def log_weight(self) -> Tensor:
        """The log of the weights, whose sum is the integral of the density, (L, N)."""
        return weights(self.log_place - self.log_sum)

    def log_mixture(self, place: Tensor) -> Tensor:
        """The log of the sum over sources at other places (M, N, D), as (M, N)."""
        total = self.space.log_prob(place) + math.log(self.numbers[0])
        for fit, number in zip(self.fits, self.numbers[1:], strict=True):
            total = total.logaddexp(fit.log_prob(place) + math.log(number))
        return total

    def rows(self, index: Tensor) -> Self:
        """The points of some targets."""
        return type(self)(
            self.place[:, index], self.log_prob[:, index], self.log_place[:, index],
            self.log_sum[:, index], self.space, tuple(fit.rows(index) for fit in self.fits),
            self.numbers, self.good[index],
        )  # fmt: skip

    def joined(self, fit: Students, place: Tensor, density: tuple[Tensor, Tensor]) -> Self:
        """These points and those of one more fit."""
        number, fresh = len(place), fit.log_prob(place)
        old = self.log_sum.logaddexp(fit.log_prob(self.place) + math.log(number))
        new = self.log_mixture(place).logaddexp(fresh + math.log(number))
        log_place, log_sum = torch.cat((self.log_place, density[1])), torch.cat((old, new))
        enough = at_least(ENOUGH, place.shape[-1])
        alone = density[1] - fresh
        good = _agree(weights(log_place - log_sum), weights(alone), enough)
        good &= alone.isfinite().any(dim=0)
        return type(self)(
            torch.cat((self.place, place)), torch.cat((self.log_prob, density[0])), log_place,
            log_sum, self.space, (*self.fits, fit), (*self.numbers, number), good,
        )  # fmt: skip

    def first_fit(self) -> Students:
        """Narrow distributions around points that are drawn by their flattened weights."""
        dim, scale = self.place.shape[-1], self.space.scale
        flat = flattening(self.log_weight, at_least(FITTED, dim)) * self.log_weight
        weight = flat.softmax(dim=0)
        number = NUM_STUDENTS[dim > FEW_PARAMETERS]
        chosen = torch.multinomial(weight.T, number, replacement=True).T
        away = (self.place - torch.einsum("ln,lnd->nd", weight, self.place)) / scale
        covariance = torch.einsum("ln,lnd,lne->nde", weight, away, away)
        covariance = covariance + LEAST_VARIANCE * torch.eye(dim, dtype=away.dtype)
        factor = NARROW * scale[:, None] * torch.linalg.cholesky(covariance)
        return Students(gathered(self.place, chosen), factor.expand(number, -1, -1, -1))

    def fitted(self, fit: Students, enough: float) -> Students:
        """The mixture after some steps of EM, by weights that enough points carry."""
        log_weight = flattening(self.log_weight, enough) * self.log_weight
        most = min(at_least(SEEN, self.place.shape[-1]), len(log_weight))
        log_weight, chosen = log_weight.topk(most, dim=0, sorted=False)
        place = gathered(self.place, chosen)
        for _ in range(NUM_FITS):
            standard = fit.standardized(place)
            shares = fit.log_probs(standard).log_softmax(dim=0)
            fit = fit.fitted(standard, log_weight + shares, torch.ones_like(fit.mean[..., 0]))
        return fit


def _agree(log_weight: Tensor, fresh: Tensor, enough: int) -> Tensor:
    """Whether the weights of all points and of the last ones are enough and agree, (N,)."""
    size, own = size_of(log_weight), size_of(fresh)
    apart = log_weight.logsumexp(dim=0) - fresh.logsumexp(dim=0) + math.log(len(fresh))
    near = apart.abs() < TOLERANCE + NUM_ERRORS * (1 / size + 1 / own).sqrt()
    return (size >= enough) & (own >= GOOD_SHARE * len(fresh)) & near


class Space(NamedTuple):
    """A prior in unbounded coordinates of its support, the same for each of N targets.

    Args:
        prior: The prior.
        inside: The map from the coordinates to the support.
        num_rows: The number of targets, N.
        mean: The mean of the prior in these coordinates, (D,).
        scale: Its standard deviations there, (D,).
    """

    prior: Prior
    inside: Transform
    num_rows: int
    mean: Tensor
    scale: Tensor

    @classmethod
    def of(cls, prior: Prior, num_rows: int, dtype: torch.dtype = torch.float64) -> Self:
        """The prior and its spread in the precision that is asked for."""
        inside = biject_to(support_of(prior, check_prior(prior)).constraint)
        inside = inside if inside.domain.event_dim else IndependentTransform(inside, 1)
        draws = inside.inv(prior.sample((NUM_SPREAD,)).double())
        mean, scale = draws.mean(dim=0), draws.std(dim=0).clamp(min=1e-100)
        return cls(prior, inside, num_rows, mean.to(dtype), scale.to(dtype))

    def sample(self, number: int, *, even: bool = False) -> Tensor:
        """Draws of the prior (number, N, D), which fill it evenly if it has quantiles."""
        shape, source = (number, self.num_rows), even_if_possible(self.prior) if even else None
        if isinstance(source, SampleAndLogProb):
            theta, _ = source.sample_and_log_prob(shape)
        else:
            theta = self.prior.sample(shape)
        place: Tensor = self.inside.inv(theta.to(self.scale))
        return place

    def placed(self, place: Tensor) -> tuple[Tensor, Tensor]:
        """The parameters (L, N, D) at places, and the log of the volume of a place, (L, N)."""
        theta = self.inside(place)
        return theta, self.inside.log_abs_det_jacobian(place, theta).to(place)

    def density(self, target: Target, place: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The log-density of some targets at places (L, n, D), of theta and of places, (L, n)."""
        theta, log_volume = self.placed(place)
        parts = theta.split(max(1, CHUNK // len(rows)))
        log_prob = torch.cat([target(part, rows) for part in parts]).to(place)
        return log_prob, log_prob + log_volume

    def log_prob(self, place: Tensor) -> Tensor:
        """The log-density of the prior at places (L, N, D), (L, N)."""
        theta, log_volume = self.placed(place)
        return log_density(self.prior, theta).to(place) + log_volume

    def rows(self, index: Tensor) -> Self:
        """The same for some targets."""
        return self._replace(num_rows=len(index))


def flattening(log_weight: Tensor, enough: float) -> Tensor:
    """A power, at most 1, at which enough draws carry weight; of (..., L, N) as (..., N)."""
    power = torch.ones_like(log_weight[..., 0, :])
    for _ in range(MAX_HALVINGS):
        few = size_of(power.unsqueeze(-2) * log_weight) < enough
        if not bool(few.any()):
            break
        power = torch.where(few, power / 2, power)
    # The halving may have gone too far by nearly two.
    larger = (1.5 * power).clamp(max=1.0)
    return torch.where(size_of(larger.unsqueeze(-2) * log_weight) >= enough, larger, power)


def size_of(log_weight: Tensor) -> Tensor:
    """The number of draws (..., L, N) that carry the weight, (..., N)."""
    return effective_size(log_weight.softmax(dim=-2), -2)


def weights(log_weight: Tensor) -> Tensor:
    """Log weights (L, N), none where a density is not a number; equal where none is left."""
    value = log_weight.nan_to_num(-torch.inf, -torch.inf, -torch.inf)
    return value.masked_fill((value == -torch.inf).all(dim=0), 0.0)


def gathered(place: Tensor, chosen: Tensor) -> Tensor:
    """The points (L, N, D) with some numbers (M, N)."""
    return place.gather(0, chosen.unsqueeze(-1).expand(-1, -1, place.shape[-1]))


def at_least(number: tuple[int, int], dim: int) -> int:
    """A number of points for so many parameters."""
    least, each = number
    return max(least, each * dim)
