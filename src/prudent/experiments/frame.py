"""Results as pandas tables, with column names that stay.

:func:`load` has one row per run, failed ones included, :func:`load_curves` one row per run and
credibility level. Both have the column ``run``, so that they can be merged.

==================================================  =============================================
columns                                             meaning
==================================================  =============================================
``run``                                             the identity: twelve hexadecimal digits
``state``                                           ``done`` or ``failed``
``problem method budget seed``                      what was run
``num_test threads device``                         the rest of the config
``epochs batch_size ... fraction``                  :class:`prudent.training.Options`, by name
``auc worst_shortfall log_posterior ...``           :class:`prudent.diagnostics.Diagnosis`, by name
``num_simulations_excluded``                        simulations that were not finite
``simulate_seconds train_seconds diagnose_seconds``  times
``error``                                           why it failed
``path``                                            the directory
==================================================  =============================================
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prudent.errors import InputError, PrudentError
from prudent.experiments import store
from prudent.experiments.attempt import failure
from prudent.experiments.config import RunConfig
from prudent.experiments.settings import read_settings
from prudent.extras import require

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["load", "load_curves"]


def load(directory: str | os.PathLike[str]) -> DataFrame:
    """All runs below a directory, one row each; those that failed have no metrics but a reason.

    Args:
        directory: Of several runs, or of one.
    """
    require("pandas", "results", "tables of results")
    import pandas

    rows = [_row(run) for run in _finished(Path(directory))]
    return pandas.DataFrame(rows + _failed(Path(directory), {row["run"] for row in rows}))


def load_curves(directory: str | os.PathLike[str]) -> DataFrame:
    """The coverage curves: columns ``run level coverage lower upper``, and those of the problem.

    Args:
        directory: Of several runs, or of one.
    """
    require("pandas", "results", "tables of results")
    import pandas

    rows = []
    for run in store.load_runs(directory):
        names = ("problem", "method", "budget", "seed")
        facts = {name: getattr(run.config, name) for name in names}
        curves = (run.coverage[name] for name in ("levels", "curve", "lower", "upper"))
        for level, value, lower, upper in zip(*curves, strict=True):
            band = {"level": level, "coverage": value, "lower": lower, "upper": upper}
            rows.append({"run": run.config.identity, **facts, **band})
    return pandas.DataFrame(rows)


def _finished(root: Path) -> list[store.Run]:
    try:
        return store.load_runs(root)
    except InputError:
        if not any((root / ".work").glob("*/error.txt")):
            raise
        return []  # all failed, which is worth showing


def _row(run: store.Run) -> dict[str, Any]:
    times = {f"{name}_seconds": value for name, value in run.timing["seconds"].items()}
    return {
        "run": run.config.identity,
        "state": "done",
        **_flat(run.config),
        **run.metrics,
        **times,
        "error": None,
        "path": str(run.path),
    }


def _failed(root: Path, finished: set[str]) -> list[dict[str, Any]]:
    rows = []
    for error in sorted((root / ".work").glob("*/error.txt")):
        directory = error.parent
        name = directory.name
        try:
            settings = read_settings(directory / "config.json")
            facts = _flat(RunConfig.from_settings(settings))
        except PrudentError:
            facts = {}
        if name not in finished:
            state = {"run": name, "state": "failed", **facts}
            rows.append({**state, "error": failure(root / name), "path": str(directory)})
    return rows


def _flat(config: RunConfig) -> dict[str, Any]:
    values = config.flat()
    del values["format"]
    return values
