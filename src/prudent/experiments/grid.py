"""A grid of runs as a table of lists, and everything that can be wrong with it."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prudent.errors import InputError
from prudent.experiments.config import RunConfig
from prudent.training import methods
from prudent.training.options import COVERAGE_OPTIONS, Options

__all__ = ["Grid", "grids"]

NO_KEYS = ("training", "source")  # a table of its own, and what nobody writes by hand
RUN_KEYS = {f.name: f.default for f in dataclasses.fields(RunConfig) if f.name not in NO_KEYS}
TRAINING_KEYS = {"preset": None, **Options().to_dict()}
NOT_GRID = ("name", "runs", "slurm", "sources")
NEEDED = ("problem", "method", "budget")
VALID: dict[str, Any] = {
    "problem": "gaussian",
    "method": "nre",
    "budget": 2,
    "training": Options(),
}


@dataclass(frozen=True)
class Grid:
    """One block of a sweep: every combination of its values is a run.

    Args:
        where: How messages name the block, such as ``runs[1].``; empty for the file itself.
        axes: For every setting its values; those of the training begin with ``training.``.
        lists: The settings that were written as lists.
    """

    where: str
    axes: Mapping[str, list[Any]]
    lists: frozenset[str] = field(default=frozenset())

    @property
    def sizes(self) -> list[int]:
        """The number of values of each setting that has not one."""
        return [len(values) for values in self.axes.values() if len(values) != 1]

    def problems(self) -> Iterable[str]:
        """What is wrong, each with its place."""
        for name in NEEDED:
            if name not in self.axes:
                yield f"{self.where}{name}: missing; every run needs {', '.join(NEEDED)}."
        for name, values in self.axes.items():
            if not values:
                yield f"{self.where}{name}: the list is empty, so there is nothing to run."
            for index, value in enumerate(values):
                if reason := _wrong(name, value):
                    place = f"[{index}]" if name in self.lists else ""
                    yield f"{self.where}{name}{place}: {reason}"
        yield from self._misplaced()

    def _misplaced(self) -> Iterable[str]:
        """Settings of a regulariser that would multiply, or not suit, methods without one."""
        known = [methods.METHODS.get(str(name)) for name in self.axes.get("method", [])]
        named = dict(zip(self.axes.get("method", []), known, strict=True))
        plain = [name for name, row in named.items() if row and row.regularizer is None]
        uncovered = [name for name, row in named.items() if row and row.regularizer != "coverage"]
        for name, values in self.axes.items():
            short, several = name.removeprefix("training."), len(values) > 1
            lacking: list[Any] = []
            if short == "weight" or (short == "warmup_epochs" and several):
                lacking, what = plain, "regulariser"
            elif name.startswith("training.") and short in COVERAGE_OPTIONS and several:
                lacking, what = uncovered, "coverage penalty"
            if lacking:
                yield (
                    f"{self.where}{name}: no {what} in {', '.join(lacking)}. Put the methods that "
                    f"have one in a [[runs]] table with `{name}`."
                )


def grids(settings: Mapping[str, Any]) -> tuple[list[Grid], list[str]]:
    """The grids of a sweep file, and what is wrong with its keys.

    Args:
        settings: Plain keys, a table ``training``, and maybe tables ``runs``, each of which is a
            grid that begins from the rest.
    """
    problems: list[str] = []
    shared = {name: value for name, value in settings.items() if name not in NOT_GRID}
    base = _axes(shared, "", problems)
    blocks = settings.get("runs", [{}])
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        return [], [*problems, "runs: expected tables [[runs]]."]
    if not blocks:
        return [], [*problems, "runs: the list is empty, so there is nothing to run."]
    found = []
    for index, block in enumerate(blocks):
        where = f"runs[{index}]." if "runs" in settings else ""
        own = {**base, **_axes(block, where, problems)}
        axes = {key: value if isinstance(value, list) else [value] for key, value in own.items()}
        lists = frozenset(key for key, value in own.items() if isinstance(value, list))
        found.append(Grid(where, axes, lists))
    return found, problems


def _axes(table: Mapping[str, Any], where: str, problems: list[str]) -> dict[str, Any]:
    """Known settings in one level; the others become problems."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if key == "training" and isinstance(value, dict):
            for name in value:
                if name not in TRAINING_KEYS:
                    problems.append(where + _unknown(f"training.{name}", name, TRAINING_KEYS))
            known = {k: v for k, v in value.items() if k in TRAINING_KEYS}
            flat |= {f"training.{name}": inner for name, inner in known.items()}
        elif key == "training":
            problems.append(f"{where}training: expected a table of settings, got {_shown(value)}.")
        elif key in RUN_KEYS:
            flat[key] = value
        elif key in TRAINING_KEYS:
            problems.append(f"{where}{key}: belongs in the table [training].")
        else:
            problems.append(where + _unknown(key, key, RUN_KEYS))
    return flat


def _unknown(path: str, name: str, known: Mapping[str, Any]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    guess = ""
    if nearest:
        default = known[nearest[0]]
        told = "" if default in (None, dataclasses.MISSING) else f" (default {default})"
        guess = f" Did you mean `{nearest[0]}`{told}?"
    return f"{path[:60]}: unknown key.{guess} Known: {' '.join(known)}."


def _wrong(name: str, value: Any) -> str | None:
    """Why a value cannot be used, if so."""
    text = isinstance(value, str)
    flag = name == "thorough" and isinstance(value, bool)
    if not text and not flag and (not isinstance(value, int | float) or isinstance(value, bool)):
        return f"{_shown(value)} is neither text nor a number."
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} is not finite."
    short = name.removeprefix("training.")
    default = (TRAINING_KEYS if name != short else RUN_KEYS)[short]
    whole = short in ("budget", "patience") or type(default) is int
    if whole and isinstance(value, float):
        hint = f"; write {int(value)}" if value.is_integer() else ""
        return f"{value} is not a whole number{hint}."
    if short in ("problem", "method", "device", "preset") and not text:
        return f"{_shown(value)} is not text."
    try:
        if short == "preset":
            Options.of(preset=str(value))
        elif name != short:
            Options.of(**{short: value})
        else:
            RunConfig(**{**VALID, short: value})
    except InputError as error:
        return str(error)
    return None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
