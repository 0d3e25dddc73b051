r"""Expected coverage of highest-density regions, measured on test pairs.

A region of credibility :math:`\ell` contains the truth when at most a share :math:`\ell` of the
posterior is denser than it, that is, when :math:`\alpha_i \ge 1 - \ell`. Three ways to find alpha,
all through :func:`prudent.coverage.alpha`:

- ``grid``: the box of a bounded prior is cut into cells, and the cells that hold most of the
  mass are cut again (:mod:`prudent.diagnostics._grid`). The cells sorted by density and cumulated
  give the region's threshold; comparing every cell with the truth and adding up the masses is the
  same without the sort. Independent of the estimate used in training.
- ``samples``: draws from the posterior, equal weights; for flows.
- ``importance``: weighted draws, in any number of dimensions; for ratios
  (:mod:`prudent.estimators.learning`). They look once; what that does not resolve, they look at
  twice.

Models that draw and have no density, or a slow one, have no highest-density regions to measure:

- ``draws``: regions of the score of :mod:`prudent.coverage.draws`, from draws alone. The truth is
  ranked in the pool with its draws, so that an exact posterior has exactly uniform alphas.

What is measured is the posterior cut to the prior's support, in all three. A flow can put mass
where the prior has none; that share is its leakage, reported as a number. Our flows are cut in
everything that they hand out, so that their log posterior is divided by the mass inside. A foreign
flow is judged by its own density: dividing would add ``-log(1 - leakage)`` to each.

Ties count at random: where part of the posterior has exactly the density of the truth, a
uniform share of that part is taken. So a constant density, the prior on a box for instance, has
the coverage of the prior, which is calibrated.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from prudent._progress import Progress, Reporter
from prudent._randomness import generator, seeded
from prudent.contracts import Adjusted, Estimator
from prudent.coverage.alpha import effective_size
from prudent.datasets import Pairs
from prudent.diagnostics._grid import MAX_DIM, MUCH, Grid
from prudent.diagnostics._points import (
    NUM_SEARCHED,
    Draws,
    Importance,
    Points,
    Samples,
    Search,
    Strategy,
    moments,
    randomized_alpha,
    region_volume,
)
from prudent.diagnostics.verdict import NORMAL_95
from prudent.errors import InputError, unknown_name
from prudent.estimators.learning import NUM_ERRORS
from prudent.posteriors.density import facts_of, undivided
from prudent.priors.density import support_bounds

METHODS = ("grid", "samples", "importance", "draws")
LEVELS = tuple(round(0.01 * step, 2) for step in range(1, 100))
# The region whose volume is reported.
VOLUME_LEVEL = 0.9
# With fewer points than this to carry it, a posterior's alpha can be off by more than 0.05.
FEW_POINTS = 100
# If the truth lay in something missed in a larger share of the pairs, the others are not resolved.
MISSED_SHARE = 0.05
# Evaluations at a time: activations of this many rows stay in cache.
CHUNK = 2**13


Value = TypeVar("Value")
Witness = Callable[[Pairs, Tensor, Points], None]


class metric(cached_property[Value]):
    """A scalar of a curve or a diagnosis, which runs store under its name.

    Args:
        text: The meaning of the scalar.
        function: The function from the curve or the diagnosis to its value.
    """

    def __init__(self, text: str, function: Callable[[Any], Value]) -> None:
        super().__init__(function)
        self.__doc__ = text


@dataclass(frozen=True)
class Measurement:
    """The results of :func:`measure` for each test pair.

    Args:
        method: The way in which the rest was computed: ``grid``, ``samples``, ``importance`` or
            ``draws``.
        normalized: Whether the estimator's densities are normalized by construction.
        alpha: The posterior mass of lower density than the truth, (N,).
        log_posterior: The normalized log-density of the truth, (N,); NaN if there is none.
        log_norm: The log of the mass of the posterior, as it comes, on the prior's support, (N,).
            For a ratio this should be 0; for a flow it is the log of what does not leak.
        effective_size: The number of points of equal weight that carry the posterior, (N,).
        resolved: Whether these are enough: at least 100, two independent looks at the posterior
            agree, on a grid there are no ridges between cells, and nothing was missed in other
            pairs that may be missed in this one, (N,).
        missed: Whether the truth lay in something that holds mass and was found only because the
            truth is known, (N,).
        volume: The share of the prior's mass inside the 90 % region, (N,); NaN for ``draws``.
        mean: The posterior mean of each parameter, (N, D).
        variance: The posterior variance of each parameter, (N, D).
    """

    method: str
    normalized: bool
    alpha: Tensor
    log_posterior: Tensor
    log_norm: Tensor
    effective_size: Tensor
    resolved: Tensor
    missed: Tensor
    volume: Tensor
    mean: Tensor
    variance: Tensor

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """The measurements of several batches as one."""
        columns = zip(*(part.columns for part in parts), strict=True)
        return cls(parts[0].method, parts[0].normalized, *(torch.cat(c) for c in columns))

    @property
    def columns(self) -> tuple[Tensor, ...]:
        """What is known of each pair."""
        return tuple(value for value in vars(self).values() if isinstance(value, Tensor))

    def rows(self, index: Tensor) -> Self:
        """The measurements of some pairs."""
        return type(self)(self.method, self.normalized, *(c[index] for c in self.columns))

    def replace(self, index: Tensor, other: Self) -> Self:
        """These measurements, those of some pairs taken from elsewhere."""
        pairs = zip(self.columns, other.columns, strict=True)
        columns = (mine.index_copy(0, index, new) for mine, new in pairs)
        return type(self)(self.method, self.normalized, *columns)

    @property
    def has_density(self) -> bool:
        """Whether the posterior has a density at all, and not draws alone."""
        return self.method != "draws" or not bool(self.log_posterior.isnan().all())

    @property
    def valid(self) -> Tensor:
        """Whether alpha and the log posterior, if there is one, are numbers, (N,)."""
        value = self.log_posterior
        if not self.has_density:
            return ~self.alpha.isnan()
        return ~(self.alpha.isnan() | value.isnan() | (value == torch.inf))

    def coverage(self, levels: Tensor | None = None) -> "Coverage":
        """The coverage curve of all pairs, of which those that are not valid are not covered."""
        return expected_coverage(self.alpha.masked_fill(~self.valid, torch.nan), levels)


@dataclass(frozen=True)
class Coverage:
    """A coverage curve with its uncertainty.

    Args:
        levels: The credibility levels, (K,).
        curve: The share of test pairs inside the region of each level, (K,).
        lower: The lower end of a 95 % interval for each point of the curve, (K,).
        upper: The upper end of that interval, (K,).
        num_pairs: The number of test pairs.

    >>> narrow = expected_coverage(torch.linspace(0, 1, 1001) ** 2)
    >>> narrow.auc < 0 < narrow.worst_shortfall
    True
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

    @property
    def _excess(self) -> Tensor:
        return self.curve.double() - self.levels.double()

    auc = metric(
        "The mean of coverage minus level: positive is conservative, negative over-confident.",
        lambda c: float(c._excess.mean()),
    )
    auc_error = metric("The standard error of the AUC.", lambda c: c._auc_error())
    calibration_error = metric(
        "The mean distance of coverage from level (Eq. 7 of the paper).",
        lambda c: float(c._excess.abs().mean()),
    )
    conservativeness_error = metric(
        "The mean of what coverage falls short of the level (Eq. 8 of the paper).",
        lambda c: float((-c._excess).relu().mean()),
    )
    worst_shortfall = metric(
        "The most that coverage falls short of any level; 0 if it never does.",
        lambda c: float((-c._excess).max().clamp(min=0)),
    )
    worst_excess = metric(
        "The most that coverage exceeds any level; 0 if it never does.",
        lambda c: float(c._excess.max().clamp(min=0)),
    )

    def _auc_error(self) -> float:
        # The AUC is a mean over pairs, of the share of levels whose region holds the truth.
        # Regions are nested, so those of two levels both hold it as often as the smaller one:
        # with coverages c, the variance over pairs is the mean of min(c_k, c_m) - c_k c_m.
        curve = self.curve.double()
        both = torch.minimum(curve[:, None], curve[None, :])
        variance = (both - curve[:, None] * curve[None, :]).mean().clamp(min=0)
        return float((variance / self.num_pairs).sqrt())


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
    num_draws: int | None = None,
    witness: Witness | None = None,
) -> Measurement:
    """Alpha and normalised log posterior of every test pair, and what comes with them.

    Pairs are taken some at a time: memory does not grow with their number, but for a dozen
    numbers per pair.

    Args:
        estimator: Any estimator.
        pairs: Test pairs that training never saw.
        method: ``grid``, ``samples``, ``importance``, ``draws``, or ``auto``: draws where there
            is no density or a slow one; samples for flows that take noise; otherwise the grid
            for one or two parameters in a box; otherwise samples for flows and importance for
            ratios.
        seed: The seed of draws and ties.
        progress: None for a bar on terminals, True or False.
        num_draws: The number of draws from flows, None for as many as one alpha needs; averages
            over pairs need fewer.
        witness: A function that is shown the points of every batch: the pairs, the log-densities
            of their truths, and the points. It must leave the global random numbers alone.
    """
    if isinstance(estimator, Adjusted):
        found = measure(
            estimator.inner, pairs, method, seed=seed, progress=progress, num_draws=num_draws,
            witness=witness,
        )  # fmt: skip
        return replace(found, alpha=estimator.adjusted(pairs.theta, pairs.x))
    with seeded(seed, "first looks"):
        ladder = choose(estimator, pairs, method, num_draws)
        first = next(ladder)
    search = Search(estimator, pairs.dim, seed)
    witnesses = [] if witness is None else [witness]
    if not (estimator.normalized or isinstance(first, Draws)):
        witnesses.append(search)
    with seeded(seed, "diagnostics"), Progress("diagnosing", len(pairs), progress, "pair") as bar:
        found = _measured(estimator, pairs, first, seed, bar, witnesses)
        while True:
            # With the pairs that would give away what the next strategy misses, too.
            left = (found.valid & (~found.resolved | found.missed)).nonzero().squeeze(1)
            if bool(found.resolved[left].all()) or (strategy := next(ladder, None)) is None:
                break
            again = _measured(estimator, pairs[left], strategy, seed, None, witnesses)
            found = found.replace(left[again.resolved], again.rows(again.resolved))
    return _with_hints(pairs, found, search, witnesses) if len(search.hints) else found


def _with_hints(
    pairs: Pairs, found: Measurement, search: Search, witnesses: Sequence[Witness]
) -> Measurement:
    """What was found, and what a search led to: in its pairs, and if that holds mass, in all.

    Where many pairs have another mode unseen, only those are resolved in which it is seen now.
    """
    estimator, seed, doubtful = search.importance.estimator, search.seed, False
    strategy = Importance(estimator, hints=search.hints)
    searched = torch.isin(pairs.row_numbers, search.rows).nonzero().squeeze(1)
    with seeded(seed, "hints"):
        for rows in (searched, torch.arange(len(pairs))):
            again = _measured(estimator, pairs[rows], strategy, seed, None, witnesses)
            before = found.rows(rows)
            error = (1 / again.effective_size + 1 / before.effective_size).sqrt()
            more = again.log_norm - before.log_norm > MUCH + NUM_ERRORS * error
            more &= before.resolved
            doubtful = doubtful or _many(more, max(NUM_SEARCHED, len(rows)))
            if not bool(more.any()):
                break
    return again if doubtful else found.replace(rows[more], again.rows(more))


def _measured(
    estimator: Estimator,
    pairs: Pairs,
    strategy: Strategy,
    seed: int,
    bar: Progress | None = None,
    witnesses: Sequence[Witness] = (),
) -> Measurement:
    """What points of one kind say about pairs."""
    parts: list[Measurement] = []
    by_draws = isinstance(strategy, Draws)
    normalized = by_draws or estimator.normalized
    divided = facts_of(estimator(pairs.x[:1])).divided
    exact = by_draws or (estimator.normalized and divided == "none")
    for batch, log_prob, points in points_of(estimator, pairs, strategy):
        weight = points.weight
        log_norm, size = points.log_mass.logsumexp(dim=0), effective_size(weight)
        if divided == "cut":  # half a point where none is inside
            log_norm = log_norm.clamp(min=-math.log(2 * len(points.log_mass)))
        # No mass was found: of a ratio nothing is known, then.
        nowhere = (log_norm == -torch.inf) & (not normalized)
        log_norm = log_norm.masked_fill(nowhere, 0.0)
        uniform = torch.rand(len(batch), generator=generator(seed, "ties", len(parts)))
        parts.append(
            Measurement(
                strategy.name,
                normalized,
                _alpha(log_prob, points, uniform, size),
                log_prob if exact else log_prob - log_norm,
                torch.zeros_like(log_norm) if divided == "pool" else log_norm,
                size,
                points.resolved & (size >= FEW_POINTS) & ~nowhere,
                points.missed,
                region_volume(points, weight, VOLUME_LEVEL),
                *moments(points, weight),
            )
        )
        for witness in witnesses:
            witness(batch, log_prob if points.score is None else points.score, points)
        if bar is not None:
            bar.advance({}, len(batch))
    joined = Measurement.join(parts)
    sure = trusted(joined.resolved, joined.missed, joined.valid, strategy.most_unresolved)
    return replace(joined, resolved=sure)


def trusted(resolved: Tensor, missed: Tensor, valid: Tensor, most_unresolved: float) -> Tensor:
    """The pairs that stay resolved (N,), where something seen nowhere may be missed, too.

    The truths are draws of the true posteriors. If modes are missed that hold some share of the
    mass, about that share of the truths lies in them, and gives them away. And what is not
    resolved in many pairs may be overlooked in the others.

    Args:
        resolved: Whether each posterior is resolved, (N,).
        missed: Whether only the truth gave its mass away, (N,).
        valid: Whether its density is a number, (N,).
        most_unresolved: See :class:`Strategy`.
    """
    if float((~resolved)[valid].double().mean()) > most_unresolved:
        return torch.zeros_like(resolved)
    return resolved & missed if _many(missed, len(missed)) else resolved


def _many(missed: Tensor, number: int) -> bool:
    """Whether so much was missed in a number of pairs that there must be more of it."""
    return int(missed.sum()) > max(1, MISSED_SHARE * number)


def _alpha(log_prob: Tensor, points: Points, uniform: Tensor, size: Tensor) -> Tensor:
    """The alpha of each pair; of scores in a pool, the truth is itself one of the points."""
    if points.score is None:
        return randomized_alpha(log_prob, points, uniform)
    among_draws = randomized_alpha(points.score, points, uniform)
    return (size * among_draws + uniform) / (size + 1)


def points_of(
    estimator: Estimator, pairs: Pairs, strategy: Strategy
) -> Iterator[tuple[Pairs, Tensor, Points]]:
    """Some pairs at a time, with the log-density of their truths and points of their posteriors.

    Args:
        estimator: Any estimator.
        pairs: The pairs.
        strategy: One of the ways that :func:`choose` returns.
    """
    for batch in pairs.batches(max(1, CHUNK // strategy.at_once)):
        posterior = estimator(batch.x)
        # Points normalize it, unless they are draws.
        if not isinstance(strategy, Draws):
            posterior = undivided(posterior)
        if facts_of(posterior).density:
            log_prob = posterior.log_prob(batch.theta).cpu()  # what is counted is counted there
        else:
            log_prob = torch.full_like(batch.theta[:, 0], torch.nan)
        yield batch, log_prob, strategy(posterior, batch, log_prob)


def choose(
    estimator: Estimator, pairs: Pairs, method: str = "auto", num_draws: int | None = None
) -> Iterator[Strategy]:
    """The ways to compute coverage, by the name of the first or the best for this estimator.

    The first is for all pairs, the next one for those that are not resolved. A way may look at
    some pairs when it is asked for.

    Args:
        estimator: Any estimator.
        pairs: The pairs to be measured.
        method: See :func:`measure`.
        num_draws: See :func:`measure`.
    """
    prior, dim, first = estimator.prior, pairs.theta.shape[1], estimator(pairs.x[:1])
    facts = facts_of(first)
    if not facts.density and method not in ("auto", "draws"):
        raise InputError(
            f'method="{method}" needs a density, and {type(first).__name__} has no `log_prob`; '
            'use "draws" or "auto".'
        )
    if method == "draws" or (method == "auto" and (facts.slow or not facts.density)):
        if facts.density and not estimator.normalized:
            raise InputError('a ratio draws by weights; use method="importance" or "auto".')
        yield Draws(prior, num_draws)
        return
    even = estimator.normalized and facts.noise
    boxed = support_bounds(prior, dim) is not None
    if method == "auto":
        method = "grid" if dim <= MAX_DIM and boxed and not even else "samples"
    if method not in METHODS:
        raise unknown_name("coverage method", method, [*METHODS, "auto"])
    if method == "grid":
        grid = Grid(estimator, pairs)
        yield grid
        # Modes that random points hardly ever hit would escape weighted draws as well.
        if not grid.sparse:
            yield Importance(estimator)
        return
    # A ratio draws by resampling, in which few distinct draws may be left: weights lose nothing.
    if method == "samples" and estimator.normalized:
        yield Samples(prior, dim if even else None, num_draws)
        # Few draws of a flow may be left inside the support to which it is cut.
        if facts.divided != "cut":
            return
    yield Importance(estimator, looks=1)
    yield Importance(estimator)
