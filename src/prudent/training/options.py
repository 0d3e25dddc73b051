"""All settings of a training, with their defaults; the same names everywhere."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from typing import Any, Self

from prudent.errors import InputError, unknown_name

__all__ = ["COVERAGE_OPTIONS", "PRESETS", "Options"]

CHOICES = {
    "proposal": ("prior", "box", "model", "model-rsample"),
    "indicator": ("log", "density"),
    "computation": ("sort", "direct"),
    "levels": ("upper", "mean"),
    "distance": ("squared", "absolute", "supremum"),
    "ensemble": ("seeds", "folds"),
}
TARGETS = ("conservative", "calibrated")
# The settings of the paper's text; docs/paper.md says where the authors' code differs.
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {
        "epochs": 500,
        "batch_size": 128,
        "learning_rate": 1e-3,
        "clip_norm": 1.0,
        "patience": None,
        "weight": None,
        "warmup_epochs": 0,
        "num_samples": 16,
        "proposal": "prior",
        "target": "conservative",
        "indicator": "density",
        "computation": "sort",
        "levels": "upper",
        "distance": "squared",
        "fraction": 1.0,
    }
}


@dataclass(frozen=True)
class Options:
    """How to train.

    Args:
        epochs: Passes over the training pairs.
        batch_size: Pairs per step.
        learning_rate: Of AdamW; a tenth when the loss stalls.
        validation_fraction: Share kept for selection.
        clip_norm: Largest norm of a gradient.
        patience: Stop after so many epochs without progress.
        members: Networks to train and average.
        ensemble: Members differ in seeds (the paper) or folds.
        weight: Of the regulariser; by default the method's own.
        warmup_epochs: Epochs over which the weight rises from zero.
        num_samples: Draws per pair, L.
        proposal: prior (the paper), box, model or model-rsample.
        target: conservative, calibrated or a number from 0 to 1.
        indicator: log or density (the paper).
        computation: sort (the paper) or direct.
        levels: upper (the paper) or mean.
        distance: squared (the paper), absolute or supremum.
        fraction: Share of each batch that is looked at.

    None for ``patience`` means never, for ``weight`` the method's own. Members of an ensemble that
    differ in seeds share their training pairs; with folds each of K validates on a Kth of the
    pairs and trains on the rest. From ``num_samples`` on, the settings are those of
    :class:`prudent.coverage.CoveragePenalty`; the proposal may be a torch distribution as well.
    """

    epochs: int = 500
    batch_size: int = 128
    learning_rate: float = 1e-3
    validation_fraction: float = 0.2
    clip_norm: float = 1.0
    patience: int | None = None
    members: int = 1
    ensemble: str = "seeds"
    weight: float | None = None
    warmup_epochs: int = 0
    num_samples: int = 16
    proposal: Any = "prior"
    target: str | float = "conservative"
    indicator: str = "log"
    computation: str = "sort"
    levels: str = "upper"
    distance: str = "squared"
    fraction: float = 1.0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "num_samples", "members"):
            self._whole(name, 1)
        self._whole("warmup_epochs", 0)
        if self.patience is not None:
            self._whole("patience", 1)
        for name in ("learning_rate", "clip_norm"):
            if not _is_number(getattr(self, name)) or getattr(self, name) <= 0:
                raise InputError(f"`{name}` is {getattr(self, name)!r}; expected a number > 0.")
        if self.weight is not None and (not _is_number(self.weight) or self.weight < 0):
            raise InputError(f"`weight` is {self.weight!r}; expected a number >= 0.")
        if not _is_number(self.fraction) or not 0 < self.fraction <= 1:
            raise InputError(f"`fraction` is {self.fraction!r}; expected a number in (0, 1].")
        if not _is_number(self.validation_fraction) or not 0 < self.validation_fraction < 1:
            raise InputError(
                f"`validation_fraction` is {self.validation_fraction!r}; expected a number "
                "between 0 and 1: the best epoch is chosen on those pairs."
            )
        for name, known in CHOICES.items():
            value = getattr(self, name)
            if isinstance(value, str) and value not in known:
                raise unknown_name(name, value, known)
            if not isinstance(value, str) and name != "proposal":
                raise InputError(f"`{name}` is {value!r}; expected one of {' '.join(known)}.")
        if isinstance(self.target, str) and self.target not in TARGETS:
            raise unknown_name("target", self.target, TARGETS, "Or a number in [0, 1].")

    def _whole(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"`{name}` is {value!r}; expected a whole number >= {least}.")

    @classmethod
    def of(cls, preset: str | None = None, **options: Any) -> Self:
        """Options from keywords; an unknown one names the nearest.

        Args:
            preset: A name in ``PRESETS``, whose settings take the place of the defaults.
            **options: What differs.

        >>> Options.of(epochs=5).epochs
        5
        >>> Options.of("paper", epochs=5).indicator
        'density'
        """
        if preset is not None and preset not in PRESETS:
            raise unknown_name("preset", preset, PRESETS)
        known = {field.name: field.default for field in dataclasses.fields(cls)}
        for name in options:
            if name not in known:
                raise unknown_name("option", name, known)
        return cls(**{**PRESETS.get(preset or "", {}), **options})

    def to_dict(self) -> dict[str, Any]:
        """Everything, defaults included, as JSON can hold it."""
        values = {name: getattr(self, name) for name in _NAMES}
        if not isinstance(self.proposal, str):
            from prudent.estimators.priors import to_spec

            values["proposal"] = to_spec(self.proposal) or type(self.proposal).__name__
        return values

    @classmethod
    def descriptions(cls) -> dict[str, str]:
        """What each option means, as its documentation says.

        >>> Options.descriptions()["batch_size"]
        'Pairs per step.'
        """
        found = re.findall(r"^        (\w+): (.*(?:\n {12}.*)*)", cls.__doc__ or "", re.MULTILINE)
        return {name: " ".join(text.split()) for name, text in found}


# The settings of the coverage penalty alone, which other methods do not have.
_NAMES = [field.name for field in dataclasses.fields(Options)]
COVERAGE_OPTIONS = tuple(_NAMES[_NAMES.index("num_samples") :])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
