"""What a penalty sees of a batch, for the history of a training."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from prudent.contracts import Evaluation, PerPair, Posterior
from prudent.coverage.alpha import effective_size

# The seed of the shares by which alphas are moved, which are no user's draws.
SEED = 20_261


@dataclass(frozen=True)
class Seen:
    """The alphas of a batch and what its draws are worth, all without a gradient.

    Args:
        alphas: The alphas, (N,).
        log_weight: The logs of the weights of L draws, (L, N).
        worth: The number of equally weighted draws that they stand for, (N,), or None where their
            weights say it.
    """

    alphas: Tensor
    log_weight: Tensor
    worth: Tensor | None

    def figures(self) -> dict[str, Tensor | PerPair]:
        """The effective number of draws, and how far coverage falls short."""
        worth, number = self.worth, len(self.log_weight)
        if worth is None:
            # Weights that are all zero are worth one draw.
            worth = effective_size(self.log_weight.softmax(dim=0)).nan_to_num(nan=1.0)
        shortfall = PerPair(self.alphas, partial(largest_gap, num_samples=number))
        return {"effective_samples": worth.mean(), "shortfall": shortfall}


def evaluation(term: Any, posterior: Posterior, theta: Tensor) -> Evaluation:
    """The value of any term of an objective, with the figures that it has."""
    found = getattr(term, "evaluate", term)(posterior, theta)
    if isinstance(found, Evaluation):
        return found
    seen = getattr(term, "seen", None)
    return Evaluation(found, seen.figures() if isinstance(seen, Seen) else {})


def largest_gap(alpha: Tensor, num_samples: int) -> Tensor:
    r"""The most that coverage falls short of any level, from alphas (N,) by L draws.

    The region of credibility :math:`\ell` holds the truth where :math:`\alpha \ge 1 - \ell`, so
    coverage is short by :math:`F_N(a) - a` at :math:`a = 1 - \ell`, and most so at an alpha. The
    truth of an exact posterior is below all draws as often as between any two: each alpha is moved
    by a random share of such a place, always the same.

    >>> ranks = torch.arange(1000.0) % 5  # among four draws
    >>> bool(largest_gap(ranks / 4, 4) < 0.05 < 0.2 < largest_gap(ranks**3 / 64, 4))
    True
    """
    uniform = torch.rand(len(alpha), generator=torch.Generator().manual_seed(SEED)).to(alpha)
    alpha = (num_samples * alpha + uniform) / (num_samples + 1)
    rank = torch.arange(1, len(alpha) + 1, dtype=alpha.dtype, device=alpha.device)
    return (rank / len(alpha) - alpha.sort().values).max().clamp(min=0)
