"""Runs that differ in one setting and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prudent.errors import InputError
from prudent.reports.figures.cells import CELL, settings_of
from prudent.training.methods import METHODS

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["no_variation", "regularizer", "widest"]


def regularizer(method: str) -> str | None:
    """The term that a method adds to its loss, if any."""
    return METHODS[method].regularizer if method in METHODS else None


def widest(runs: DataFrame, setting: str) -> DataFrame:
    """Of the groups of runs that differ in a setting and seeds alone, the one with most values.

    Args:
        runs: One row per run.
        setting: A column; the method's own weight takes the place of none.
    """
    if len(runs) == 0:
        return runs
    settings = settings_of(runs)
    values = settings[setting].astype(float)
    keys = settings.drop(columns=setting).join(runs[CELL].astype(str)).agg(tuple, axis=1)
    best = max(keys.unique(), key=lambda key: (values[keys == key].nunique(), (keys == key).sum()))
    return runs.assign(**{setting: values})[keys == best]


def no_variation(figure: str, setting: str, sweep: str) -> InputError:
    """The error for a scan that was not run."""
    return InputError(
        f"the figure `{figure}` needs finished runs that differ in `{setting}`, and there are "
        f"none. Make some with: prudent sweep {sweep}"
    )
