r"""Weighted draws that learn a posterior of few parameters from every evaluation they have made.

A ratio of three parameters can have narrow, slanted modes. Cells small enough for these are many,
and most of them lie where nothing is. Here the points go where the mass is:

1. A scan fills the prior's box evenly, in the coordinates of :class:`Support`, in which a uniform
   box is a standard normal distribution and no posterior ends at a cliff.
2. A mixture of Student distributions is fitted to all points so far, by their weights, and new
   points are drawn from it, evenly. At first few points carry the weight, so the weights are
   flattened to a power.
3. All points together are a sample of the mixture of the scan and of all fits (the deterministic
   mixture of Owen and Zhou 2000), so none is lost: the weight of a point is the density there
   divided by that of the mixture. This is repeated until enough points carry the weight.

The scan stays part of the mixture. So a point of it that falls into a mode that no fit has seen
has a large weight: it draws the next fit there, and the posterior is not done before.

A posterior is resolved if enough points carry its weight, and so many of the last, fresh ones that
the fit looks like the posterior, and if these alone find the same integral. Something narrower may
hide between the points. The truth gives it away: if a single draw at its place would carry much
of the weight, something was missed there, and that pair is not resolved. Where that, or anything
else, leaves many pairs without an answer, none is taken as resolved. What is not resolved is left
to :class:`~prudent.diagnostics._points.Importance`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from prudent._randomness import even_noise
from prudent.contracts import Estimator, Posterior
from prudent.coverage.alpha import effective_size
from prudent.datasets import Pairs
from prudent.diagnostics._points import Points, rows_of
from prudent.estimators._students import Students
from prudent.estimators.importance import NUM_ERRORS, TOLERANCE, flattening
from prudent.priors.density import log_density
from prudent.priors.support import HALF_LOG_TWO_PI, Support

# Points of the scan, then of the first rounds and of all others, and rounds at most.
NUM_SCAN, ROUNDS, MAX_ROUNDS = 384, (96, 96, 128, 128, 192), 20
# Students in a mixture, the width of the first in units of the spread, and fits in a round.
NUM_STUDENTS, NARROW, NUM_FITS = 4, 0.4, 4
# Points that carry the flattened weight in the first fit, and so many more in each next one; fits
# see no more than so many, those of the largest weight.
FITTED, MORE_FITTED, MOST_FITTED = 45, 10, 256
# A posterior is done if so many points carry its weight, and this share of the last ones.
ENOUGH, GOOD_SHARE = 500, 0.3
# A truth gives away what was missed if one draw there would carry this share of the weight.
MISSED = 0.05
# If more pairs than this are not resolved, the others may hide what is in the way there.
MOST_UNRESOLVED = 0.03
# Evaluations at a time: activations of so many rows stay in cache.
CHUNK = 2**11


class Mixtures:
    """Points from mixtures that are fitted, in rounds, to all points before them.

    Args:
        estimator: An estimator with a prior on a box.
        dim: The number of parameters.
    """

    name = "importance"
    # Fits of few rows at a time cost more than their evaluations.
    at_once = 64
    most_unresolved = MOST_UNRESOLVED

    def __init__(self, estimator: Estimator, dim: int) -> None:
        self.estimator, self.prior = estimator, estimator.prior
        self.support = Support(self.prior, dim)

    def __call__(self, posterior: Posterior, pairs: Pairs, log_prob: Tensor) -> Points:
        """Weighted points; posteriors that are done sooner have fewer of them.

        Args:
            posterior: The posteriors of the pairs.
            pairs: The pairs, whose truths give away what was missed.
            log_prob: The log-density at the truths, (N,).
        """
        done = self._learned(posterior, pairs)
        shape = max(len(part.place) for part, _ in done), len(pairs)
        theta = pairs.theta.new_zeros(*shape, pairs.dim)
        density, log_mass, prior_mass = theta.new_full((3, *shape), -torch.inf)
        resolved, missed = torch.zeros(2, len(pairs), dtype=torch.bool)
        for part, rows in done:
            number = len(part.place)
            some = self.support.inverse(part.place)
            log_share = part.log_sum + self.support.log_volume(part.place)
            # A fit that has shrunk to a point has no density that is a number.
            log_share = log_share.nan_to_num(torch.inf, torch.inf, torch.inf)
            theta[:number, rows], density[:number, rows] = some, part.log_prob
            log_mass[:number, rows] = part.log_prob - log_share
            prior_mass[:number, rows] = log_density(self.prior, some) - log_share
            truth, log_volume = self.support(pairs.theta[rows].unsqueeze(0))
            log_weight = log_prob[rows] - (log_volume + part.log_mixture(truth))[0]
            missed[rows] = log_weight > part.log_weight.logsumexp(dim=0) + math.log(MISSED)
            resolved[rows] = part.good & ~missed[rows]
        return Points(theta, density, log_mass, prior_mass, resolved, missed)

    def _learned(self, posterior: Posterior, pairs: Pairs) -> list[tuple[_Weighted, Tensor]]:
        """The points of all posteriors, in groups that took as many rounds, and their rows."""
        rows = torch.arange(len(pairs))
        place = even_noise(NUM_SCAN, len(pairs), pairs.dim).to(pairs.theta)
        points = _Weighted.scan(place, self._density(posterior, pairs.x, rows, place))
        fit, done = points.first_fit(), []
        for step in range(MAX_ROUNDS):
            fit = points.fitted(fit, FITTED + MORE_FITTED * step)
            place = fit.sample(ROUNDS[min(step, len(ROUNDS) - 1)], even=True)
            density = self._density(posterior, pairs.x, rows, place)
            points = points.joined(fit, place, density)
            last = step == MAX_ROUNDS - 1
            ready = points.good | last
            if bool(ready.any()):
                done.append((points.rows(ready), rows[ready]))
                points, fit, rows = points.rows(~ready), fit.rows(~ready), rows[~ready]
            if len(rows) == 0:
                break
        return done

    def _density(
        self, posterior: Posterior, x: Tensor, rows: Tensor, place: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The log-density at places (L, n, D) of some posteriors, of theta and of places."""
        some = rows_of(self.estimator, posterior, x, rows)
        parts = self.support.inverse(place).split(max(1, CHUNK // len(rows)))
        log_prob = torch.cat([some.log_prob(part).cpu() for part in parts])
        return log_prob, log_prob - self.support.log_volume(place)


@dataclass(frozen=True)
class _Weighted:
    """L points of N posteriors, drawn from a scan and from fits.

    Args:
        place: The points, (L, N, D).
        log_prob: The log-density of theta there, (L, N).
        log_density: The log-density of places there, (L, N).
        log_sum: The log of the sum of the densities of all sources, each times its number of
            points, (L, N).
        fits: The mixtures that the points were drawn from after the scan.
        numbers: The number of points of the scan, and of each fit.
        good: Whether the points are enough, and agree, (N,).
    """

    place: Tensor
    log_prob: Tensor
    log_density: Tensor
    log_sum: Tensor
    fits: tuple[Students, ...]
    numbers: tuple[int, ...]
    good: Tensor

    @classmethod
    def scan(cls, place: Tensor, density: tuple[Tensor, Tensor]) -> _Weighted:
        """The points that fill the box."""
        log_sum = _log_normal(place) + math.log(len(place))
        never = torch.zeros(place.shape[1], dtype=torch.bool)
        return cls(place, *density, log_sum, (), (len(place),), never)

    @property
    def log_weight(self) -> Tensor:
        """The log of the weights, whose sum is the integral of the density, (L, N)."""
        return _weight(self.log_density - self.log_sum)

    def log_mixture(self, place: Tensor) -> Tensor:
        """The log of the sum over sources at other places (M, N, D), as (M, N)."""
        total = _log_normal(place) + math.log(self.numbers[0])
        for fit, number in zip(self.fits, self.numbers[1:], strict=True):
            total = total.logaddexp(fit.log_prob(place) + math.log(number))
        return total

    def rows(self, index: Tensor) -> _Weighted:
        """The points of some posteriors."""
        return _Weighted(
            self.place[:, index],
            self.log_prob[:, index],
            self.log_density[:, index],
            self.log_sum[:, index],
            tuple(fit.rows(index) for fit in self.fits),
            self.numbers,
            self.good[index],
        )

    def joined(self, fit: Students, place: Tensor, density: tuple[Tensor, Tensor]) -> _Weighted:
        """These points and those of one more fit."""
        number, fresh = len(place), fit.log_prob(place)
        old = self.log_sum.logaddexp(fit.log_prob(self.place) + math.log(number))
        new = self.log_mixture(place).logaddexp(fresh + math.log(number))
        joined = _Weighted(
            torch.cat((self.place, place)),
            torch.cat((self.log_prob, density[0])),
            torch.cat((self.log_density, density[1])),
            torch.cat((old, new)),
            (*self.fits, fit),
            (*self.numbers, number),
            self.good,
        )
        return replace(joined, good=_agree(joined.log_weight, _weight(density[1] - fresh)))

    def first_fit(self) -> Students:
        """Narrow distributions around points that are drawn by their flattened weights."""
        log_weight = self.log_weight
        weight = (flattening(log_weight.unsqueeze(0), FITTED)[0] * log_weight).softmax(dim=0)
        chosen = torch.multinomial(weight.T, NUM_STUDENTS, replacement=True).T
        away = self.place - torch.einsum("ln,lnd->nd", weight, self.place)
        covariance = torch.einsum("ln,lnd,lne->nde", weight, away, away)
        least = 1e-6 * torch.eye(away.shape[-1], dtype=away.dtype)
        factor = NARROW * torch.linalg.cholesky(covariance + least)
        return Students(_gather(self.place, chosen), factor.expand(NUM_STUDENTS, -1, -1, -1))

    def fitted(self, fit: Students, enough: float) -> Students:
        """The mixture after some steps of EM, by weights that enough points carry."""
        log_weight = self.log_weight
        log_weight = flattening(log_weight.unsqueeze(0), enough)[0] * log_weight
        most = min(MOST_FITTED, len(log_weight))
        log_weight, chosen = log_weight.topk(most, dim=0, sorted=False)
        place = _gather(self.place, chosen)
        for _ in range(NUM_FITS):
            standard = fit.standardized(place)
            shares = fit.log_probs(standard).log_softmax(dim=0)
            fit = fit.fitted(standard, log_weight + shares, torch.ones_like(fit.mean[..., 0]))
        return fit


def _agree(log_weight: Tensor, fresh: Tensor) -> Tensor:
    """Whether the weights of all points and of the last ones are enough and agree, (N,)."""
    size, own = effective_size(log_weight.softmax(dim=0)), effective_size(fresh.softmax(dim=0))
    apart = log_weight.logsumexp(dim=0) - fresh.logsumexp(dim=0) + math.log(len(fresh))
    near = apart.abs() < TOLERANCE + NUM_ERRORS * (1 / size + 1 / own).sqrt()
    return (size >= ENOUGH) & (own >= GOOD_SHARE * len(fresh)) & near


def _weight(log_weight: Tensor) -> Tensor:
    """Log weights (L, N), none where a density is not a number; equal where none is left."""
    value = log_weight.nan_to_num(-torch.inf, -torch.inf, -torch.inf)
    return value.masked_fill((value == -torch.inf).all(dim=0), 0.0)


def _log_normal(place: Tensor) -> Tensor:
    """The log-density of the scan, which is uniform in the box."""
    return -0.5 * place.square().sum(dim=-1) - place.shape[-1] * HALF_LOG_TWO_PI


def _gather(place: Tensor, chosen: Tensor) -> Tensor:
    """The points (L, N, D) with some numbers (M, N)."""
    return place.gather(0, chosen.unsqueeze(-1).expand(-1, -1, place.shape[-1]))
