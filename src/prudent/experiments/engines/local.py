"""Processes on this machine, one pool per worker.

A pool one of whose processes dies is broken: of several processes in one pool all would lose their
runs, and nobody could tell which run was to blame.

Two processes of one thread finish sooner than one of two, and a core that others use slows one of
them instead of both.
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from prudent.experiments.engines.contract import Engine, WorkerDied, prepare

PR_SET_PDEATHSIG = 1


def local(workers: int, rows: Any = None) -> ProcessPoolExecutor:
    """Worker processes of one thread each, which end with this one.

    They report progress on the queue ``rows``, if somebody reads it.
    """
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, _start_worker, (rows, os.getpid()))


class Local(Engine):
    """Processes on this machine; one that dies is replaced, and the others do not notice."""

    def __init__(self, workers: int) -> None:
        self._slots = [_Slot() for _ in range(workers)]

    @property
    def capacity(self) -> int:
        """The number of processes."""
        return len(self._slots)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Begin a call on an idle worker, of which there must be one."""
        idle = (slot for slot in self._slots if slot.future is None or slot.future.done())
        return next(idle).submit(function, *arguments)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Rows of progress that workers sent since the last call."""
        for rows in (slot.rows for slot in self._slots if slot.rows is not None):
            while not rows.empty():
                yield rows.get()

    def abandon(self, future: Future[Any]) -> None:
        """End the worker of one call; the next call gets a new one."""
        for slot in self._slots:
            if slot.future is future:
                slot.close(kill=True)

    def close(self, *, kill: bool = False) -> None:
        """End the workers, which have nothing to do unless they are to be killed."""
        for slot in self._slots:
            slot.close(kill=kill)


class _Slot:
    """A pool of one process, made anew when that process died."""

    def __init__(self) -> None:
        self.future: Future[Any] | None = None
        self.rows: Any = None
        self._pool: ProcessPoolExecutor | None = None
        self._process: Any = None

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        self.future = outer = Future[Any]()
        try:
            inner = self._begin(function, *arguments)
        except (BrokenProcessPool, BrokenPipeError):
            # It died at the start, or while it had nothing to do.
            reason = self._exit_reason()
            self.close(kill=True)
            outer.set_exception(WorkerDied(reason))
            return outer
        inner.add_done_callback(lambda future: self._finish(future, outer))
        return outer

    def _begin(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        if self._pool is not None:
            return self._pool.submit(function, *arguments)
        # A queue of its own: a worker killed in the middle of a message would block the others.
        self.rows = multiprocessing.get_context("spawn").SimpleQueue()
        self._pool = local(1, self.rows)
        others = set(multiprocessing.active_children())
        with _interrupts_blocked():
            try:
                return self._pool.submit(function, *arguments)
            finally:
                self._process = next(iter(set(multiprocessing.active_children()) - others), None)

    def _finish(self, inner: Future[Any], outer: Future[Any]) -> None:
        if inner.cancelled():
            outer.cancel()
        elif isinstance(error := inner.exception(), BrokenProcessPool):
            self._pool = None
            outer.set_exception(WorkerDied(self._exit_reason()))
        elif error is not None:
            outer.set_exception(error)
        else:
            outer.set_result(inner.result())

    def _exit_reason(self) -> str:
        if self._process is not None:
            self._process.join(1.0)
        code = getattr(self._process, "exitcode", None)
        if code is None:
            return "no exit code"
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def close(self, *, kill: bool = False) -> None:
        pool, self._pool = self._pool, None
        if kill and self._process is not None:
            self._process.kill()
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=kill)  # soon, if nobody works there


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """A process started inside does not see Ctrl-C before it can ignore it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(rows: Any, parent: int) -> None:
    if sys.platform == "linux":
        # A worker whose parent was killed would go on writing beside the next attempt.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    os.dup2(2, 1)  # what a simulator prints is not a result
    prepare(None if rows is None else rows.put)
