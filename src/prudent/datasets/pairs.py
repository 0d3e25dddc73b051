"""Pairs of parameters and observations: checked once, split by seed, served in batches."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prudent._randomness import generator
from prudent.errors import DataError, InputError

__all__ = ["Pairs", "exclude_invalid", "finite"]


@dataclass(frozen=True)
class Pairs:
    """N pairs in memory: ``theta`` (N, D) and ``x`` ``(N, *x_shape)``, float32 and finite.

    Args:
        theta: Parameters.
        x: Observations.
        index: The row of each pair in the user's data, (N,), for messages; None for 0 to N - 1.
    """

    theta: Tensor
    x: Tensor
    index: Tensor | None = None

    @classmethod
    def of(cls, theta: Any, x: Any) -> Pairs:
        """Check arrays, tensors or lists and convert them; the inputs are left alone.

        >>> Pairs.of([[0.0], [1.0]], [[0.1, 0.2], [1.1, 0.9]])
        <Pairs: 2 of theta (1,), x (2,)>
        """
        theta, x = _tensor("theta", theta), _tensor("x", x)
        if theta.ndim != 2 or theta.shape[1] == 0:
            hint = " One parameter? Use theta[:, None]." if theta.ndim == 1 else ""
            raise DataError(f"expected `theta` of shape (N, D), got {tuple(theta.shape)}.{hint}")
        if x.ndim < 2 or 0 in x.shape[1:]:
            hint = " One number per simulation? Use x[:, None]." if x.ndim == 1 else ""
            raise DataError(f"expected `x` of shape (N, ...), got {tuple(x.shape)}.{hint}")
        if len(theta) != len(x):
            transposed = theta.shape[1] == len(x)
            hint = " Is theta transposed? Use theta.T." if transposed else ""
            raise DataError(
                f"`theta` has {len(theta):,} rows, `x` has {len(x):,}: they must come in pairs, "
                f"one row of each per simulation.{hint}"
            )
        if len(theta) == 0:
            raise DataError("`theta` and `x` are empty; expected at least one simulation.")
        for name, value in (("theta", theta), ("x", x)):
            _refuse_non_finite(name, value)
        return cls(theta, x)

    def __len__(self) -> int:
        return len(self.theta)

    def __repr__(self) -> str:
        shapes = f"theta {tuple(self.theta.shape[1:])}, x {tuple(self.x.shape[1:])}"
        return f"<Pairs: {len(self):,} of {shapes}>"

    def __getitem__(self, index: Tensor | slice) -> Pairs:
        return Pairs(self.theta[index], self.x[index], self.row_numbers[index])

    @property
    def row_numbers(self) -> Tensor:
        """The row of each pair in the user's data, (N,)."""
        return torch.arange(len(self)) if self.index is None else self.index

    def to(self, device: torch.device) -> Pairs:
        """The same pairs on a device."""
        return Pairs(self.theta.to(device), self.x.to(device), self.index)

    def digest(self) -> str:
        """A SHA-256 of all numbers."""
        digest = hashlib.sha256()
        for values in (self.theta, self.x):
            digest.update(f"{tuple(values.shape)}".encode())
            digest.update(values.contiguous().numpy().data)
        return digest.hexdigest()

    def split(self, fraction: float, seed: int) -> tuple[Pairs, Pairs]:
        """Two disjoint parts, the second with that fraction of the pairs.

        The split depends on the seed and the number of pairs alone.
        """
        second = round(fraction * len(self))
        if not 0 < second < len(self):
            raise InputError(
                f"cannot split {len(self):,} pairs with a validation fraction of {fraction}: "
                "each part needs at least one pair."
            )
        order = torch.randperm(len(self), generator=generator(seed, "split", len(self)))
        return self[order[second:]], self[order[:second]]

    def folds(self, number: int, seed: int) -> Tensor:
        """A fold for each pair, (N,), from 0 to number - 1, of nearly equal sizes."""
        if number > len(self):
            raise InputError(f"cannot cut {len(self):,} pairs into {number} folds.")
        order = torch.randperm(len(self), generator=generator(seed, "folds", len(self)))
        return order.argsort() % number

    def batches(self, batch_size: int, order: torch.Generator | None = None) -> Iterator[Pairs]:
        """All pairs in batches; shuffled and without the last partial batch if given an order."""
        if order is None:
            for start in range(0, len(self), batch_size):
                yield self[start : start + batch_size]
            return
        index = torch.randperm(len(self), generator=order)
        for start in range(0, len(self) - batch_size + 1, batch_size):
            yield self[index[start : start + batch_size]]


def finite(theta: Any, x: Any) -> tuple[Pairs, int]:
    """The pairs whose observations are finite, and the number of the others.

    >>> finite([[0.0], [1.0]], [[0.5], [np.nan]])
    (<Pairs: 1 of theta (1,), x (1,)>, 1)
    """
    theta, x = _tensor("theta", theta), _tensor("x", x)
    if theta.ndim != 2 or x.ndim < 2 or len(theta) != len(x):
        return Pairs.of(theta, x), 0  # which says what is wrong
    valid = x.isfinite().flatten(1).all(dim=1)
    if len(valid) and not bool(valid.any()):
        raise DataError(f"all {len(x):,} observations hold NaN or infinity; nothing is left.")
    pairs = Pairs.of(theta[valid], x[valid])
    return Pairs(pairs.theta, pairs.x, valid.nonzero()[:, 0]), int((~valid).sum())


def exclude_invalid(theta: Any, x: Any) -> tuple[Pairs, Tensor | None]:
    """The pairs whose ``x`` is finite, and the theta of all if some were left out.

    >>> with warnings.catch_warnings(action="ignore"):
    ...     pairs, everything = exclude_invalid([[0.0], [1.0], [2.0]], [[0.5], [1.5], [np.nan]])
    >>> len(pairs), len(everything)
    (2, 3)
    """
    theta, x = _tensor("theta", theta), _tensor("x", x)
    if theta.ndim != 2 or x.ndim < 2 or len(theta) != len(x):
        return Pairs.of(theta, x), None  # which says what is wrong
    valid = x.isfinite().flatten(1).all(dim=1)
    number = int((~valid).sum())
    if number == 0:
        return Pairs.of(theta, x), None
    if number == len(x):
        raise DataError(f"all {number:,} simulations hold NaN or infinity; nothing is left.")
    _refuse_non_finite("theta", theta)
    num_nan = int(x.isnan().flatten(1).any(dim=1).sum())
    warnings.warn(
        f"excluded {number:,} of {len(x):,} simulations ({num_nan:,} NaN, "
        f"{number - num_nan:,} infinite); they count in the budget.",
        stacklevel=3,
    )
    pairs = Pairs.of(theta[valid], x[valid])
    return Pairs(pairs.theta, pairs.x, valid.nonzero()[:, 0]), theta


def _tensor(name: str, value: Any) -> Tensor:
    try:
        tensor = value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
    except (TypeError, ValueError) as error:
        raise DataError(
            f"expected `{name}` as an array of numbers, got {type(value).__name__} that is none: "
            f"{str(error).splitlines()[0]}"
        ) from error
    if tensor.is_complex():
        raise DataError(f"`{name}` is complex; pass real numbers, such as parts or moduli.")
    return tensor.detach().to(torch.float32)


def _refuse_non_finite(name: str, value: Tensor) -> None:
    finite = value.isfinite().flatten(1).all(dim=1)
    if bool(finite.all()):
        return
    bad = ~finite
    row = int(bad.nonzero()[0])
    # Left out beforehand they would bias a ratio, whose marginal is over all theta.
    hint = 'Pass invalid="exclude" to prudent.fit.' if name == "x" else "Draw them anew."
    num_nan = int(value.isnan().flatten(1).any(dim=1).sum())
    raise DataError(
        f"{int(bad.sum()):,} of {len(value):,} rows of `{name}` are not finite in float32 "
        f"({num_nan:,} hold NaN); the first is row {row}. {hint}"
    )
