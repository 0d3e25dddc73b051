r"""The curve in words, no stronger than the number of test pairs allows.

The coverage curve is an empirical distribution function, so the Dvoretzky-Kiefer-Wolfowitz
inequality bounds its error at all levels at once: with 95 % probability it stays within
:math:`\sqrt{\ln(2 / 0.05) / 2N}` of the truth. A shortfall or excess beyond that is real.
"""

from __future__ import annotations

import math

from prudent.diagnostics import scalars
from prudent.diagnostics.expected_coverage import Coverage

__all__ = ["margin", "verdict"]

ERROR_RATE = 0.05
# With a wider margin than this, "calibrated within" would say nothing.
WIDEST_MARGIN = 0.05


def margin(num_pairs: int) -> float:
    """How far the curve can be from the truth at any level, with 95 % probability.

    >>> round(margin(2000), 3)
    0.03
    """
    return math.sqrt(math.log(2 / ERROR_RATE) / (2 * num_pairs))


def verdict(coverage: Coverage) -> str:
    """Over-confident, conservative, calibrated, or not enough pairs to tell."""
    tolerance = margin(coverage.num_pairs)
    shortfall = scalars.worst_shortfall(coverage)
    excess = scalars.worst_excess(coverage)
    evidence = _evidence(coverage, tolerance)
    if shortfall > tolerance and excess > tolerance:
        return (
            f"over-confident at some levels (short by {shortfall:.2f}) and conservative at others "
            f"(above by {excess:.2f}): {evidence}"
        )
    if shortfall > tolerance:
        return f"over-confident: {evidence}"
    if excess > tolerance:
        return f"conservative: worst shortfall {shortfall:.2f} ± {tolerance:.2f}, {evidence}"
    if tolerance > WIDEST_MARGIN:
        return f"not enough test pairs to tell: {evidence}; use 1,000 or more"
    return f"calibrated within ± {tolerance:.2f} at all levels: {evidence}"


def _evidence(coverage: Coverage, tolerance: float) -> str:
    """Coverage at the 90 % level, or at the worst one if only others fall short."""
    short = coverage.levels - coverage.curve
    index = int((coverage.levels - 0.9).abs().argmin())
    if float(short[index]) <= tolerance < float(short.max()):
        index = int(short.argmax())
    level, share = float(coverage.levels[index]), float(coverage.curve[index])
    half = max(float(coverage.upper[index]) - share, share - float(coverage.lower[index]))
    return (
        f"{100 * level:.0f} % regions contain the truth {100 * share:.0f} ± "
        f"{max(1, round(100 * half))} % of the time ({coverage.num_pairs:,} test pairs)"
    )
