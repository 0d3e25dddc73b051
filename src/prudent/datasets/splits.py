"""Which rows to use, as pure functions of the numbers given."""

from __future__ import annotations

import torch
from torch import Tensor

from prudent._randomness import generator
from prudent.errors import InputError

__all__ = ["subset"]


def subset(num_available: int, budget: int, seed: int | None) -> Tensor:
    """A random subset without replacement: sorted row numbers (budget,).

    It depends on the three numbers alone. Without a seed it is the first rows.

    >>> subset(10, 3, seed=0).tolist() == subset(10, 3, seed=0).tolist()
    True
    >>> subset(3, 3, seed=1).tolist()
    [0, 1, 2]
    """
    if not 0 < budget <= num_available:
        raise InputError(
            f"cannot take {budget:,} of {num_available:,} simulations; "
            f"choose a budget from 1 to {num_available:,}."
        )
    if seed is None:
        return torch.arange(budget)
    order = torch.randperm(num_available, generator=generator(seed, "subset", num_available))
    return order[:budget].sort().values
