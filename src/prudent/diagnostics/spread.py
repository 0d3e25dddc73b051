"""How much a diagnosis varies over seeds, members or repetitions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from prudent.errors import InputError

__all__ = ["Spread", "spread"]


class _Measured(Protocol):
    def metrics(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Spread:
    """One scalar over several diagnoses.

    Args:
        mean: Its mean.
        std: Its standard deviation, with n - 1; 0 for a single value.
        min: The smallest.
        max: The largest.
        number: How many diagnoses have it: a value that is missing or not finite is not counted.
    """

    mean: float
    std: float
    min: float
    max: float
    number: int

    def __str__(self) -> str:
        return f"{self.mean:.3g} ± {self.std:.2g} ({self.min:.3g} to {self.max:.3g})"


def spread(results: Iterable[_Measured | Mapping[str, Any]]) -> dict[str, Spread]:
    """Mean, standard deviation and extremes of every scalar, by name.

    Args:
        results: Diagnoses of several seeds or members, or the metrics of stored runs.

    >>> print(spread([{"auc": 0.01}, {"auc": 0.03}])["auc"])
    0.02 ± 0.014 (0.01 to 0.03)
    """
    rows = [row if isinstance(row, Mapping) else row.metrics() for row in results]
    if not rows:
        raise InputError("expected at least one diagnosis, got none.")
    names = dict.fromkeys(name for row in rows for name in row)
    found = {name: [row[name] for row in rows if _is_number(row.get(name))] for name in names}
    return {name: _spread([float(v) for v in values]) for name, values in found.items() if values}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _spread(values: list[float]) -> Spread:
    mean = math.fsum(values) / len(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    std = math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else 0.0
    return Spread(mean, std, min(values), max(values), len(values))
