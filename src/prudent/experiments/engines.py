"""Several runs at once, in processes of one thread each.

Two processes of one thread finish sooner than one of two, and a core that others use slows one of
them instead of both.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import torch

from prudent.errors import StoreError
from prudent.experiments import store
from prudent.experiments.config import RunConfig
from prudent.experiments.run import run
from prudent.experiments.store import Run
from prudent.progress import Progress, Reporter
from prudent.training import methods

__all__ = ["local", "run_all"]

POLL_SECONDS = 0.2
PR_SET_PDEATHSIG = 1


def local(workers: int, rows: Any = None) -> ProcessPoolExecutor:
    """Worker processes of one thread each, which end with this one.

    Args:
        workers: How many.
        rows: A queue on which workers report progress, if somebody reads it.
    """
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, _start_worker, (rows, os.getpid()))


def run_all(
    configs: Sequence[RunConfig], root: Path, workers: int = 2, progress: Reporter = None
) -> list[Run]:
    """Run what is not finished yet; all runs, in the order asked for.

    Args:
        configs: What to run; each gets a directory named by its identity.
        root: The directory of all of them.
        workers: Processes.
        progress: See :class:`prudent.progress.Progress`.
    """
    left = [config for config in configs if store.find(root / config.identity, config) is None]
    if left:
        # Long runs first, so that none is left over at the end.
        _run_in_processes(sorted(left, key=_cost, reverse=True), root, workers, progress)
    return [store.read(root / config.identity) for config in configs]


def _run_in_processes(
    configs: Sequence[RunConfig], root: Path, workers: int, progress: Reporter
) -> None:
    rows: Any = multiprocessing.get_context("spawn").SimpleQueue()
    total = sum(config.training.epochs * config.training.members for config in configs)
    others = set(multiprocessing.active_children())
    with (
        Progress(f"{len(configs)} runs", total, progress, unit="epoch") as bar,
        local(min(workers, len(configs)), rows) as pool,
    ):
        try:
            pending: set[Future[None]] = {pool.submit(_work, config, root) for config in configs}
            while pending:
                done, pending = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
                while not rows.empty():
                    row = rows.get()
                    bar.advance(row, steps=int("validation_loss" in row))
                for future in done:
                    future.result()
        except (BrokenProcessPool, BrokenPipeError) as error:
            # A worker that dies while the pool starts leaves the others waiting for work for ever.
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            raise StoreError(
                "a worker process died (out of memory?). Finished runs are kept; run the same "
                "command again."
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


_rows: Any = None


def _start_worker(rows: Any, parent: int) -> None:
    global _rows
    _rows = rows
    if sys.platform == "linux":
        # A worker whose parent was killed would go on writing beside the next attempt.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    torch.set_num_threads(1)


def _work(config: RunConfig, root: Path) -> None:
    def tell(row: dict[str, Any]) -> None:
        told: dict[str, Any] = {"stage": "diagnosing"}
        if "validation_loss" in row:
            told = {"validation_loss": row["validation_loss"]}
        _rows.put({"run": str(config), **told})

    run(config, root / config.identity, progress=tell)


def _cost(config: RunConfig) -> float:
    penalised = methods.get(config.method).regularizer == "coverage"
    training = config.training
    evaluations = training.num_samples if penalised else 2
    return config.budget * training.epochs * training.members * evaluations
