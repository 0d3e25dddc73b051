"""Works through the runs of a sweep: retries, failures, and runs that others work on."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prudent._progress import Reporter
from prudent.errors import StoreError
from prudent.experiments import store
from prudent.experiments.attempt import Outcome, failure, record_failure
from prudent.experiments.config import RunConfig
from prudent.experiments.cost import seconds
from prudent.experiments.engines import Engine, Local, WorkerDied
from prudent.experiments.engines.worker import work
from prudent.experiments.locks import claim, holder
from prudent.experiments.store import Run
from prudent.experiments.view import View

__all__ = ["DiskFull", "Summary", "run_all", "run_configs"]

POLL_SECONDS = 0.2
HELD_SECONDS = 1.0
MOST_STRIKES = 3

Listener = Callable[[dict[str, Any]], None]


class DiskFull(StoreError):
    """There is no space for the results; nothing that was finished is lost."""


@dataclass
class Summary:
    """What became of the runs.

    Args:
        done: Finished by this process.
        elsewhere: Finished by another process meanwhile.
        failed: For the identity of each run that failed, the reason.
    """

    done: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def run_configs(
    configs: Sequence[RunConfig],
    root: Path,
    engine: Engine,
    listen: Listener,
    timeout: float | None = None,
) -> Summary:
    """Work through runs that are not finished.

    Args:
        configs: The runs.
        root: The directory of all of them.
        engine: Where they are worked on.
        listen: Receives a row for every epoch, and one with an ``event`` when a run begins or
            ends.
        timeout: Seconds after which a run has failed.
    """
    # Long runs first, so that none is left over at the end.
    longest_first = sorted(configs, key=seconds, reverse=True)
    return _Runner(longest_first, root, engine, listen, timeout).work()


class _Runner:
    def __init__(
        self,
        configs: Sequence[RunConfig],
        root: Path,
        engine: Engine,
        listen: Listener,
        timeout: float | None,
    ) -> None:
        self.root, self.engine, self.listen = root, engine, listen
        self.timeout = timeout
        self.waiting = deque(configs)
        self.running: dict[Future[Outcome], RunConfig] = {}
        self.begun: dict[Future[Outcome], float] = {}
        self.held: list[RunConfig] = []
        self.looked = 0.0
        self.strikes: Counter[str] = Counter()
        self.summary = Summary()

    def work(self) -> Summary:
        while self.waiting or self.running or self.held:
            while self.waiting and len(self.running) < self.engine.capacity:
                config = self.waiting.popleft()
                future = self.engine.submit(work, config, self.root)
                self.running[future], self.begun[future] = config, time.monotonic()
                self._tell(config, "start")
            if self.running:
                done, _ = wait(self.running, POLL_SECONDS, FIRST_COMPLETED)
            else:
                done = set()
                time.sleep(POLL_SECONDS)
            for row in self.engine.rows():
                self.listen(row)
            for future in done:
                self._end(self.running.pop(future), future)
            self._end_late()
            self._look_at_held()
        return self.summary

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
            self._tell(config, "busy")
        elif outcome.state == "failed":
            self._fail(config, outcome.reason)
        else:
            self.summary.done.append(config.identity)
            self._tell(config, "done")

    def _end_late(self) -> None:
        """Runs that take too long have failed."""
        if self.timeout is None:
            return
        now = time.monotonic()
        for future in [f for f in self.running if now - self.begun[f] > self.timeout]:
            config = self.running.pop(future)
            self.engine.abandon(future)
            self._give_up(config, f"took longer than {self.timeout:g} s (--timeout)")

    def _strike(self, config: RunConfig, how: str, deaths: int) -> None:
        """A worker died: try again, but not for ever."""
        self.strikes[config.identity] += deaths
        number = self.strikes[config.identity]
        if number < MOST_STRIKES:
            self.waiting.appendleft(config)
            self._tell(config, "retry", f"worker died ({how}), attempt {number + 1}")
            return
        hint = ": out of memory?" if how == "signal 9" else ""
        self._give_up(config, f"worker died ({how}, {number} times){hint}")

    def _give_up(self, config: RunConfig, reason: str) -> None:
        """Record the failure of a run whose process could not."""
        path = self.root / config.identity
        with claim(path, wait=True):
            record_failure(config, path, reason)
        self._fail(config, reason)

    def _fail(self, config: RunConfig, reason: str) -> None:
        self.summary.failed[config.identity] = reason
        self._tell(config, "failed", reason)

    def _look_at_held(self) -> None:
        """Runs of other processes: finished, failed, or free because their process died."""
        now = time.monotonic()
        if not self.held or now - self.looked < HELD_SECONDS:
            return
        self.looked = now
        held, self.held = self.held, []
        for config in held:
            path = self.root / config.identity
            if holder(path) is not None:
                self.held.append(config)
            elif store.finished(path):
                self.summary.elsewhere.append(config.identity)
                self._tell(config, "done")
            elif (reason := failure(path)) is not None:
                self._fail(config, reason)
            else:
                self.waiting.append(config)

    def _tell(self, config: RunConfig, event: str, reason: str = "") -> None:
        row = {"run": str(config), "identity": config.identity, "event": event}
        self.listen({**row, "reason": reason} if reason else row)


def run_all(
    configs: Sequence[RunConfig], root: Path, workers: int = 2, progress: Reporter = None
) -> list[Run]:
    """Run what is not finished yet; all runs, in the order asked for.

    Args:
        configs: What to run; each gets a directory named by its identity.
        root: The directory of all of them.
        workers: Processes.
        progress: See :class:`prudent._progress.Progress`.
    """
    left = [config for config in configs if store.find(root / config.identity, config) is None]
    if left:
        with (
            View(f"{len(left)} runs", left, len(configs) - len(left), progress) as view,
            Local(min(workers, len(left))) as engine,
        ):
            failed = run_configs(left, root, engine, view.listen).failed
        if failed:
            identity, reason = next(iter(failed.items()))
            raise StoreError(
                f"{len(failed)} of {len(configs)} runs failed, the first with: {reason} Details: "
                f"{store.work(root / identity) / 'error.txt'}. Finished runs are kept."
            )
    return [store.read(root / config.identity) for config in configs]
