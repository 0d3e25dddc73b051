"""A term of an objective in some of the steps of a training, which makes it cheap."""

from math import floor
from typing import Any

import torch
from torch import Tensor, nn

from prudent.contracts import Evaluation, Posterior
from prudent.coverage.figures import evaluation
from prudent.errors import InputError


class Sometimes(nn.Module):
    """A term that is evaluated in some steps only, and counts as much more in these.

    The gradient is the same on average, unless its norm is clipped: clipping cuts few strong steps
    by more than many weak ones.

    >>> from torch.distributions import Independent, Normal
    >>> from prudent.coverage import CoveragePenalty
    >>> prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> penalty = Sometimes(CoveragePenalty(prior), 0.5)
    >>> narrow, theta = Independent(Normal(torch.zeros(8, 2), 0.1), 1), prior.sample((8,))
    >>> [bool(penalty(narrow, theta) > 0) for _ in range(4)]
    [True, False, True, False]

    Args:
        term: A function of a posterior and theta, such as a coverage penalty.
        fraction: The share of calls to look at: with 1/3 the first, and then every third, where
            the term counts three times. The other calls return 0 at no cost. In evaluation mode
            every call counts once.
    """

    # The number of calls in training.
    calls: Tensor

    def __init__(self, term: Any, fraction: float) -> None:
        super().__init__()
        if isinstance(fraction, bool) or not 0 < fraction <= 1:
            raise InputError(f"`fraction` is {fraction!r}; expected a number in (0, 1].")
        self.term, self.fraction = term, fraction
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, posterior: Posterior, theta: Tensor) -> Tensor:
        """The term times the number of steps that it stands for, which may be none."""
        found = self.evaluate(posterior, theta)
        return found.value * found.factor

    def evaluate(self, posterior: Posterior, theta: Tensor) -> Evaluation:
        """The value of the term, with that number as its factor."""
        if not self._due():
            nothing = theta.new_zeros((), requires_grad=torch.is_grad_enabled())
            return Evaluation(nothing, factor=0.0)
        found = evaluation(self.term, posterior, theta)
        return found._replace(factor=1 / self.fraction if self.training else 1.0)

    def _due(self) -> bool:
        if not self.training or self.fraction == 1:
            return True
        now = int(self.calls)
        self.calls += 1
        # Due are the steps with which their number grows; products may be an ulp too small.
        before, after = (floor(call * self.fraction + 1e-9) for call in (now - 1, now))
        return before < after
