r"""How far the empirical distribution of uniform values may stray, at all points at once.

Of N uniform values, the number below a point z is binomial. A band that holds each point with
95 % probability is left somewhere by far more than 5 % of uniform samples. Säilynoja, Bürkner and
Vehtari (2022) widen all the intervals alike, to the error rate :math:`\gamma` at which the whole
path stays inside with 95 % probability.

Their search needs the probability that a path stays between two bounds, and here it is computed,
not simulated. The increments of the path are independent Poisson numbers, given that they add up
to N. So the path is a chain of convolutions, cut to the bounds at every point and divided by the
Poisson probability of N at the end. The same chain makes exact p-values for the largest departure
in units of its own binomial law and in absolute size (Kolmogorov-Smirnov).

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
NUM_BISECTIONS = 40
# No p-value is zero.
TINIEST = 1e-300


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
        mass = np.convolve(mass, jump)[least - low : most - low + 1]
        low, before = least, point
    log_total = number * math.log(number) - number - log_factorial[number]
    return min(1.0, float(mass[-1]) / math.exp(log_total))


class UniformPath:
    """The counts of N uniform values below P increasing points in (0, 1): bands and p-values.

    >>> path = UniformPath(100, (0.25, 0.5, 0.75))
    >>> path.band(0.95)[0].tolist(), path.band(0.95)[1].tolist()
    ([15, 39, 65], [35, 61, 85])
    >>> bool(path.p_value(np.array([5, 40, 75])) < 1e-5 < path.p_value(np.array([24, 49, 77])))
    True
    """

    def __init__(self, number: int, points: ArrayLike) -> None:
        self.number, self.points = number, np.array(points)
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
        """Two-sided binomial p-values of ``counts`` (..., P), point by point."""
        column = (counts - self.start).clip(0, self.below.shape[1] - 1)
        row = np.arange(len(self.points))
        tail: Array = np.minimum(self.below[row, column], self.above[row, column])
        return (2 * tail).clip(TINIEST, 1.0)

    def bounds(self, gamma: float) -> tuple[Counts, Counts]:
        """The least and greatest counts whose two-sided p-value exceeds ``gamma``, (P,) each."""
        width = self.below.shape[1]
        least = self.start + (self.below > gamma / 2).argmax(axis=1)
        most = self.start + width - 1 - (self.above[:, ::-1] > gamma / 2).argmax(axis=1)
        return least, most

    def leave_probability(self, gamma: float) -> float:
        """The probability that some point has a two-sided p-value of at most ``gamma``."""
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


def ks_p_value(number: int, points: Array, distance: float) -> float:
    """P-value of the largest distance of the counts below points (P,) from ``number * points``.

    >>> round(ks_p_value(100, np.arange(1, 1000) / 1000, 13.4), 2)
    0.05
    """
    bound = 2 * math.exp(-2 * distance**2 / number)
    if bound < SMALLEST:
        return max(bound, TINIEST)
    # The distance itself is outside; 1e-6 is more than its rounding, less than a step.
    lower = np.floor(number * points - distance + 1e-6).astype(np.int64) + 1
    upper = np.ceil(number * points + distance - 1e-6).astype(np.int64) - 1
    return max(1 - stay_probability(number, points, lower, upper), SMALLEST)


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
