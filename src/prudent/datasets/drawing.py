"""Simulate some rows, whatever the simulator does.

A simulator is somebody else's code. It may fail on some rows, return something else than numbers,
or change the state of the process; each row is judged on its own and the process is left as it
was.

The pairs of a problem and a seed are one sequence, made of blocks of 256 rows: block ``j`` is
``problem.draw(256, seed, f"chunk {j}")``. A budget is the beginning of that sequence, so that it
does not depend on what else is simulated.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from prudent._arrays import float32
from prudent._randomness import derive, generator, numpy_seeded, seeded, threads
from prudent.datasets._layout import BLOCK, REASONS
from prudent.errors import DataError, one_line
from prudent.problems.problem import Problem

NAN, INFINITE, RAISED, MALFORMED = range(1, len(REASONS))

# The state of torch and numpy belongs to the whole process: its threads take turns.
_turn = threading.RLock()


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
        theta = problem.prior.sample((num_rows,)).to("cpu", torch.float32)
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
    """What the simulator makes of theta, as float32, and the type it came in."""
    own = generator(seed, *labels, "simulator")
    with isolated(seed, *labels, "simulator"):
        x: Any = problem.simulator(theta.clone(), own)
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
