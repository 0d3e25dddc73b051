"""The short way from simulations to an estimator."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from prudent.contracts import Objective, Prior
from prudent.coverage import CoveragePenalty
from prudent.datasets import Pairs
from prudent.datasets.joint import exclude_invalid
from prudent.errors import DataError, InputError, unknown_name
from prudent.estimators import NeuralEstimator
from prudent.estimators.priors import check_prior, log_prior
from prudent.estimators.store import KINDS
from prudent.progress import Reporter
from prudent.randomness import seeded
from prudent.training import methods
from prudent.training.loop import train
from prudent.training.methods import Method
from prudent.training.objectives import (
    WeightedSum,
    WithMarginal,
    balance,
    bce,
    nll,
    weighted_sum,
)
from prudent.training.options import Options
from prudent.version import __version__

__all__ = ["fit", "make_objective"]


def fit(
    theta: Any,
    x: Any,
    prior: Prior,
    *,
    method: str = "calnpe",
    seed: int = 0,
    invalid: str = "refuse",
    embedding: nn.Module | dict[str, Any] | None = None,
    hidden: Sequence[int] | None = None,
    progress: Reporter = None,
    **options: Any,
) -> NeuralEstimator:
    """Train an estimator on simulations.

    Args:
        theta: Parameters (N, D), drawn from the prior; array, tensor or list.
        x: The simulated observations (N, ...).
        prior: The torch distribution that theta was drawn from, with event_shape (D,).
        method: One of ``nre bnre calnre npe bnpe calnpe``.
        seed: The same seed gives the same weights, on one machine and one number of threads.
        invalid: What to do with simulations whose x holds NaN or infinity: ``refuse`` them all, or
            ``exclude`` those, which warns with their number. They count in the budget, and the
            ratio methods still see their theta, without which their posterior would be biased.
        embedding: A network from (N, ...) to (N, F) for structured observations, or the
            specification of one of ours, such as ``{"kind": "resnet18"}``.
        hidden: Widths of the hidden layers of the ratio network or of the flow's conditioners.
        progress: None for a bar on terminals, True, False, or a function of each history row.
        **options: See :class:`prudent.training.Options`.

    Returns:
        The estimator of the best epoch, with ``history`` and ``info``.

    >>> import prudent
    >>> problem = prudent.problems.get("gaussian")
    >>> theta, x = problem.draw(256, seed=0)
    >>> estimator = fit(theta, x, problem.prior, method="calnre", hidden=[16], epochs=2)
    >>> estimator(x[:5]).log_prob(theta[:5]).shape
    torch.Size([5])
    """
    chosen, settings = methods.get(method), Options.of(**options)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError(f"`seed` is {seed!r}; expected a whole number.")
    dim = check_prior(prior)
    if invalid not in ("refuse", "exclude"):
        raise unknown_name("value of `invalid`", invalid, ("refuse", "exclude"))
    if invalid == "exclude":
        pairs, pool = exclude_invalid(theta, x)
    else:
        pairs, pool = Pairs.of(theta, x), None
    _check_theta(pairs, prior, dim)
    objective = make_objective(chosen, prior, settings, pool)
    training, validation = pairs.split(settings.validation_fraction, seed)
    with seeded(seed, "initialisation"):
        estimator = KINDS[chosen.family](prior, dim, pairs.x.shape[1:], embedding, hidden)
    estimator.adapt(training.theta, training.x)
    estimator.info = {
        "method": method,
        "seed": seed,
        "num_simulations": len(pairs) if pool is None else len(pool),
        "num_invalid": 0 if pool is None else len(pool) - len(pairs),
        "options": dataclasses.asdict(settings),
        "threads": torch.get_num_threads(),
        "version": __version__,
    }
    train(
        estimator,
        objective,
        training,
        validation,
        options=settings,
        seed=seed,
        progress=progress,
    )
    return estimator


def make_objective(
    method: Method, prior: Prior, options: Options, pool: Tensor | None = None
) -> WeightedSum:
    """The objective of a row of the table of methods.

    Args:
        method: The row.
        prior: The proposal of the coverage penalty.
        options: Settings of the coverage penalty.
        pool: The theta of all simulations, where some were excluded.
    """
    coverage = CoveragePenalty(
        prior,
        options.num_samples,
        options.target,
        indicator=options.indicator,
        computation=options.computation,
        levels=options.levels,
    )
    terms: dict[str, Objective] = {
        "nll": nll,
        "bce": bce if pool is None else WithMarginal(bce, pool),  # type: ignore[dict-item]
        "balance": balance if pool is None else WithMarginal(balance, pool),  # type: ignore[dict-item]
        "coverage": coverage,
    }
    weights = method.weights(options.weight)
    return weighted_sum(*((weight, terms[name]) for name, weight in weights.items()))


def _check_theta(pairs: Pairs, prior: Prior, dim: int) -> None:
    if pairs.theta.shape[1] != dim:
        raise DataError(
            f"expected `theta` of shape (N, {dim}) to match the prior, "
            f"got {tuple(pairs.theta.shape)}."
        )
    outside = log_prior(prior, pairs.theta) == -torch.inf
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        raise DataError(
            f"{int(outside.sum()):,} of {len(pairs):,} rows of `theta` have no density under the "
            f"prior; the first is row {row}: {pairs.theta[row].tolist()}. Is it the prior that "
            "theta was drawn from?"
        )
