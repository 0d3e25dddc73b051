"""All settings of a training, with their defaults; the same names everywhere."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Self

from prudent.errors import InputError, unknown_name

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """How to train.

    Args:
        epochs: Passes over the training pairs.
        batch_size: Pairs per step.
        learning_rate: Of AdamW at the start; divided by ten when the validation loss stalls.
        validation_fraction: Share of the pairs that is kept for selection, not trained on.
        clip_norm: Largest norm of a gradient.
        weight: Of the regulariser, or None for the method's own.
        num_samples: Draws per pair in the coverage penalty, L.
        target: Of the coverage penalty: ``conservative``, ``calibrated`` or a number between.
        indicator: Of the coverage penalty: ``log`` or ``density`` (the paper).
        computation: Of the coverage penalty: ``sort`` or ``direct``.
        levels: Of the coverage penalty: ``upper`` (the paper) or ``mean``.
    """

    epochs: int = 500
    batch_size: int = 128
    learning_rate: float = 1e-3
    validation_fraction: float = 0.2
    clip_norm: float = 1.0
    weight: float | None = None
    num_samples: int = 16
    target: str | float = "conservative"
    indicator: str = "log"
    computation: str = "sort"
    levels: str = "upper"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "num_samples"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"`{name}` is {value!r}; expected a whole number >= 1.")
        for name in ("learning_rate", "clip_norm"):
            if not _is_number(getattr(self, name)) or getattr(self, name) <= 0:
                raise InputError(f"`{name}` is {getattr(self, name)!r}; expected a number > 0.")
        if self.weight is not None and (not _is_number(self.weight) or self.weight < 0):
            raise InputError(f"`weight` is {self.weight!r}; expected a number >= 0.")
        if not _is_number(self.validation_fraction) or not 0 < self.validation_fraction < 1:
            raise InputError(
                f"`validation_fraction` is {self.validation_fraction!r}; expected a number "
                "between 0 and 1: the best epoch is chosen on those pairs."
            )

    @classmethod
    def of(cls, **options: Any) -> Self:
        """Options from keywords; an unknown one names the nearest.

        >>> Options.of(epochs=5).epochs
        5
        """
        known = {field.name: field.default for field in dataclasses.fields(cls)}
        for name in options:
            if name not in known:
                raise unknown_name("option", name, known)
        return cls(**options)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
