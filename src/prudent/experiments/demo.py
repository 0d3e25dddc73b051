"""The demonstration: three ways to train one classifier, and what their coverage says.

Two budgets, because the lesson depends on it. With 1,024 simulations of SLCP the plain ratio is
over-confident, and the balanced one is safe but little sharper than the prior. The coverage
penalty does not help there: it is satisfied on the training pairs while new pairs still fall
outside. With 4,096 it makes the posterior cautious, and sharper than the plain one.
"""

from __future__ import annotations

from prudent.experiments.config import RunConfig
from prudent.training.options import Options

__all__ = ["configs"]

METHODS = ("nre", "bnre", "calnre")
EPOCHS = {1024: 60, 4096: 30}


def configs(seed: int = 0) -> list[RunConfig]:
    """The runs of the demonstration."""
    return [
        RunConfig("slcp", method, budget, seed, training=Options(epochs=epochs))
        for budget, epochs in EPOCHS.items()
        for method in METHODS
    ]
