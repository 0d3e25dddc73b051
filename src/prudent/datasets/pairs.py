"""Pairs of parameters and observations: checked once, split by seed, served in batches."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from prudent._arrays import as_tensor, finite_rows, float32
from prudent._files import canonical_json, sha256
from prudent._randomness import generator
from prudent.errors import DataError, InputError, unknown_name


@dataclass(frozen=True)
class Pairs:
    """N pairs in memory: ``theta`` (N, D) and ``x`` ``(N, *x_shape)``, float32 and finite.

    Args:
        theta: The parameters; of float64 where the prior is.
        x: The observations.
        index: The row of each pair in the user's data, (N,), for messages; None for 0 to N - 1.
        pool: The theta of all simulations, (M, D), where some failed and were left out. Leaving
            them out changes the distribution of theta; a classifier needs its marginal from here.
    """

    theta: Tensor
    x: Tensor
    index: Tensor | None = None
    pool: Tensor | None = None

    @classmethod
    def of(
        cls, theta: Any, x: Any, invalid: str = "refuse", dtype: torch.dtype = torch.float32
    ) -> Pairs:
        """Check arrays, tensors, data frames or lists and convert them; the inputs are left alone.

        Args:
            theta: The parameters, (N, D).
            x: The observations, (N, ...).
            invalid: ``refuse`` rows of x with NaN or infinity, or ``exclude`` them with a warning.
            dtype: The type of theta, which should be that of the prior.

        >>> Pairs.of([[0.0], [1.0]], [[0.1, 0.2], [1.1, 0.9]])
        <Pairs: 2 of theta (1,), x (2,)>
        """
        if invalid not in ("refuse", "exclude"):
            raise unknown_name("value of `invalid`", invalid, ("refuse", "exclude"))
        theta = as_tensor("theta", theta, dtype).detach().cpu()
        x = float32("x", x)
        check_shapes(tuple(theta.shape), tuple(x.shape))
        refuse_non_finite("theta", theta)
        if invalid == "refuse":
            refuse_non_finite("x", x)
            return cls(theta, x)
        pairs = cls.among(theta, x, finite_rows(x))
        if (number := pairs.num_invalid) > 0:
            num_nan = int(x.isnan().flatten(1).any(dim=1).sum())
            warnings.warn(
                f"excluded {number:,} of {len(x):,} simulations ({num_nan:,} NaN, "
                f"{number - num_nan:,} infinite in float32); they count in the budget.",
                stacklevel=3,
            )
        return pairs

    @classmethod
    def among(cls, theta: Tensor, x: Tensor, valid: Tensor) -> Pairs:
        """The pairs of valid rows, (N,) of bool; the theta of all rows is their pool."""
        if bool(valid.all()):
            return cls(theta, x)
        if not bool(valid.any()):
            num_nan = int(x.isnan().flatten(1).any(dim=1).sum())
            raise DataError(
                f"none of {len(x):,} simulations is finite in float32 ({num_nan:,} hold NaN); "
                "nothing is left. If numbers are too large, rescale x."
            )
        return cls(theta[valid], x[valid], valid.nonzero()[:, 0], theta)

    def __len__(self) -> int:
        return len(self.theta)

    def __repr__(self) -> str:
        shapes = f"theta {tuple(self.theta.shape[1:])}, x {self.x_shape}"
        return f"<Pairs: {len(self):,} of {shapes}>"

    def __getitem__(self, index: Tensor | slice) -> Pairs:
        return Pairs(self.theta[index], self.x[index], self.row_numbers[index])

    @property
    def dim(self) -> int:
        """The number of parameters."""
        return self.theta.shape[1]

    @property
    def x_shape(self) -> tuple[int, ...]:
        """The shape of one observation."""
        return tuple(self.x.shape[1:])

    @property
    def num_invalid(self) -> int:
        """The number of simulations that failed and were left out."""
        return 0 if self.pool is None else len(self.pool) - len(self)

    @property
    def row_numbers(self) -> Tensor:
        """The row of each pair in the user's data, (N,)."""
        return torch.arange(len(self)) if self.index is None else self.index

    def to(self, device: torch.device) -> Pairs:
        """The same pairs on a device."""
        return Pairs(self.theta.to(device), self.x.to(device), self.index)

    def parts(self) -> Iterator[Pairs]:
        """All pairs, in pieces that fit into memory; here in one."""
        yield self

    def sample(self) -> Pairs:
        """The pairs to take statistics from; here all of them."""
        return self

    def digest(self) -> str:
        """A SHA-256 of all numbers, theta of failed simulations included."""
        return digest([(self.theta if self.pool is None else self.pool, self.x)])

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
        return fold_numbers(len(self), "pairs", number, seed)

    def held_out(self, fold: Tensor, index: int) -> tuple[Pairs, Pairs]:
        """The pairs outside and inside one of the :meth:`folds`."""
        return self[fold != index], self[fold == index]

    def fold_of_pairs(self, fold: Tensor) -> Tensor | None:
        """The fold of each pair, (N,), from what :meth:`folds` returned."""
        return fold

    def batches(self, batch_size: int, order: torch.Generator | None = None) -> Iterator[Pairs]:
        """All pairs in batches: of :func:`num_batches` and shuffled if given an order."""
        if order is None:
            for start in range(0, len(self), batch_size):
                yield self[start : start + batch_size]
            return
        index = torch.randperm(len(self), generator=order)
        for rows in index.tensor_split(num_batches(len(self), batch_size)):
            yield self[rows]


def num_batches(length: int, batch_size: int) -> int:
    """The number of training batches, which hold every pair once and differ by one in size.

    A last batch with the few pairs that are left would weigh as much as the others, and its
    coverage would be noise. None has a single pair, with which a classifier has nothing to
    compare, unless that is what was asked for.

    >>> num_batches(480, 128), num_batches(512, 128), num_batches(5, 2)
    (4, 4, 2)
    """
    return max(1, min(-(-length // batch_size), length // min(batch_size, 2)))


def fold_numbers(length: int, unit: str, number: int, seed: int) -> Tensor:
    """A fold for each of some pairs or chunks, (length,), from 0 to number - 1."""
    if number > length:
        raise InputError(f"cannot cut {length:,} {unit} into {number} folds.")
    order = torch.randperm(length, generator=generator(seed, "folds", length))
    return order.argsort() % number


def digest(pieces: Iterable[tuple[Tensor, Tensor]]) -> str:
    """A SHA-256 of theta and x that come in pieces, whatever the pieces are."""
    hashes, lengths = [hashlib.sha256(), hashlib.sha256()], [0, 0]
    shapes: list[tuple[int, ...]] = [(), ()]
    for piece in pieces:
        for place, values in enumerate(piece):
            hashes[place].update(values.contiguous().numpy().data)
            lengths[place] += len(values)
            shapes[place] = tuple(values.shape[1:])
    return sha256(canonical_json([lengths, shapes, [found.hexdigest() for found in hashes]]))


def finite(theta: Any, x: Any = None, dtype: torch.dtype = torch.float32) -> Pairs:
    """The pairs whose x is finite, with the theta of all; arguments as of `Pairs.of`, or pairs.

    >>> finite([[0.0], [1.0]], [[0.5], [float("nan")]]).num_invalid
    1
    """
    if isinstance(theta, Pairs):
        return theta
    with warnings.catch_warnings(action="ignore"):
        return Pairs.of(theta, x, "exclude", dtype)


def check_shapes(theta: tuple[int, ...], x: tuple[int, ...]) -> None:
    """Refuse the shapes of arrays that are not pairs."""
    if len(theta) != 2 or theta[1] == 0:
        hint = " One parameter? Use theta[:, None]." if len(theta) == 1 else ""
        raise DataError(f"expected `theta` of shape (N, D), got {theta}.{hint}")
    if len(x) < 2 or 0 in x[1:]:
        hint = " One number per simulation? Use x[:, None]." if len(x) == 1 else ""
        raise DataError(f"expected `x` of shape (N, ...), got {x}.{hint}")
    if theta[0] != x[0]:
        hint = " Is theta transposed? Use theta.T." if theta[1] == x[0] else ""
        if theta[-1] == x[-1]:
            hint = " Are both transposed, as Fortran writes them? Save theta.T and x.T."
        raise DataError(
            f"`theta` has {theta[0]:,} rows, `x` has {x[0]:,}: they must come in pairs, one row "
            f"of each per simulation.{hint}"
        )
    if theta[0] == 0:
        raise DataError("`theta` and `x` are empty; expected at least one simulation.")


def refuse_non_finite(name: str, value: Tensor) -> None:
    """Refuse an array with rows that hold NaN or infinity."""
    bad = ~finite_rows(value)
    if not bool(bad.any()):
        return
    # Left out beforehand they would bias a ratio, whose marginal is over all theta.
    hint = 'Pass invalid="exclude" to prudent.fit.' if name == "x" else "Draw them anew."
    num_nan = int(value.isnan().flatten(1).any(dim=1).sum())
    dtype = str(value.dtype).removeprefix("torch.")
    raise DataError(
        f"{int(bad.sum()):,} of {len(value):,} rows of `{name}` are not finite in {dtype} "
        f"({num_nan:,} hold NaN); the first is row {int(bad.nonzero()[0])}. {hint}"
    )
