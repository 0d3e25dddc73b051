"""Sweeps: a TOML file in, the configs of its runs out, without importing anything heavy.

A list is a grid axis and a single value is fixed. Every table ``[[runs]]`` is a block: a grid of
its own that begins from the keys above it, so that, say, weights multiply only the methods that
have one.
"""

import dataclasses
import itertools
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from prudent._files import to_json, write_atomic
from prudent._settings import settings_of
from prudent._tables import FORMAT, Mistakes, read_settings
from prudent.errors import InputError, unknown_name
from prudent.experiments.config import KEYS, RunConfig, flatten, nest, tell_missing
from prudent.experiments.engines.slurm import Job
from prudent.problems import source_digest
from prudent.training.methods import METHODS
from prudent.training.options import COVERAGE_OPTIONS

MOST_RUNS = 10_000
LONGEST_RANGE = 100_000
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9_-])?")
FILE = "sweep.json"
NO_SETTINGS = ("name", "runs", "slurm", "sources")
EMPTY = "the list is empty, so there is nothing to run."


class Axis(NamedTuple):
    """The values of one setting, and the place where they are written."""

    place: str
    values: list[Any]


# By setting; every combination of the values is a run.
Block = dict[str, Axis]


@dataclass(frozen=True)
class Sweep:
    """Runs that belong together, each once and in the order of the file.

    ``num_duplicates`` counts the combinations that were the same run as an earlier one, and
    ``settings`` is what the file and the changes to it say, as JSON can hold it.
    """

    name: str
    configs: tuple[RunConfig, ...]
    num_duplicates: int
    source: str
    settings: Mapping[str, Any]
    job: Job = field(default_factory=Job)

    def write(self, root: Path) -> None:
        """Remember the sweep beside its runs, for their status."""
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make {root}: {error.strerror}.") from error
        facts = {"format": FORMAT, "name": self.name, "source": self.source, **self.settings}
        data = to_json(facts)
        if not (root / FILE).is_file() or (root / FILE).read_bytes() != data:
            write_atomic(root / FILE, data)


def read_sweep(path: Path, changes: Sequence[str] = (), max_runs: int | None = None) -> Sweep:
    """The sweep that a TOML file describes; all its mistakes are told at once.

    Changes are ``key=value`` each, where a value may be a list ``a,b`` or a range ``0..4``.
    """
    return _expand(read_settings(path), path, changes, max_runs)


def stored_sweep(root: Path, max_runs: int | None = None) -> Sweep:
    """The sweep that was last started in a directory."""
    if not (root / FILE).is_file():
        raise InputError(f"{root} does not say what its sweep was. Name its file as well.")
    settings = read_settings(root / FILE)
    source = str(settings.pop("source", FILE))
    found = _expand(settings, root / FILE, (), max_runs)
    return dataclasses.replace(found, source=source)


def _expand(
    settings: Mapping[str, Any],
    path: Path,
    changes: Sequence[str],
    max_runs: int | None,
) -> Sweep:
    name, mistakes = settings.get("name", path.stem), Mistakes(path)
    blocks = read_blocks(settings, changes, mistakes)
    mistakes.try_to("name", check_name, name)
    job = read_job(settings, mistakes)
    number = _check_size(blocks, MOST_RUNS if max_runs is None else max_runs, mistakes)
    mistakes.refuse()
    configs: dict[str, RunConfig] = {}
    sources = dict(settings.get("sources", {}))
    for block in blocks:
        for values in itertools.product(*(axis.values for axis in block.values())):
            flat: dict[str, Any] = dict(zip(block, values, strict=True))
            problem = flat["problem"]
            if ":" in problem and problem not in sources:
                sources[problem] = source_digest(problem)
            flat["source"] = sources.get(problem, "")
            config = mistakes.try_to("", RunConfig.from_flat, flat)
            if config is not None:
                configs.setdefault(config.identity, config)
    mistakes.refuse()
    runs = [nest({key: axis.values for key, axis in block.items()}) for block in blocks]
    kept = {"runs": runs, **({"sources": sources} if sources else {})}
    duplicates = number - len(configs)
    return Sweep(str(name), tuple(configs.values()), duplicates, str(path), kept, Job(**job))


def read_blocks(
    settings: Mapping[str, Any], changes: Sequence[str], mistakes: Mistakes
) -> list[Block]:
    """The blocks of a sweep file; the changes replace settings in all of them."""
    tables = settings.get("runs", [{}])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        mistakes.add("runs", "expected tables [[runs]].")
        tables = []
    elif not tables:
        mistakes.add("runs", EMPTY)
    shared = {name: value for name, value in settings.items() if name not in NO_SETTINGS}
    base = _axes(flatten(shared, mistakes), "", mistakes)
    new = _changed_axes(changes, mistakes)
    blocks = []
    for index, table in enumerate(tables):
        where = f"runs[{index}]." if "runs" in settings else ""
        own = _axes(flatten(table, mistakes, where), where, mistakes)
        blocks.append({**base, **own, **new})
        tell_missing(blocks[-1], mistakes, where)
        _tell_misplaced(blocks[-1], mistakes)
    return blocks


def _axes(flat: Mapping[str, Any], where: str, mistakes: Mistakes) -> Block:
    block: Block = {}
    for key, value in flat.items():
        place = where if where.startswith("--") else where + key
        values = {place: value}
        if isinstance(value, list):
            values = {f"{place}[{index}]": one for index, one in enumerate(value)}
        if not values:
            mistakes.add(place, EMPTY)
        check = KEYS[key].check
        block[key] = Axis(place, [mistakes.try_to(at, check, one) for at, one in values.items()])
    return block


def _changed_axes(changes: Sequence[str], mistakes: Mistakes) -> Block:
    block: Block = {}
    for change in changes:
        key, equals, text = (part.strip() for part in change.partition("="))
        place = f"--set {change[:60]}"
        if not equals:
            mistakes.add(place, "write key=value.")
        elif key not in KEYS:
            mistakes.add(place, str(unknown_name("key", key, KEYS)))
        else:
            block |= _axes({key: mistakes.try_to(place, _value, text)}, place, mistakes)
    return block


def _value(text: str) -> Any:
    """The value of a text of the command line: a range, a list, or a value as in TOML."""
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


def _tell_misplaced(block: Block, mistakes: Mistakes) -> None:
    """Tell settings of a regularizer that would multiply, or not suit, methods without one."""
    names = [str(name).lower() for name in block["method"].values] if "method" in block else []
    kinds = {name: METHODS[name].regularizer for name in names if name in METHODS}
    plain = [name for name, kind in kinds.items() if kind is None]
    uncovered = [name for name, kind in kinds.items() if kind != "coverage"]
    for key, (place, values) in block.items():
        lacking, what = [], ""
        if key == "training.weight":
            lacking, what = plain, "regularizer"
        elif key.removeprefix("training.") in COVERAGE_OPTIONS and len(values) > 1:
            lacking, what = uncovered, "coverage penalty"
        if lacking:
            mistakes.add(
                place,
                f"no {what} in {', '.join(lacking)}. Put the methods that have one in a [[runs]] "
                f"table with `{key}`.",
            )


def _check_size(blocks: Sequence[Block], limit: int, mistakes: Mistakes) -> int:
    """The number of combinations; too many are a mistake, before any of them is made."""
    sizes = [{key: len(axis.values) for key, axis in block.items()} for block in blocks]
    number = sum(math.prod(size.values()) for size in sizes)
    if number > limit:
        longest, _ = max((item for size in sizes for item in size.items()), key=lambda i: i[1])
        grids = [[f"{n:,}" for n in size.values() if n != 1] for size in sizes[:8]]
        told = " + ".join(" × ".join(grid) or "1" for grid in grids)
        mistakes.add(
            "",
            f"this grid has {number:,} runs ({told}). The limit is {limit:,}. Shorten "
            f"`{longest}`, or pass --max-runs {number}.",
        )
    return number


def read_job(settings: Mapping[str, Any], mistakes: Mistakes) -> dict[str, Any]:
    """The settings of the table ``[slurm]``, for :class:`Job`."""
    known = {f"slurm.{name}": one for name, one in settings_of(Job).items()}
    flat = flatten({"slurm": settings.get("slurm", {})}, mistakes, known=known)
    for key, value in flat.items():
        mistakes.try_to(key, known[key].check, value)
    return {known[key].name: value for key, value in flat.items()}


def check_name(name: object) -> None:
    """Refuse names that could be taken for paths, options or nothing.

    >>> check_name("smoke-1")
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        nearest = re.sub(r"[^A-Za-z0-9]+", "-", str(name)).strip("-")[:64] or "sweep"
        raise InputError(
            f"{str(name)[:80]!r} is not a name: up to 64 letters, digits, dots, dashes and "
            f"underscores, such as {nearest}."
        )
