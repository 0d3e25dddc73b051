"""Progress of long work: a bar on a terminal or in a notebook, log lines elsewhere."""

from __future__ import annotations

import logging
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Self

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # a notebook without widgets gets a plain bar
    from tqdm.auto import tqdm

__all__ = ["Progress", "Reporter", "tqdm"]

Reporter = bool | None | Callable[[dict[str, Any]], None]

LOG_SECONDS = 30.0
logger = logging.getLogger("prudent")


class Progress:
    """Counts steps of a task and shows the figures that matter.

    Args:
        title: What is going on.
        total: The number of steps.
        report: None for automatic, True or False to force a bar on or off, or a function that
            receives each row of figures.
        unit: What a step is.
        done: Steps that were done before.
    """

    def __init__(
        self, title: str, total: int, report: Reporter = None, unit: str = "it", done: int = 0
    ) -> None:
        self.title, self.total, self.report = title, total, report
        self.done = done
        self.logged = time.monotonic()
        hidden: bool | None = not report if isinstance(report, bool) else None
        if callable(report):
            hidden = True
        self.logs = report is None and not sys.stderr.isatty()
        # Some terminals do not tell their size; tqdm alone would then show nothing.
        columns, lines = shutil.get_terminal_size()
        self.bar = tqdm(
            total=total,
            initial=done,
            desc=title,
            unit=unit,
            disable=hidden,
            ncols=columns,
            nrows=lines,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def advance(self, row: Mapping[str, Any], steps: int = 1) -> None:
        """Count steps and show a row of figures."""
        self.done += steps
        if callable(self.report):
            self.report(dict(row))
            return
        figures = {key: _short(value) for key, value in row.items()}
        self.bar.set_postfix(figures, refresh=False)
        self.bar.update(steps)
        if self.logs and time.monotonic() - self.logged >= LOG_SECONDS:
            self.logged = time.monotonic()
            text = ", ".join(f"{key} {value}" for key, value in figures.items())
            logger.info("%s: %d of %d, %s", self.title, self.done, self.total, text)


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
