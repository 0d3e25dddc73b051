"""How a sweep goes: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Self

from prudent._progress import LOG_SECONDS, Reporter, tqdm
from prudent.experiments.config import RunConfig
from prudent.experiments.cost import seconds

__all__ = ["View", "duration"]

TRAINING_SHARE = 0.9
logger = logging.getLogger("prudent")


def duration(value: float) -> str:
    """A time for people, in at most two units.

    >>> duration(42.0), duration(4200.0), duration(500000.0)
    ('42 s', '1 h 10 min', '5 d 18 h')
    """
    whole = round(value)
    if whole < 120:
        return f"{whole} s"
    if whole < 3600:
        return f"{round(whole / 60)} min"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


class View:
    """Counts runs and epochs, and knows what is left because it knows what runs cost.

    Args:
        title: What is going on.
        configs: The runs that are not finished.
        finished: How many were finished before.
        report: See :class:`prudent._progress.Progress`.
    """

    def __init__(
        self, title: str, configs: Sequence[RunConfig], finished: int, report: Reporter = None
    ) -> None:
        self.title, self.report = title, report
        self.cost = {config.identity: max(seconds(config), 1e-3) for config in configs}
        self.epochs = {
            config.identity: config.training.epochs * config.training.members for config in configs
        }
        self.progress = dict.fromkeys(self.cost, 0.0)
        self.states: Counter[str] = Counter(done=finished)
        self.running: set[str] = set()
        self.total = finished + len(configs)
        self.num_epochs = 0
        self.started = self.logged = time.monotonic()
        automatic = report is None or report is True
        terminal = sys.stderr.isatty()
        columns, lines = shutil.get_terminal_size()
        self.bar = tqdm(
            total=1.0,
            desc=title,
            disable=not automatic or not (terminal or report is True),
            bar_format="{l_bar}{bar}| {postfix}",
            ncols=columns,
            nrows=lines,
        )
        self.logs = report is None and not terminal

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def listen(self, row: dict[str, Any]) -> None:
        """Take in what a worker told, or what became of a run."""
        identity, event = row["identity"], row.get("event")
        if event is not None:
            self._event(identity, event, row)
        elif "validation_loss" in row:
            self.num_epochs += 1
            share = TRAINING_SHARE / self.epochs[identity]
            self.progress[identity] = min(TRAINING_SHARE, self.progress[identity] + share)
        if callable(self.report):
            if event is None:
                self.report(row)
            return
        self.bar.n = self.fraction
        self.bar.set_postfix_str(self.text(), refresh=False)
        self.bar.update(0)
        if self.logs and time.monotonic() - self.logged >= LOG_SECONDS:
            self.logged = time.monotonic()
            logger.info("%s %s", self.title, self.text())

    def _event(self, identity: str, event: str, row: dict[str, Any]) -> None:
        if event == "start":
            self.running.add(identity)
        else:
            self.running.discard(identity)
        if event in ("done", "failed"):
            self.states[event] += 1
            self.progress[identity] = 1.0
        if event in ("failed", "retry") and not callable(self.report) and self.report is not False:
            with self.bar.external_write_mode():
                logger.warning("%s: %s", row["run"], row["reason"])

    @property
    def fraction(self) -> float:
        """The share of the expected time that is done."""
        done = sum(self.cost[name] * share for name, share in self.progress.items())
        return done / sum(self.cost.values())

    def seconds_left(self) -> float | None:
        """From the pace so far; None before there is any."""
        elapsed, done = time.monotonic() - self.started, self.fraction
        return None if done <= 0 else elapsed * (1 - done) / done

    def text(self) -> str:
        """Counts, rate and time left."""
        counts = self.states
        rate = self.num_epochs / max(time.monotonic() - self.started, 1e-9)
        left = self.seconds_left()
        told = "" if left is None else f", about {duration(left)} left"
        return (
            f"{counts['done']}/{self.total} done, {len(self.running)} running, "
            f"{counts['failed']} failed, {rate:.2g} epoch/s{told}"
        )
