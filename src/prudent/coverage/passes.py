r"""Densities evaluated twice: all of them for their values, few of them for the gradient.

The penalty of a batch is a function of its N (L + 1) log-densities :math:`\ell` alone, and most of
them do not matter to it: a pair that is cautious enough has no gradient at all, and of the draws
of the others most weigh nothing. So the first pass evaluates all without a graph, in pieces; the
gradient :math:`g = \partial P / \partial \ell` comes from a graph of scalars; and the second
pass evaluates again, with a graph, only the entries that carry it,

.. math:: \nabla P = \sum_{g_{ij} \ne 0} g_{ij} \, \nabla \ell_{ij} ,

which is the same gradient for a fraction of the time, in memory that hardly grows with L.

Where most entries carry a gradient, as they do for the calibrated target, a single pass is faster,
and so it is for few draws, as every pass takes some time before it has evaluated any. Where a
network draws at random or looks at its batch (dropout, batch normalization), a second look is not
at the same density. The first step always makes two passes and notices that, as any later step
with two passes does; from then on a single pass does the work.

In a step that is shared with a loss, what needs a graph is evaluated in one go with what the loss
wants (:mod:`prudent.coverage.sharing`), unless two passes were seen to differ.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from prudent.contracts import Posterior, Rows
from prudent.coverage.proposals import Scores, evaluated
from prudent.coverage.sharing import Step

# Rows that are evaluated at a time without a graph.
MOST_ROWS = 4096
# A graph costs about two evaluations more; from this share of active draws on, it pays for all.
MOST_ACTIVE = 0.6
# One more pass takes as long as evaluating so many draws, unless the posterior has an `overhead`.
OVERHEAD = 120
# Two evaluations of a network differ by rounding, at most by so much.
ROUNDING = 1e-3


class Passes(nn.Module):
    """One or two passes over the draws, by what the last step has shown.

    Args:
        tolerance: The draws of least gradient, together worth this share of the sum of its
            absolute values, are left out of the second pass. With 0, only those without any are.
            The gradient of a weight is off by about ten times as much. With None there is one
            plain pass, and nothing is remembered.
    """

    # The share of draws with a gradient in the last step: minus infinity before the first, which
    # makes two passes to see whether they agree, and infinity if they do not.
    active: Tensor

    def __init__(self, tolerance: float | None) -> None:
        super().__init__()
        self.tolerance = tolerance
        self.register_buffer("active", torch.tensor(-torch.inf))

    def forward(
        self,
        posterior: Posterior,
        theta: Tensor,
        draws: Tensor,
        function: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """The function of log-densities, with its gradient.

        Args:
            posterior: The posteriors of N observations.
            theta: The nominal theta of each pair, (N, D).
            draws: Their draws, (L, N, D).
            function: The function that makes a scalar of the log-densities (L + 1, N), of which
                the first are those of theta. Only differences between those of a pair matter.
        """
        points = torch.cat((theta.unsqueeze(0), draws))
        # Where draws move with the weights, their places carry the gradient as well.
        if self.tolerance is None or points.requires_grad or isinstance(posterior, Scores):
            return function(evaluated(posterior, points))
        if not torch.is_grad_enabled():
            return function(_without_graph(posterior, points))
        step = Step.of(posterior, theta)
        if not step.takes_draws:  # the draws are evaluated alone
            step = Step(posterior, theta)
        num_draws, active = draws.shape[:2].numel(), float(self.active)
        most_active = MOST_ACTIVE - getattr(posterior, "overhead", OVERHEAD) / (3 * num_draws)
        two = active <= most_active and isinstance(posterior, Rows)
        if two:
            log_prob = _without_graph(posterior, points)
        elif step.takes_draws and active < torch.inf:
            pair = torch.arange(len(theta), device=theta.device).repeat(len(draws))
            found = step.log_prob_with(pair, draws.flatten(0, 1))
            log_prob = found.unflatten(0, points.shape[:2])
        else:
            log_prob = evaluated(posterior, points)
        if not two and most_active < 0:  # so few draws that a second pass never pays
            return function(log_prob)
        scalars = log_prob.detach().requires_grad_()
        value = function(scalars)
        if not value.requires_grad:  # the hard indicator has no gradient
            return value
        (gradient,) = torch.autograd.grad(value, scalars)
        carrying = active_entries(gradient[1:], self.tolerance)
        if active < torch.inf:
            self.active.fill_(carrying.double().mean())
        if two:
            again = _again(draws, log_prob, gradient, carrying, step)
            if again is None:
                self.active.fill_(torch.inf)
                step.found.clear()
                again = evaluated(posterior, points), gradient
            log_prob, gradient = again
        attached: Tensor = _Attached.apply(value.detach(), log_prob, gradient)
        return attached


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


def _again(
    draws: Tensor, seen: Tensor, gradient: Tensor, carrying: Tensor, step: Step
) -> tuple[Tensor, Tensor] | None:
    """The log-densities that carry a gradient, now with a graph, and the gradient of each.

    Args:
        draws: The draws of N pairs, (L, N, D).
        seen: The log-densities of the first pass, (L + 1, N), the first those of the nominals.
        gradient: The derivatives of the penalty by these, (L + 1, N).
        carrying: The draws that matter, (L, N); the nominal parameters all do.
        step: The step of these pairs.

    Returns:
        None if the log-densities are not those of the first pass.
    """
    entry, pair = carrying.nonzero(as_tuple=True)
    again = step.log_prob_with(pair, draws[entry, pair])
    before = torch.cat((seen[0], seen[1:][entry, pair]))
    if not torch.allclose(again, before, rtol=ROUNDING, atol=ROUNDING, equal_nan=True):
        return None
    # Only differences matter: what a pair's draws lose, its nominal must gain.
    lost = gradient[1:].masked_fill(carrying, 0.0).sum(dim=0)
    return again, torch.cat((gradient[0] + lost, gradient[1:][entry, pair]))


def _without_graph(posterior: Posterior, theta: Tensor) -> Tensor:
    """The log-densities (L, N) of theta (L, N, D), some at a time."""
    size = max(1, MOST_ROWS // theta.shape[1])
    with torch.no_grad():
        return torch.cat([evaluated(posterior, part) for part in theta.split(size)])


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
