r"""What a coverage curve says, no stronger than the number of test pairs allows.

Two questions, with two answers that hold with 95 % probability each:

- *Does it fall short?* Of exact posteriors the numbers of pairs inside the regions follow the path
  of uniform values, of which one in twenty leaves a band that is as wide at each level as the
  binomial law there (:mod:`prudent.diagnostics._bands`). A curve below the band is over-confident.
- *How far may it fall short without being seen?* At each level the one-sided Clopper-Pearson
  interval says how low the true coverage may be. The largest distance from the level bounds the
  largest shortfall: where that is, wherever it is, the interval of that level alone has to fail.

The first may ring early. Words that reassure need the second: no level may fall short, as far as
the pairs can tell, by more than :data:`MOST_MISSED`, and the sentence says by how much.

Where the posterior of a pair could not be resolved, its alpha could be anything. So pairs that
are not resolved count against safety: the size of a safe word is computed as if none of them were
covered, and a posterior is over-confident only if it would be, had all been covered.

Nothing is known by pairs whose theta do not follow the prior.

The prior is calibrated too, and useless. A posterior that is safe, and whose log-density at the
truth is not above the prior's by more than the error of that difference, is called uninformative;
a conservative one only if it is below.

Everything here is plain numbers, so that stored runs are judged without torch.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from prudent.diagnostics._bands import HIGH, LOW, Array, least_shares, uniform_path

# The kinds of posteriors that are known not to be over-confident.
TRUSTED = ("calibrated", "conservative", "uninformative")
ERROR_RATE = 0.05
NORMAL_95, ONE_SIDED_95 = 1.959964, 1.644854
# The shortfall that a word of safety may have missed. Coverage of 0.85 instead of 0.9 is half as
# many misses again; 1,000 pairs of a calibrated posterior are mostly enough for this, 100 are not.
# Caution does less harm: a calibrated posterior may be above by as much again.
MOST_MISSED = 0.05
# Nats by which float32 can be wrong: less is no gain.
NO_GAIN = 1e-3
# The tests of a thorough diagnosis, each of which may find something by chance.
TESTS = ("sbc", "tarp", "local")

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Verdict:
    """A judgement of a coverage curve.

    Args:
        kind: One of ``over-confident``, ``conservative``, ``calibrated``, ``uninformative``,
            ``wrong in places``, ``not enough test pairs`` and ``cannot be measured``.
        evidence: The numbers that the judgement rests on.
        text: Kind and evidence as one sentence.
    """

    kind: str
    evidence: str
    text: str

    @classmethod
    def of(cls, kind: str, evidence: str, between: str = ": ") -> Self:
        """The verdict whose sentence is its kind followed by its evidence."""
        return cls(kind, evidence, f"{kind}{between}{evidence}")

    @property
    def trusted(self) -> bool:
        """Whether the posterior is known not to be over-confident."""
        return self.kind in TRUSTED

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Curve:
    """A coverage curve as counts.

    Args:
        levels: The credibility levels, ascending, (K,).
        counts: The number of pairs inside the region of each level, (K,).
        number: The number of pairs.
        doubt: The number of pairs that may be inside or not.
    """

    levels: Array
    counts: Array
    number: int
    doubt: int = 0

    @classmethod
    def of(
        cls, levels: Sequence[float], curve: Sequence[float], number: int, doubt: int = 0
    ) -> Self:
        """The curve of shares, of which a stored run has six digits."""
        order = np.argsort(levels)
        counts = np.rint(np.asarray(curve, float)[order] * number).astype(np.int64)
        return cls(np.asarray(levels, float)[order].round(6), counts, number, doubt)

    @property
    def excess(self) -> Array:
        """Coverage minus level, (K,)."""
        found: Array = self.counts / self.number - self.levels
        return found

    def p_value(self, side: str = LOW) -> float:
        """The p-value of "no level is too low", or "too high", in the best case."""
        counts = self.counts + (self.doubt if side == LOW else -self.doubt)
        path = uniform_path(self.number, tuple(self.levels), side)
        return float(path.p_value(counts.clip(0, self.number)))

    @property
    def below(self) -> Flags:
        """Whether each level is below the band in the best case, (K,)."""
        least, _ = band(self.number, tuple(self.levels))
        found: Flags = (self.counts + self.doubt) / self.number < least
        return found

    @property
    def most_short(self) -> float:
        """The most that a level may fall short, with 95 %, in the worst case."""
        least = least_shares(self.number, (self.counts - self.doubt).clip(0), ERROR_RATE)
        return max(0.0, float((self.levels - least).max()))

    @property
    def most_off(self) -> float:
        """The most that a level may be off on either side, in the worst case."""
        outside = self.number - (self.counts + self.doubt).clip(max=self.number)
        most = 1 - least_shares(self.number, outside, ERROR_RATE)
        return max(self.most_short, float((most - self.levels).max()))

    @property
    def enough(self) -> int:
        """The number of pairs with which such a curve would be known well enough, about."""
        variance = self.levels * (1 - self.levels)
        # What is short beyond chance; the rest is room, half of it for the chance of new pairs.
        real = (-self.excess - ONE_SIDED_95 * np.sqrt(variance / self.number)).clip(0)
        room = (MOST_MISSED - real).clip(MOST_MISSED / 5)
        number = float(((2 * ONE_SIDED_95) ** 2 * variance / room**2).max())
        digit = 10 if number < 1000 else 100
        return max(100, digit * math.ceil(number / digit))


@functools.lru_cache(maxsize=32)
def band(num_pairs: int, levels: tuple[float, ...]) -> tuple[Array, Array]:
    """The least and the greatest coverage at each level that chance explains, (K,) each.

    Of exact posteriors 95 % stay above the least at all levels at once, and 95 % below the
    greatest: falling short and being cautious are two questions.

    Args:
        num_pairs: The number of test pairs.
        levels: The ascending levels.

    >>> least, most = band(1000, (0.5, 0.95))
    >>> [round(float(value), 3) for value in (0.5 - least[0], 0.95 - least[1])]
    [0.03, 0.014]
    """
    ends = (uniform_path(num_pairs, tuple(levels), side) for side in (LOW, HIGH))
    (lower, _), (_, upper) = (path.band(1 - ERROR_RATE) for path in ends)
    return lower / num_pairs, upper / num_pairs


def in_words(level: float, share: float, half: float) -> str:
    """The coverage of one level, with half the width of its interval, in words."""
    measured = f"{100 * share:.0f} ± {max(1, round(100 * half))} %"
    return f"{100 * level:.4g} % regions contain the truth {measured} of the time"


def judge(
    levels: Sequence[float],
    curve: Sequence[float],
    lower: Sequence[float],
    upper: Sequence[float],
    *,
    num_pairs: int,
    metrics: Mapping[str, Any] | None = None,
) -> Verdict:
    """Judge a coverage curve.

    Args:
        levels: The credibility levels.
        curve: The coverage at each level.
        lower: The lower end of the interval of each point.
        upper: The upper end of the interval of each point.
        num_pairs: The number of test pairs.
        metrics: The scalars of the diagnosis or of the stored run. Without them nothing is called
            uninformative, and all pairs count as resolved. A text ``pairs`` among them says what
            the pairs are, if not test pairs.

    >>> print(judge([0.5, 0.9], [0.4, 0.8], [0.38, 0.78], [0.42, 0.82], num_pairs=2000))
    over-confident: 90 % regions contain the truth 80 ± 2 % of the time (2,000 test pairs, on
    average over all observations)
    """
    metrics = metrics or {}
    if astray := metrics.get("strays"):
        return Verdict.of("cannot be measured", f"by these pairs: {astray}", " ")
    doubt = int(metrics.get("num_unresolved") or 0)
    found = Curve.of(levels, curve, num_pairs, doubt)
    order = np.argsort(levels)
    low, high = np.asarray(lower, float)[order], np.asarray(upper, float)[order]
    many = f"{num_pairs:,} {metrics.get('pairs', 'test pairs')}"
    known = f"{many}, on average over all observations"
    if metrics.get("computed_by") == "draws":
        known += "; by draws alone, which miss what a density shows"

    def measured(fits: Flags) -> str:
        """The coverage of the level next to 90 % that a word fits."""
        places = np.flatnonzero(fits) if fits.any() else np.arange(len(order))
        at = places[np.abs(found.levels[places] - 0.9).argmin()]
        share = found.counts[at] / num_pairs
        return in_words(found.levels[at], share, max(high[at] - share, share - low[at]))

    if found.p_value(LOW) <= ERROR_RATE:
        told = f"{measured(found.below)} ({known})"
        if found.p_value(HIGH) > ERROR_RATE:
            return Verdict.of("over-confident", told)
        short, above = max(-found.excess), max(found.excess)
        sides = f"(short by {short:.2f}) and conservative at others (above by {above:.2f})"
        return Verdict.of("over-confident", f"at some levels {sides}: {told}", " ")
    if apart := metrics.get("disagreement"):
        return Verdict.of("cannot be measured", apart)
    certain = Curve(found.levels, found.counts, num_pairs)
    worst = Curve(found.levels, (found.counts - doubt).clip(0), num_pairs)
    harmed = certain.most_short <= MOST_MISSED or worst.p_value(LOW) <= ERROR_RATE
    if doubt and harmed and found.most_short > MOST_MISSED:
        return Verdict.of("cannot be measured", _unresolved(found, metrics), " ")
    most, cautious = found.most_short, found.p_value(HIGH) <= ERROR_RATE
    if finding := _finding(metrics):
        return Verdict.of("wrong in places", f"{finding}; on average no level {_missed(most)}")
    if most > MOST_MISSED or (not cautious and found.most_off > 2 * MOST_MISSED):
        missed = f"a level may fall short by up to {_up(most):.2f} (95 % sure)"
        remedy = f"about {certain.enough:,} would do"
        told = f"to tell: {missed}, {measured(found.levels > 0)} ({known}); {remedy}"
        return Verdict.of("not enough test pairs", told, " ")
    if nothing := _uninformative(metrics, cautious=cautious):
        return Verdict.of("uninformative", f"{nothing}; no level {_missed(most)}")
    if cautious:
        told = f"no level {_missed(most)}, {measured(found.excess >= 0)} ({known})"
        return Verdict.of("conservative", told)
    fits = (low <= found.levels) & (found.levels <= high)
    off = f"no level is off by more than {_up(found.most_off):.2f} (95 % sure)"
    return Verdict.of("calibrated", f"{off}, {measured(fits)} ({known})")


def _up(value: float) -> float:
    """A bound to two digits, which must stay one."""
    return math.ceil(100 * value - 1e-6) / 100


def _missed(most: float) -> str:
    """The size of a word of safety."""
    return f"falls short{f' by more than {_up(most):.2f}' if most else ''} (95 % sure)"


def _unresolved(curve: Curve, metrics: Mapping[str, Any]) -> str:
    """What is known where posteriors are not resolved, and what to do."""
    at = int(np.abs(curve.levels - 0.9).argmin())
    low, high = (
        100 * min(max(curve.counts[at] + sign * curve.doubt, 0), curve.number) / curve.number
        for sign in (-1, 1)
    )
    told = f"this way: {curve.doubt:,} of {curve.number:,} posteriors are not resolved, so "
    told += f"{100 * curve.levels[at]:.4g} % regions contain the truth {low:.0f} to {high:.0f} % "
    # A flow draws by itself already.
    remedy = "; use an estimator that draws by itself, such as npe"
    ratio = metrics.get("log_normalization") is not None or "log_normalization" not in metrics
    return f"{told}of the time{remedy if ratio else ''}"


def _finding(metrics: Mapping[str, Any]) -> str | None:
    """What a thorough diagnosis found, beyond chance, that caution does not explain."""
    found = {name: metrics.get(f"{name}_harm_p_value") for name in TESTS}
    known = {name: value for name, value in found.items() if value is not None}
    worst = min(known, key=lambda name: known[name], default=None)
    if worst is None or known[worst] * len(known) > ERROR_RATE:
        return None
    return str(metrics[f"{worst}_harm"])


def _uninformative(metrics: Mapping[str, Any], *, cautious: bool) -> str | None:
    """The words for a posterior that says no more than the prior, or None if it does."""
    posterior, prior = metrics.get("log_posterior"), metrics.get("log_prior")
    # Runs stored by earlier versions know the two means, but not the error of their difference.
    error = metrics.get("information_gain_error")
    error = metrics.get("log_posterior_error") if error is None else error
    if posterior is None or prior is None or error is None:
        return None
    # The means may be over different pairs, where some are not resolved; the gain is not.
    gain = metrics.get("information_gain")
    gain, chance = posterior - prior if gain is None else gain, NORMAL_95 * error + NO_GAIN
    if gain > (-chance if cautious else chance):
        return None
    much = "less" if gain < -chance else "no more"
    return f"it says {much} than the prior (log posterior {posterior:z.2f}, prior {prior:z.2f})"
