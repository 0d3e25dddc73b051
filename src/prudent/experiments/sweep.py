"""Sweeps: a TOML file in, the configs of its runs out, without importing anything heavy.

A list is a grid axis and a single value is fixed. Every table ``[[runs]]`` is a grid of its own
that begins from the keys above it, so that, say, weights multiply only the methods that have one.
"""

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prudent._files import to_json, write_atomic
from prudent._settings import settings_of
from prudent.errors import InputError
from prudent.experiments._blocks import Block, read_blocks
from prudent.experiments.config import RunConfig, flatten, nest
from prudent.experiments.engines.slurm import Job
from prudent.experiments.settings import FORMAT, Mistakes, read_settings
from prudent.problems import source_digest

MOST_RUNS = 10_000
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9_-])?")
FILE = "sweep.json"


@dataclass(frozen=True)
class Sweep:
    """Runs that belong together.

    Args:
        name: The name of the sweep; letters, digits, dots, dashes and underscores.
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
    return _expand(read_settings(path), path, changes, max_runs)


def stored_sweep(root: Path, max_runs: int | None = None) -> Sweep:
    """The sweep that was last started in a directory."""
    if not (root / FILE).is_file():
        raise InputError(f"{root} does not say what its sweep was. Name its file as well.")
    settings = read_settings(root / FILE)
    source = str(settings.pop("source", FILE))
    # Runs of an older version have identities of their own.
    version = int(json.loads((root / FILE).read_bytes()).get("format", FORMAT))
    found = _expand(settings, root / FILE, (), max_runs, version)
    return dataclasses.replace(found, source=source)


def _expand(
    settings: Mapping[str, Any],
    path: Path,
    changes: Sequence[str],
    max_runs: int | None,
    version: int = FORMAT,
) -> Sweep:
    name, mistakes = settings.get("name", path.stem), Mistakes(path)
    blocks = read_blocks(settings, changes, mistakes)
    mistakes.try_to("name", check_name, name)
    job = read_job(settings, mistakes)
    _check_size(blocks, MOST_RUNS if max_runs is None else max_runs, mistakes)
    mistakes.refuse()
    configs: dict[str, RunConfig] = {}
    sources = dict(settings.get("sources", {}))
    for block in blocks:
        for values in itertools.product(*block.values()):
            flat: dict[str, Any] = dict(zip(block, values, strict=True))
            problem = flat["problem"]
            if ":" in problem and problem not in sources:
                sources[problem] = source_digest(problem)
            flat |= {"source": sources.get(problem, ""), "format": version}
            config = mistakes.try_to("", RunConfig.from_flat, flat)
            if config is not None:
                configs.setdefault(config.identity, config)
    mistakes.refuse()
    kept: dict[str, Any] = {"runs": [nest(block) for block in blocks]}
    if sources:
        kept["sources"] = sources
    return Sweep(
        name=str(name),
        configs=tuple(configs.values()),
        num_duplicates=sum(map(_size, blocks)) - len(configs),
        source=str(path),
        settings=kept,
        job=Job(**job),
    )


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


def _size(block: Block) -> int:
    return math.prod(map(len, block.values()))


def _check_size(blocks: Sequence[Block], limit: int, mistakes: Mistakes) -> None:
    """Tell that there are too many runs, before any of them is made."""
    number = sum(map(_size, blocks))
    if number > limit:
        axes = [item for block in blocks for item in block.items()]
        longest, _ = max(axes, key=lambda item: len(item[1]))
        sizes = [[len(v) for v in block.values() if len(v) != 1] for block in blocks[:8]]
        told = " + ".join(" × ".join(f"{n:,}" for n in size) or "1" for size in sizes)
        mistakes.add(
            "",
            f"this grid has {number:,} runs ({told}). The limit is {limit:,}. Shorten "
            f"`{longest}`, or pass --max-runs {number}.",
        )
