"""Runs as data: configs in, finished results out."""

from typing import TYPE_CHECKING

from prudent._lazy import attach

if TYPE_CHECKING:
    from prudent.experiments.config import RunConfig as RunConfig
    from prudent.experiments.launch import run_sweep as run_sweep
    from prudent.experiments.results import Results as Results
    from prudent.experiments.results import load_results as load_results
    from prudent.experiments.results import results_of as results_of
    from prudent.experiments.run import run_one as run_one
    from prudent.experiments.store import Run as Run
    from prudent.experiments.store import load_runs as load_runs

__getattr__, __dir__, __all__ = attach(__name__)
