r"""Densities evaluated twice: all of them for their values, few of them for the gradient.

The penalty of a batch is a function of its N (L + 1) log-densities :math:`\ell` alone, and most of
them do not matter to it: a pair that is cautious enough has no gradient at all, and of the draws
of the others most weigh nothing. So the first pass evaluates all without a graph, in pieces; the
gradient :math:`g = \partial P / \partial \ell` comes from a graph of scalars; and the second
pass evaluates again, with a graph, only the entries that carry it,

.. math:: \nabla P = \sum_{g_{ij} \ne 0} g_{ij} \, \nabla \ell_{ij} ,

which is the same gradient for a fraction of the time, in memory that hardly grows with L.

Where most entries carry a gradient, as they do for the calibrated target, a single pass is faster,
and where a network draws at random or looks at its batch (dropout, batch normalization), a second
look is not at the same density. Both are noticed, and a single pass does the work.
"""

from typing import Any

import torch
from torch import Tensor, nn

from prudent.contracts import Posterior, Rows
from prudent.coverage.proposals import evaluated

# Rows that are evaluated at a time without a graph.
MOST_ROWS = 4096
# A graph costs about two evaluations more; from this share of active entries on, it pays for all.
MOST_ACTIVE = 0.6
# Two evaluations of a network differ by rounding, at most by so much.
ROUNDING = 1e-3


class Passes(nn.Module):
    """One or two passes over the draws, by what the last step has shown.

    Args:
        tolerance: The entries of least gradient, together worth this share of the sum of its
            absolute values, are left out of the second pass. With 0, only those without any are.
            The gradient of a weight is off by about ten times as much.
    """

    # The share of entries with a gradient in the last step, infinity if two passes do not agree.
    active: Tensor

    def __init__(self, tolerance: float) -> None:
        super().__init__()
        self.tolerance = tolerance
        self.register_buffer("active", torch.zeros(()))

    def first(self, posterior: Posterior, theta: Tensor) -> Tensor:
        """The log-densities (L, N) of theta (L, N, D), with a graph if there is to be one pass."""
        if torch.is_grad_enabled() and not self._two(posterior):
            return evaluated(posterior, theta)
        size = max(1, MOST_ROWS // theta.shape[1])
        with torch.no_grad():
            return torch.cat([evaluated(posterior, part) for part in theta.split(size)])

    def second(
        self, posterior: Any, theta: Tensor, log_prob: Tensor, value: Tensor, gradient: Tensor
    ) -> Tensor:
        """The value of a function of log-densities, with its gradient in the weights.

        Args:
            posterior: The posteriors of N observations.
            theta: The places of the log-densities, (L, N, D).
            log_prob: What :meth:`first` found there, (L, N).
            value: The function's value.
            gradient: The derivatives of the function by the log-densities, (L, N).
        """
        two, carrying = self._two(posterior), active_entries(gradient, self.tolerance)
        share = carrying.double().mean()
        if not bool(self.active.isinf()):
            self.active.fill_(share)
        if not two:
            return _attached(value, log_prob, gradient)
        if bool(share > MOST_ACTIVE):
            carrying = torch.ones_like(carrying)
        # Only differences of log-densities matter: what a pair's draws lose, its first must gain.
        gradient = gradient + 0.0
        gradient[0] += gradient.masked_fill(carrying, 0.0).sum(dim=0)
        carrying[0] |= gradient[0] != 0
        carrying[0, 0] = True  # so that there is a graph in any case
        entry, pair = carrying.nonzero(as_tuple=True)
        again = evaluated(posterior.rows(pair), theta[entry, pair].unsqueeze(0)).squeeze(0)
        seen = log_prob[entry, pair]
        if torch.allclose(again, seen, rtol=ROUNDING, atol=ROUNDING, equal_nan=True):
            return _attached(value, again, gradient[entry, pair])
        self.active.fill_(torch.inf)
        return _attached(value, evaluated(posterior, theta), gradient)

    def _two(self, posterior: Any) -> bool:
        return isinstance(posterior, Rows) and bool(self.active <= MOST_ACTIVE)


def active_entries(gradient: Tensor, tolerance: float) -> Tensor:
    """The entries that carry a gradient, but for the least, together worth a share of it.

    >>> active_entries(torch.tensor([0.0, 5.0, -0.004, 1.0]), 1e-3)
    tensor([False,  True, False,  True])
    """
    size, order = gradient.abs().flatten().sort()
    worth = size.double().cumsum(0)
    carrying = torch.ones_like(worth, dtype=torch.bool)
    carrying[order[worth <= tolerance * worth[-1]]] = False
    return carrying.reshape(gradient.shape)


def _attached(value: Tensor, log_prob: Tensor, gradient: Tensor) -> Tensor:
    found: Tensor = _Attached.apply(value, log_prob, gradient)
    return found


class _Attached(torch.autograd.Function):
    """A number whose derivatives by some log-densities are known."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, log_prob: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[None, Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return None, incoming[0] * gradient, None
