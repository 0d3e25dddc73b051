r"""Alpha from draws alone, for models that have no density.

Highest-density regions need a density. Regions of any other score serve as well, if the truth and
the draws are scored alike. Put the truth and its L draws into one pool, and score each of them by
how close the others are,

.. math:: s_k = -\frac{1}{L} \sum_{j \ne k} \log \lVert y_k - y_j \rVert ,

with each parameter in units of its standard deviation in the pool. If the draws are exact, the
truth is one more draw: the pool is exchangeable, its scores are too, and the rank of the truth's
score is uniform on 0, ..., L, for every L > 1 and in any number of dimensions. Alpha is that rank,
as a share of the draws, and it has the meaning that it has elsewhere: a truth in the tails of the
draws has a small one.

The logarithm matters. With plain distances the score is highest between two modes, and a posterior
whose modes are all too narrow is hardly seen. The logarithm of a small distance is far from that
of a large one, so that the score is highest inside modes, almost as a density is.
"""

import torch
from torch import Tensor

from prudent.coverage.alpha import alpha
from prudent.errors import InputError

# Distances far below this are taken as equal, in standard deviations of the pool: repeated draws.
LEAST_DISTANCE = 0.01

# Through products of places, small distances would be lost to rounding.
EXACT = "donot_use_mm_for_euclid_dist"


def pool_scores(theta: Tensor, draws: Tensor) -> Tensor:
    """The scores of the nominal parameters (N, D), first, and of L draws (L, N, D): (L + 1, N).

    No change of the units of a parameter changes them. They have a gradient, in fixed units.
    """
    if theta.ndim != 2 or draws.shape[1:] != theta.shape or len(draws) < 2:
        raise InputError(
            f"expected `theta` of shape (N, D) and `draws` of shape (L, N, D), L >= 2, got "
            f"{tuple(theta.shape)} and {tuple(draws.shape)}."
        )
    pool = torch.cat((theta.unsqueeze(0), draws)).transpose(0, 1)
    with torch.no_grad():
        center = pool.mean(dim=1, keepdim=True)
        unit = (pool - center).square().mean(dim=1, keepdim=True).sqrt()
        unit = torch.where(unit > 0, unit, torch.ones_like(unit))
    place = (pool - center) / unit
    squared = torch.cdist(place, place, compute_mode=EXACT).square()
    # Each is at distance zero from itself, which adds the same to all.
    score = -(squared + LEAST_DISTANCE**2).log().sum(dim=2) / (2 * len(draws))
    return score.T


def sample_alpha(theta: Tensor, draws: Tensor, *, indicator: str = "log") -> Tensor:
    r"""The share of draws that lie further out than the nominal parameters; no density is needed.

    Args:
        theta: The nominal parameters, (N, D).
        draws: L draws from the posterior of each observation, (L, N, D), two or more.
        indicator: The surrogate of the comparison of scores, as for log-densities in
            :func:`prudent.coverage.alpha`. ``"log"`` has the gradient of
            :math:`s_0 - \frac{1}{L} \sum_j s_j` in the draws.

    Returns:
        alpha (N,), one of 0, 1/L, ..., 1: for exact draws each with the same probability.

    >>> draws = torch.tensor([-1.0, -0.4, 0.5, 1.2]).reshape(4, 1, 1)
    >>> sample_alpha(torch.tensor([[0.1]]), draws), sample_alpha(torch.tensor([[3.0]]), draws)
    (tensor([1.]), tensor([0.]))
    """
    scores = pool_scores(theta, draws)
    return alpha(scores[0], scores[1:], indicator=indicator)
