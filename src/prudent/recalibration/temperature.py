r"""One number that makes posteriors as wide as they should be, fitted on pairs held out.

A network of thousands of weights satisfies a coverage penalty on the pairs that it is trained on,
and says little about others. A single number cannot memorize pairs: fitted on pairs that
training did not see, its coverage holds on new ones. The number is a temperature T. It divides the
log of posterior over prior,

.. math::
    q_T(\theta \mid x) \propto p(\theta)
    \left(\frac{q(\theta \mid x)}{p(\theta)}\right)^{1/T},

so that posteriors are wider above one, and end as the prior.

The *calibrated* target asks for a mean alpha of one half, which is where the average coverage of
all levels meets the levels. The *conservative* one takes the most likely temperature among those
that are safe: average coverage is above the levels by :data:`NUM_ERRORS` standard errors, and at
no level short by more than half of what chance explains there.

Where a few posteriors are wrong, the highest levels need a temperature that blurs all of them. If
that costs more than :data:`COSTLY` nats, flows get the prior as one more member of their pool with
a small share, their floor: of :data:`FLOORS` that with which the safe posteriors are most likely.

Points that stand for the posteriors at one temperature, with their weights, stand for those at
another with other weights. So every pair is evaluated once.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prudent._choices import TARGETS
from prudent._randomness import generator, seeded
from prudent.adapters.estimator import NO_TEMPERATURE, Adapted, borrowed
from prudent.contracts import Adjusted, Estimator
from prudent.coverage.alpha import effective_size
from prudent.datasets import Pairs
from prudent.datasets.provenance import to_judge
from prudent.diagnostics._points import Importance, Points, Samples, Strategy, randomized_alpha
from prudent.diagnostics.expected_coverage import (
    FEW_POINTS,
    LEVELS,
    choose,
    expected_coverage,
    points_of,
    trusted,
)
from prudent.diagnostics.verdict import band
from prudent.errors import InputError, unknown_name
from prudent.estimators import Ensemble, NeuralEstimator
from prudent.estimators.base import Saved
from prudent.posteriors.parts import floored
from prudent.priors.density import log_density

# Temperatures that are tried, and the factor to which the one found is right.
LEAST, MOST, PRECISION = 0.1, 20.0, 1.03
# Draws of each flow, and the temperature at which they are made; errors average out over pairs.
NUM_DRAWS, START = 128, 1.5
# Pairs at most, and for densities that are normalized by points, which are kept in memory.
MOST_PAIRS, MOST_KEPT = 5000, 1000
# Pairs below which a temperature would be noise.
LEAST_PAIRS = 20
# The nats that safety may cost by temperature alone, and the shares of the prior that are tried.
COSTLY, FLOORS = 0.1, (0.01, 0.02, 0.03, 0.05)
# Standard errors by which the average coverage of the conservative target is above the levels.
NUM_ERRORS = 2.0


def excess(alpha: Tensor) -> float:
    """The average of coverage minus level over all levels, of alphas (N,) that are not NaN."""
    return float(alpha.double().nanmean()) - 0.5


def is_safe(alpha: Tensor) -> bool:
    """Whether posteriors with these alphas are not over-confident by more than chance.

    One that is NaN counts as not covered.
    """
    alpha = alpha.nan_to_num(0.0)
    error = float(alpha.double().std()) / len(alpha) ** 0.5
    if excess(alpha) < NUM_ERRORS * error:
        return False
    found = expected_coverage(alpha)
    least, _ = band(len(alpha), LEVELS)
    return bool((found.curve.numpy() >= (np.array(LEVELS) + least) / 2).all())


def recalibrate(
    estimator: Any, theta: Any, x: Any, *, target: str = "conservative", seed: int = 0
) -> Any:
    """Make posteriors as wide as pairs that training did not see say they should be.

    Args:
        estimator: Any estimator: a ratio, a flow, an ensemble, or an object with ``prior`` and
            ``normalized`` that maps x to a posterior with ``log_prob``.
        theta: True parameters (N, D), drawn from the prior; several hundred at least.
        x: The observations simulated from them (N, ...). Do not test on these pairs afterwards.
        target: ``"conservative"`` or ``"calibrated"``.
        seed: The seed of draws.

    Returns:
        The estimator with another ``temperature``, of the same kind and with the same weights; a
        foreign density is then a ratio, and an object of another kind is adapted.

    >>> import prudent
    >>> problem = prudent.problems.get("gaussian")
    >>> options = {"method": "npe", "networks": "paper", "epochs": 2}
    >>> estimator = prudent.fit(*problem.draw(256, 0), problem.prior, **options)
    >>> recalibrate(estimator, *problem.draw(200, 1), target="calibrated").temperature < 1
    True
    """
    if isinstance(estimator, Adjusted):
        raise InputError(
            "a temperature would undo the levels of these regions; recalibrate the estimator "
            "inside (`.inner`), and conformalize what comes of it with other pairs."
        )
    pairs, _ = to_judge(estimator, theta, x)
    return tempered(estimator, *fit_temperature([(estimator, pairs)], target=target, seed=seed))


def tempered(estimator: Any, temperature: float, floor: float = 0.0) -> Any:
    """An estimator at another temperature, in the way of its kind; a floor is for flows."""
    ours = isinstance(estimator, Saved | Adapted)
    known: Any = estimator if ours else borrowed(estimator)
    return known.tempered(temperature, floor)


def fit_temperature(
    parts: Sequence[tuple[Estimator, Pairs]], *, target: str = "conservative", seed: int = 0
) -> tuple[float, float]:
    """Temperature and floor for estimators of one kind, each judged by pairs it has not seen.

    Args:
        parts: The estimators and their pairs: one, or the members of a cross-fitted ensemble.
        target: ``"conservative"`` or ``"calibrated"``.
        seed: The seed of draws.
    """
    if target not in TARGETS:
        raise unknown_name("target", target, TARGETS)
    number = sum(len(pairs) for _, pairs in parts)
    if number < LEAST_PAIRS:
        raise InputError(f"{number} pairs are too few to recalibrate; pass {LEAST_PAIRS} or more.")
    first = parts[0][0]
    cheap = isinstance(first, NeuralEstimator | Ensemble) and first.normalized
    as_it_came = not getattr(first, "is_warm", False)
    share = min(1.0, (MOST_PAIRS if cheap else MOST_KEPT) / number)
    judges = [
        _Judge(estimator, pairs[: math.ceil(share * len(pairs))], seed)
        for estimator, pairs in parts
    ]

    def alpha(temperature: float, floor: float = 0.0) -> Tensor:
        return torch.cat([judge.alpha(temperature, floor) for judge in judges])

    def log_prob(temperature: float, floor: float = 0.0) -> float:
        values = torch.cat([judge.log_prob(temperature, floor) for judge in judges]).double()
        return float(values[values > -torch.inf].mean())

    def safe(floor: float) -> float:
        """The most likely of the safe temperatures."""
        likely = _most_likely(lambda value: log_prob(value, floor))
        if is_safe(alpha(likely, floor)):
            return likely
        return _least(lambda value: is_safe(alpha(value, floor)), likely, MOST)

    lost, number = sum(judge.num_unresolved for judge in judges), len(alpha(1.0))
    if int(alpha(1.0).isnan().sum()) > lost:
        raise InputError("the densities of some of these pairs are NaN: the estimator is broken.")
    if lost > (1 - LEVELS[-1]) * number:
        warnings.warn(
            f"{lost:,} of {number:,} posteriors are not resolved and count as not covered, for "
            "which others are made wider; use an estimator that draws by itself, such as npe.",
            stacklevel=3,
        )
    with seeded(seed, "recalibration"):
        if target == "calibrated":
            return _least(lambda value: excess(alpha(value)) >= 0, LEAST, MOST), 0.0
        found = {0.0: safe(0.0)}
        if (
            cheap
            and as_it_came
            and log_prob(_most_likely(log_prob)) - log_prob(found[0.0]) > COSTLY
        ):
            found |= {floor: safe(floor) for floor in FLOORS}
        best = max(found, key=lambda floor: log_prob(found[floor], floor))
        return found[best], best


def _least(enough: Callable[[float], bool], low: float, high: float) -> float:
    """The least temperature between two that is enough, if all above it are; else the highest."""
    while high / low > PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _most_likely(log_prob: Callable[[float], float]) -> float:
    """The temperature at which the truths are most likely, by golden sections of its logarithm."""
    ratio = (math.sqrt(5) - 1) / 2
    low, high = math.log(LEAST), math.log(MOST)
    while high - low > math.log(PRECISION):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        better = log_prob(math.exp(left)) > log_prob(math.exp(right))
        low, high = (low, right) if better else (left, high)
    return math.exp((low + high) / 2)


class _Judge:
    """What temperatures make of the posteriors of some pairs.

    Pairs that one way does not resolve are left to the next, as in a diagnosis. Of those that are
    left at the end, whose number is ``num_unresolved``, everything is NaN.

    Args:
        estimator: An estimator.
        pairs: The pairs that judge it.
        seed: The seed of points.
    """

    def __init__(self, estimator: Any, pairs: Pairs, seed: int) -> None:
        self.parts: list[tuple[Tensor, Points, Tensor, Tensor]] = []
        self.resolved: list[Tensor] = []
        self.seed, self.start = seed, 1.0
        with torch.no_grad(), seeded(seed, "points"):
            ladder = choose(estimator, pairs, num_draws=NUM_DRAWS)
            strategy = next(ladder)
            if strategy.name == "draws":
                raise InputError(NO_TEMPERATURE.format("this posterior"))
            if estimator.normalized or isinstance(strategy, Importance):
                # Points of wider posteriors serve narrower ones as well, not the other way round.
                estimator, self.start = tempered(estimator, START), START
                ladder = choose(estimator, pairs, num_draws=NUM_DRAWS)
                strategy = next(ladder)
            left = self._look(estimator, pairs, strategy)
            while len(left) and (further := next(ladder, None)) is not None:
                left = self._look(estimator, left, further)
        self.num_unresolved = len(left)

    def _look(self, estimator: Any, pairs: Pairs, strategy: Strategy) -> Pairs:
        """Keep what points of one kind say about pairs; return those that they do not resolve."""
        first, missed = len(self.parts), []
        for batch, log_prob, points in points_of(estimator, pairs, strategy):
            known = log_density(estimator.prior, batch.theta).to(log_prob)
            log_ratio = points.log_mass - points.log_prior_mass
            self.parts.append((log_prob, points, log_prob - known, log_ratio))
            # Of flows few draws are made on purpose.
            least = 0 if isinstance(strategy, Samples) else FEW_POINTS
            enough = points.resolved & ~(effective_size(points.weight) < least)
            self.resolved.append(enough | log_prob.isnan())
            missed.append(points.missed)
        several = [len(one) for one in missed]
        valid = ~torch.cat([part[0] for part in self.parts[first:]]).isnan()
        found = torch.cat(self.resolved[first:])
        found = trusted(found, torch.cat(missed), valid, strategy.most_unresolved)
        self.resolved[first:] = found.split(several)
        return pairs[~found]

    def _known(self, values: Sequence[Tensor]) -> Tensor:
        """The values of each part as those of all pairs, (N,)."""
        pairs = zip(values, self.resolved, strict=True)
        known = [value[resolved] for value, resolved in pairs]
        return torch.cat((*known, known[0].new_full((self.num_unresolved,), torch.nan)))

    def _at(self, temperature: float, floor: float) -> Iterator[tuple[Tensor, Points]]:
        """The log-density of the truths at a temperature, and points of their posteriors."""

        def less(log_ratio: Tensor) -> Tensor:
            """How much less a log-density is than at the temperature of the points."""
            warm = floored(self.start * log_ratio, floor) / temperature
            return (log_ratio - warm).where(log_ratio.isfinite(), 0.0)

        for log_prob, points, at_truth, at_points in self.parts:
            lost = less(at_points)
            warm = replace(
                points, log_prob=points.log_prob - lost, log_mass=points.log_mass - lost
            )
            yield log_prob - less(at_truth), warm

    def alpha(self, temperature: float, floor: float = 0.0) -> Tensor:
        """The mass less dense than each truth, (N,)."""
        found: list[Tensor] = []
        for log_prob, points in self._at(temperature, floor):
            uniform = torch.rand(len(log_prob), generator=generator(self.seed, len(found)))
            found.append(randomized_alpha(log_prob, points, uniform))
        return self._known(found)

    def log_prob(self, temperature: float, floor: float = 0.0) -> Tensor:
        """The normalized log-density of each truth, (N,)."""
        parts = self._at(temperature, floor)
        return self._known([value - points.log_mass.logsumexp(dim=0) for value, points in parts])
