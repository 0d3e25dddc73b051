"""What one run is: plain data, checked before anything heavy is imported."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prudent import problems
from prudent.errors import InputError, StoreError, unknown_name
from prudent.files import canonical_json, sha256
from prudent.training import methods
from prudent.training.options import Options

__all__ = ["RunConfig", "read_settings"]

FORMAT = 1
LARGEST_FILE = 2**18


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a TOML file, or in the ``config.json`` of a run."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"{path} is larger than {LARGEST_FILE:,} bytes; is it a config?")
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is not valid {'JSON' if path.suffix == '.json' else 'TOML'}: {error}."
        ) from error
    if not isinstance(values, dict):
        raise InputError(f"{path} does not hold a table of settings.")
    if values.pop("format", FORMAT) != FORMAT:
        raise InputError(f"{path} was written by another version of prudent. Upgrade prudent.")
    return values


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
        training: See :class:`prudent.training.Options`.
    """

    problem: str
    method: str
    budget: int
    seed: int = 0
    num_test: int = 2000
    threads: int = 1
    device: str = "cpu"
    training: Options = field(default_factory=Options)

    def __post_init__(self) -> None:
        problems.check(self.problem)
        methods.get(self.method).weights(self.training.weight)
        for name, least in (("budget", 2), ("seed", 0), ("num_test", 1), ("threads", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"`{name}` is {value!r}; expected a whole number >= {least}.")
        if not isinstance(self.training.proposal, str):
            raise InputError("a stored run can only have a proposal with a name, such as prior.")

    def to_dict(self) -> dict[str, Any]:
        """Everything, defaults included, as JSON can hold it."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"format": FORMAT, **values, "training": self.training.to_dict()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RunConfig:
        """The inverse of :meth:`to_dict`."""
        values = dict(values)
        found = values.pop("format", None)
        if found != FORMAT:
            raise StoreError(
                f"the run has format {found}, this version reads format {FORMAT}. Upgrade prudent."
            )
        training = Options.of(**values.pop("training"))
        return cls(training=training, **values)

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
        known = {field.name: field.default for field in dataclasses.fields(cls)}
        for name in settings:
            if name not in known:
                raise unknown_name("setting", name, known)
        values = dict(settings)
        training = values.pop("training", {})
        if not isinstance(training, dict):
            raise InputError("`training` must be a table of settings.")
        missing = [name for name in ("problem", "method", "budget") if name not in values]
        if missing:
            raise InputError(f"the run has no `{missing[0]}`; see: prudent train --help")
        return cls(**values, training=Options.of(**training))

    @property
    def identity(self) -> str:
        """Twelve hexadecimal digits that name the run.

        >>> RunConfig("slcp", "nre", 1024).identity == RunConfig("slcp", "nre", 1024).identity
        True
        """
        return sha256(canonical_json(self.to_dict()))[:12]

    def __str__(self) -> str:
        return f"{self.problem} {self.method} {self.budget:,} seed {self.seed}"
