"""Results as pandas tables, with column names that stay.

Every table begins with ``run problem method budget seed``, so that they can be merged; ``run`` is
the identity, twelve hexadecimal digits. All of them at once are :class:`Results`.

===========  ====================================================================================
table        columns
===========  ====================================================================================
``runs``     one row per run: ``state`` (``done failed running interrupted left``), the config
             (``num_test threads device thorough`` and :class:`prudent.training.Options`, by name),
             the metrics (:class:`prudent.diagnostics.Diagnosis`, by name),
             ``num_simulations_excluded``, ``simulate_seconds train_seconds diagnose_seconds``,
             ``prudent_version torch_version python_version``, ``error`` (why it failed, or how
             far it is) and ``path``
``curves``   one row per credibility level: ``level coverage lower upper``
``history``  one row per epoch: ``member epoch loss validation_loss`` and what else was recorded
``ranks``    thorough runs: ``test`` (``sbc`` or ``tarp``), ``parameter level value lower upper
             p_value``; the band holds the whole curve of an exact posterior with 95 %
``draws``    thorough runs: ``kind`` (``posterior``, ``exact`` where known, or ``truth``), ``draw
             parameter value`` for the first test pair
===========  ====================================================================================
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prudent._extras import require
from prudent.errors import InputError, PrudentError
from prudent.experiments import store
from prudent.experiments.config import RunConfig
from prudent.experiments.settings import read_settings
from prudent.experiments.status import RunState, states
from prudent.experiments.sweep import FILE, stored_sweep

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = [
    "Results",
    "load",
    "load_curves",
    "load_draws",
    "load_history",
    "load_ranks",
    "load_results",
]

KEYS = ("run", "problem", "method", "budget", "seed")
CURVES = ("level", "coverage", "lower", "upper")
HISTORY = ("member", "epoch", "loss", "validation_loss")
RANKS = ("test", "parameter", "level", "value", "lower", "upper", "p_value")
DRAWS = ("kind", "draw", "parameter", "value")

Rows = Iterator[dict[str, Any]]


@dataclass(frozen=True)
class Results:
    """All tables of a directory; one without rows has its columns all the same.

    Args:
        runs: One row per run.
        curves: Coverage curves.
        history: Training curves.
        ranks: SBC and TARP of thorough runs.
        draws: Posterior draws of thorough runs.
    """

    runs: DataFrame
    curves: DataFrame
    history: DataFrame
    ranks: DataFrame
    draws: DataFrame


def load_results(directory: str | os.PathLike[str]) -> Results:
    """All tables, of the runs that are finished at this moment.

    Args:
        directory: Of several runs, or of one.
    """
    root = Path(directory)
    # In this order: a run that is finished in between is not lost.
    planned, finished = _planned(root), _finished(root)
    return Results(
        runs=_table(_all_runs(root, planned, finished), ()),
        curves=_table(_curves(finished), CURVES),
        history=_table(_history(finished), HISTORY),
        ranks=_table(_ranks(finished), RANKS),
        draws=_table(_draws(finished), DRAWS),
    )


def load(directory: str | os.PathLike[str]) -> DataFrame:
    """All runs, one row each; those that are not done have no metrics but a reason.

    Args:
        directory: Of several runs, or of one.
    """
    root = Path(directory)
    planned, finished = _planned(root), _finished(root)
    return _table(_all_runs(root, planned, finished), ())


def load_curves(directory: str | os.PathLike[str]) -> DataFrame:
    """The coverage curves, one row per run and level."""
    return _table(_curves(_finished(Path(directory))), CURVES)


def load_history(directory: str | os.PathLike[str]) -> DataFrame:
    """The training curves, one row per run and epoch."""
    return _table(_history(_finished(Path(directory))), HISTORY)


def load_ranks(directory: str | os.PathLike[str]) -> DataFrame:
    """SBC and TARP of thorough runs, one row per run, test, parameter and level."""
    return _table(_ranks(_finished(Path(directory))), RANKS)


def load_draws(directory: str | os.PathLike[str]) -> DataFrame:
    """Posterior draws of thorough runs for one observation, one row per number."""
    return _table(_draws(_finished(Path(directory))), DRAWS)


def _table(rows: Iterable[dict[str, Any]], columns: Sequence[str]) -> DataFrame:
    require("pandas", "results", "tables of results")
    import pandas

    found = list(rows)
    return pandas.DataFrame(found) if found else pandas.DataFrame(columns=[*KEYS, *columns])


def _finished(root: Path) -> list[store.Run]:
    try:
        return store.load_runs(root)
    except InputError:
        if not any((root / ".work").glob("*")) and not (root / FILE).is_file():
            raise
        return []  # all failed, at work or planned, which is worth showing


def _keys(config: RunConfig) -> dict[str, Any]:
    return {"run": config.identity, **{name: getattr(config, name) for name in KEYS[1:]}}


def _all_runs(root: Path, planned: Sequence[RunState], finished: Sequence[store.Run]) -> Rows:
    for run in finished:
        times = {f"{name}_seconds": value for name, value in run.timing["seconds"].items()}
        versions = {f"{k}_version": value for k, value in run.timing["versions"].items()}
        facts = {**_facts(run.config, "done"), **run.metrics, **times, **versions}
        yield {**facts, "error": None, "path": str(run.path)}
    known = {run.config.identity for run in finished}
    for one in planned:
        if one.state != "done" and one.config.identity not in known:
            known.add(one.config.identity)
            path = store.unfinished_path(root / one.config.identity)
            yield {**_facts(one.config, one.state), "error": one.note or None, "path": str(path)}
    yield from _failed(root, known)


def _planned(root: Path) -> list[RunState]:
    """The runs of the sweep that was last started here."""
    try:
        return states(stored_sweep(root).configs, root)
    except PrudentError:
        return []


def _failed(root: Path, known: set[str]) -> Rows:
    """Runs that failed and that no sweep speaks of."""
    for error in sorted((root / ".work").glob("*/error.txt")):
        name = error.parent.name
        if name in known:
            continue
        try:
            config = RunConfig.from_settings(read_settings(error.parent / "config.json"))
            facts = _facts(config, "failed")
        except PrudentError:
            facts = {"state": "failed"}
        yield {
            **facts,
            "run": name,
            "error": store.failure(root / name),
            "path": str(error.parent),
        }


def _facts(config: RunConfig, state: str) -> dict[str, Any]:
    values = config.flat()
    del values["format"]
    return {**_keys(config), "state": state, **values}


def _curves(finished: Iterable[store.Run]) -> Rows:
    for run in finished:
        keys = _keys(run.config)
        curves = (run.coverage[name] for name in ("levels", "curve", "lower", "upper"))
        for values in zip(*curves, strict=True):
            yield keys | dict(zip(CURVES, values, strict=True))


def _history(finished: Iterable[store.Run]) -> Rows:
    for run in finished:
        keys = _keys(run.config)
        for row in run.history():
            yield {**keys, "member": 0, **row}


def _ranks(finished: Iterable[store.Run]) -> Rows:
    for run in finished:
        for row in _thorough(run, "ranks"):
            curves = (row["levels"], row["values"], row["lower"], row["upper"])
            for level, value, lower, upper in zip(*curves, strict=True):
                numbers = (row["test"], row["parameter"], level, value, lower, upper)
                yield _keys(run.config) | dict(zip(RANKS, (*numbers, row["p_value"]), strict=True))


def _draws(finished: Iterable[store.Run]) -> Rows:
    for run in finished:
        for row in _thorough(run, "draws"):
            for number, value in enumerate(row["values"]):
                numbers = (row["kind"], number, row["parameter"], value)
                yield _keys(run.config) | dict(zip(DRAWS, numbers, strict=True))


def _thorough(run: store.Run, part: str) -> list[dict[str, Any]]:
    if "thorough.json" not in run.files:
        return []
    found: list[dict[str, Any]] = json.loads(run.file("thorough.json"))[part]
    return found
