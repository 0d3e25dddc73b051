"""Figures of one run: its coverage, its rank tests, a posterior of it and its training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prudent import _corner as corners
from prudent import _plots as plots
from prudent.errors import InputError
from prudent.history import PANELS, History
from prudent.reports.cells import Series
from prudent.reports.figures._rows import bands_of, finished, name_cell

if TYPE_CHECKING:
    from pandas import DataFrame

DEMO = "Make some with: prudent demo"
THOROUGH = "Run with `thorough = true`, for instance: prudent sweep FILE --set thorough=true"


def rows_of(
    table: DataFrame, run: str | None, what: str, remedy: str = THOROUGH
) -> tuple[DataFrame, Series, str]:
    """The rows of a run, given by the beginning of its identity, its look, and its title."""
    if len(table) == 0:
        raise InputError(f"no {what} to draw. {remedy}")
    first = table["run"].iloc[0]
    found = [first] if run is None else {name for name in table["run"] if name.startswith(run)}
    if len(found) != 1:
        raise InputError(
            f"{len(found)} runs with {what} begin with `{run}`; expected one of "
            f"{' '.join(table['run'].unique()[:5])} ..."
        )
    rows = table[table["run"].isin(found)]
    row = rows.iloc[0]
    title = f"{name_cell(row)}, seed {int(row['seed'])} ({row['run']})"
    return rows, Series(row["method"]), title


def run_coverage(curves: DataFrame, *, run: str | None = None, ax: Axes | None = None) -> Figure:
    """The coverage of one run with the band of its verdict."""
    rows, look, title = rows_of(finished(curves), run, "coverage curves", DEMO)
    figure, axis = plots.one_axis(ax)
    bands = bands_of([rows])
    plots.coverage_panel(axis, bands)
    axis.plot(rows["level"], rows["coverage"], markevery=0.06, **look.line)
    return plots.dress(figure, title, [plots.verdict_note(bands)], ax=ax)


def sbc(ranks: DataFrame, *, run: str | None = None) -> Figure:
    """The difference of the ranks of the truth from uniform ones, one panel per parameter."""
    rows, look, title = rows_of(ranks[ranks["test"] == "sbc"], run, "SBC ranks")
    groups = list(rows.groupby("parameter", sort=False))
    figure, axes = plots.panels(len(groups), sharey=True)
    for axis, (name, own) in zip(axes, groups, strict=True):
        plots.rank_curve(axis, "sbc", own, color=look.color)
        axis.set_title(f"{plots.plain_name(name, 20)}, p = {own['p_value'].iloc[0]:.2g}")
        axis.yaxis.label.set_visible(axis.get_subplotspec().is_first_col())
    return plots.dress(figure, f"SBC: {title}", [f"Grey: {plots.EXACT}"])


def tarp(ranks: DataFrame, *, run: str | None = None, ax: Axes | None = None) -> Figure:
    """Coverage of balls around random points, which sees defects in all parameters together."""
    rows, look, title = rows_of(ranks[ranks["test"] == "tarp"], run, "TARP coverage")
    figure, axis = plots.one_axis(ax)
    plots.rank_curve(axis, "tarp", rows, color=look.color)
    title = f"TARP, p = {rows['p_value'].iloc[0]:.2g}: {title}"
    return plots.dress(figure, title, [f"Grey band: {plots.EXACT}"], ax=ax)


def history(history: DataFrame, *, run: str | None = None) -> Figure:
    """Losses, terms of the penalty and learning rate of one run, a line per member."""
    rows, _, title = rows_of(history, run, "training curves", DEMO)
    return plots.training_curves(History(rows.to_dict("records")), PANELS, title)


def corner(draws: DataFrame, *, run: str | None = None) -> Figure:
    """Posterior draws for one observation, with the truth and the exact posterior if known."""
    rows, look, title = rows_of(draws, run, "posterior draws")
    names = list(rows["parameter"].unique())
    tables = {
        kind: part.pivot(index="draw", columns="parameter", values="value")[names].to_numpy()
        for kind, part in rows.groupby("kind")
    }
    posterior, exact, truth = (tables.get(kind) for kind in ("posterior", "exact", "truth"))
    assert posterior is not None
    bounds = tables.get("bounds")
    return corners.corner(
        posterior,
        names,
        title,
        label=f"{plots.plain_name(look.name)} posterior",
        color=look.color,
        truth=None if truth is None else truth[0],
        exact=exact,
        bounds=None if bounds is None else bounds.T,
    )
