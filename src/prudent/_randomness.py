"""Seeds and threads, which decide the bits of a result.

A user gives one number; from it come as many independent streams as the work needs.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from prudent._settings import whole


def derive(seed: int, *labels: object) -> int:
    """A seed for one purpose, the same on every machine and in every process.

    >>> derive(0, "train") == derive(0, "train") != derive(0, "test")
    True
    """
    text = "/".join(str(part) for part in (whole("seed", seed, 0), *labels))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *labels: object) -> torch.Generator:
    """A CPU generator for one purpose."""
    return torch.Generator().manual_seed(derive(seed, *labels))


@contextmanager
def seeded(seed: int, *labels: object) -> Iterator[None]:
    """Run a block on its own stream of random numbers and leave the global one untouched.

    torch distributions draw from the global generator and take no other; this is the way to make
    them repeatable.

    >>> with seeded(0): a = torch.rand(())
    >>> with seeded(0): b = torch.rand(())
    >>> bool(a == b)
    True
    """
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(derive(seed, *labels))
        yield


def even_noise(number: int, num_rows: int, dim: int) -> torch.Tensor:
    """Standard normal noise (number, N, D) that fills space evenly.

    A Sobol sequence, shifted at random for each row, from the global generator.
    """
    sequence = torch.quasirandom.SobolEngine(dim).draw(number, dtype=torch.float64)
    shift = torch.rand(num_rows, dim, dtype=torch.float64)
    # Past seven standard deviations float32 has no noise to offer.
    uniform = ((sequence.unsqueeze(1) + shift) % 1.0).clamp(1e-12, 1 - 1e-12)
    noise: torch.Tensor = torch.special.ndtri(uniform)
    return noise.float()


@contextmanager
def numpy_seeded(seed: int) -> Iterator[None]:
    """Run a block on its own stream of numpy's global generator, as simulators may use it."""
    before = np.random.get_state()
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        np.random.set_state(before)


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Fix the number of torch threads inside a block.

    It can change the last bits of a result, and on a busy machine more threads can be slower:
    every short operation waits for the slowest of them.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
