r"""The protocols that the layers share. Nothing here computes.

A posterior is a batch: conditioning on ``N`` observations gives one object that stands for ``N``
distributions over ``D`` parameters. Shapes follow ``torch.distributions``: samples first, then the
batch, then the event.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

# What torch distributions accept.
Shape = torch.Size | list[int] | tuple[int, ...]

__all__ = ["Estimator", "Objective", "Posterior", "Prior", "RatioPosterior"]


@runtime_checkable
class Prior(Protocol):
    """Any torch distribution with ``event_shape`` (D,) and an empty batch shape, or its like."""

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw ``theta`` ``(*sample_shape, D)``."""
        ...

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of ``theta`` (..., D) as (...)."""
        ...


class Posterior(Protocol):
    """The posteriors of a batch of N observations."""

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log-density of ``theta`` (..., N, D) as (..., N), up to a constant per observation."""
        ...

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw ``theta`` ``(*sample_shape, N, D)`` without a gradient."""
        ...

    def rows(self, index: Tensor | slice) -> Posterior:
        """The posteriors of some of the observations; nothing is embedded again."""
        ...


class RatioPosterior(Posterior, Protocol):
    """A posterior that knows its ratio to the prior."""

    def log_ratio(self, theta: Tensor) -> Tensor:
        """Log of posterior over prior at ``theta`` (..., N, D) as (..., N)."""
        ...


class Estimator(Protocol):
    """Conditioning is a call."""

    prior: Prior
    normalized: bool

    def __call__(self, x: Tensor) -> Posterior:
        """The posteriors given ``x`` ``(N, *x_shape)``, embedded once."""
        ...


class Objective(Protocol):
    """A loss and a penalty are the same thing."""

    def __call__(self, posterior: Posterior, theta: Tensor) -> Tensor:
        """A scalar to minimise."""
        ...
