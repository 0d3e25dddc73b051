r"""Losses: functions of (posterior, theta), like penalties, to be added up.

Marginal pairs for the classifier come from the batch itself: each observation meets the theta of
its neighbour. A batch is in random order, so these pairs are independent, and none is joint.

Where simulations failed and were left out, the theta of a batch follow the prior given success,
and a ratio to that times the prior is not the posterior. The marginal theta must then come from
all simulations, failed ones included: the ``pool`` of :class:`WeightedSum`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from prudent.contracts import LogRatio, Objective, Posterior
from prudent.coverage.penalty import CoveragePenalty

__all__ = ["WeightedSum", "balance", "bce", "nll", "weighted_sum"]


def nll(posterior: Posterior, theta: Tensor) -> Tensor:
    r"""Negative log-density of the nominal parameters, :math:`-\log q(\theta_i \mid x_i)`."""
    return -posterior.log_prob(theta).mean()


def bce(posterior: LogRatio, theta: Tensor) -> Tensor:
    r"""Binary cross-entropy of joint against marginal pairs; both means have weight one.

    With log ratio :math:`\ell`: mean of :math:`\log(1 + e^{-\ell})` over joint and of
    :math:`\log(1 + e^{\ell})` over marginal pairs.
    """
    joint, apart = _log_ratios(posterior, theta)
    return softplus(-joint).mean() + softplus(apart).mean()


def balance(posterior: LogRatio, theta: Tensor) -> Tensor:
    r"""The balancing condition of Delaunoy et al. (2022), squared.

    The classifier :math:`d = \sigma(\ell)` should satisfy
    :math:`E_\text{joint}[d] + E_\text{marginal}[d] = 1`. For a flow the log ratio is its
    log-density minus that of the prior.
    """
    joint, apart = _log_ratios(posterior, theta)
    return (joint.sigmoid().mean() + apart.sigmoid().mean() - 1).square()


def _log_ratios(posterior: LogRatio, theta: Tensor) -> tuple[Tensor, ...]:
    """Log ratios of joint and of marginal pairs, in one evaluation."""
    shared = posterior if isinstance(posterior, _Shared) else _Shared(posterior, None)
    return shared.log_ratios(theta).unbind()


class _Shared:
    """A posterior inside one step: terms that want the same log ratios evaluate them once.

    Args:
        posterior: Of the batch.
        pool: Theta to draw marginal pairs from; None for the neighbours in the batch.
    """

    def __init__(self, posterior: Any, pool: Tensor | None) -> None:
        self.posterior, self.pool = posterior, pool
        self.known: Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.posterior, name)

    def log_ratios(self, theta: Tensor) -> Tensor:
        """Log ratios of joint and of marginal pairs, (2, N)."""
        if self.known is None:
            other = theta.roll(1, dims=0)
            if self.pool is not None:
                other = self.pool[torch.randint(len(self.pool), (len(theta),))].to(theta)
            self.known = self.posterior.log_ratio(torch.stack((theta, other)))
        assert self.known is not None
        return self.known


class Terms(NamedTuple):
    """What an objective is made of, for one batch.

    Args:
        values: Each term before weighting, scalars.
        alpha: The alphas that a coverage penalty found, if there is one.
        effective_samples: The mean effective number of its draws.
    """

    values: dict[str, Tensor]
    alpha: Tensor | None = None
    effective_samples: Tensor | None = None


class WeightedSum:
    """An objective made of others; the first is the loss, the rest regularise it.

    Args:
        *terms: Pairs of a weight and a term.
        pool: The theta of all simulations, (M, D), where some were left out because they failed.

    >>> objective = weighted_sum((1.0, nll), (0.5, balance))
    >>> objective
    1 nll + 0.5 balance
    """

    def __init__(self, *terms: tuple[float, Objective], pool: Tensor | None = None) -> None:
        self.weights = {_name(term): float(weight) for weight, term in terms}
        self.objectives = {_name(term): term for _, term in terms}
        self.pool = pool

    def evaluate(self, posterior: Posterior, theta: Tensor) -> Terms:
        """All terms on a batch."""
        shared = _Shared(posterior, self.pool)
        values: dict[str, Tensor] = {}
        alpha = effective = None
        for name, term in self.objectives.items():
            if isinstance(term, CoveragePenalty):
                values[name], alpha, effective = term.evaluate(shared, theta)
            else:
                values[name] = term(shared, theta)
        return Terms(values, alpha, effective)

    def total(self, values: dict[str, Tensor], ramp: float = 1.0) -> Tensor:
        """The weighted sum of the terms, with the weights after the first times ``ramp``."""
        first = next(iter(self.weights))
        return torch.stack(
            [
                self.weights[name] * (1.0 if name == first else ramp) * value
                for name, value in values.items()
            ]
        ).sum()

    def train(self, mode: bool = True) -> None:  # noqa: FBT001, FBT002 (as torch has it)
        """Put the terms that are modules in training or in evaluation mode."""
        for term in self.objectives.values():
            if isinstance(term, nn.Module):
                term.train(mode)

    def __call__(self, posterior: Posterior, theta: Tensor) -> Tensor:
        """The value to minimise."""
        return self.total(self.evaluate(posterior, theta).values)

    def __repr__(self) -> str:
        return " + ".join(f"{weight:g} {name}" for name, weight in self.weights.items())


def weighted_sum(*terms: tuple[float, Objective], pool: Tensor | None = None) -> WeightedSum:
    """The objective ``sum(weight * term)``, from (weight, term) pairs."""
    return WeightedSum(*terms, pool=pool)


def _name(term: Objective) -> str:
    """``nll`` for a function, ``coverage`` for a CoveragePenalty."""
    default = type(term).__name__.removesuffix("Penalty").lower()
    return str(getattr(term, "__name__", default))
