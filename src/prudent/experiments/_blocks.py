"""The blocks of a sweep file, each a grid of runs, and everything that can be wrong with them."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from prudent.errors import InputError, unknown_name
from prudent.experiments.config import KEYS, flatten, tell_missing
from prudent.experiments.settings import Mistakes
from prudent.training.methods import METHODS
from prudent.training.options import COVERAGE_OPTIONS

# The values of each setting; every combination of them is a run.
Block = dict[str, list[Any]]

NO_SETTINGS = ("name", "runs", "slurm", "sources")
LONGEST_RANGE = 100_000
EMPTY = "the list is empty, so there is nothing to run."


def read_blocks(
    settings: Mapping[str, Any], changes: Sequence[str], mistakes: Mistakes
) -> list[Block]:
    """The blocks of a sweep file.

    Args:
        settings: Plain keys, a table ``training``, and maybe tables ``runs``, each of which is a
            block that begins from the rest.
        changes: ``key=value`` each, which replace settings everywhere.
        mistakes: Where mistakes are told.
    """
    tables = settings.get("runs", [{}])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        mistakes.add("runs", "expected tables [[runs]].")
        tables = []
    elif not tables:
        mistakes.add("runs", EMPTY)
    places: dict[str, str] = {}
    shared = {name: value for name, value in settings.items() if name not in NO_SETTINGS}
    base = _read(flatten(shared, mistakes), "", places, mistakes)
    new = _read_changes(changes, places, mistakes)
    blocks = []
    for index, table in enumerate(tables):
        where = f"runs[{index}]." if "runs" in settings else ""
        inner = dict(places)
        own = _read(flatten(table, mistakes, where), where, inner, mistakes)
        blocks.append({**base, **own, **new})
        tell_missing(blocks[-1], mistakes, where)
        _tell_misplaced(blocks[-1], {**inner, **{key: places[key] for key in new}}, mistakes)
    return blocks


def _read(
    flat: Mapping[str, Any], where: str, places: dict[str, str], mistakes: Mistakes
) -> Block:
    """The values of settings as lists; where each was written goes to ``places``."""
    block: Block = {}
    for key, value in flat.items():
        place = places[key] = where if where.startswith("--") else where + key
        block[key] = value if isinstance(value, list) else [value]
        if not block[key]:
            mistakes.add(place, EMPTY)
        for index, one in enumerate(block[key]):
            inner = f"{place}[{index}]" if isinstance(value, list) else place
            mistakes.try_to(inner, KEYS[key].check, one)
    return block


def _read_changes(changes: Sequence[str], places: dict[str, str], mistakes: Mistakes) -> Block:
    block: Block = {}
    for change in changes:
        key, equals, text = (part.strip() for part in change.partition("="))
        place = f"--set {change[:60]}"
        if not equals:
            mistakes.add(place, "write key=value.")
        elif key not in KEYS:
            mistakes.add(place, str(unknown_name("key", key, KEYS)))
        else:
            value = mistakes.try_to(place, _value, text)
            block |= _read({key: value}, place, places, mistakes)
    return block


def _value(text: str) -> Any:
    """What a text of the command line stands for: a range, a list, or a value as in TOML."""
    if match := re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", text):
        first, last = int(match[1]), int(match[2])
        if last - first >= LONGEST_RANGE:
            raise InputError(f"the range {text} is too long.")
        return list(range(first, last + 1))
    if "," in text and not text.startswith(("[", '"', "'")):
        return [_value(part.strip()) for part in text.split(",")]
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _tell_misplaced(block: Block, places: Mapping[str, str], mistakes: Mistakes) -> None:
    """Tell settings of a regularizer that would multiply, or not suit, methods without one."""
    names = (str(name).lower() for name in block.get("method", []))
    rows = {name: METHODS[name] for name in names if name in METHODS}
    plain = [name for name, row in rows.items() if row.regularizer is None]
    uncovered = [name for name, row in rows.items() if row.regularizer != "coverage"]
    penalty = [f"training.{name}" for name in COVERAGE_OPTIONS]
    for key, values in block.items():
        lacking, what = [], ""
        if key == "training.weight" or (key == "training.warmup_epochs" and len(values) > 1):
            lacking, what = plain, "regularizer"
        elif key in penalty and len(values) > 1:
            lacking, what = uncovered, "coverage penalty"
        if lacking:
            mistakes.add(
                places[key],
                f"no {what} in {', '.join(lacking)}. Put the methods that have one in a [[runs]] "
                f"table with `{key}`.",
            )
