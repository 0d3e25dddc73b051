"""Results as pandas tables, with column names that stay.

Every table begins with ``run problem method budget seed``, so that they can be merged; ``run`` is
the identity, twelve hexadecimal digits. All of them at once are :class:`Results`.

===========  ====================================================================================
table        columns
===========  ====================================================================================
``runs``     one row per run: ``state`` (``done failed running interrupted left``), the config
             (``num_test threads device thorough`` and :class:`prudent.training.Options`, by name),
             the metrics (:class:`prudent.diagnostics.Diagnosis`, by name), of the last
             ``prudent diagnose`` where there was one, with its ``pairs`` in words,
             ``num_simulations_excluded tested_on`` (a digest of the test pairs),
             ``simulate_seconds train_seconds diagnose_seconds``,
             ``prudent_version torch_version python_version``, ``error`` (why it failed, or how
             far it is) and ``path``
``curves``   one row per credibility level: ``level coverage lower upper``
``history``  one row per epoch: ``member epoch loss validation_loss`` and what else was recorded
``ranks``    thorough runs: ``test`` (``sbc`` or ``tarp``), ``parameter level value lower upper
             p_value``; the band holds the whole curve of an exact posterior with 95 %
``draws``    thorough runs: ``kind`` (``posterior``, ``truth``, and where they are known ``exact``
             and the prior's ``bounds``), ``draw parameter value`` for the first test pair
===========  ====================================================================================

Each diagnostic of :mod:`prudent.diagnostics.registry` has a table of its own name as well,
``results.table("local_coverage")`` for instance: ``test`` (its name) and what it stores.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prudent._extras import require
from prudent._files import sha256
from prudent._tables import read_settings
from prudent.errors import InputError, PrudentError, unknown_name
from prudent.experiments import store
from prudent.experiments.config import RunConfig
from prudent.experiments.store import RunState, states
from prudent.experiments.sweep import FILE, stored_sweep
from prudent.version import __version__

if TYPE_CHECKING:
    from pandas import DataFrame

    from prudent.diagnostics import Diagnosis

KEYS = ("run", "problem", "method", "budget", "seed")
COLUMNS = {
    "curves": ("level", "coverage", "lower", "upper"),
    "history": ("member", "epoch", "loss", "validation_loss"),
    "ranks": ("test", "parameter", "level", "value", "lower", "upper", "p_value"),
    "draws": ("kind", "draw", "parameter", "value"),
}

Records = Iterator[dict[str, Any]]


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Results:
    """The finished runs of a directory, and the tables ``runs curves history ranks draws``.

    A table without rows has its columns all the same. Runs that are not done have no metrics but a
    reason. Tables other than ``runs`` are read when they are first asked for.
    """

    finished: Sequence[store.Run]
    runs: DataFrame
    curves: DataFrame
    history: DataFrame
    ranks: DataFrame
    draws: DataFrame

    def __init__(self, finished: Sequence[store.Run] = (), **tables: DataFrame) -> None:
        vars(self).update(tables, finished=finished)

    def __getattr__(self, name: str) -> DataFrame:
        if name not in COLUMNS:
            raise AttributeError(f"{type(self).__name__} has no table `{name}`.")
        return vars(self).setdefault(name, _table(self._rows(name), COLUMNS[name]))

    def table(self, name: str) -> DataFrame:
        """The table of that name: one of the above, or that of a registered diagnostic."""
        if name in vars(self) or name in COLUMNS:
            return getattr(self, name)
        found = _table(self._rows(name), ("test",))
        if found.empty:  # imported only now, because reading results must not need torch
            from prudent.diagnostics.registry import DIAGNOSTICS

            if name not in DIAGNOSTICS:
                raise unknown_name("table", name, ["runs", *COLUMNS, *DIAGNOSTICS])
        return found

    def _rows(self, name: str) -> Records:
        if name == "curves":
            for run in self.finished:
                curves = (run.coverage[key] for key in ("levels", "curve", "lower", "upper"))
                yield from _long(_keys(run.config), dict(zip(COLUMNS[name], curves, strict=True)))
        elif name == "history":
            for run in self.finished:
                for row in run.history():
                    yield {**_keys(run.config), "member": 0, **row}
        else:
            for keys, test, record in self._thorough:
                if test == name or (name == "ranks" and test in ("sbc", "tarp")):
                    yield from _long(keys, record)

    @cached_property
    def _thorough(self) -> list[tuple[dict[str, Any], str, dict[str, Any]]]:
        """The records of thorough runs, with the keys of the run and the name of the table."""
        runs = [run for run in self.finished if "thorough.json" in run.files]
        return [(_keys(run.config), *record) for run in runs for record in _records(run)]


def load_results(directory: str | os.PathLike[str]) -> Results:
    """All tables, of the runs in a directory that are finished at this moment, or of one run."""
    require("pandas", "results", "tables of results")
    root = Path(directory)
    planned: list[RunState] = []
    with contextlib.suppress(PrudentError):  # there need not be a sweep
        planned = states(stored_sweep(root).configs, root)
    finished = _finished(root)  # after that: a run that is finished in between is not lost
    return Results(finished, runs=_table(_all_runs(root, planned, finished), ()))


def results_of(
    diagnoses: Mapping[str, Diagnosis], *, problem: str = "own data", budget: int = 0
) -> Results:
    """Diagnoses of models that no run trained, as results for figures and the report.

    Args:
        diagnoses: The diagnoses by the names of the models, which stand where methods stand.
        problem: The name of what was simulated.
        budget: The number of simulations that the models were trained with, 0 if not known.
    """
    require("pandas", "results", "tables of results")
    runs: list[dict[str, Any]] = []
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in COLUMNS}
    for name, diagnosis in diagnoses.items():
        values = (sha256(f"{problem}/{name}".encode())[:12], problem, name, budget, 0)
        keys = dict(zip(KEYS, values, strict=True))
        facts = {**diagnosis.metrics(), "prudent_version": __version__}
        runs.append({**keys, "state": "done", **facts, "error": None, "path": None})
        curves = diagnosis.coverage.curves().values()
        tables["curves"] += _long(keys, dict(zip(COLUMNS["curves"], curves, strict=True)))
        for test, result in diagnosis.results.items():
            rows = [row for one in result.rows() for row in _long(keys, {"test": test, **one})]
            tables.setdefault(test, []).extend(rows)
            tables["ranks"] += rows if test in ("sbc", "tarp") else []
    made = {name: _table(rows, COLUMNS.get(name, ("test",))) for name, rows in tables.items()}
    return Results(runs=_table(runs, ()), **made)


def _table(rows: Iterable[dict[str, Any]], columns: Sequence[str]) -> DataFrame:
    import pandas

    found = pandas.DataFrame(list(rows))
    if found.empty:
        return pandas.DataFrame(columns=[*KEYS, *columns])
    first = [name for name in (*KEYS, *columns) if name in found]
    return found[[*first, *(name for name in found if name not in first)]]


def _long(keys: dict[str, Any], record: dict[str, Any]) -> Records:
    """One row for each number of the lists in a record."""
    lists = {name: value for name, value in record.items() if isinstance(value, list)}
    if not lists:
        yield {**keys, **record}
    for values in zip(*lists.values(), strict=True):
        yield {**keys, **record, **dict(zip(lists, values, strict=True))}


def _records(run: store.Run) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records of a thorough run, each with the name of its table."""
    stored = json.loads(run.file("thorough.json"))
    for test, records in stored["diagnostics"].items():
        for record in records:
            yield test, {"test": test, **record}
    for record in stored["draws"]:
        values = record.pop("values")
        yield "draws", {"draw": [*range(len(values))], **record, "value": values}


def _finished(root: Path) -> list[store.Run]:
    try:
        return store.load_runs(root)
    except InputError:
        if not any((root / ".work").glob("*")) and not (root / FILE).is_file():
            raise
        return []  # all failed, at work or planned, which is worth showing


def _keys(config: RunConfig) -> dict[str, Any]:
    return {"run": config.identity, **{name: getattr(config, name) for name in KEYS[1:]}}


def _all_runs(root: Path, planned: Sequence[RunState], finished: Sequence[store.Run]) -> Records:
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


def _failed(root: Path, known: set[str]) -> Records:
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
        reason = store.failure(root / name)
        yield {**facts, "run": name, "error": reason, "path": str(error.parent)}


def _facts(config: RunConfig, state: str) -> dict[str, Any]:
    values = {name: value for name, value in config.flat().items() if name != "format"}
    return {**_keys(config), "state": state, **values}
