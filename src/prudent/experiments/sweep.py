"""Sweeps: a TOML file in, the configs of its runs out, without importing anything heavy.

A list is a grid axis and a single value is fixed. Every table ``[[runs]]`` is a grid of its own
that begins from the keys above it, so that, say, weights multiply only the methods that have one.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prudent._files import to_json, write_atomic
from prudent.errors import InputError, unknown_name
from prudent.experiments.config import RunConfig
from prudent.experiments.engines.slurm import Job
from prudent.experiments.grid import RUN_KEYS, TRAINING_KEYS, Grid, grids
from prudent.experiments.settings import FORMAT, read_settings, read_text
from prudent.problems.source import source_digest

__all__ = [
    "MOST_RUNS",
    "Sweep",
    "check_directory",
    "check_name",
    "expand",
    "read_sweep",
    "stored_sweep",
]

MOST_RUNS = 10_000
MOST_SHOWN = 10
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9_-])?")
FILE = "sweep.json"


@dataclass(frozen=True)
class Sweep:
    """Runs that belong together.

    Args:
        name: Of the sweep; letters, digits, dots, dashes and underscores.
        configs: The runs, in the order of the file, each once.
        num_duplicates: Combinations that were the same run as an earlier one.
        source: The file it came from.
        settings: What the file and the changes to it say, as JSON can hold it.
        job: One Slurm job, if it comes to that.
    """

    name: str
    configs: tuple[RunConfig, ...]
    num_duplicates: int
    source: str
    settings: Mapping[str, Any]
    job: Job = field(default_factory=Job)

    def write(self, root: Path) -> None:
        """Remember the sweep beside its runs, for their status."""
        facts = {"format": FORMAT, "name": self.name, "source": self.source, **self.settings}
        data = to_json(facts)
        if not (root / FILE).is_file() or (root / FILE).read_bytes() != data:
            write_atomic(root / FILE, data)


def check_directory(root: Path) -> None:
    """Refuse a directory that a newer version wrote to."""
    if (root / FILE).is_file():
        read_settings(root / FILE)


def read_sweep(path: Path, changes: Sequence[str] = (), max_runs: int | None = None) -> Sweep:
    """The sweep that a file describes; all its mistakes are told at once.

    Args:
        path: A TOML file.
        changes: ``key=value`` each; a value may be a list ``a,b`` or a range ``0..4``.
        max_runs: The most runs that are wanted; 10,000 if it is not said.
    """
    return expand(read_settings(path), path, changes, max_runs)


def stored_sweep(root: Path, max_runs: int | None = None) -> Sweep:
    """The sweep that was last started in a directory."""
    if not (root / FILE).is_file():
        raise InputError(f"{root} does not say what its sweep was. Name its file as well.")
    settings = read_settings(root / FILE)
    source = str(settings.pop("source", FILE))
    return expand(settings, root / FILE, (), max_runs, source=source)


def expand(
    settings: Mapping[str, Any],
    path: Path,
    changes: Sequence[str] = (),
    max_runs: int | None = None,
    source: str | None = None,
) -> Sweep:
    """All runs of a sweep.

    Args:
        settings: What the file says.
        path: The file, for messages.
        changes: See :func:`read_sweep`.
        max_runs: See :func:`read_sweep`.
        source: The file it came from, if that is another one.
    """
    name = settings.get("name", path.stem)
    found, wrong = grids(settings)
    try:
        check_name(name)
    except InputError as error:
        wrong.append(f"name: {error}")
    try:
        job = _job(settings)
    except InputError as error:
        wrong.append(str(error))
    if not wrong:
        found = _change(found, changes)
        _check_size(found, path, MOST_RUNS if max_runs is None else max_runs)
        wrong = list(itertools.islice(_all_problems(found), 100 * MOST_SHOWN))
    if wrong:
        raise _refusal(path, wrong)
    configs: dict[str, RunConfig] = {}
    total = 0
    sources = dict(settings.get("sources", {}))
    for grid in found:
        for values in itertools.product(*grid.axes.values()):
            config = RunConfig.from_settings(_nested(zip(grid.axes, values, strict=True)))
            if ":" in config.problem:
                if config.problem not in sources:
                    sources[config.problem] = source_digest(config.problem)
                config = dataclasses.replace(config, source=sources[config.problem])
            configs.setdefault(config.identity, config)
            total += 1
    kept: dict[str, Any] = {"runs": [_nested(grid.axes.items()) for grid in found]}
    if sources:
        kept["sources"] = sources
    duplicates = total - len(configs)
    return Sweep(str(name), tuple(configs.values()), duplicates, source or str(path), kept, job)


def _job(settings: Mapping[str, Any]) -> Job:
    table = settings.get("slurm", {})
    if not isinstance(table, dict):
        raise InputError("slurm: expected a table of settings.")
    return Job.of(table)


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


def _all_problems(found: Sequence[Grid]) -> Iterable[str]:
    """Each problem once: a wrong shared key is wrong in every grid."""
    seen: set[str] = set()
    for grid in found:
        for problem in grid.problems():
            plain = problem.removeprefix(grid.where)
            if plain not in seen:
                seen.add(plain)
                yield problem


def _check_size(found: Sequence[Grid], path: Path, limit: int) -> None:
    """The number of runs, before any of them is made."""
    number, longest = 0, ("", 0)
    for grid in found:
        product = 1
        for name, values in grid.axes.items():
            product *= len(values)
            longest = max(longest, (name, len(values)), key=lambda item: item[1])
        number += product
    if number > limit:
        sizes = " + ".join(" × ".join(f"{n:,}" for n in grid.sizes) or "1" for grid in found[:8])
        raise InputError(
            f"{path}: this grid has {number:,} runs ({sizes}). The limit is {limit:,}. Shorten "
            f"`{longest[0]}`, or pass --max-runs {number}."
        )


def _change(found: Sequence[Grid], changes: Sequence[str]) -> list[Grid]:
    """The grids with some settings replaced everywhere."""
    new: dict[str, Any] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        key = key.strip()
        names = {*RUN_KEYS, *(f"training.{name}" for name in TRAINING_KEYS)}
        if not equals:
            raise InputError(f"--set {change}: write key=value.")
        if key not in names:
            raise unknown_name("key", key, names)
        new[key] = _value(text.strip())
    if not new:
        return list(found)
    axes = {key: value if isinstance(value, list) else [value] for key, value in new.items()}
    return [Grid(grid.where, {**grid.axes, **axes}, grid.lists) for grid in found]


def _value(text: str) -> Any:
    if match := re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", text):
        first, last = int(match[1]), int(match[2])
        if last - first >= 10 * MOST_RUNS:
            raise InputError(f"--set: the range {text} is too long.")
        return list(range(first, last + 1))
    if "," in text and not text.startswith(("[", '"', "'")):
        return [_value(part.strip()) for part in text.split(",")]
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _nested(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name.startswith("training."):
            result.setdefault("training", {})[name.removeprefix("training.")] = value
        else:
            result[name] = value
    return result


def _refusal(path: Path, wrong: Sequence[str]) -> InputError:
    """All problems in one error, each with its place in the file."""
    placed = [f"{path}{_line(path, problem)}: {problem}" for problem in wrong[:MOST_SHOWN]]
    if len(wrong) == 1:
        return InputError(placed[0])
    more = f"\n  and {len(wrong) - MOST_SHOWN} more" if len(wrong) > MOST_SHOWN else ""
    return InputError(f"{len(wrong)} problems:\n  " + "\n  ".join(placed) + more)


def _line(path: Path, problem: str) -> str:
    """``:line:column`` of the key that a problem names, if it occurs once in the file."""
    key = re.sub(r"\[\d+\]", "", problem.split(":", 1)[0]).rsplit(".", 1)[-1]
    try:
        text = read_text(path)
    except InputError:
        return ""
    found = list(re.finditer(rf"(?<![\w-]){re.escape(key)}[\"']?[ \t]*=", text))
    if len(found) != 1:
        return ""
    start = found[0].start()
    line = text.count("\n", 0, start) + 1
    return f":{line}:{start - text.rfind(chr(10), 0, start)}"
