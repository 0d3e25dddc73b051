"""Runs of a simulator that has changed since they were made."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from prudent.errors import InputError
from prudent.experiments.config import RunConfig
from prudent.experiments.settings import read_settings

__all__ = ["outdated", "refuse", "set_aside"]

TRASH = ".trash"

logger = logging.getLogger("prudent")


def outdated(configs: Iterable[RunConfig], root: Path) -> list[Path]:
    """Finished runs of the same problems whose source was another.

    Args:
        configs: What is to be run.
        root: The directory of all runs.
    """
    sources = {config.problem: config.source for config in configs if config.source}
    if not sources:
        return []
    found = []
    for file in sorted(root.glob("*/config.json")):
        try:
            settings = read_settings(file)
        except InputError:
            continue  # other commands say what is wrong with it
        source = sources.get(str(settings.get("problem")))
        if source is not None and settings.get("source", "") != source:
            found.append(file.parent)
    return found


def refuse(runs: list[Path], root: Path) -> None:
    """Refuse to mix results of two simulators."""
    if runs:
        raise InputError(
            f"{root} has {len(runs)} runs of a simulator whose file has changed since. Choose "
            f"another output with -o, or pass --force to run again and move these to "
            f"{root / TRASH}. Nothing was changed."
        )


def set_aside(runs: list[Path], root: Path) -> None:
    """Move runs out of the way."""
    if not runs:
        return
    trash = root / TRASH
    trash.mkdir(exist_ok=True)
    for path in runs:
        os.rename(path, trash / path.name)
    logger.warning("moved %d runs of the simulator as it was to %s.", len(runs), trash)
