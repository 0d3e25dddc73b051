"""Fill a store with simulations: in chunks, in any process, in any order, with the same bytes.

A chunk of a store holds some blocks of the one sequence of pairs that a problem and a seed have
(see :mod:`prudent.datasets.drawing`); a run with a budget trains on the beginning of the same
sequence. Chunks of another size than a multiple of 256 are one block each. A killed run goes on
where it stopped.
"""

import functools
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future, as_completed
from pathlib import Path
from typing import Any, Protocol

from prudent import problems
from prudent._locks import hold
from prudent._progress import Progress, Reporter
from prudent.datasets import _layout as layout
from prudent.datasets._layout import BLOCK, CHUNK_BYTES
from prudent.datasets.drawing import draw_sequence
from prudent.datasets.pairs import Pairs
from prudent.datasets.store import Store, check_free, remove_partial
from prudent.errors import DataError, InputError, StoreError
from prudent.problems.problem import Problem

NUM_CHUNKS = 32
# Blocks of larger observations would not fit into memory.
LARGEST_ROW = 2**20
WARN_INVALID = 0.5
# Another version of prudent may finish a store; nothing of these may differ.
IDENTITY = ("problem", "seed", "num_simulations", "chunk_size", "parameter_names", "x_shape")

# The number of rows, of those that failed, the first error, and the type in which x came.
Outcome = tuple[int, int, str | None, str]
logger = logging.getLogger("prudent")
# A worker makes many chunks of one problem.
_imported = functools.lru_cache(maxsize=8)(problems.get)


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
    stop: int | None = None,
    executor: Submits | None = None,
    progress: Reporter = None,
) -> Store:
    """Simulate pairs into a store, or finish one that was begun with the same arguments.

    The first pairs are those of every run of the problem with the same seed.

    Args:
        problem: A registered name or ``module:attribute``; without an executor also a problem.
        num_simulations: The number of pairs.
        path: The directory of the store.
        seed: The same seed gives the same bytes, whatever the executor.
        chunk_size: Simulations per task, which is what a killed worker loses. A multiple of 256
            by default; another size gives other pairs.
        stop: Simulate only the chunks that hold the rows before this one; all by default.
        executor: Where to run the tasks; in this process by default.
        progress: See :class:`prudent._progress.Progress`.

    Returns:
        The store, complete up to ``stop``. Failed simulations are marked and counted.
    """
    if executor is not None and isinstance(problem, Problem):
        raise InputError(
            "an executor needs the problem by name, as registered or `module:attribute`, "
            "to make it in other processes; or leave `executor` out."
        )
    layout.import_zarr()
    known, path = _resolve(problem), Path(os.path.abspath(path))
    begun = Store.open(path) if (path / "zarr.json").exists() else None
    if chunk_size is None:
        chunk_size = begun.chunk_size if begun else default_chunk_size(known, num_simulations)
    wanted = layout.attributes(known, num_simulations, seed, chunk_size)
    # All that can be refused is refused before anything is written, the lock included.
    _refuse_other(begun, wanted) if begun else check_free(path, but="zarr.json")
    with hold(path / ".lock", wait=True):
        remove_partial(path)
        if not (path / "zarr.json").exists():
            Store.create(path, known, num_simulations, seed, chunk_size)
        store = Store.open(path)
        _refuse_other(store, wanted)
        left = store.missing(stop)
        error = _fill(store, problem, left, executor, progress) if left else None
    judge(store.problem, store.counts(stop), error, f"delete {store.path}, ")
    return store


def _resolve(problem: str | Problem) -> Problem:
    return problem if isinstance(problem, Problem) else _imported(problem)


def default_chunk_size(problem: Problem, num_simulations: int) -> int:
    """Whole blocks: about 32 tasks, of at most 4 MiB where a block is not larger."""
    row = layout.row_bytes(problem.dim, problem.x_shape)
    if row > LARGEST_ROW:
        return max(1, CHUNK_BYTES // row)
    rows = min(CHUNK_BYTES // row, -(-num_simulations // NUM_CHUNKS))
    return BLOCK * max(1, rows // BLOCK)


def draw_pairs(problem: Problem, budget: int, seed: int) -> Pairs:
    """The first pairs of a problem and a seed, in memory; failed ones are left out and counted."""
    found = draw_sequence(problem, 0, budget, seed)
    judge(problem.name, layout.count_reasons(found.reason), found.error)
    return Pairs.among(found.theta, found.x, found.reason == 0)


def _refuse_other(store: Store, wanted: layout.Json) -> None:
    for key in IDENTITY:
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
        for num_rows, num_invalid, error, dtype in _outcomes(store, problem, left, executor):
            done, invalid = done + num_rows, invalid + num_invalid
            first, types = first or error, types | {dtype}
            rate = done / max(time.monotonic() - started, 1e-9)
            bar.advance({"invalid": invalid, "per_second": rate}, num_rows)
    if others := types - {"float32", ""}:
        logger.info("x came as %s and is stored as float32.", ", ".join(sorted(others)))
    if first is not None:
        logger.warning("some simulations failed; the first: %s", first)
    return first


def _outcomes(
    store: Store, problem: str | Problem, left: Sequence[int], executor: Submits | None
) -> Iterator[Outcome]:
    if executor is None:
        yield from (_work(str(store.path), problem, index) for index in left)
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
    store = Store.open(path)
    # Only blocks of the common sequence are drawn whole, whatever the length of the store.
    end = None if store.attributes.get("block") == BLOCK else len(store)
    bounds = store.bounds(index)
    rows = draw_sequence(_resolve(problem), *bounds, store.seed, block=store.block, end=end)
    store.write(index, rows.theta, rows.x, rows.reason)
    return len(rows.theta), int((rows.reason > 0).sum()), rows.error, rows.dtype


def judge(problem: str, counts: Mapping[str, int], error: str | None, remedy: str = "") -> None:
    """Tell how many simulations failed; raise if none is left, with what to do before the next."""
    total = sum(counts.values())
    failed = {name: count for name, count in counts.items() if count and name != "valid"}
    text = ", ".join(f"{count:,} {name}" for name, count in failed.items())
    fraction = sum(failed.values()) / total
    if fraction == 1.0:
        why = f" The first error: {error}." if error else ""
        raise DataError(
            f"all {total:,} simulations of `{problem}` are invalid ({text}).{why} "
            f"Mend the simulator, {remedy}and simulate again."
        )
    if failed:
        level = logging.WARNING if fraction > WARN_INVALID else logging.INFO
        logger.log(level, "%.3g %% of simulations are invalid (%s).", 100 * fraction, text)
