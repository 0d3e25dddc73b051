"""Where runs are worked on: processes of this machine, Dask workers, or Slurm jobs.

An engine is anything with ``submit(function, *arguments) -> Future``; :class:`Engine` says what
else a sweep needs of it. Adding one is a module here and a line in :func:`open_engine`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from prudent.errors import StoreError

if TYPE_CHECKING:
    from prudent.experiments.engines.slurm import Job

ENGINES = ("local", "dask", "slurm")

Tell = Callable[[dict[str, Any]], None]
_tell: Tell | None = None


class WorkerDied(StoreError):
    """The process of a call ended without a result, such as by ``signal 9``.

    ``deaths`` counts the processes that ended this way before the engine gave the call up.
    """

    def __init__(self, how: str, deaths: int = 1) -> None:
        super().__init__(how)
        self.deaths = deaths


class Engine(Protocol):
    """Where calls are worked on, inside a ``with`` statement."""

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


def open_engine(
    name: str, workers: int, scratch: Path, *, address: str | None = None, job: Job | None = None
) -> Engine:
    """Open one of ``ENGINES`` with so many processes, to be used in a ``with`` statement.

    The directory ``scratch`` is shared by all machines. A Dask scheduler that runs at an
    ``address``, such as ``tls://10.0.0.1:8786``, has workers of its own, which are used instead.
    """
    assert name in ENGINES
    # Imported only now, because they need this module themselves.
    from prudent.experiments.engines import dask, local, slurm

    if name == "local":
        return local.Local(workers)
    if name == "dask":
        return dask.connect(address) if address else dask.local_cluster(workers, scratch)
    return slurm.slurm_cluster(job or slurm.Job(), workers, scratch)


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
