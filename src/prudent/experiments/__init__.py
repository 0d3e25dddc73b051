"""Runs as data: configs in, finished results out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prudent.lazy import attach

if TYPE_CHECKING:
    from prudent.experiments.config import RunConfig as RunConfig
    from prudent.experiments.frame import Results as Results
    from prudent.experiments.frame import load as load
    from prudent.experiments.frame import load_curves as load_curves
    from prudent.experiments.frame import load_draws as load_draws
    from prudent.experiments.frame import load_history as load_history
    from prudent.experiments.frame import load_ranks as load_ranks
    from prudent.experiments.frame import load_results as load_results
    from prudent.experiments.launch import run_sweep as run_sweep
    from prudent.experiments.store import Run as Run
    from prudent.experiments.store import load_runs as load_runs

__all__ = [
    "Results",
    "Run",
    "RunConfig",
    "load",
    "load_curves",
    "load_draws",
    "load_history",
    "load_ranks",
    "load_results",
    "load_runs",
    "run_sweep",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "Results": "frame",
        "Run": "store",
        "RunConfig": "config",
        "load": "frame",
        "load_curves": "frame",
        "load_draws": "frame",
        "load_history": "frame",
        "load_ranks": "frame",
        "load_results": "frame",
        "load_runs": "store",
        "run_sweep": "launch",
    },
)
