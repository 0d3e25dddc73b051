r"""The method: how far the coverage of a batch falls short, with a gradient (Algorithm 1).

For each of N pairs :math:`(\theta_i, x_i)` of a batch, draw L parameters from a proposal I,
compare their densities with that of :math:`\theta_i`, and sort what comes out:

.. math::
    R = \frac1N \sum_i \max\Big(\frac{i}{N} - \hat\alpha_{(i)}, 0\Big)^2, \qquad
    \hat\alpha_i = \frac{\sum_j w_{ij}\, \mathbb{1}[p_{ij} < p_i]}{\sum_j w_{ij}}, \quad
    w_{ij} = \frac{p_{ij}}{I(\theta_{ij})} .

What each line does is a page of its own: :mod:`~prudent.coverage.proposals`,
:mod:`~prudent.coverage.alpha`, :mod:`~prudent.coverage.penalty`. Two more save time alone:
:mod:`~prudent.coverage.passes` and :mod:`~prudent.coverage.schedule`.
"""

from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from prudent._choices import INDICATORS
from prudent._settings import whole
from prudent.contracts import Posterior
from prudent.coverage.alpha import alpha
from prudent.coverage.figures import Seen
from prudent.coverage.passes import Passes
from prudent.coverage.penalty import penalty
from prudent.coverage.proposals import checked, proposal_of
from prudent.errors import unknown_name


class CoveragePenalty(nn.Module):
    r"""A coverage penalty for any conditional density, to add to any loss.

    >>> from torch.distributions import Independent, Normal, Uniform
    >>> prior = Independent(Uniform(-torch.ones(2), torch.ones(2)), 1)
    >>> penalty = CoveragePenalty(prior, num_samples=16)
    >>> posterior = Independent(Normal(torch.zeros(8, 2), torch.ones(8, 2)), 1)
    >>> penalty(posterior, prior.sample((8,))).shape
    torch.Size([])

    Args:
        proposal: Where the draws come from; it must cover the support of the posterior. A torch
            distribution over theta, usually the prior (the paper), or anything that has
            ``sample_and_log_prob(shape)``, such as :class:`~prudent.coverage.Even`; ``"model"``
            for ``posterior.sample``; ``"model-rsample"`` for ``posterior.rsample``, ``"draws"``
            for that without any density; or :class:`~prudent.coverage.Nominal`.
        num_samples: The number of draws for each pair, L.
        target: ``"conservative"``, ``"calibrated"``, or a number in [0, 1] between the two.
        indicator: The surrogate of the comparison; see :func:`prudent.coverage.alpha`.
        computation: The axis of the comparison; see :func:`prudent.coverage.penalty`.
        levels: The levels that the alphas are compared with; see there.
        distance: The reduction of the differences to one number; see there.
        midpoint: Whether draws of exactly equal density count half.
        tolerance: The share of the gradient that may be left out to save time, or None for one
            plain evaluation of everything. See :mod:`prudent.coverage.passes`.

    Attributes:
        seen: What the last call saw, for a history of the training.
    """

    seen: Seen | None = None

    def __init__(
        self,
        proposal: Any,
        num_samples: int = 16,
        target: str | float = "conservative",
        *,
        indicator: str = "log",
        computation: str = "sort",
        levels: str | Tensor = "upper",
        distance: str = "squared",
        midpoint: bool = False,
        tolerance: float | None = 5e-5,
    ) -> None:
        super().__init__()
        if indicator not in INDICATORS:
            raise unknown_name("indicator", indicator, INDICATORS)
        self.proposal = proposal_of(proposal)
        self.num_samples = whole("num_samples", num_samples, 1)
        self.target, self.indicator = target, indicator
        self.alpha = partial(alpha, indicator=indicator, midpoint=midpoint)
        self.penalty = partial(
            penalty, target=target, computation=computation, levels=levels, distance=distance
        )
        self.penalty(torch.ones(1))  # refuses settings that are unknown, before the first step
        self.passes = Passes(tolerance)

    @classmethod
    def paper(
        cls, prior: Any, num_samples: int = 16, target: str | float = "conservative"
    ) -> Self:
        """Algorithm 1 to the letter: draws from the prior, densities compared as they are.

        Everything is evaluated plainly; ``fit(preset="paper")`` finds the same by two passes, with
        the usual tolerance.
        """
        return cls(prior, num_samples, target, indicator="density", tolerance=None)

    def forward(self, posterior: Posterior, theta: Tensor) -> Tensor:
        """The penalty of a batch.

        Args:
            posterior: The posteriors of N observations; ``log_prob`` maps (..., N, D) to (..., N).
            theta: The nominal parameters (N, D).
        """
        draws = self.proposal.draw(posterior, self.num_samples, checked(theta))  # line 4

        def regularizer(log_prob: Tensor) -> Tensor:  # (L + 1, N)
            nominal, sample = log_prob[0], log_prob[1:]  # lines 2 and 5
            log_weight = draws.log_weight(sample)
            alphas = self.alpha(nominal, sample, log_weight)  # line 7, Eq. 11
            self.seen = Seen(alphas.detach(), log_weight.detach(), draws.worth)
            return self.penalty(alphas)  # lines 9 and 10

        density = draws.density or posterior
        value: Tensor = self.passes(density, theta, draws.theta, regularizer)
        return value

    def extra_repr(self) -> str:
        """The settings, for ``print``."""
        return f"num_samples={self.num_samples}, target={self.target}, indicator={self.indicator}"
