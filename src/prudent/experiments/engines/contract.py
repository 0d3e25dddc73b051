"""The contract between a sweep, its engine and the engine's workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future
from typing import Any, Protocol, Self

from prudent.errors import StoreError

Tell = Callable[[dict[str, Any]], None]
_tell: Tell | None = None


class WorkerDied(StoreError, BrokenExecutor):
    """The process of a call ended without a result, such as by ``signal 9``.

    ``deaths`` counts the processes that ended this way before the engine gave the call up.
    """

    def __init__(self, how: str, deaths: int = 1) -> None:
        super().__init__(how)
        self.deaths = deaths


class Stopped(BaseException):
    """Nobody waits for this call any more; what it did is kept in checkpoints."""


class Engine(Protocol):
    """Workers for calls, opened and closed by a ``with`` statement."""

    @property
    def capacity(self) -> int:
        """The number of calls that can run at once."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Begin a call; its error can be :class:`WorkerDied`."""

    def rows(self) -> Iterator[dict[str, Any]]:
        """Rows of progress that workers sent since the last call."""

    def abandon(self, future: Future[Any]) -> None:
        """End the process of one call, whose result nobody waits for any more."""

    def close(self, *, kill: bool = False) -> None:
        """Free what the engine used; ``kill`` ends all work now, to continue from checkpoints."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close(kill=error is not None)


def prepare(tell: Tell | None) -> None:
    """Make a worker process ready for work on one thread, whose progress goes to ``tell``."""
    global _tell
    _tell = tell
    import torch
    from tqdm import tqdm

    torch.set_num_threads(1)
    # Its own lock is a named semaphore, which a worker that is killed would leave to the system.
    tqdm.set_lock(threading.RLock())


def report(row: dict[str, Any]) -> None:
    """Tell the progress of the work in this process to whoever wanted to know."""
    if _tell is not None:
        _tell(row)
