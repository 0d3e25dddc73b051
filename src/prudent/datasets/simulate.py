"""Fill a store with simulations: in chunks, in any process, in any order, with the same bytes.

The random numbers of a chunk depend on the seed, the problem's name and the chunk's index alone;
chunk ``i`` holds what ``problem.draw(rows, seed, f"chunk {i}")`` returns. A killed run goes on
where it stopped.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, as_completed
from pathlib import Path
from typing import Any, Protocol

from prudent import problems
from prudent._locks import hold
from prudent._progress import Progress, Reporter
from prudent.datasets import layout
from prudent.datasets.chunk import Outcome, simulate_chunk
from prudent.datasets.encoding import import_zarr
from prudent.datasets.store import Store, check_free, remove_partial
from prudent.errors import DataError, InputError, StoreError
from prudent.problems.problem import Problem

__all__ = ["default_chunk_size", "simulate"]

CHUNK_BYTES = 4 * 2**20
MIN_ROWS = 64
NUM_CHUNKS = 32
WARN_INVALID = 0.5
logger = logging.getLogger("prudent")


class Submits(Protocol):
    """An executor, as far as it is needed here."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Begin a call."""


def simulate(
    problem: str | Problem,
    num_simulations: int,
    path: str | os.PathLike[str],
    *,
    seed: int = 0,
    chunk_size: int | None = None,
    executor: Submits | None = None,
    progress: Reporter = None,
) -> Store:
    """Simulate pairs into a store, or finish one that was begun with the same arguments.

    Args:
        problem: A registered name or ``module:attribute``; without an executor also a problem.
        num_simulations: How many pairs.
        path: The directory of the store.
        seed: The same seed gives the same bytes, whatever the executor.
        chunk_size: Simulations per task, which is what a killed worker loses.
        executor: Where to run the tasks; in this process by default.
        progress: See :class:`prudent._progress.Progress`.

    Returns:
        The store, complete. Simulations that failed are marked and counted, not left out.
    """
    if executor is not None and isinstance(problem, Problem):
        raise InputError(
            "an executor needs the problem by name, as registered or `module:attribute`, "
            "to make it in other processes; or leave `executor` out."
        )
    known, path = _resolve(problem), Path(os.path.abspath(path))
    begun = (path / "zarr.json").exists()
    chunk_size = Store.open(path).chunk_size if begun and chunk_size is None else chunk_size
    rows = default_chunk_size(known, num_simulations) if chunk_size is None else chunk_size
    wanted = layout.attributes(known, num_simulations, seed, rows)
    import_zarr()
    # All that can be refused is refused before anything is written, the lock included.
    _refuse_other(Store.open(path), wanted) if begun else check_free(path, but="zarr.json")
    with hold(path / ".lock", wait=True):
        remove_partial(path)
        if not (path / "zarr.json").exists():
            Store.create(path, known, num_simulations, seed, rows)
        store = Store.open(path)
        _refuse_other(store, wanted)
        left = store.missing()
        error = _fill(store, problem, left, executor, progress) if left else None
    _judge(store, error)
    return store


def _resolve(problem: str | Problem) -> Problem:
    """The problem itself, of that registered name, or at ``module:attribute``."""
    return problem if isinstance(problem, Problem) else _imported(problem)


# A worker makes many chunks of one problem.
_imported = functools.lru_cache(maxsize=8)(problems.get)


def default_chunk_size(problem: Problem, num_simulations: int) -> int:
    """About 32 tasks, of at least 64 simulations, of at most 4 MiB."""
    row = 4 * (problem.dim + math.prod(problem.x_shape))
    return min(max(1, CHUNK_BYTES // row), max(MIN_ROWS, -(-num_simulations // NUM_CHUNKS)))


def _refuse_other(store: Store, wanted: layout.Json) -> None:
    # Another version of prudent may finish a store; nothing else may differ.
    for key in ("problem", "seed", "num_simulations", "chunk_size", "parameter_names", "x_shape"):
        if store.attributes[key] != wanted[key]:
            raise InputError(
                f"{store.path} holds simulations with {key} {store.attributes[key]}, not "
                f"{wanted[key]}; nothing was changed. Give another path, or the same {key}."
            )


def _fill(
    store: Store,
    problem: str | Problem,
    left: Sequence[int],
    executor: Submits | None,
    progress: Reporter,
) -> str | None:
    """Simulate the chunks that are left; the first error of a simulator, if any."""
    total = sum(stop - start for start, stop in map(store.bounds, left))
    if len(left) < store.num_chunks:
        logger.info("%s: %d of %d chunks left.", store.path, len(left), store.num_chunks)
    done = invalid = 0
    first: str | None = None
    types: set[str] = set()
    started = time.monotonic()
    with Progress(f"simulate {store.problem}", total, progress, unit="sim") as bar:
        for outcome in _outcomes(store, problem, left, executor):
            done, invalid = done + outcome.num_rows, invalid + outcome.num_invalid
            first, types = first or outcome.error, types | {outcome.dtype}
            rate = done / max(time.monotonic() - started, 1e-9)
            bar.advance({"invalid": invalid, "per_second": rate}, outcome.num_rows)
    if others := types - {"float32", ""}:
        logger.info("x came as %s and is stored as float32.", ", ".join(sorted(others)))
    if first is not None:
        logger.warning("some simulations failed; the first: %s", first)
    return first


def _outcomes(
    store: Store, problem: str | Problem, left: Sequence[int], executor: Submits | None
) -> Iterator[Outcome]:
    if executor is None:
        for index in left:
            yield _work(str(store.path), problem, index)
        return
    futures = [executor.submit(_work, str(store.path), problem, index) for index in left]
    try:
        for future in as_completed(futures):
            yield future.result()
    except BrokenExecutor as error:
        raise StoreError(
            "a worker process died (out of memory?). Finished chunks are kept; run the same "
            "command again."
        ) from error
    finally:
        for future in futures:
            future.cancel()


def _work(path: str, problem: str | Problem, index: int) -> Outcome:
    """One task: simulate a chunk and write it, in whichever process this is."""
    store, known = Store.open(path), _resolve(problem)
    start, stop = store.bounds(index)
    theta, x, reason, outcome = simulate_chunk(known, stop - start, store.seed, index)
    store.write(index, theta, x, reason)
    return outcome


def _judge(store: Store, error: str | None) -> None:
    counts = {name: count for name, count in store.num_invalid().items() if count}
    text = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    fraction = sum(counts.values()) / len(store)
    if fraction == 1.0:
        why = f" The first error: {error}." if error else ""
        raise DataError(
            f"all {len(store):,} simulations of `{store.problem}` are invalid ({text}).{why} "
            f"Mend the simulator, delete {store.path} and simulate again."
        )
    if counts:
        level = logging.WARNING if fraction > WARN_INVALID else logging.INFO
        logger.log(level, "%.3g %% of simulations are invalid (%s).", 100 * fraction, text)
