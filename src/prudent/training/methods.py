"""The table of methods: an estimator, a loss, at most one regularizer, and how reports show it.

A new row is a new method everywhere: in :func:`prudent.fit`, on the command line, in sweeps and in
reports. Nothing here imports torch before an objective is made.

>>> names()
['bnpe', 'bnre', 'calnpe', 'calnre', 'npe', 'nre', 'prudent']
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

from prudent._settings import made
from prudent.errors import InputError, unknown_name

if TYPE_CHECKING:
    from torch import Tensor

    from prudent.contracts import Prior
    from prudent.training.objectives import WeightedSum
    from prudent.training.options import Options


class Look(NamedTuple):
    """The way a method is shown: ``#rrggbb``, and dashes and markers as matplotlib spells them."""

    label: str
    color: str
    dash: str
    marker: str


@dataclass(frozen=True)
class Method:
    """A row of the table."""

    family: str  # the estimator: ``nre`` (a ratio) or ``npe`` (a flow)
    loss: str  # the term with weight one
    regularizer: str | None  # the term that guards against over-confidence, if any
    weight: float  # the default weight of the regularizer
    description: str  # one line for listings
    look: Look | None = None  # how to show the method; None for an automatic choice
    own: Mapping[str, Any] = field(
        default_factory=dict
    )  # settings that differ from those of PLAIN

    def resolve(self, options: Options) -> Options:
        """The options with the method's own settings where none is given."""
        own: dict[str, Any] = {**PLAIN}
        if self.regularizer == "coverage":
            own |= {"proposal": "even", "fraction": _share_of_steps(options.num_samples)}
        own |= self.own
        left = {name: value for name, value in own.items() if getattr(options, name) is None}
        return made(type(options), {**vars(options), **left}) if left else options

    def weights(self, weight: float | None) -> dict[str, float]:
        """The weight of each term, with the user's weight for the regularizer if there is one."""
        if self.regularizer is not None:
            return {self.loss: 1.0, self.regularizer: self.weight if weight is None else weight}
        if weight is not None:
            raise InputError(
                f"`weight` is {weight}, but the method has no regularizer to weigh: "
                f"{self.description}. Leave it out or choose a method such as calnre."
            )
        return {self.loss: 1.0}

    def objective(self, prior: Prior, options: Options, pool: Tensor | None = None) -> WeightedSum:
        """The objective of the method; ``pool`` is that of :class:`WeightedSum`."""
        from prudent.training.objectives import make_term, weighted_sum

        options = self.resolve(options)
        weights = self.weights(options.weight).items()
        terms = [
            (weight, make_term(name, self.family, prior, options)) for name, weight in weights
        ]
        return weighted_sum(*terms, pool=pool)


# What a method does unless its row or the user says something else.
PLAIN = {
    "learning_rate": 3e-3,
    "members": 1,
    "ensemble": "seeds",
    "pool": "mixture",
    "recalibrate": "no",
    "proposal": "prior",
    "fraction": 1.0,
}
# The recommended method, and the one that stands for the paper.
RECOMMENDED, PUBLISHED = "prudent", "calnpe"
# Okabe and Ito's palette, told apart with any color vision, with a brown and a violet for its
# orange and light blue, too faint for lines on white; dashes and markers for gray prints.
METHODS = {
    "nre": Method("nre", "bce", None, 0.0, "ratio estimation, no regularizer",
        Look("NRE", "#0072B2", "-", "o")),
    "bnre": Method("nre", "bce", "balance", 100.0, "ratio estimation, balanced classifier",
        Look("BNRE", "#886633", "--", "s")),
    "calnre": Method("nre", "bce", "coverage", 5.0, "ratio estimation, coverage penalty",
        Look("CalNRE", "#009E73", "-", "^")),
    "npe": Method("npe", "nll", None, 0.0, "posterior flow, no regularizer",
        Look("NPE", "#CC79A7", "-", "D")),
    "bnpe": Method("npe", "nll", "balance", 100.0, "posterior flow, balanced classifier",
        Look("BNPE", "#D55E00", "--", "v")),
    "calnpe": Method("npe", "nll", "coverage", 5.0, "posterior flow, coverage penalty",
        Look("CalNPE", "#8844EE", "-", "P")),
    "prudent": Method("npe", "nll", None, 0.0, "pool of cross-fitted flows, recalibrated",
        Look("prudent", "#000000", "-", "p"), {"members": 5, "ensemble": "folds",
        "pool": "mixture", "recalibrate": "conservative"}),
}  # fmt: skip
# The looks of methods that have none, in turn.
SPARE = (
    ("#BB4477", ":", "X"),
    ("#2A8C7E", "-.", "*"),
    ("#5566CC", ":", "<"),
    ("#888822", "-.", ">"),
)


def _share_of_steps(num_samples: int) -> float:
    """The steps with a coverage penalty, which are the fewer the dearer it is.

    >>> [_share_of_steps(number) for number in (4, 16, 128)]
    [0.2, 0.2, 0.071]
    """
    return round(min(0.2, 0.8 / sqrt(num_samples)), 3)


def names() -> list[str]:
    """The registered methods, in alphabetical order."""
    return sorted(METHODS)


def canonical(name: str) -> str:
    """The registered spelling of a name, which users may write as ``CalNRE``."""
    if str(name).lower() not in METHODS:
        raise unknown_name("method", name, METHODS)
    return str(name).lower()


def get(name: str) -> Method:
    """The method of that name."""
    return METHODS[canonical(name)]


def position(name: str) -> int:
    """The place of a method in the table, by which reports sort; unknown ones come last."""
    return list(METHODS).index(name) if name in METHODS else len(METHODS)


def look(name: str) -> Look:
    """The way to show a method, also one that is not registered (any more).

    >>> look("calnre").label
    'CalNRE'
    """
    if name not in METHODS:
        return Look(name, "#767676", ":", "x")
    bare = [known for known, row in METHODS.items() if row.look is None]
    return METHODS[name].look or Look(name.upper(), *SPARE[bare.index(name) % len(SPARE)])
