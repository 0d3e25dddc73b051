"""The one conversion of what users and simulators hand over into tensors, and one check."""

from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex, TypeVar

import numpy as np
import torch
from torch import Tensor

from prudent.errors import DataError, InputError

#: More draws than these of one observation are made in pieces.
MOST_AT_ONCE = 2**15
R = TypeVar("R")


def as_tensor(name: str, value: Any, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor from a tensor, array, data frame or list of real numbers.

    A tensor stays on its device, and keeps its gradient.

    >>> as_tensor("theta", [[1, 2]])
    tensor([[1., 2.]])
    """
    try:
        tensor = value if isinstance(value, Tensor) else torch.from_numpy(_native(value))
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"expected `{name}` as an array of numbers, got {type(value).__name__} that is none: "
            f"{str(error).splitlines()[0]}"
        ) from error
    if tensor.is_complex():
        raise DataError(f"`{name}` is complex; pass real numbers, such as parts or moduli.")
    return tensor.to(dtype)


def _native(value: Any) -> Any:
    """A numpy array of a type that torch knows, row after row: frames keep columns together."""
    array = np.array(value)
    if array.dtype == object and hasattr(value, "to_numpy"):  # a frame of nullable columns
        if not any(isinstance(number, str) for number in array.flat):
            array = value.to_numpy(dtype="float64", na_value=np.nan)
    if array.dtype == np.longdouble:
        array = array.astype(np.float64)
    return array.astype(array.dtype.newbyteorder("="), order="C", copy=False)


def float32(name: str, value: Any) -> Tensor:
    """A detached float32 tensor on the CPU; see :func:`as_tensor`."""
    return as_tensor(name, value).detach().cpu()


def placed(name: str, value: Tensor, device: torch.device) -> Tensor:
    """A tensor on the device of an estimator: those of the CPU are moved, others refused."""
    if value.device.type != "cpu" and value.device != device:
        raise DataError(
            f"`{name}` is on {value.device}, the estimator on {device}; move one of them: "
            f"estimator.to({str(value.device)!r}), or {name}.cpu()."
        )
    return value.to(device)


def as_shape(value: SupportsIndex | Iterable[SupportsIndex]) -> tuple[int, ...]:
    """The shape of draws, from several whole numbers or a single one.

    >>> as_shape(100), as_shape([2, 3]), as_shape(())
    ((100,), (2, 3), ())
    """
    try:
        sides = value if isinstance(value, Iterable) else (value,)
        shape = tuple(side.__index__() for side in sides)
    except (TypeError, AttributeError):
        shape = (-1,)
    if any(side < 0 for side in shape):
        raise InputError(f"expected the shape of draws as whole numbers, got {value!r}.")
    return shape


def in_pieces(draw: Callable[[int], tuple[Tensor, R]], number: int, num_rows: int) -> Any:
    """Many draws (number, N, D) in pieces, whose memory is small beside that of the result.

    Args:
        draw: What makes so many draws, with a report.
        number: How many.
        num_rows: The number of observations, N.

    Returns:
        The draws, and the reports of the pieces.
    """
    step = max(1, MOST_AT_ONCE // max(1, num_rows))
    first, report = draw(step)
    reports = [report]
    try:
        found = first.new_empty(number, *first.shape[1:])
    except (RuntimeError, MemoryError) as error:
        size = number * first[0].numel() * first.element_size()
        raise InputError(
            f"{number:,} draws need {size / 1e9:.1f} GB of memory, more than there is; draw fewer."
        ) from error
    found[:step] = first
    for start in range(step, number, step):
        piece, report = draw(min(step, number - start))
        found[start : start + step] = piece
        reports.append(report)
    return found, reports


def finite_rows(values: Tensor) -> Tensor:
    """Whether all numbers of each row are finite, (N,) of bool."""
    return values.isfinite().flatten(1).all(dim=1)
