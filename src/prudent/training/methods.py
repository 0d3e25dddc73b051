"""The table of methods: an estimator, a loss, and at most one regulariser.

>>> names()
['bnpe', 'bnre', 'calnpe', 'calnre', 'npe', 'nre']
"""

from __future__ import annotations

from dataclasses import dataclass

from prudent.errors import InputError, unknown_name

__all__ = ["METHODS", "Method", "get", "names"]


@dataclass(frozen=True)
class Method:
    """A row of the table.

    Args:
        family: The estimator: ``nre`` (a ratio) or ``npe`` (a flow).
        loss: The term with weight one.
        regularizer: The term that guards against over-confidence, if any.
        weight: Its default weight.
        description: One line for listings.
    """

    family: str
    loss: str
    regularizer: str | None
    weight: float
    description: str

    def weights(self, weight: float | None) -> dict[str, float]:
        """The weight of each term, with the user's weight for the regulariser if there is one."""
        if self.regularizer is None:
            if weight is not None:
                raise InputError(
                    f"`weight` is {weight}, but the method has no regulariser to weigh: "
                    f"{self.description}. Leave it out or choose a method such as calnre."
                )
            return {self.loss: 1.0}
        return {self.loss: 1.0, self.regularizer: self.weight if weight is None else weight}


METHODS = {
    "nre": Method("nre", "bce", None, 0.0, "ratio estimation, no regulariser"),
    "bnre": Method("nre", "bce", "balance", 100.0, "ratio estimation, balanced classifier"),
    "calnre": Method("nre", "bce", "coverage", 5.0, "ratio estimation, coverage penalty"),
    "npe": Method("npe", "nll", None, 0.0, "posterior flow, no regulariser"),
    "bnpe": Method("npe", "nll", "balance", 100.0, "posterior flow, balanced classifier"),
    "calnpe": Method("npe", "nll", "coverage", 5.0, "posterior flow, coverage penalty"),
}


def names() -> list[str]:
    """The registered methods, in alphabetical order."""
    return sorted(METHODS)


def get(name: str) -> Method:
    """The method of that name."""
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    return METHODS[name]
