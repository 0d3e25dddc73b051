"""Dask workers: on this machine, at the address of a scheduler, or started by Slurm.

Dask knows the workers, sends them calls, and repeats the calls of workers that died. Everything
that must survive is on disk, which all workers share: a run that is begun again continues from its
checkpoint, and one that was finished before its result was lost is only read.

Runs draw from torch's global generator, so a worker does one at a time, whatever its threads.
"""

import contextlib
import functools
import logging
import os
import queue
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prudent._extras import require
from prudent.errors import InputError, StoreError
from prudent.experiments.engines.contract import Engine, Stopped, WorkerDied, prepare
from prudent.version import __version__

TOPIC = "prudent"
ADDRESS = re.compile(r"(tcp|tls|ucx|ucxx|ws|wss)://[\w.:\[\]-]+:\d{1,5}")
# Deaths before Dask gives a call up, as many as the runner allows on local processes.
MOST_DEATHS = 3
CONNECT_SECONDS = 8
COUNT_SECONDS = 2.0
CLOSE_SECONDS = 3
LOST = "the Dask scheduler is lost. Nothing is lost on disk; run the same command again."

logger = logging.getLogger("prudent")
_alone = threading.Lock()


class Dask(Engine):
    """Calls on the workers of a Dask scheduler, perhaps of a cluster of its own.

    Args:
        client: The client of the scheduler.
        cluster: A cluster that ends with the engine.
        scratch: A directory that ends with it, too.
        workers: The number of workers that the cluster is to have at any time, 0 if others see to
            that. Dask gives up a worker that dies while it starts, or is slow to start again.
    """

    def __init__(
        self, client: Any, cluster: Any = None, scratch: Path | None = None, workers: int = 0
    ) -> None:
        self._client, self._cluster, self._scratch = client, cluster, scratch
        self._workers = workers
        self._told: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._futures: dict[Future[Any], Any] = {}
        self._counted = (0.0, 1)
        client.register_plugin(_plugin(sys.path[0], os.getcwd()), name=TOPIC)
        client.subscribe_topic(TOPIC, lambda event: self._told.put(event[1]))

    @property
    def capacity(self) -> int:
        """The number of workers now, at least one: the first may still be on its way."""
        return max(1, self._count())

    def _count(self) -> int:
        """The number of workers, at most some seconds ago; those that are missing are started."""
        now = time.monotonic()
        if now - self._counted[0] > COUNT_SECONDS:
            with _lost():
                self._counted = (now, len(self._client.nthreads()))
            if self._counted[1] < self._workers:
                self._cluster.scale(self._workers)
        return self._counted[1]

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Begin a call; a path among its arguments means the same directory on all machines."""
        with _lost():
            inner = self._client.submit(_one_at_a_time, function, *arguments, pure=False)
        outer: Future[Any] = Future()
        self._futures[outer] = inner
        inner.add_done_callback(functools.partial(self._finish, outer))
        return outer

    def _finish(self, outer: Future[Any], inner: Any) -> None:
        self._futures.pop(outer, None)
        if not outer.set_running_or_notify_cancel():
            return
        try:
            outer.set_result(inner.result())
        except CancelledError:
            outer.set_exception(StoreError(LOST))
        except Exception as error:
            died = type(error).__name__ == "KilledWorker"
            outer.set_exception(WorkerDied("on Dask workers", MOST_DEATHS) if died else error)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Rows of progress that workers sent since the last call."""
        if self._workers:  # calls may wait for a worker that is lost
            self._count()
        while not self._told.empty():
            yield self._told.get()

    def abandon(self, future: Future[Any]) -> None:
        """Restart the worker of one call."""
        inner = self._futures.pop(future, None)
        if inner is None:
            return
        busy = [name for name, keys in self._client.processing().items() if inner.key in keys]
        self._client.cancel([inner], force=True)
        self._client.restart_workers(busy, raise_for_error=False)

    def _stop(self) -> None:
        """Take all calls back; workers end theirs at the next epoch."""
        with contextlib.suppress(Exception):  # the scheduler may be what failed
            self._client.cancel(list(self._futures.values()), force=True)

    def close(self, *, kill: bool = False) -> None:
        """Close the client, and the cluster and its directory if they are ours."""
        nannies = list(getattr(self._cluster, "workers", {}).values())
        # On this machine; a nanny that gives up waiting forgets which process it was.
        processes = [getattr(nanny, "process", None) for nanny in nannies]
        if kill:
            self._stop()
            for nanny in nannies:
                nanny.auto_restart = False
            _kill(processes)
        for one in (self._cluster, self._client):
            with contextlib.suppress(Exception):
                if one is not None:
                    one.close(timeout=CLOSE_SECONDS)
        _kill(processes)  # those that would stay as long as this process, such as one just started
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


def _kill(processes: list[Any]) -> None:
    """Kill the processes of workers that are alive."""
    for process in processes:
        if pid := getattr(process, "pid", None):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def connect(address: str) -> Dask:
    """Use the workers of a running scheduler; certificates come from Dask's own configuration."""
    if not ADDRESS.fullmatch(address):
        raise InputError(f"{address!r} is not an address, such as tcp://10.0.0.1:8786.")
    distributed = _quiet_distributed()
    try:
        client = distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"no Dask scheduler answers at {address}: {error}. Start one with `dask scheduler`, "
            "or leave --address out to use this machine."
        ) from error
    engine = Dask(client)
    _compare_versions(client)
    return engine


def local_cluster(workers: int, scratch: Path) -> Dask:
    """Start a scheduler and workers of one thread here."""
    return own_cluster(
        _quiet_distributed().LocalCluster,
        scratch,
        "scheduler_kwargs",
        n_workers=workers,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        silence_logs=logging.CRITICAL,
        local_directory=str(scratch),
        keep=workers,
    )


def own_cluster(
    kind: Any, scratch: Path, scheduler: str, *, keep: int = 0, **arguments: Any
) -> Dask:
    """Start a cluster that nobody else can use.

    ``kind`` is its class, ``scheduler`` the name of the argument that goes to its scheduler, and
    ``keep`` the number of workers of :class:`Dask`.
    """
    distributed = _quiet_distributed()
    import dask

    # No web pages, and as many deaths of workers as with other engines.
    settings = {
        "distributed.scheduler.allowed-failures": MOST_DEATHS - 1,
        "distributed.scheduler.http.routes": [],
        "distributed.worker.http.routes": [],
    }
    arguments[scheduler] = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    # Without TLS every user of this machine could send code to the workers.
    security = distributed.Security.temporary()
    with dask.config.set(settings):
        cluster = kind(protocol="tls://", security=security, **arguments)
        client = distributed.Client(cluster, set_as_default=False)
        return Dask(client, cluster, scratch, keep)


def _quiet_distributed() -> Any:
    """Dask without its logs: lost workers and schedulers become errors of our own."""
    distributed = require("distributed", "dask", "the engine dask")
    for name in ("distributed", "distributed.scheduler", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return distributed


@contextlib.contextmanager
def _lost() -> Iterator[None]:
    """Trouble with the connection in our words."""
    try:
        yield
    except Exception as error:
        known = isinstance(error, OSError | CancelledError)
        if known or type(error).__name__ == "ClosedClientError":
            raise StoreError(LOST) from error
        raise


def _compare_versions(client: Any) -> None:
    """Warn about workers with another torch, which has other last bits."""
    ours = _versions()
    found = client.run(_versions, on_error="ignore").values()
    if others := " and ".join(sorted({str(one) for one in found if one != ours})):
        logger.warning(
            f"the workers have {others}, this machine has {ours}: metrics may differ in their "
            "last bits."
        )


def _versions() -> dict[str, str]:
    return {"prudent": __version__, "torch": version("torch")}


def _one_at_a_time(function: Callable[..., Any], *arguments: Any) -> Any:
    with _alone:
        return function(*arguments)


def _plugin(*places: str) -> Any:
    """Prepares every worker, also those that come later."""
    from distributed import WorkerPlugin

    class Preparation(WorkerPlugin):
        """Gives workers the modules of the user, one thread and a way to report progress."""

        def setup(self, worker: Any) -> None:
            """Prepares a worker for runs."""
            sys.path += [p for p in places if os.path.isdir(p) and p not in sys.path]
            prepare(functools.partial(_tell, worker))

    return Preparation()


def _tell(worker: Any, row: dict[str, Any]) -> None:
    """Send a row to the client, or end a call that was taken back."""
    task = worker.state.tasks.get(worker.get_current_task())
    if task is None or task.state == "cancelled":
        raise Stopped
    worker.log_event(TOPIC, row)
