"""Runs as data: configs in, finished results out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prudent._lazy import attach

if TYPE_CHECKING:
    from prudent.experiments.config import RunConfig as RunConfig
    from prudent.experiments.launch import run_sweep as run_sweep
    from prudent.experiments.results import Results as Results
    from prudent.experiments.results import load_results as load_results
    from prudent.experiments.store import Run as Run
    from prudent.experiments.store import load_runs as load_runs

__all__ = [
    "Results",
    "Run",
    "RunConfig",
    "load_results",
    "load_runs",
    "run_sweep",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "Results": "results",
        "Run": "store",
        "RunConfig": "config",
        "load_results": "results",
        "load_runs": "store",
        "run_sweep": "launch",
    },
)
