"""Gauss-Legendre quadrature for the exact posteriors."""

from functools import cache
from typing import Any

import numpy
import torch
from torch import Tensor


@cache
def _rule(num_nodes: int) -> tuple[Any, Any]:
    # Kept as arrays: a cached tensor would carry the grad mode of the first call into later ones.
    return numpy.polynomial.legendre.leggauss(num_nodes)


def gauss_legendre(lower: Tensor, upper: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights on the intervals [lower, upper], in float64.

    Args:
        lower: Left ends, of any shape.
        upper: Right ends, of a shape that broadcasts with ``lower``.
        num_nodes: Nodes per interval; polynomials up to degree 2 num_nodes - 1 are exact.

    Returns:
        Nodes and weights, each ``(num_nodes, *shape)``. An empty interval has weights 0.

    >>> node, weight = gauss_legendre(torch.tensor(0.0), torch.tensor(3.0), 4)
    >>> round(float((weight * node**2).sum()), 12)
    9.0
    """
    lower, upper = torch.broadcast_tensors(lower.double(), upper.double())
    node, weight = (torch.tensor(part).view(-1, *[1] * lower.ndim) for part in _rule(num_nodes))
    half = (upper - lower) / 2
    return lower + half * (node + 1), half * weight
