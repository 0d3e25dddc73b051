r"""Points that stand for a posterior, and what can be read off them.

Each point carries a share of the posterior's mass and a share of the prior's. Cells of a grid,
draws from the posterior and weighted draws from elsewhere all have this form, so alpha, the volume
of a region, mean and variance are computed in one way for all of them.

The posterior is cut to the prior's support: points outside it carry no mass. So the region that is
measured is the one that a careful user would report, in which no parameter is impossible. What
was cut off is the leakage, and is reported.

Draws from the posterior have equal weights; those outside the prior's support have none. A flow
makes its draws from standard normal noise. Where it takes the noise from us (``from_noise``), the
noise is a Sobol sequence, shifted at random for each observation: it fills space more evenly than
random numbers do, so that with two parameters 256 draws are worth more than 1,024 random ones. A
ratio cannot draw, so its draws are weighted (:mod:`prudent.estimators.learning`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from prudent._randomness import even_noise, seeded
from prudent.contracts import Estimator, Posterior, Prior, Rows, SampleAndLogProb
from prudent.coverage import alpha
from prudent.coverage.draws import pool_scores
from prudent.datasets import Pairs
from prudent.estimators.learning import Target, one_look
from prudent.estimators.looks import climbed, two_looks
from prudent.priors.density import log_density

NUM_DRAWS = 1024
# Draws that are worth as much if their noise is even: up to so many parameters, so many.
NUM_EVEN_DRAWS = {2: 256, 5: 512}
# Draws that are scored with the truth: alpha is exactly uniform for any number of them.
NUM_POOLED = 128
# So many posteriors are searched for peaks that are higher than what is known by so many nats.
NUM_SEARCHED, HIGHER = 32, 1.0
# The share of pairs that may be not resolved while others are trusted, by the number of looks.
MOST_UNRESOLVED = {1: 0.03, 2: 0.25}
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
        resolved: Whether the points are where the posterior is, (N,).
        missed: Whether the truth lay in something that holds mass and would have been missed had
            the truth not been known, (N,).
        score: The scores of the truths, (N,), if ``log_prob`` holds scores and not densities.
        scatter: For points that stand for a part of space, the function from the numbers of some
            of them (R, N) to random places in these parts, (R, N, D).
    """

    theta: Tensor
    log_prob: Tensor
    log_mass: Tensor
    log_prior_mass: Tensor
    resolved: Tensor
    missed: Tensor
    score: Tensor | None = None
    scatter: Callable[[Tensor], Tensor] | None = None

    @property
    def weight(self) -> Tensor:
        """The share of each point in the mass of its posterior, (L, N)."""
        nowhere = (self.log_mass == -torch.inf).all(dim=0)
        return self.log_mass.masked_fill(nowhere, 0.0).softmax(dim=0)

    def drawn(self, places: Tensor) -> Tensor:
        """The points with these numbers (R, N), or places in the parts of space that they are."""
        if self.scatter is not None:
            return self.scatter(places)
        return self.theta.gather(0, places.unsqueeze(-1).expand(-1, -1, self.theta.shape[-1]))


class Strategy(Protocol):
    """A way to choose points."""

    name: str
    # The evaluations of one posterior in one call, which bound the rows of a batch.
    at_once: int
    # The share of pairs that may be not resolved while others are trusted.
    most_unresolved: float

    def __call__(self, posterior: Any, pairs: Pairs, log_prob: Tensor) -> Points:
        """Points for the posteriors of some pairs, with the log-density at their truths (N,)."""
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


class Samples:
    """Draws from the posterior.

    Args:
        prior: The prior; outside its support, draws have no weight.
        even_dim: The number of parameters, if the posteriors take their noise from the caller.
        num_draws: The number of draws, None for as many as alpha needs.
    """

    name = "samples"
    most_unresolved = 1.0

    def __init__(
        self, prior: Prior, even_dim: int | None = None, num_draws: int | None = None
    ) -> None:
        self.prior, self.even_dim, self.at_once = prior, even_dim, NUM_DRAWS
        if even_dim is not None:
            enough = [number for dim, number in NUM_EVEN_DRAWS.items() if even_dim <= dim]
            self.at_once = min(enough, default=NUM_DRAWS)
        self.at_once = num_draws or self.at_once

    def __call__(self, posterior: Any, pairs: Pairs, log_prob: Tensor) -> Points:
        """Draws and their densities, in one go where the posterior can do that."""
        log_proposal = None
        if self.even_dim is not None:
            noise = even_noise(self.at_once, len(pairs), self.even_dim)
            theta, log_prob, log_proposal = posterior.from_noise(noise)
        elif isinstance(posterior, SampleAndLogProb):
            theta, log_prob = posterior.sample_and_log_prob((self.at_once,))
        else:
            theta = posterior.sample((self.at_once,))
            log_prob = posterior.log_prob(theta)
        log_proposal = (log_prob if log_proposal is None else log_proposal).cpu()
        theta, log_prob = theta.cpu(), log_prob.cpu()
        prior = log_density(self.prior, theta)
        log_share = log_proposal + math.log(self.at_once)
        log_mass = (log_prob - log_share).masked_fill(prior == -torch.inf, -torch.inf)
        certain = torch.ones(len(pairs), dtype=torch.bool)
        return Points(theta, log_prob, log_mass, prior - log_share, certain, ~certain)


class Draws:
    """Draws from a posterior that has no density, or a slow one; points are told apart by scores.

    Args:
        prior: The prior; outside its support, draws have no weight.
        num_draws: The number of draws, None for as many as alpha needs.
    """

    name = "draws"
    most_unresolved = 1.0

    def __init__(self, prior: Prior, num_draws: int | None = None) -> None:
        self.prior, self.at_once = prior, num_draws or NUM_POOLED

    def __call__(self, posterior: Any, pairs: Pairs, log_prob: Tensor) -> Points:
        """Draws and their scores in the pool with the truth; prior masses are not known."""
        theta = posterior.sample((self.at_once,)).to(pairs.theta)
        scores = pool_scores(pairs.theta, theta)
        outside = log_density(self.prior, theta.nan_to_num()) == -torch.inf
        log_mass = torch.full_like(scores[1:], -math.log(self.at_once))
        log_mass = log_mass.masked_fill(outside, -torch.inf)
        certain = torch.ones(len(pairs), dtype=torch.bool)
        unknown = torch.full_like(log_mass, torch.nan)
        return Points(theta, scores[1:], log_mass, unknown, certain, ~certain, scores[0])


class Importance:
    """Weighted draws that learn where the posterior is (:mod:`prudent.estimators.learning`).

    Args:
        estimator: The estimator, with the prior in whose units it learns.
        looks: 1 for a look from the prior, whose result the truths may give away; 2 for another
            one around truths, too, which takes more than twice the time.
        hints: Places (M, D) of other modes, or None. What is not near one is not resolved, then.
    """

    name = "importance"
    # Fits of few rows at a time cost more than their evaluations.
    at_once = 64

    def __init__(
        self, estimator: Estimator, *, looks: int = 2, hints: Tensor | None = None
    ) -> None:
        self.estimator, self.prior = estimator, estimator.prior
        self.looks, self.hints = looks, hints
        # What is in the way in so many pairs is overlooked in some of the others.
        self.most_unresolved = MOST_UNRESOLVED[looks] if hints is None else 1.0

    def __call__(self, posterior: Posterior, pairs: Pairs, log_prob: Tensor) -> Points:
        """Draws with their weights; a second look starts around truths or other modes."""
        target, point, number = self.target(posterior, pairs), pairs.theta, len(pairs)
        if self.hints is not None:
            _, own = climbed(target, self.prior, number, point.unsqueeze(0))
            point, height = climbed(target, self.prior, number, self.hints.unsqueeze(1))
        look = one_look if self.looks == 1 else two_looks
        draws = look(target, self.prior, number, point)
        if self.hints is not None:
            other = draws.resolved & (height > own + HIGHER)
            draws = draws._replace(resolved=other, missed=torch.zeros_like(other))
        log_mass = draws.log_prob - draws.log_share
        prior_mass = log_density(self.prior, draws.theta) - draws.log_share
        columns = (draws.theta, draws.log_prob, log_mass, prior_mass)
        theta, density, log_mass, prior_mass = (column.to(log_prob) for column in columns)
        return Points(theta, density, log_mass, prior_mass, draws.resolved, draws.missed)

    def target(self, posterior: Posterior, pairs: Pairs) -> Target:
        """The log-densities of the posteriors of some pairs, zero outside the prior's support."""

        def log_prob(theta: Tensor, rows: Tensor) -> Tensor:
            some = rows_of(self.estimator, posterior, pairs.x, rows)
            value: Tensor = some.log_prob(theta.to(pairs.theta)).cpu().to(theta)
            return value.masked_fill(log_density(self.prior, theta) == -torch.inf, -torch.inf)

        return log_prob


class Search:
    """A witness of points that climbs to peaks which they have not seen.

    A mode in which no point fell leads to it from afar: the basin of a normal mode of width w
    beside a broad one of width s reaches about w / s of the distance between them. And a narrow
    mode that holds mass has a higher peak.

    Attributes:
        hints: The peaks, (M, D).
        rows: The numbers of the pairs in whose posteriors they are, (M,).
    """

    def __init__(self, estimator: Estimator, dim: int, seed: int) -> None:
        self.importance, self.seed = Importance(estimator), seed
        self.hints, self.rows = torch.empty(0, dim), torch.empty(0, dtype=torch.long)
        self.num_left = NUM_SEARCHED

    def __call__(self, batch: Pairs, log_prob: Tensor, points: Points) -> None:
        """Keep the peaks of the first posteriors that are higher than all their points."""
        some = batch[: self.num_left]
        if len(some) == 0:
            return
        with seeded(self.seed, "climbs", self.num_left):
            target = self.importance.target(self.importance.estimator(some.x), some)
            peak, height = climbed(target, self.importance.prior, len(some))
        seen = points.log_prob[:, : len(some)].nan_to_num(-torch.inf).amax(dim=0)
        higher = height > seen + HIGHER
        self.hints = torch.cat((self.hints, peak[higher].to(self.hints)))
        self.rows = torch.cat((self.rows, some.row_numbers[higher]))
        self.num_left -= len(some)


def rows_of(estimator: Estimator, posterior: Any, x: Tensor, index: Tensor) -> Any:
    """The posteriors of some rows; a foreign one that cannot choose is conditioned again."""
    if len(index) == len(x):
        return posterior
    return posterior.rows(index) if isinstance(posterior, Rows) else estimator(x[index])
