"""Processes on this machine, each at the other end of a pipe of its own.

A worker that is killed in the middle of a message disturbs nobody else. Pools and queues of the
standard library would do that too, but share named semaphores, which stay in memory for ever when
all processes are killed at once; a pipe ends with them.

Two processes of one thread finish sooner than one of two, and a core that others use slows one of
them instead of both. On Linux they are forked from one process that has imported torch, which is
seconds of a processor for each, and that has not computed anything, so that it has no threads.
"""

import contextlib
import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from prudent.errors import StoreError, one_line
from prudent.experiments.engines.contract import Engine, WorkerDied, prepare

START = "forkserver" if sys.platform == "linux" else "spawn"
PRELOADED = ["prudent.experiments.run", "tqdm", "zarr"]
# How long a process may take to end after its pipe has.
END_SECONDS = 10.0


class Local(Engine):
    """Processes on this machine; one that dies is replaced, and the others do not notice.

    Calls beyond the number of workers wait for the first that is free.
    """

    def __init__(self, workers: int) -> None:
        self._workers = [_Worker(self) for _ in range(workers)]
        self.told: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.waiting: deque[tuple[Future[Any], Any]] = deque()
        self.lock = threading.RLock()  # who hands out calls, and who notices that one ended

    @property
    def capacity(self) -> int:
        """The number of processes."""
        return len(self._workers)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Begin a call, or let it wait for a worker."""
        future: Future[Any] = Future()
        with self.lock:
            self.waiting.append((future, (function, arguments)))
            for worker in self._workers:
                # Not where a death is noticed: a process ends with the thread that began it.
                if self.waiting and worker.future is None:
                    worker.begin()
        return future

    def rows(self) -> Iterator[dict[str, Any]]:
        """Rows of progress that workers sent since the last call."""
        while not self.told.empty():
            yield self.told.get()

    def abandon(self, future: Future[Any]) -> None:
        """End the worker of one call; the next call gets a new one."""
        for worker in self._workers:
            if worker.future is future:
                worker.close(kill=True)

    def close(self, *, kill: bool = False) -> None:
        """End the workers, which have nothing to do unless they are to be killed."""
        with self.lock:
            while self.waiting:
                self.waiting.popleft()[0].cancel()
        for worker in self._workers:
            worker.close(kill=kill)

    def next_call(self) -> tuple[Future[Any] | None, Any]:
        """The first call that waits and that nobody took back."""
        while self.waiting:
            future, call = self.waiting.popleft()
            if future.set_running_or_notify_cancel():
                return future, call
        return None, None

    def give_up(self, reason: str) -> None:
        """End the calls that wait, if nobody is left to take them."""
        while not any(worker.future for worker in self._workers):
            future, _ = self.next_call()
            if future is None:
                return
            future.set_exception(WorkerDied(reason))


class _Worker:
    """A process, made anew when the one before died, and the thread that listens to it."""

    def __init__(self, engine: Local) -> None:
        self.engine = engine
        self.future: Future[Any] | None = None
        self._process: Any = None
        self._pipe: Any = None
        self._alive: Any = None  # to be held open
        self._listener: threading.Thread | None = None

    def begin(self) -> None:
        """Take the first call that waits, with a new process if there is none."""
        if self._listener is None:
            context: Any = multiprocessing.get_context(START)
            context.set_forkserver_preload(PRELOADED)
            self._pipe, theirs = context.Pipe()
            alive, self._alive = context.Pipe(duplex=False)
            arguments = theirs, alive, dict(os.environ)
            self._process = context.Process(target=_serve, args=arguments)
            # It, or what it is forked from, may die at the start.
            with _interrupts_blocked(), contextlib.suppress(OSError, EOFError):
                self._process.start()
            theirs.close()
            alive.close()
            self._listener = threading.Thread(target=self._listen, daemon=True)
            self._listener.start()
        self._take()

    def _take(self) -> None:
        """Hand a call that waits to the process; if that is dead, the listener will notice."""
        self.future, call = self.engine.next_call()
        if self.future is not None:
            with contextlib.suppress(OSError):
                self._pipe.send(call)

    def _listen(self) -> None:
        """Pass on what the process tells, until it ends."""
        while True:
            try:
                kind, value = self._pipe.recv()
            except (EOFError, OSError):
                break
            except Exception as error:  # of a kind that cannot be made here
                kind, value = "error", StoreError(one_line(error))
            if kind == "row":
                self.engine.told.put(value)
                continue
            with self.engine.lock:  # first, so that who sees the result finds an idle worker
                future = self.future
                self._take()
            if future is not None:
                future.set_result(value) if kind == "result" else future.set_exception(value)
        reason = self._exit_reason()
        with self.engine.lock:
            future, self.future, self._listener = self.future, None, None
            self._pipe.close()
            self.engine.give_up(reason)
        if future is not None:
            future.set_exception(WorkerDied(reason))

    def _exit_reason(self) -> str:
        with contextlib.suppress(AssertionError):  # it was never started
            self._process.join(END_SECONDS)
        code = self._process.exitcode
        if code is None:
            return "no exit code"
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def close(self, *, kill: bool = False) -> None:
        """End the process: now, or at the end of its call."""
        listener = self._listener
        if listener is None:
            return
        with contextlib.suppress(OSError, AttributeError):
            self._process.kill() if kill else self._pipe.send(None)
        listener.join()


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


def _serve(pipe: Any, alive: Any, environment: dict[str, str]) -> None:
    """The work of a process: calls come through the pipe, rows and results go back."""
    if sys.platform == "linux":
        _end_with(alive)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    os.dup2(2, 1)  # what a simulator prints is not a result
    prepare(lambda row: pipe.send(("row", row)))
    with contextlib.suppress(EOFError, OSError):  # nobody is there any more
        while (call := pipe.recv()) is not None:
            function, arguments = call
            try:
                answer = "result", function(*arguments)
            except BaseException as error:
                answer = "error", error
            try:
                pipe.send(answer)
            except OSError:
                raise
            except Exception as error:  # it cannot be pickled
                pipe.send(("error", StoreError(one_line(error))))


def _end_with(alive: Any) -> None:
    """Let the system kill this process when the one that holds the other end of a pipe is gone.

    Whatever it does at that time, it would go on writing beside the next attempt.
    """
    import fcntl

    fcntl.fcntl(alive, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(alive, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(alive, fcntl.F_SETFL, os.O_ASYNC)
    if alive.poll():
        os._exit(1)
