"""The short way from simulations to an estimator."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prudent._progress import Reporter
from prudent._settings import whole
from prudent.contracts import Prior
from prudent.datasets import Pairs
from prudent.datasets.pairs import exclude_invalid
from prudent.errors import DataError, InputError, unknown_name
from prudent.estimators import Ensemble, NeuralEstimator
from prudent.estimators.base import Embedding
from prudent.estimators.priors import check_prior, log_prior, to_spec
from prudent.training import methods
from prudent.training.members import Job, fit_ensemble, fit_one
from prudent.training.options import Options
from prudent.version import __version__

__all__ = ["fit"]

logger = logging.getLogger("prudent")


def fit(
    theta: Any,
    x: Any,
    prior: Prior,
    *,
    method: str = "calnpe",
    seed: int = 0,
    invalid: str = "refuse",
    embedding: Embedding | None = None,
    hidden: Sequence[int] | None = None,
    transforms: int | None = None,
    device: str | torch.device = "cpu",
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Reporter = None,
    **options: Any,
) -> NeuralEstimator | Ensemble:
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
        embedding: A network from (N, ...) to (N, F) for structured observations, a function that
            makes one, or the specification of one of ours, such as ``{"kind": "resnet18"}``. The
            members of an ensemble begin from copies of a network, or call the function each.
        hidden: Widths of the hidden layers of the ratio network or of the flow's conditioners.
        transforms: How many the flow has; only for NPE methods.
        device: Where to train: ``cpu``, ``cuda``, ``mps`` or a torch device. The estimator stays
            there; data and prior are on the CPU.
        checkpoint: A directory. The state is kept there while training, and the same call goes on
            from it after a crash, with the same result as without.
        progress: None for a bar on terminals, True, False, or a function of each history row.
        **options: See :class:`prudent.training.Options`; ``preset="paper"`` sets them all.

    Returns:
        The estimator of the best epoch, with ``history`` and ``info``; an
        :class:`prudent.estimators.Ensemble` if ``members`` is more than 1.

    >>> import prudent
    >>> problem = prudent.problems.get("gaussian")
    >>> theta, x = problem.draw(256, seed=0)
    >>> estimator = fit(theta, x, problem.prior, method="calnre", hidden=[16], epochs=2)
    >>> estimator(x[:5]).log_prob(theta[:5]).shape
    torch.Size([5])
    """
    method, settings = methods.canonical(method), Options.of(**options)
    chosen = methods.get(method)
    whole("seed", seed)
    if transforms is not None and chosen.family != "npe":
        raise InputError(f"`transforms` is {transforms}, but {method} has no flow.")
    dim = check_prior(prior)
    pairs, pool = _pairs(theta, x, invalid)
    _check_theta(pairs, prior, dim)
    _note_constant(pairs.x)
    info = {
        "method": method,
        "seed": seed,
        "num_simulations": len(pairs) if pool is None else len(pool),
        "num_invalid": 0 if pool is None else len(pool) - len(pairs),
        "options": settings.to_dict(),
        "threads": torch.get_num_threads(),
        "version": __version__,
    }
    networks: dict[str, Any] = {"hidden": hidden}
    if transforms is not None:
        networks["transforms"] = transforms
    job = Job(
        method=chosen,
        prior=prior,
        pool=pool,
        options=settings,
        embedding=embedding,
        networks=networks,
        device=_check_device(device),
        checkpoint=None if checkpoint is None else Path(checkpoint),
        identity=_identity(info, networks, embedding, prior, pairs, pool) if checkpoint else {},
        progress=progress,
    )
    if settings.members == 1:
        split = pairs.split(settings.validation_fraction, seed)
        estimator: NeuralEstimator | Ensemble = fit_one(job, *split, seed)
    else:
        estimator = fit_ensemble(job, pairs, seed)
    estimator.info = info
    return estimator


def _pairs(theta: Any, x: Any, invalid: str) -> tuple[Pairs, Tensor | None]:
    """The pairs to train on, and the theta of all if some were left out."""
    if invalid not in ("refuse", "exclude"):
        raise unknown_name("value of `invalid`", invalid, ("refuse", "exclude"))
    return exclude_invalid(theta, x) if invalid == "exclude" else (Pairs.of(theta, x), None)


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


def _note_constant(x: Tensor) -> None:
    """Say that a component never changes: usual in an image, but perhaps not in a vector."""
    constant = (x == x[0]).all(dim=0) if x.ndim == 2 else torch.zeros(0)
    if bool(constant.any()):
        places = ", ".join(map(str, constant.nonzero()[:8, 0].tolist()))
        logger.warning(
            "%d of %d components of x are the same in all simulations (%s); they are kept.",
            int(constant.sum()),
            len(constant),
            places,
        )


def _check_device(device: str | torch.device) -> torch.device:
    """The device, if this machine has it."""
    try:
        chosen = torch.device(device)
        torch.empty(1, device=chosen).sum().item()
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        known = ["cpu", *(name for name, there in found.items() if there)]
        raise InputError(
            f"`device` is {str(device)!r}, which does not work here; available: {' '.join(known)}."
        ) from error
    return chosen


def _identity(
    info: dict[str, Any],
    networks: dict[str, Any],
    embedding: Embedding | None,
    prior: Prior,
    pairs: Pairs,
    pool: Tensor | None,
) -> dict[str, Any]:
    """What makes a training the same one, in plain JSON."""
    network = embedding if isinstance(embedding, dict) else getattr(embedding, "spec", None)
    if embedding is not None and network is None:
        network = str(embedding) if isinstance(embedding, torch.nn.Module) else "from a function"
    everything = pairs if pool is None else Pairs(pool, pairs.x)
    hidden = networks["hidden"]
    return {
        **{name: info[name] for name in ("method", "seed", "version")},
        **info["options"],
        **networks,
        "hidden": None if hidden is None else list(hidden),
        "embedding": network,
        "prior": to_spec(prior) or type(prior).__name__,
        "data": everything.digest(),
    }
