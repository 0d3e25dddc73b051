"""One number for a coverage curve: the errors of the paper and their relatives.

>>> import torch
>>> from prudent.diagnostics.expected_coverage import expected_coverage
>>> narrow = expected_coverage(torch.linspace(0, 1, 1001) ** 2)
>>> auc(narrow) < 0 < worst_shortfall(narrow)
True
"""

from __future__ import annotations

import torch
from torch import Tensor

from prudent.diagnostics.expected_coverage import Coverage

__all__ = [
    "auc",
    "auc_error",
    "calibration_error",
    "conservativeness_error",
    "worst_excess",
    "worst_shortfall",
]


def _excess(coverage: Coverage) -> Tensor:
    return coverage.curve.double() - coverage.levels.double()


def auc(coverage: Coverage) -> float:
    """Mean of coverage minus level: positive is conservative, negative over-confident."""
    return float(_excess(coverage).mean())


def auc_error(coverage: Coverage) -> float:
    r"""The standard error of the AUC, from the curve alone.

    The AUC is a mean over pairs, of the share of levels whose region holds the truth. Regions are
    nested, so those of two levels both hold it as often as the smaller one, and with coverages
    :math:`c_k` the variance over pairs is

    .. math:: \frac{1}{K^2} \sum_{k,m} \min(c_k, c_m) - c_k c_m .
    """
    curve = coverage.curve.double()
    both = torch.minimum(curve[:, None], curve[None, :])
    variance = (both - curve[:, None] * curve[None, :]).mean().clamp(min=0)
    return float((variance / coverage.num_pairs).sqrt())


def calibration_error(coverage: Coverage) -> float:
    """Mean distance of coverage from level (Eq. 7 of the paper)."""
    return float(_excess(coverage).abs().mean())


def conservativeness_error(coverage: Coverage) -> float:
    """Mean of what coverage falls short of the level (Eq. 8 of the paper)."""
    return float((-_excess(coverage)).relu().mean())


def worst_shortfall(coverage: Coverage) -> float:
    """The most that coverage falls short of any level; 0 if it never does."""
    return float((-_excess(coverage)).max().clamp(min=0))


def worst_excess(coverage: Coverage) -> float:
    """The most that coverage exceeds any level; 0 if it never does."""
    return float(_excess(coverage).max().clamp(min=0))
