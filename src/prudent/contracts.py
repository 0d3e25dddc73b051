r"""The protocols that the layers share. Nothing here computes.

A posterior is a batch: conditioning on ``N`` observations gives one object that stands for ``N``
distributions over ``D`` parameters. Shapes follow ``torch.distributions``: samples first, then the
batch, then the event.

Every posterior has ``log_prob`` and ``sample``. What else those of other libraries can do, they
show by their methods: ``isinstance(posterior, Rows)`` asks for an optional ability. The method
must be a real attribute; Python 3.12 does not see one that ``__getattr__`` makes up. What ours can
do stands in their facts (:class:`prudent.posteriors.density.Facts`).
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

# What torch distributions accept.
Shape = torch.Size | list[int] | tuple[int, ...]


@runtime_checkable
class Prior(Protocol):
    """Any torch distribution with ``event_shape`` (D,) and an empty batch shape, or its like."""

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw ``theta`` ``(*sample_shape, D)``."""

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of ``theta`` (..., D) as (...)."""


@runtime_checkable
class Posterior(Protocol):
    """The posteriors of a batch of N observations: what every one of them can do."""

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log-density of ``theta`` (..., N, D) as (..., N), up to a constant per observation."""

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw ``theta`` ``(*sample_shape, N, D)`` without a gradient."""


@runtime_checkable
class Rows(Protocol):
    """A posterior from whose observations some can be chosen."""

    def rows(self, index: Tensor | slice) -> Self:
        """The posteriors of some of the observations; nothing is embedded again."""


@runtime_checkable
class LogRatio(Protocol):
    """A posterior that knows its ratio to the prior."""

    def log_ratio(self, theta: Tensor) -> Tensor:
        """Log of posterior over prior at ``theta`` (..., N, D) as (..., N)."""


@runtime_checkable
class SampleAndLogProb(Protocol):
    """A posterior or a proposal that draws and evaluates its draws in one go."""

    def sample_and_log_prob(self, sample_shape: Shape = ()) -> tuple[Tensor, Tensor]:
        """Draws as of ``sample``, and their log-density as of ``log_prob``; no gradient."""


@runtime_checkable
class Reparametrized(Protocol):
    """A posterior whose draws are a differentiable function of its weights."""

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw ``theta`` ``(*sample_shape, N, D)`` with a gradient."""


@runtime_checkable
class Adjusted(Protocol):
    """An estimator with the densities and draws of another one, and regions of its own."""

    inner: Any

    def adjusted(self, theta: Tensor, x: Tensor) -> Tensor:
        """The alphas (N,) of its regions: that of a level holds theta from 1 - level on."""


class Estimator(Protocol):
    """Conditioning is a call."""

    prior: Prior
    normalized: bool

    def __call__(self, x: Tensor) -> Posterior:
        """The posteriors given ``x`` ``(N, *x_shape)``, embedded once."""


class PerPair(NamedTuple):
    """A figure that is made of one number for each pair.

    Args:
        values: The numbers, (N,), without a gradient.
        reduce: The function that makes one figure of the numbers of all validation pairs.
    """

    values: Tensor
    reduce: Callable[[Tensor], Tensor]


class Evaluation(NamedTuple):
    """The value of a term of an objective on a batch, with figures for the history.

    Args:
        value: A scalar with a gradient.
        figures: Scalars without a gradient, of which an epoch keeps the mean over its training
            steps, and numbers per pair, which are reduced over all validation pairs.
        factor: The number of steps that the value stands for: 0 in a step that the term leaves
            out, which is then not in the history either.
    """

    value: Tensor
    figures: Mapping[str, Tensor | PerPair] = MappingProxyType({})
    factor: float = 1.0


class Objective(Protocol):
    """A loss and a penalty are the same thing; one that knows more has ``evaluate`` as well."""

    def __call__(self, posterior: Any, theta: Tensor) -> Tensor | Evaluation:
        """A scalar to minimize, or an :class:`Evaluation` that holds it."""
