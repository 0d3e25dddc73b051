"""Objectives, the table of methods, and the one training loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prudent._lazy import attach

if TYPE_CHECKING:
    from prudent.training import methods as methods
    from prudent.training.fitting import fit as fit
    from prudent.training.loop import train as train
    from prudent.training.objectives import balance as balance
    from prudent.training.objectives import bce as bce
    from prudent.training.objectives import nll as nll
    from prudent.training.objectives import weighted_sum as weighted_sum
    from prudent.training.options import Options as Options

__all__ = [
    "Options",
    "balance",
    "bce",
    "fit",
    "methods",
    "nll",
    "train",
    "weighted_sum",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "Options": "options",
        "balance": "objectives",
        "bce": "objectives",
        "fit": "fitting",
        "methods": "methods",
        "nll": "objectives",
        "train": "loop",
        "weighted_sum": "objectives",
    },
)
