"""How a sweep goes: counts, pace and time left."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from prudent._progress import Progress, duration
from prudent.experiments.config import RunConfig
from prudent.experiments.cost import seconds

TRAINING_SHARE = 0.9


class View:
    """Counts runs and epochs, and knows what is left because it knows what runs cost."""

    def __init__(self, configs: Sequence[RunConfig], finished: int, display: Progress) -> None:
        self.display = display
        self.cost = {config.identity: max(seconds(config), 1e-3) for config in configs}
        self.epochs = {
            config.identity: config.training.epochs * config.training.members for config in configs
        }
        self.shares = dict.fromkeys(self.cost, 0.0)
        self.states: Counter[str] = Counter(done=finished)
        self.running: set[str] = set()
        self.total = finished + len(configs)
        self.num_epochs = 0
        self.started = time.monotonic()

    def listen(self, row: dict[str, Any]) -> None:
        """Take in what a worker told, or what became of a run."""
        identity, event = row["identity"], row.get("event")
        if event is not None:
            self._event(identity, event, row)
        elif "validation_loss" in row:
            self.num_epochs += 1
            share = self.shares[identity] + TRAINING_SHARE / self.epochs[identity]
            self.shares[identity] = min(TRAINING_SHARE, share)
        if not callable(self.display.report):
            self.display.show(self.fraction, self.text())
        elif event is None:
            self.display.report(row)

    def _event(self, identity: str, event: str, row: dict[str, Any]) -> None:
        if event == "start":
            self.running.add(identity)
        else:
            self.running.discard(identity)
        if event in ("done", "failed"):
            self.states[event] += 1
            self.shares[identity] = 1.0
        if event in ("failed", "retry"):
            self.display.warn(f"{row['run']}: {row['reason']}")

    @property
    def fraction(self) -> float:
        """The share of the expected time that is done."""
        done = sum(self.cost[name] * share for name, share in self.shares.items())
        return done / sum(self.cost.values())

    def seconds_left(self) -> float | None:
        """The time left at the pace so far; None before there is any."""
        elapsed, done = time.monotonic() - self.started, self.fraction
        return None if done <= 0 else elapsed * (1 - done) / done

    def text(self) -> str:
        """Counts, rate and time left."""
        rate = self.num_epochs / max(time.monotonic() - self.started, 1e-9)
        left = self.seconds_left()
        told = "" if left is None else f", about {duration(left, about=True)} left"
        return (
            f"{self.states['done']}/{self.total} done, {len(self.running)} running, "
            f"{self.states['failed']} failed, {rate:.2g} epoch/s{told}"
        )
