r"""Losses: functions of (posterior, theta), like penalties, to be added up.

Marginal pairs for the classifier come from the batch itself: each observation meets the theta of
its neighbour. A batch is in random order, so these pairs are independent, and none is joint.

Where simulations failed and were left out, the theta of a batch follow the prior given success,
and a ratio to that times the prior is not the posterior. The marginal theta must then come from
all simulations, failed ones included: :class:`WithMarginal`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import softplus

from prudent.contracts import Objective, Posterior, RatioPosterior

__all__ = ["WeightedSum", "balance", "bce", "nll", "weighted_sum", "WithMarginal"]


def nll(posterior: Posterior, theta: Tensor) -> Tensor:
    r"""Negative log-density of the nominal parameters, :math:`-\log q(\theta_i \mid x_i)`."""
    return -posterior.log_prob(theta).mean()


def bce(posterior: RatioPosterior, theta: Tensor, marginal: Tensor | None = None) -> Tensor:
    r"""Binary cross-entropy of joint against marginal pairs; both means have weight one.

    With log ratio :math:`\ell`: mean of :math:`\log(1 + e^{-\ell})` over joint and of
    :math:`\log(1 + e^{\ell})` over marginal pairs. ``marginal`` (N, D) replaces the theta of the
    neighbours.
    """
    joint, apart = _log_ratios(posterior, theta, marginal)
    return softplus(-joint).mean() + softplus(apart).mean()


def balance(posterior: RatioPosterior, theta: Tensor, marginal: Tensor | None = None) -> Tensor:
    r"""The balancing condition of Delaunoy et al. (2022), squared.

    The classifier :math:`d = \sigma(\ell)` should satisfy
    :math:`E_\text{joint}[d] + E_\text{marginal}[d] = 1`.
    """
    joint, apart = _log_ratios(posterior, theta, marginal)
    return (joint.sigmoid().mean() + apart.sigmoid().mean() - 1).square()


def _log_ratios(
    posterior: RatioPosterior, theta: Tensor, marginal: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Log ratios of joint and of marginal pairs, in one evaluation."""
    other = theta.roll(1, dims=0) if marginal is None else marginal
    joint, apart = posterior.log_ratio(torch.stack((theta, other)))
    return joint, apart


class WithMarginal:
    """A term whose marginal theta are drawn from a pool instead of the batch.

    Args:
        term: ``bce`` or ``balance``.
        pool: The theta of all simulations, failed ones included, (M, D).
    """

    def __init__(self, term: Callable[..., Tensor], pool: Tensor) -> None:
        self.term, self.pool = term, pool
        self.__name__ = term.__name__

    def __call__(self, posterior: Posterior, theta: Tensor) -> Tensor:
        """The value of the term."""
        chosen = torch.randint(len(self.pool), (len(theta),))
        return self.term(posterior, theta, self.pool[chosen].to(theta))


class WeightedSum:
    """An objective made of others.

    >>> objective = weighted_sum((1.0, nll), (0.5, balance))
    >>> objective
    1 nll + 0.5 balance
    """

    def __init__(self, *terms: tuple[float, Objective]) -> None:
        self.weights = {_name(term): float(weight) for weight, term in terms}
        self.objectives = {_name(term): term for _, term in terms}

    def terms(self, posterior: Posterior, theta: Tensor) -> dict[str, Tensor]:
        """The value of each term before weighting."""
        return {name: term(posterior, theta) for name, term in self.objectives.items()}

    def total(self, terms: dict[str, Tensor]) -> Tensor:
        """The weighted sum of the terms."""
        return torch.stack([self.weights[name] * value for name, value in terms.items()]).sum()

    def __call__(self, posterior: Posterior, theta: Tensor) -> Tensor:
        """The value to minimise."""
        return self.total(self.terms(posterior, theta))

    def __repr__(self) -> str:
        return " + ".join(f"{weight:g} {name}" for name, weight in self.weights.items())


def weighted_sum(*terms: tuple[float, Objective]) -> WeightedSum:
    """The objective ``sum(weight * term)``, from (weight, term) pairs."""
    return WeightedSum(*terms)


def _name(term: Objective) -> str:
    """``nll`` for a function, ``coverage`` for a CoveragePenalty."""
    default = type(term).__name__.removesuffix("Penalty").lower()
    return str(getattr(term, "__name__", default))
