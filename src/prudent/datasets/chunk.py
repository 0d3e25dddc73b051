"""Simulate one chunk, whatever the simulator does.

A simulator is somebody else's code. It may fail on some rows, return something else than numbers,
or change the state of the process; each row is judged on its own and the process is left as it
was.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prudent._randomness import derive, generator, numpy_seeded, seeded
from prudent._threads import threads
from prudent.datasets.layout import REASONS
from prudent.errors import DataError, one_line
from prudent.problems.problem import Problem

__all__ = ["Outcome", "simulate_chunk"]

NAN, INFINITE, RAISED, MALFORMED = range(1, len(REASONS))

# The state of torch and numpy belongs to the whole process: its threads take turns.
_turn = threading.RLock()


@dataclass(frozen=True)
class Outcome:
    """What became of a chunk; small, because it travels between processes."""

    index: int
    num_rows: int
    num_invalid: int
    error: str | None
    dtype: str


class _Malformed(DataError):
    """A simulator returned something that is not ``x``."""


def simulate_chunk(
    problem: Problem, num_rows: int, seed: int, index: int
) -> tuple[Tensor, Tensor, Tensor, Outcome]:
    """``theta``, ``x`` and ``reason`` of one chunk, a function of the seed and the index.

    Where the simulator fails for the whole batch, it is called again row by row, so that one bad
    row does not cost the others.
    """
    labels = (problem.name, f"chunk {index}")
    with isolated(seed, *labels, "prior"):
        theta = problem.prior.sample((num_rows,)).to("cpu", torch.float32)
    error: str | None = None
    try:
        x, dtype = _call(problem, theta, seed, *labels)
        reason = torch.zeros(num_rows, dtype=torch.uint8)
    except Exception as first:
        x, reason, dtype, error = _rows(problem, theta, seed, *labels)
        error = error or one_line(first, 200)
    bad = [x.isnan().flatten(1).any(dim=1), x.isinf().flatten(1).any(dim=1)]
    reason[(reason == 0) & bad[0]] = NAN
    reason[(reason == 0) & bad[1]] = INFINITE
    outcome = Outcome(index, num_rows, int((reason > 0).sum()), error, dtype)
    return theta, x, reason, outcome


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
    own = generator(seed, *labels, "simulator")
    with isolated(seed, *labels, "simulator"):
        x = problem.simulator(theta.clone(), own)
    return _converted(x, (len(theta), *problem.x_shape))


def _converted(x: Any, shape: tuple[int, ...]) -> tuple[Tensor, str]:
    """``x`` as float32, and the type it came in."""
    if (
        isinstance(x, np.ndarray)
        and not isinstance(x, np.ma.MaskedArray)
        and x.dtype.kind in "fiub"
    ):
        x = torch.from_numpy(np.asarray(x, dtype=x.dtype.newbyteorder("=")).copy())
    if not isinstance(x, Tensor):
        kind = f"{type(x).__name__} of {x.dtype}" if hasattr(x, "dtype") else type(x).__name__
        raise _Malformed(f"the simulator returned {kind}; expected a tensor of shape {shape}")
    if x.is_complex():
        raise _Malformed("the simulator returned complex numbers; expected real ones")
    if x.shape != shape:
        raise _Malformed(f"the simulator returned shape {tuple(x.shape)}; expected {shape}")
    dtype = str(x.dtype).removeprefix("torch.")
    return x.detach().to("cpu", torch.float32, copy=True).contiguous(), dtype


def _rows(
    problem: Problem, theta: Tensor, seed: int, *labels: object
) -> tuple[Tensor, Tensor, str, str | None]:
    x = torch.full((len(theta), *problem.x_shape), torch.nan)
    reason = torch.zeros(len(theta), dtype=torch.uint8)
    dtype, error = "", None
    for row in range(len(theta)):
        try:
            value, dtype = _call(problem, theta[row : row + 1], seed, *labels, row)
            x[row] = value[0]
        except Exception as failure:
            reason[row] = MALFORMED if isinstance(failure, _Malformed) else RAISED
            error = error or one_line(failure, 200)
    return x, reason, dtype, error
