"""The demonstration: three ways to train one classifier, and what their coverage says."""

from __future__ import annotations

from prudent.experiments.config import RunConfig
from prudent.training.options import Options

__all__ = ["METHODS", "configs"]

METHODS = ("nre", "bnre", "calnre")


def configs(seed: int = 0) -> list[RunConfig]:
    """The runs of the demonstration: SLCP with 4,096 simulations."""
    return [
        RunConfig("slcp", method, 4096, seed, threads=2, training=Options(epochs=40))
        for method in METHODS
    ]
