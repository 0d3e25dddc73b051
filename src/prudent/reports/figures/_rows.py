"""The rows of a table that a figure shows, and notes on those that it leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matplotlib.lines import Line2D

from prudent._plots import plain_name
from prudent.diagnostics.verdict import NORMAL_95, band
from prudent.errors import InputError
from prudent.reports.cells import Series, own_pairs, records, series_of, settings
from prudent.training.methods import METHODS

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_CELLS = 3
ONE_SEED = "One seed, with 95 % over its test pairs"
Spread = Callable[[Any], tuple[Any, Any, Any]]


@dataclass(frozen=True)
class Shown:
    """The rows of cells that a figure draws."""

    rows: DataFrame  # of finished runs that have a number to draw, with the name of their series
    series: dict[str, Series]  # the series to draw, by name
    notes: list[str]  # what a reader must know about the rest
    num_seeds: int  # the number of seeds that a complete cell has

    def average(self, words: str) -> str:
        """Words with the number of seeds in them, and what is drawn around one seed."""
        return words.format(f"{self.num_seeds} seeds") if self.num_seeds > 1 else ONE_SEED

    def each(self, rows: DataFrame) -> Iterator[tuple[str, Series, DataFrame]]:
        """The series that have some of these rows, in order."""
        groups = dict(list(rows.groupby("series")))
        return ((name, one, groups[name]) for name, one in self.series.items() if name in groups)

    @property
    def handles(self) -> list[Any]:
        """The legend's handles of all series."""
        return [Line2D([], [], label=name, **one.line) for name, one in self.series.items()]


def finished(table: DataFrame) -> DataFrame:
    """The rows of runs that are done; none at all is an error."""
    known = table[table["problem"].notna()]
    rows = known[known["state"] == "done"] if "state" in known else known
    if len(rows) == 0:
        count = f"; {len(table):,} failed or are not done" if len(table) else ""
        raise InputError(
            f"no finished runs to draw{count}. Make some with: prudent demo, or prudent sweep"
        )
    return rows


def shown(table: DataFrame, value: str) -> Shown:
    """The rows to draw in figures of cells; runs that are not done have no value to draw."""
    done = finished(table)["run"]
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
    good = runs[runs["run"].isin(done) & runs[value].notna()]
    if len(good) == 0:
        raise InputError(f"no run has a finite `{value}` to draw; see the column in the table.")
    num_seeds = int(runs["seed"].nunique())
    cells = runs.groupby(cell, sort=False).groups
    counts = good.groupby(cell)["seed"].nunique().reindex(list(cells), fill_value=0)
    short = [
        f"{name} {plain_name(problem)} {int(budget):,}: {count} of {num_seeds} seeds"
        for (problem, name, budget), count in counts.items()
        if count < num_seeds
    ]
    if len(short) > MOST_CELLS:
        short[MOST_CELLS:] = [f"and {len(short) - MOST_CELLS} more cells with fewer seeds"]
    rows = table[table["run"].isin(good["run"])]
    rows = rows.assign(series=rows["run"].map(good.set_index("run")["series"]))
    kept = {name: one for name, one in looks.values() if name in set(good["series"])}
    return Shown(rows, kept, ["; ".join(short)] if short else [], num_seeds)


def name_cell(row: Any) -> str:
    """The method, the problem and the budget of a row, for titles."""
    method, problem = plain_name(Series(row["method"]).name), plain_name(row["problem"])
    return f"{method} on {problem}, {int(row['budget']):,} simulations"


def bands_of(cells: Iterable[DataFrame]) -> dict[int, tuple[Any, Any, Any]]:
    """The bands of the verdict by number of test pairs, of cells that know it."""
    found = {}
    for rows in cells:
        if "num_pairs" in rows:
            number = round(sum(own_pairs(records(rows.drop_duplicates("run")))))
            levels = tuple(sorted(rows["level"].unique()))
            found[number] = (levels, *band(number, levels))
    return dict(sorted(found.items()))


def with_errors(rows: DataFrame, value: str, spread: Spread) -> tuple[Any, Any, Any]:
    """A metric by budget, and its ends: the spread of seeds, or of one seed 95 % by its error."""
    groups = rows.groupby("budget")
    middle, lower, upper = spread(groups[value])
    if f"{value}_error" in rows:
        half = NORMAL_95 * groups[f"{value}_error"].mean().astype(float).fillna(0)
        alone = groups[value].count() == 1
        lower, upper = lower.mask(alone, middle - half), upper.mask(alone, middle + half)
    return middle, lower, upper


def two_deviations(groups: Any) -> tuple[Any, Any, Any]:
    """The means of groups, and what is two standard deviations below and above them."""
    mean, spread = groups.mean(), 2 * groups.std().fillna(0)
    return mean, mean - spread, mean + spread


def penalized(table: DataFrame) -> DataFrame:
    """The rows of methods with a coverage penalty."""
    names = [name for name, method in METHODS.items() if method.regularizer == "coverage"]
    return table[table["method"].isin(names)]
