r"""How far the empirical distribution of uniform values may stray, at all points at once.

Of N uniform values, the number below a point z is binomial. A band that holds each point with
95 % probability is left somewhere by far more than 5 % of uniform samples. Säilynoja, Bürkner and
Vehtari (2022) widen all the intervals alike, to the error rate :math:`\gamma` at which the whole
path stays inside with 95 % probability.

Their search needs the probability that a path stays between two bounds, and here it is computed,
not simulated. The increments of the path are independent Poisson numbers, given that they add up
to N. So the path is a chain of convolutions, cut to the bounds at every point and divided by the
Poisson probability of N at the end. The same chain makes exact p-values for the largest departure
in units of its own binomial law.

Whether a coverage curve falls short is a question about one side: then only the counts that are
too low are left out, and all of the 5 % is spent on them.

Ranks among L draws are uniform on 0, ..., L. At the points :math:`j / (L + 1)` their distribution
is exactly that of continuous uniform values, so nothing is randomised and nothing approximate.
"""

import functools
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

# Standard deviations of a binomial that a table covers; the rest is below 1e-20.
TABLE_WIDTH = 20.0
# Below this, a difference from one is rounding, and a union bound is as good as exact.
SMALLEST = 1e-12
# Jumps of a path that are less likely than this cannot be told from none.
NEGLIGIBLE = 1e-25
NUM_BISECTIONS = 20
# No p-value is zero.
TINIEST = 1e-300
# The sides of a path on which it may leave its band; by default both.
LOW, HIGH = "low", "high"


@functools.lru_cache(maxsize=8)
def _log_factorial(number: int) -> Array:
    return np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, number + 1)))))


def stay_probability(number: int, points: Array, lower: Counts, upper: Counts) -> float:
    """The probability that the counts of N values below all points (P,) stay within bounds (P,).

    >>> two = stay_probability(2, np.array([0.5]), np.array([1]), np.array([1]))
    >>> round(two, 12)  # one of two values on each side
    0.5
    """
    log_factorial = _log_factorial(number)
    mass, low, before = np.ones(1), 0, 0.0
    ends = zip((*points, 1.0), (*lower, number), (*upper, number), strict=True)
    for point, least, most in ends:
        least, most = max(int(least), low), min(int(most), number)
        if most < least:
            return 0.0
        rate, step = number * (point - before), np.arange(most - low + 1)
        jump = np.exp(step * math.log(rate) - rate - log_factorial[step])
        kept = np.flatnonzero(jump > NEGLIGIBLE)
        if len(kept) == 0:
            return 0.0
        # What is cut off the front of the jumps is put back as an offset.
        found = np.convolve(mass, jump[kept[0] : kept[-1] + 1])
        found = np.concatenate((np.zeros(kept[0]), found, np.zeros(len(step))))
        mass, low, before = found[least - low : most - low + 1], least, point
    log_total = number * math.log(number) - number - log_factorial[number]
    return min(1.0, float(mass[-1]) / math.exp(log_total))


class UniformPath:
    """The counts of N uniform values below P increasing points in (0, 1): bands and p-values.

    Args:
        number: The number of values, N.
        points: The points, (P,).
        side: ``"low"`` or ``"high"`` if only counts that are too low, or too high, are unlikely.

    >>> path = UniformPath(100, (0.25, 0.5, 0.75))
    >>> path.band(0.95)[0].tolist(), path.band(0.95)[1].tolist()
    ([15, 39, 65], [35, 61, 85])
    >>> bool(path.p_value(np.array([5, 40, 75])) < 1e-5 < path.p_value(np.array([24, 49, 77])))
    True
    """

    def __init__(self, number: int, points: ArrayLike, side: str = "") -> None:
        self.number, self.points, self.side = number, np.array(points), side
        width = min(number, math.ceil(TABLE_WIDTH * math.sqrt(number) / 2) + 60) + 1
        start = np.rint(number * self.points).astype(np.int64) - width // 2
        self.start = start.clip(0, number + 1 - width)
        count = self.start[:, None] + np.arange(width)
        log_factorial = _log_factorial(number)
        log_choose = log_factorial[-1] - log_factorial[count] - log_factorial[number - count]
        z = self.points[:, None]
        mass = np.exp(log_choose + count * np.log(z) + (number - count) * np.log1p(-z))
        self.below = np.cumsum(mass, axis=1)
        self.above = np.cumsum(mass[:, ::-1], axis=1)[:, ::-1]
        self._left: dict[float, float] = {}

    def point_p_values(self, counts: Counts) -> Array:
        """Binomial p-values of ``counts`` (..., P), point by point."""
        column = (counts - self.start).clip(0, self.below.shape[1] - 1)
        row = np.arange(len(self.points))
        low, high = self.below[row, column], self.above[row, column]
        tail: Array = {LOW: low, HIGH: high}.get(self.side, 2 * np.minimum(low, high))
        return tail.clip(TINIEST, 1.0)

    def bounds(self, gamma: float) -> tuple[Counts, Counts]:
        """The least and greatest counts whose p-value exceeds ``gamma``, (P,) each."""
        width = self.below.shape[1]
        gamma = gamma if self.side else gamma / 2
        least = self.start + (self.below > gamma).argmax(axis=1)
        most = self.start + width - 1 - (self.above[:, ::-1] > gamma).argmax(axis=1)
        return (
            self.start if self.side == HIGH else least,
            self.start + width - 1 if self.side == LOW else most,
        )

    def leave_probability(self, gamma: float) -> float:
        """The probability that some point has a p-value of at most ``gamma``."""
        most = len(self.points) * gamma
        if most < SMALLEST:
            return most
        if gamma not in self._left:
            inside = stay_probability(self.number, self.points, *self.bounds(gamma))
            self._left[gamma] = min(max(1 - inside, gamma / 2), most, 1.0)
        return self._left[gamma]

    def p_value(self, counts: Counts) -> Array:
        """The exact p-value of the worst point of each path, ``counts`` (..., P) as (...)."""
        worst = np.asarray(self.point_p_values(counts).min(axis=-1))
        values = [self.leave_probability(float(gamma)) for gamma in worst.ravel()]
        return np.array(values).reshape(worst.shape)

    def band(self, level: float = 0.95) -> tuple[Counts, Counts]:
        """The narrowest such bounds that hold a whole path with probability ``level``."""
        low, high = math.log((1 - level) / len(self.points) / 2), 0.0
        for _ in range(NUM_BISECTIONS):
            middle = (low + high) / 2
            held = self.leave_probability(math.exp(middle)) <= 1 - level
            low, high = (middle, high) if held else (low, middle)
        return self.bounds(math.exp(low))


# All test functions of a diagnosis have the same path, and its bands are slow to find.
uniform_path = functools.lru_cache(maxsize=32)(UniformPath)


def least_shares(number: int, counts: Counts, error: float) -> Array:
    """The least probability of which so many successes of N are not too many, (P,).

    The lower ends of one-sided Clopper-Pearson intervals: a binomial with less than this has
    ``counts`` (P,) or more successes with a probability below ``error``.

    >>> least_shares(10, np.array([0, 10]), 0.05).round(4).tolist()  # 0.05 ** 0.1
    [0.0, 0.7411]
    """
    log_factorial = _log_factorial(number)
    low, high = np.zeros(len(counts)), counts / number
    width = min(number, math.ceil(TABLE_WIDTH * math.sqrt(number) / 4) + 60)
    more = counts[:, None] + np.arange(width + 1)
    more = more.clip(max=number + 1)  # beyond all values there is nothing
    inside = more.clip(max=number)
    log_choose = log_factorial[-1] - log_factorial[inside] - log_factorial[number - inside]
    log_choose[more > number] = -np.inf
    for _ in range(NUM_BISECTIONS):
        middle = (low + high) / 2
        z = middle.clip(1e-12, 1 - 1e-12)[:, None]
        terms = np.exp(log_choose + inside * np.log(z) + (number - inside) * np.log1p(-z))
        enough = terms.sum(axis=1) < error
        low, high = np.where(enough, middle, low), np.where(enough, high, middle)
    return np.where(counts > 0, low, 0.0)


def holm(p_values: Array) -> Array:
    """Holm's adjusted p-values: below 0.05 with 5 % probability if nothing is wrong anywhere.

    >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    scaled = p_values[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return adjusted
