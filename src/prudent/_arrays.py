"""The one conversion of what users and simulators hand over into tensors, and one check."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from prudent.errors import DataError


def float32(name: str, value: Any) -> Tensor:
    """A detached float32 tensor on the CPU from a tensor, array, data frame or list of numbers.

    >>> float32("theta", [[1, 2]])
    tensor([[1., 2.]])
    """
    try:
        if isinstance(value, Tensor):
            tensor = value
        else:
            array = np.array(value)
            tensor = torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
    except (TypeError, ValueError) as error:
        raise DataError(
            f"expected `{name}` as an array of numbers, got {type(value).__name__} that is none: "
            f"{str(error).splitlines()[0]}"
        ) from error
    if tensor.is_complex():
        raise DataError(f"`{name}` is complex; pass real numbers, such as parts or moduli.")
    return tensor.detach().to("cpu", torch.float32)


def finite_rows(values: Tensor) -> Tensor:
    """Whether all numbers of each row are finite, (N,) of bool."""
    return values.isfinite().flatten(1).all(dim=1)
