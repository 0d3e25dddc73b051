"""Which rows of a table a figure shows, and words for what it does not show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prudent._plots import plain_name
from prudent.errors import InputError
from prudent.reports.cells import settings
from prudent.reports.series import Series, series_of
from prudent.training.methods import METHODS

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_CELLS = 3


@dataclass(frozen=True)
class Shown:
    """The rows of cells that a figure draws.

    Args:
        rows: The rows of finished runs that have a number to draw; the column ``series`` says to
            which series each belongs.
        series: The series to draw, by name.
        notes: What a reader must know about the rest.
        num_seeds: The number of seeds that a complete cell has.
    """

    rows: DataFrame
    series: dict[str, Series]
    notes: list[str]
    num_seeds: int

    @property
    def seeds(self) -> str:
        """The number of seeds, in words."""
        return f"{self.num_seeds} seed{'' if self.num_seeds == 1 else 's'}"


def finished(table: DataFrame, what: str = "runs") -> DataFrame:
    """The rows of runs that are done; none at all is an error."""
    known = table[table["problem"].notna()]
    rows = known[known["state"] == "done"] if "state" in known else known
    if len(rows) == 0:
        count = f"; {len(table):,} failed or are not done" if len(table) else ""
        raise InputError(
            f"no finished {what} to draw{count}. Make some with: prudent demo, or prudent sweep"
        )
    return rows


def shown(table: DataFrame, value: str) -> Shown:
    """The rows to draw in figures of cells.

    Args:
        table: One row or several per run; runs that are not done have no ``value``.
        value: The column that is drawn.
    """
    finished(table)
    table = table[table["problem"].notna()]
    runs = table.drop_duplicates("run")
    pairs = list(zip(runs["method"], settings(runs), strict=True))
    looks = {pair: (plain_name(one.name, 60), one) for pair, one in series_of(pairs).items()}
    runs = runs.assign(series=[looks[pair][0] for pair in pairs])
    cell = ["problem", "series", "budget"]
    if runs.duplicated([*cell, "seed"]).any():
        raise InputError(
            "some cells have several runs of one seed, and this table does not say how they "
            "differ. Use: prudent.reports.figures.draw(name, results)"
        )
    good = finished(runs)
    good = good[good[value].notna()]
    if len(good) == 0:
        raise InputError(f"no run has a finite `{value}` to draw; see the column in the table.")
    counts = good.groupby(cell)["seed"].nunique()
    num_seeds = int(runs["seed"].nunique())
    short = [
        f"{name} {plain_name(problem)} {int(budget):,}: {counts.get((problem, name, budget), 0)} "
        f"of {num_seeds} seeds"
        for problem, name, budget in runs.groupby(cell, sort=False).groups
        if counts.get((problem, name, budget), 0) < num_seeds
    ]
    if len(short) > MOST_CELLS:
        short[MOST_CELLS:] = [f"and {len(short) - MOST_CELLS} more cells with fewer seeds"]
    rows = table[table["run"].isin(good["run"])]
    rows = rows.assign(series=rows["run"].map(good.set_index("run")["series"]))
    kept = {name: one for name, one in looks.values() if name in set(good["series"])}
    return Shown(rows, kept, ["; ".join(short)] if short else [], num_seeds)


def one_run(table: DataFrame, run: str | None, what: str, remedy: str) -> DataFrame:
    """The rows of one run.

    Args:
        table: The rows of several runs.
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
    """The run that the rows belong to, for titles."""
    first = rows.iloc[0]
    method, problem = plain_name(Series(first["method"]).name), plain_name(first["problem"])
    where = f"{method} on {problem}, {int(first['budget']):,} simulations"
    return f"{where}, seed {int(first['seed'])} ({first['run']})"


def regularizer(method: str) -> str | None:
    """The term that a method adds to its loss, if any."""
    return METHODS[method].regularizer if method in METHODS else None
