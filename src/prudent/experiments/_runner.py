"""Works through the runs of a sweep: retries, failures, runs that others work on; and shows it.

A worker process calls :func:`attempt`, and whatever becomes of its run is an outcome. Nothing
heavy is imported before that, so that the process that hands out the runs stays small.
"""

import os
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any, NamedTuple

from prudent._files import DISK_FULL
from prudent._locks import Busy
from prudent._progress import Progress, duration
from prudent.errors import StoreError, one_line, shortened
from prudent.experiments import store
from prudent.experiments.config import RunConfig
from prudent.experiments.cost import seconds
from prudent.experiments.engines import Engine, Stopped, WorkerDied, report

POLL_SECONDS = 0.2
HELD_SECONDS = 1.0
MOST_STRIKES = 3
TRAINING_SHARE = 0.9
MOST_DETAILS = 100_000


class Outcome(NamedTuple):
    """How a run ended: ``done``, ``failed``, ``busy`` (elsewhere) or ``full`` (the disk)."""

    state: str
    reason: str = ""


class DiskFull(StoreError):
    """There is no space for the results; nothing that was finished is lost."""


def attempt(config: RunConfig, root: Path, num_simulations: int | None = None) -> Outcome:
    """Run a config below ``root`` unless another process does; errors are stored, not raised."""

    def tell(row: dict[str, Any]) -> None:
        told: dict[str, Any] = {"stage": "diagnosing"}
        if "validation_loss" in row:
            told = {"validation_loss": row["validation_loss"]}
        report({"run": str(config), "identity": config.identity, **told})

    path = root / config.identity
    try:
        with store.claim(path, wait=False):
            try:
                from prudent.experiments.run import run_claimed

                run_claimed(config, path, tell, num_simulations)
            except Stopped:
                raise
            except BaseException as error:  # Ctrl-C is the business of the parent
                reason = one_line(error).replace(f"{root}{os.sep}", "")
                if _disk_is_full(error):
                    return Outcome("full", reason)
                details = shortened(traceback.format_exc(), MOST_DETAILS)
                store.record_failure(config, path, reason, details)
                return Outcome("failed", reason)
            return Outcome("done")
    except Busy:
        return Outcome("busy")


def _disk_is_full(error: BaseException | None) -> bool:
    seen: set[int] = set()  # an error can be its own cause
    while error is not None and id(error) not in seen:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


class Runner:
    """Hands out the runs that are not finished, until each is done or has failed.

    ``listen`` receives a row for every epoch, and one with an ``event`` when a run begins or ends;
    ``num_simulations`` is the largest budget in the sweep for each problem and seed.
    """

    def __init__(
        self,
        configs: Sequence[RunConfig],
        root: Path,
        engine: Engine,
        listen: Callable[[dict[str, Any]], None],
        timeout: float | None = None,
        num_simulations: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        self.root, self.engine, self.listen = root, engine, listen
        self.timeout, self.num_simulations = timeout, num_simulations or {}
        # Long runs first, so that none is left over at the end.
        self.waiting = deque(sorted(configs, key=seconds, reverse=True))
        self.running: dict[Future[Outcome], tuple[RunConfig, float]] = {}
        self.held: list[RunConfig] = []
        self.looked = 0.0
        self.strikes: Counter[str] = Counter()
        self.failed: dict[str, str] = {}

    def run(self) -> dict[str, str]:
        """Do the work; the reason of each run that failed, by its identity."""
        while self.waiting or self.running or self.held:
            while self.waiting and len(self.running) < self.engine.capacity:
                self._submit(self.waiting.popleft())
            if self.running:
                done, _ = wait(self.running, POLL_SECONDS, FIRST_COMPLETED)
            else:
                done = set()
                time.sleep(POLL_SECONDS)
            for row in self.engine.rows():
                self.listen(row)
            for future in done:
                self._end(self.running.pop(future)[0], future)
            self._end_late()
            if self.held and time.monotonic() - self.looked >= HELD_SECONDS:
                self._look_at_held()
        return self.failed

    def _submit(self, config: RunConfig) -> None:
        number = self.num_simulations.get((config.problem, config.seed))
        # The code of a user can change the directory of a worker.
        root = Path(os.path.abspath(self.root))
        future = self.engine.submit(attempt, config, root, number)
        self.running[future] = config, time.monotonic()
        self._tell(config, "start")

    def _end(self, config: RunConfig, future: Future[Outcome]) -> None:
        try:
            outcome = future.result()
        except WorkerDied as error:
            self._strike(config, str(error), error.deaths)
            return
        if outcome.state == "full":
            raise DiskFull(outcome.reason)
        if outcome.state == "busy":
            self.held.append(config)
        self._tell(config, outcome.state, outcome.reason)

    def _end_late(self) -> None:
        """Runs that take too long have failed."""
        for future, (config, begun) in list(self.running.items()):
            if self.timeout is not None and time.monotonic() - begun > self.timeout:
                del self.running[future]
                self.engine.abandon(future)
                self._give_up(config, f"took longer than {self.timeout:g} s (--timeout)")

    def _strike(self, config: RunConfig, how: str, deaths: int) -> None:
        """A worker died: try again, but not for ever."""
        self.strikes[config.identity] += deaths
        number = self.strikes[config.identity]
        if number < MOST_STRIKES:
            self.waiting.appendleft(config)
            self._tell(config, "retry", f"worker died ({how}), attempt {number + 1}")
        else:
            hint = ": out of memory?" if how == "signal 9" else ""
            self._give_up(config, f"worker died ({how}, {number} times){hint}")

    def _give_up(self, config: RunConfig, reason: str) -> None:
        """Record the failure of a run whose process could not."""
        path = self.root / config.identity
        with store.claim(path, wait=True):
            store.record_failure(config, path, reason)
        self._tell(config, "failed", reason)

    def _look_at_held(self) -> None:
        """Runs of other processes: finished, failed, or free because their process died."""
        self.looked = time.monotonic()
        held, self.held = self.held, []
        for one in store.states(held, self.root):
            if one.state in ("done", "failed"):
                self._tell(one.config, one.state, one.note)
            else:
                (self.held if one.state == "running" else self.waiting).append(one.config)

    def _tell(self, config: RunConfig, event: str, reason: str = "") -> None:
        if event == "failed":
            self.failed[config.identity] = reason
        row = {"run": str(config), "identity": config.identity, "event": event}
        self.listen({**row, "reason": reason} if reason else row)


class View:
    """Counts runs and epochs, and knows what is left because it knows what runs cost."""

    def __init__(self, configs: Sequence[RunConfig], finished: int, display: Progress) -> None:
        self.display = display
        self.configs = {config.identity: config for config in configs}
        self.cost = {name: max(seconds(config), 1e-3) for name, config in self.configs.items()}
        self.shares = dict.fromkeys(self.cost, 0.0)
        self.states: Counter[str] = Counter(done=finished)
        self.running: set[str] = set()
        self.total = finished + len(configs)
        self.num_epochs = 0
        self.started = time.monotonic()

    def listen(self, row: dict[str, Any]) -> None:
        """Take in what a worker told, or what became of a run."""
        identity, event = row["identity"], row.get("event")
        if event == "start":
            self.running.add(identity)
        elif event is not None:
            self.running.discard(identity)
        elif "validation_loss" in row:
            self.num_epochs += 1
            config = self.configs[identity]
            epochs = config.training.epochs * config.num_networks
            share = self.shares[identity] + TRAINING_SHARE / epochs
            self.shares[identity] = min(TRAINING_SHARE, share)
        if event in ("done", "failed"):
            self.states[event] += 1
            self.shares[identity] = 1.0
        if event in ("failed", "retry"):
            self.display.warn(f"{row['run']}: {row['reason']}")
        if not callable(self.display.report):
            self.display.show(self.fraction, self.text())
        elif event is None:
            self.display.report(row)

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
