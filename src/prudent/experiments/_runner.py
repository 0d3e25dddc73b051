"""Works through the runs of a sweep: retries, failures, and runs that others work on."""

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any

from prudent.errors import StoreError
from prudent.experiments import store
from prudent.experiments._worker import Outcome, attempt
from prudent.experiments.config import RunConfig
from prudent.experiments.cost import seconds
from prudent.experiments.engines import Engine, WorkerDied

POLL_SECONDS = 0.2
HELD_SECONDS = 1.0
MOST_STRIKES = 3

Listener = Callable[[dict[str, Any]], None]


class DiskFull(StoreError):
    """There is no space for the results; nothing that was finished is lost."""


class Runner:
    """Hands out the runs that are not finished, until each is done or has failed.

    Args:
        configs: The runs.
        root: The directory of all of them.
        engine: Where they are worked on.
        listen: Receives a row for every epoch, and one with an ``event`` when a run begins or
            ends.
        timeout: Seconds after which a run has failed.
        num_simulations: For each problem and seed, the largest budget in the sweep.
    """

    def __init__(
        self,
        configs: Sequence[RunConfig],
        root: Path,
        engine: Engine,
        listen: Listener,
        timeout: float | None = None,
        num_simulations: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        self.root, self.engine, self.listen = root, engine, listen
        self.timeout = timeout
        self.num_simulations = num_simulations or {}
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
            self._look_at_held()
        return self.failed

    def _submit(self, config: RunConfig) -> None:
        number = self.num_simulations.get((config.problem, config.seed))
        future = self.engine.submit(attempt, config, self.root, number)
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
        if outcome.state == "failed":
            self._fail(config, outcome.reason)
            return
        if outcome.state == "busy":
            self.held.append(config)
        self._tell(config, outcome.state)

    def _end_late(self) -> None:
        """Runs that take too long have failed."""
        if self.timeout is None:
            return
        now = time.monotonic()
        late = [f for f, (_, begun) in self.running.items() if now - begun > self.timeout]
        for future in late:
            config, _ = self.running.pop(future)
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
        with store.claim(path, wait=True):
            store.record_failure(config, path, reason)
        self._fail(config, reason)

    def _fail(self, config: RunConfig, reason: str) -> None:
        self.failed[config.identity] = reason
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
            if store.holder(path) is not None:
                self.held.append(config)
            elif store.is_finished(path):
                self._tell(config, "done")
            elif (reason := store.failure(path)) is not None:
                self._fail(config, reason)
            else:
                self.waiting.append(config)

    def _tell(self, config: RunConfig, event: str, reason: str = "") -> None:
        row = {"run": str(config), "identity": config.identity, "event": event}
        self.listen({**row, "reason": reason} if reason else row)
