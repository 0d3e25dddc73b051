"""Which runs a figure shows: one setting per cell, finished ones, and words for what is not shown.

A cell is a problem, a method and a budget. Seeds within a cell are averaged, settings never are:
if a cell holds several, the one with most runs is taken, then the one nearest to the defaults, and
a note says so. Runs that failed, or whose number is not finite, are counted in a note as well.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from prudent.errors import InputError
from prudent.experiments.config import RunConfig
from prudent.reports.figures.style import label, plain_name
from prudent.training.methods import METHODS
from prudent.training.options import Options

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["CELL", "Cells", "cells", "finished", "name_run", "one_run", "settings_of"]

CELL = ["problem", "method", "budget"]
KEYS = ("problem", "method", "budget", "seed")
DEFAULTS: dict[str, Any] = {
    **{field.name: field.default for field in fields(RunConfig) if field.name not in KEYS},
    **Options().to_dict(),
}
del DEFAULTS["training"]
MOST_CELLS = 3


@dataclass(frozen=True)
class Cells:
    """Runs to draw.

    Args:
        rows: Of finished runs, with a number to draw.
        notes: What a reader must know about the rest.
        num_seeds: Seeds that a complete cell has.
    """

    rows: DataFrame
    notes: list[str]
    num_seeds: int

    @property
    def seeds(self) -> str:
        """How many, in words."""
        return f"{self.num_seeds} seed{'' if self.num_seeds == 1 else 's'}"


def finished(table: DataFrame, what: str = "runs") -> DataFrame:
    """The rows of runs that are done; none at all is an error."""
    known = table[table["problem"].notna()]
    rows = known[known["state"] == "done"] if "state" in known else known
    if len(rows) == 0:
        failed = len(table)
        count = f"; {failed:,} failed or are not done" if failed else ""
        raise InputError(
            f"no finished {what} to draw{count}. Make some with: prudent demo, or prudent sweep"
        )
    return rows


def cells(table: DataFrame, value: str) -> Cells:
    """The runs to draw in figures of cells.

    Args:
        table: Has one row or several per run; runs that are not done have no ``value``.
        value: The column that is drawn.
    """
    finished(table)
    table = table[table["problem"].notna()]
    runs = table.drop_duplicates("run")
    chosen, notes = _one_setting(runs)
    good = chosen[chosen[value].notna()]
    if "state" in good:
        good = good[good["state"] == "done"]
    if len(good) == 0:
        raise InputError(f"no run has a finite `{value}` to draw; see the column in the table.")
    num_seeds = int(chosen["seed"].nunique())
    notes += _missing(chosen, good, num_seeds)
    return Cells(table[table["run"].isin(good["run"])], notes, num_seeds)


def settings_of(runs: DataFrame) -> DataFrame:
    """The settings of runs as text, with the method's own weight where none was given."""
    found = runs[[name for name in DEFAULTS if name in runs]].astype(object).copy()
    if "weight" in found:
        own = runs["method"].map({name: method.weight for name, method in METHODS.items()})
        found["weight"] = found["weight"].where(found["weight"].notna(), own)
    return found.map(lambda item: f"{item:g}" if isinstance(item, int | float) else str(item))


def _one_setting(runs: DataFrame) -> tuple[DataFrame, list[str]]:
    settings = settings_of(runs)
    if len(settings.columns) == 0:
        if runs.duplicated([*CELL, "seed"]).any():
            raise InputError(
                "some cells have several runs of one seed, and this table does not say how they "
                "differ. Use: prudent.reports.figures.draw(name, results)"
            )
        return runs, []
    keys = settings.agg(tuple, axis=1)
    kept, left_out, names = [], Counter[str](), defaultdict[str, list[str]](list)
    for (_, method, _), cell in runs.groupby(CELL, sort=False):
        own = keys[cell.index]
        counts = own.value_counts(sort=False)
        best = max(counts.index, key=lambda key: (counts[key], _nearness(key, settings, method)))
        kept.append(cell[own == best])
        if len(counts) > 1:
            varying = [name for name in settings if settings.loc[cell.index, name].nunique() > 1]
            values = dict(zip(settings.columns, best, strict=True))
            text = ", ".join(f"{name} {values[name]}" for name in varying)
            left_out[text] += len(cell) - len(kept[-1])
            names[text] += [label(method)] * (label(method) not in names[text])
    notes = [
        f"{', '.join(names[text])}: only {text} ({count:,} other runs not drawn)"
        for text, count in left_out.items()
    ]
    return runs.loc[[index for part in kept for index in part.index]], notes


def _nearness(key: tuple[str, ...], settings: DataFrame, method: str) -> int:
    """How many settings are the defaults."""
    defaults = DEFAULTS | {"weight": METHODS[method].weight if method in METHODS else None}
    same = 0
    for name, value in zip(settings.columns, key, strict=True):
        default = defaults[name]
        shown = f"{default:g}" if isinstance(default, int | float) else str(default)
        same += value == shown
    return same


def _missing(chosen: DataFrame, good: DataFrame, num_seeds: int) -> list[str]:
    counts = good.groupby(CELL)["seed"].nunique()
    short = {
        cell: int(counts.get(cell, 0))
        for cell, _ in chosen.groupby(CELL, sort=False)
        if counts.get(cell, 0) < num_seeds
    }
    listed = [
        f"{label(method)} {plain_name(problem)} {int(budget):,}: {count} of {num_seeds} seeds"
        for (problem, method, budget), count in list(short.items())[:MOST_CELLS]
    ]
    if len(short) > MOST_CELLS:
        listed.append(f"and {len(short) - MOST_CELLS} more cells with fewer seeds")
    return ["; ".join(listed)] if listed else []


def one_run(table: DataFrame, run: str | None, what: str, remedy: str) -> DataFrame:
    """The rows of one run.

    Args:
        table: Of several runs.
        run: The identity or its beginning; None for the first.
        what: What the rows are.
        remedy: What to do if there are none.
    """
    if len(table) == 0:
        raise InputError(f"no {what} to draw. {remedy}")
    if run is None:
        return table[table["run"] == table["run"].iloc[0]]
    found = sorted({name for name in table["run"] if name.startswith(run)})
    if len(found) != 1:
        raise InputError(
            f"{len(found)} runs with {what} begin with `{run}`; expected one of "
            f"{' '.join(table['run'].unique()[:5])} ..."
        )
    return table[table["run"] == found[0]]


def name_run(rows: DataFrame) -> str:
    """Which run that is, for titles."""
    first = rows.iloc[0]
    method, problem = label(first["method"]), plain_name(first["problem"])
    where = f"{method} on {problem}, {int(first['budget']):,} simulations"
    return f"{where}, seed {int(first['seed'])} ({first['run']})"
