"""Runs as data: configs in, finished results out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prudent.lazy import attach

if TYPE_CHECKING:
    from prudent.experiments.config import RunConfig as RunConfig
    from prudent.experiments.frame import load as load
    from prudent.experiments.frame import load_curves as load_curves
    from prudent.experiments.store import Run as Run
    from prudent.experiments.store import load_runs as load_runs

__all__ = ["Run", "RunConfig", "load", "load_curves", "load_runs"]

__getattr__, __dir__ = attach(
    __name__,
    {
        "Run": "store",
        "RunConfig": "config",
        "load": "frame",
        "load_curves": "frame",
        "load_runs": "store",
    },
)
