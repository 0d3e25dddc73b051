"""What one run is: plain data, checked before anything heavy is imported."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from prudent import problems
from prudent.errors import InputError, StoreError
from prudent.files import canonical_json, sha256
from prudent.training import methods
from prudent.training.options import Options

__all__ = ["RunConfig"]

FORMAT = 1


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
        training: See :class:`prudent.training.Options`.
    """

    problem: str
    method: str
    budget: int
    seed: int = 0
    num_test: int = 2000
    threads: int = 1
    training: Options = field(default_factory=Options)

    def __post_init__(self) -> None:
        problems.check(self.problem)
        methods.get(self.method).weights(self.training.weight)
        for name, least in (("budget", 2), ("seed", 0), ("num_test", 1), ("threads", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"`{name}` is {value!r}; expected a whole number >= {least}.")

    def to_dict(self) -> dict[str, Any]:
        """Everything, defaults included, as JSON can hold it."""
        return {"format": FORMAT, **dataclasses.asdict(self)}

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

    @property
    def identity(self) -> str:
        """Twelve hexadecimal digits that name the run.

        >>> RunConfig("slcp", "nre", 1024).identity == RunConfig("slcp", "nre", 1024).identity
        True
        """
        return sha256(canonical_json(self.to_dict()))[:12]

    def __str__(self) -> str:
        return f"{self.problem} {self.method} {self.budget:,} seed {self.seed}"
