"""Gauss-Legendre quadrature for the exact posteriors."""

from functools import cache

import numpy
import torch
from torch import Tensor

# Arrays: a cached tensor would carry the grad mode of the first call into later ones.
_rule = cache(numpy.polynomial.legendre.leggauss)


def gauss_legendre(lower: Tensor, upper: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights ``(num_nodes, *shape)`` on the intervals [lower, upper], in float64.

    Polynomials up to degree 2 num_nodes - 1 are exact. An empty interval has weights 0.

    >>> node, weight = gauss_legendre(torch.tensor(0.0), torch.tensor(3.0), 4)
    >>> round(float((weight * node**2).sum()), 12)
    9.0
    """
    lower, upper = torch.broadcast_tensors(lower.double(), upper.double())
    node, weight = (torch.tensor(part).view(-1, *[1] * lower.ndim) for part in _rule(num_nodes))
    half = (upper - lower) / 2
    return lower + half * (node + 1), half * weight
