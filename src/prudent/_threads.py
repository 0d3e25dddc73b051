"""The number of threads that torch uses, fixed for a while.

The number can change the last bits of a result, and on a busy machine more threads can be slower:
every short operation waits for the slowest of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Fix the number of torch threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
