r"""The curve in words, no stronger than the number of test pairs allows.

The coverage curve is an empirical distribution function, so the Dvoretzky-Kiefer-Wolfowitz
inequality bounds its error at all levels at once: with 95 % probability it stays within
:math:`\sqrt{\ln(2 / 0.05) / 2N}` of the truth. A shortfall or excess beyond that is real.

The prior is calibrated too, and useless. A calibrated posterior whose log-density at the truth is
not above the prior's, by more than the error of that difference, is called uninformative.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from prudent.diagnostics import scalars
from prudent.diagnostics.expected_coverage import NORMAL_95, Coverage

__all__ = ["margin", "verdict"]

ERROR_RATE = 0.05
# With a wider margin than this, "calibrated within" would say nothing.
WIDEST_MARGIN = 0.05
# Nats by which float32 can be wrong: less is no gain.
NO_GAIN = 1e-3


def margin(num_pairs: int) -> float:
    """How far the curve can be from the truth at any level, with 95 % probability.

    >>> round(margin(2000), 3)
    0.03
    """
    return math.sqrt(math.log(2 / ERROR_RATE) / (2 * num_pairs))


def verdict(coverage: Coverage, metrics: Mapping[str, Any] | None = None) -> str:
    """Over-confident, conservative, calibrated, uninformative, or not enough pairs to tell.

    Args:
        coverage: The curve.
        metrics: What :meth:`prudent.diagnostics.Diagnosis.metrics` gives, or a stored run's
            metrics. Without them nothing is called uninformative.
    """
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
    calibrated = f"calibrated within ± {tolerance:.2f} at all levels"
    if nothing := _uninformative(metrics or {}):
        return f"{nothing}; {calibrated}"
    return f"{calibrated}: {evidence}"


def _uninformative(metrics: Mapping[str, Any]) -> str | None:
    """The words for a posterior that says no more than the prior, or None if it does."""
    posterior, prior = metrics.get("log_posterior"), metrics.get("log_prior")
    # Runs stored by earlier versions know the two means, but not the error of their difference.
    error = metrics.get("information_gain_error", metrics.get("log_posterior_error"))
    if posterior is None or prior is None or error is None:
        return None
    if posterior - prior > NORMAL_95 * error + NO_GAIN:
        return None
    return (
        "uninformative: it says no more than the prior "
        f"(log posterior {posterior:.2f}, prior {prior:.2f})"
    )


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
