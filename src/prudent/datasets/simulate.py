"""Simulate pairs, whatever the simulator does, and fill stores with them.

A simulator is somebody else's code. It may fail on some rows, return something else than numbers,
or change the state of the process; each row is judged on its own and the process is left as it
was.

The pairs of a problem and a seed are one sequence, made of blocks of 256 rows: block ``j`` is
``problem.draw(256, seed, f"chunk {j}")``. A budget is the beginning of that sequence, so that it
does not depend on what else is simulated. A chunk of a store holds some of its blocks; chunks of
another size than a multiple of 256 are one block each. They are made in any process, in any order,
with the same bytes, and a killed run goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future, as_completed
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from prudent import problems
from prudent._arrays import float32
from prudent._locks import hold
from prudent._progress import Progress, Reporter
from prudent._randomness import derive, generator, numpy_seeded, seeded, threads
from prudent.datasets import _layout as layout
from prudent.datasets._layout import BLOCK, CHUNK_BYTES, REASONS
from prudent.datasets.pairs import Pairs
from prudent.datasets.store import Store, check_free, remove_partial
from prudent.errors import DataError, InputError, StoreError, one_line
from prudent.problems.problem import Problem

NAN, INFINITE, RAISED, MALFORMED = range(1, len(REASONS))
NUM_CHUNKS = 32
# Blocks of larger observations would not fit into memory.
LARGEST_ROW = 2**20
WARN_INVALID = 0.5
# Another version of prudent may finish a store; nothing of these may differ.
IDENTITY = (
    "problem",
    "seed",
    "num_simulations",
    "chunk_size",
    "parameter_names",
    "x_shape",
    "theta_dtype",
)
# The number of rows, of those that failed, the first error, and the type in which x came.
Filled = tuple[int, int, str | None, str]
logger = logging.getLogger("prudent")
# A worker makes many chunks of one problem.
_imported = functools.lru_cache(maxsize=8)(problems.get)
# The state of torch and numpy belongs to the whole process: its threads take turns.
_turn = threading.RLock()


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
    path, known = Path(os.path.abspath(path)), _resolve(problem)
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
    judge(store.problem, store.counts(stop), error, f", delete {store.path}")
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


def new_pairs(problem: Problem, number: int, seed: int) -> Pairs:
    """The valid ones of new pairs of a problem, which belong to no budget."""
    found = draw(problem, number, seed, "test")
    return Pairs.among(found.theta, found.x, found.reason == 0)


def _refuse_other(store: Store, wanted: layout.Json) -> None:
    for key in IDENTITY:
        if (held := store.attributes.get(key)) != (other := wanted.get(key)):
            raise InputError(
                f"{store.path} holds simulations with {key} {held}, not {other}; nothing was "
                f"changed. Give another path, or the same {key}."
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
    return first


def _outcomes(
    store: Store, problem: str | Problem, left: Sequence[int], executor: Submits | None
) -> Iterator[Filled]:
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


def _work(path: str, problem: str | Problem, index: int) -> Filled:
    """One task: simulate a chunk and write it, in whichever process this is."""
    store = Store.open(path)
    # Only blocks of the common sequence are drawn whole, whatever the length of the store.
    end = None if store.block == BLOCK else len(store)
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
    why = f" The first error: {error.rstrip('.')}." if error else ""
    if fraction == 1.0:
        raise DataError(
            f"all {total:,} simulations of `{problem}` are invalid ({text}).{why} "
            f"Mend the simulator{remedy} and simulate again."
        )
    if failed:
        level = logging.WARNING if fraction > WARN_INVALID or error else logging.INFO
        told = f"{100 * fraction:.3g} % of simulations are invalid ({text}) and left out.{why}"
        remedy = " Mend the simulator if these are too many." if error else ""
        logger.log(level, "%s", told + remedy)


class Simulated(NamedTuple):
    """Rows that were simulated.

    ``theta`` (N, D); ``x`` ``(N, *x_shape)``, NaN where a simulation raised; ``reason`` (N,), why
    each row cannot be used, as a number of ``REASONS``, 0 for valid ones; the first ``error`` of
    the simulator, in one line; the type in which x came.
    """

    theta: Tensor
    x: Tensor
    reason: Tensor
    error: str | None
    dtype: str


class _Malformed(DataError):
    """A simulator returned something that is not ``x``."""


def draw_sequence(
    problem: Problem,
    start: int,
    stop: int,
    seed: int,
    *,
    block: int = BLOCK,
    end: int | None = None,
) -> Simulated:
    """Rows from ``start`` to before ``stop`` of the pairs of a problem and a seed.

    Blocks are drawn whole and then cut; where the sequence has an ``end``, its last block is drawn
    with fewer rows.
    """
    parts = []
    for first in range(start - start % block, stop, block):
        rows = block if end is None else min(block, end - first)
        drawn = draw(problem, rows, seed, f"chunk {first // block}")
        cut = slice(max(start - first, 0), stop - first)
        parts.append((*(values[cut] for values in drawn[:3]), *drawn[3:]))
    theta, x, reason, errors, types = zip(*parts, strict=True)
    error = next(filter(None, errors), None)
    return Simulated(torch.cat(theta), torch.cat(x), torch.cat(reason), error, max(types))


def draw(problem: Problem, num_rows: int, seed: int, stream: str) -> Simulated:
    """The pairs of ``problem.draw`` with the same arguments, with bad rows marked.

    Where the simulator fails for the whole batch, it is called again row by row, so that one bad
    row does not cost the others.
    """
    labels = (problem.name, stream)
    with isolated(seed, *labels, "prior"):
        theta = problem.prior.sample((num_rows,)).cpu()
        theta = theta if theta.dtype == torch.float64 else theta.float()
    reason = torch.zeros(num_rows, dtype=torch.uint8)
    error: str | None = None
    try:
        x, dtype = _call(problem, theta, seed, *labels)
    except Exception as whole:
        x, dtype = torch.full((num_rows, *problem.x_shape), torch.nan), ""
        for row in range(num_rows):
            try:
                x[row : row + 1], dtype = _call(problem, theta[row : row + 1], seed, *labels, row)
            except Exception as failure:
                reason[row] = MALFORMED if isinstance(failure, _Malformed) else RAISED
                error = error or one_line(failure, 200)
        error = error or one_line(whole, 200)
    reason[(reason == 0) & x.isnan().flatten(1).any(dim=1)] = NAN
    reason[(reason == 0) & x.isinf().flatten(1).any(dim=1)] = INFINITE
    return Simulated(theta, x, reason, error, dtype)


@contextlib.contextmanager
def isolated(seed: int, *labels: object) -> Iterator[None]:
    """Run foreign code on its own random numbers and one thread; put everything back afterwards.

    One thread, because the number of threads changes the last bits of a result.
    """
    with _turn:
        plain, directory, default = random.getstate(), os.getcwd(), torch.get_default_dtype()
        own = derive(seed, *labels)
        try:
            random.seed(own)
            with (
                threads(1),
                numpy_seeded(own),
                seeded(seed, *labels),
                torch.no_grad(),
                warnings.catch_warnings(),
                contextlib.redirect_stdout(sys.stderr),
            ):
                yield
        finally:
            random.setstate(plain)
            os.chdir(directory)
            torch.set_default_dtype(default)


def _call(problem: Problem, theta: Tensor, seed: int, *labels: object) -> tuple[Tensor, str]:
    """The simulations of theta as float32, and the type in which they came."""
    own = generator(seed, *labels, "simulator")
    try:
        with isolated(seed, *labels, "simulator"):
            x: Any = problem.simulator(theta.clone(), own)
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:  # it wants to end the process, or does not want to be caught
        raise DataError(one_line(error)) from error
    shape = (len(theta), *problem.x_shape)
    numbers = isinstance(x, np.ndarray) and not isinstance(x, np.ma.MaskedArray)
    if not (isinstance(x, Tensor) or (numbers and x.dtype.kind in "fiubc")):
        kind = f"{type(x).__name__} of {x.dtype}" if hasattr(x, "dtype") else type(x).__name__
        raise _Malformed(f"the simulator returned {kind}; expected a tensor of shape {shape}")
    if tuple(x.shape) != shape:
        raise _Malformed(f"the simulator returned shape {tuple(x.shape)}; expected {shape}")
    dtype = str(x.dtype).removeprefix("torch.")
    if dtype.startswith("complex"):
        raise _Malformed("the simulator returned complex numbers; expected real ones")
    return float32("x", x).clone(memory_format=torch.contiguous_format), dtype
