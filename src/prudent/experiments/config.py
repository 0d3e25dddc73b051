"""What one run is: plain data, checked before anything heavy is imported."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from prudent import problems
from prudent._files import canonical_json, sha256
from prudent.errors import InputError, StoreError, unknown_name
from prudent.experiments.settings import FORMAT, read_settings
from prudent.training import methods
from prudent.training.options import Options

__all__ = ["RunConfig", "read_settings"]

NUMBERS = {"weight", "target", *(k for k, v in Options().to_dict().items() if type(v) is float)}

# Coverage by region takes two halves with two regions each.
THOROUGH_PAIRS = 120


@dataclass(frozen=True)
class RunConfig:
    """One training and its diagnosis.

    Args:
        problem: The problem's name.
        method: The method's name.
        budget: Simulations for training and validation together.
        seed: Of simulations, split, initial weights and training.
        num_test: Test pairs, simulated apart and never part of the budget.
        threads: Of torch; part of the identity because it can change the last bits.
        device: Where to train: cpu, cuda or mps.
        thorough: Also test ranks (SBC, TARP) and coverage by region, and keep some draws.
        source: Digest of the file of a problem of one's own; see
            :func:`prudent.problems.source.source_digest`.
        training: See :class:`prudent.training.Options`.
    """

    problem: str
    method: str
    budget: int
    seed: int = 0
    num_test: int = 2000
    threads: int = 1
    device: str = "cpu"
    thorough: bool = False
    source: str = ""
    training: Options = field(default_factory=Options)

    def __post_init__(self) -> None:
        for name in ("problem", "method", "device", "source"):
            if not isinstance(getattr(self, name), str):
                raise InputError(f"`{name}` is {getattr(self, name)!r}; expected text.")
        problems.check(self.problem)
        methods.get(self.method).weights(self.training.weight)
        for name, least in (("budget", 2), ("seed", 0), ("num_test", 1), ("threads", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"`{name}` is {value!r}; expected a whole number >= {least}.")
        if not isinstance(self.thorough, bool):
            raise InputError(f"`thorough` is {self.thorough!r}; expected true or false.")
        if self.thorough and self.num_test < THOROUGH_PAIRS:
            raise InputError(
                f"`num_test` is {self.num_test}; a thorough run needs {THOROUGH_PAIRS} or more."
            )
        if not isinstance(self.training.proposal, str):
            raise InputError("a stored run can only have a proposal with a name, such as prior.")

    def to_dict(self) -> dict[str, Any]:
        """Everything, defaults included, as JSON can hold it."""
        values = {name: getattr(self, name) for name in FIELDS}
        # 5 and 5.0 are one weight, so they must have one spelling.
        training = {
            name: float(value) if name in NUMBERS and isinstance(value, int) else value
            for name, value in self.training.to_dict().items()
        }
        return {"format": FORMAT, **values, "training": training}

    def flat(self) -> dict[str, Any]:
        """The same in one level, the settings of the training beside those of the run."""
        values = self.to_dict()
        training = values.pop("training")
        return {**values, **training}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RunConfig:
        """The inverse of :meth:`to_dict`."""
        values = dict(values)
        found = values.pop("format", None)
        if found != FORMAT:
            raise StoreError(
                f"the run has format {found}, this version reads format {FORMAT}. Upgrade prudent."
            )
        return cls(training=_options(values.pop("training")), **values)

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> RunConfig:
        """A run from what a user wrote; an unknown name is answered with the nearest.

        Args:
            settings: The fields of this class, with those of the training in ``training``, where
                ``preset`` may give the rest.

        >>> training = {"preset": "paper", "epochs": 10}
        >>> RunConfig.from_settings(
        ...     {"problem": "slcp", "method": "nre", "budget": 512, "training": training}
        ... ).training.epochs
        10
        """
        for name in settings:
            if name not in FIELDS:
                raise unknown_name("setting", name, FIELDS)
        values = dict(settings)
        training = values.pop("training", {})
        if not isinstance(training, dict):
            raise InputError("`training` must be a table of settings.")
        missing = [name for name in ("problem", "method", "budget") if name not in values]
        if missing:
            raise InputError(f"the run has no `{missing[0]}`; see: prudent train --help")
        return cls(**values, training=_options(training))

    @cached_property
    def identity(self) -> str:
        """Twelve hexadecimal digits that name the run.

        >>> RunConfig("slcp", "nre", 1024).identity == RunConfig("slcp", "nre", 1024).identity
        True
        """
        return sha256(canonical_json(self.to_dict()))[:12]

    def __str__(self) -> str:
        return f"{self.problem} {self.method} {self.budget:,} seed {self.seed}"


FIELDS = tuple(field.name for field in dataclasses.fields(RunConfig))


def _options(settings: dict[str, Any]) -> Options:
    """Options that many runs of a sweep share, checked once."""
    try:
        return _parsed(json.dumps(settings))
    except (TypeError, ValueError):  # not from a file
        return Options.of(**settings)


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Options:
    return Options.of(**json.loads(text))
