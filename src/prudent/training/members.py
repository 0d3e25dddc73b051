"""One network, or the several of an ensemble."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prudent._progress import Reporter
from prudent._randomness import derive, seeded
from prudent.contracts import Prior
from prudent.datasets import Pairs
from prudent.estimators import Ensemble, NeuralEstimator
from prudent.estimators.base import Embedding
from prudent.estimators.store import KINDS
from prudent.training.checkpoint import Checkpoints
from prudent.training.loop import train
from prudent.training.methods import Method
from prudent.training.options import Options

__all__ = ["Job", "fit_ensemble", "fit_one"]

# Pairs at a time whose out-of-fold density is computed.
CHUNK = 4096


@dataclass(frozen=True)
class Job:
    """What all members share; see :func:`prudent.fit`.

    Args:
        method: The row of the table.
        prior: Of theta.
        pool: The theta of all simulations, where some were excluded.
        options: All settings.
        embedding: Of the observations.
        networks: Other arguments of the estimator.
        device: Where to train.
        checkpoint: Where to keep the state, if anywhere.
        identity: What the training is, in plain JSON.
        progress: See :class:`prudent._progress.Progress`.
    """

    method: Method
    prior: Prior
    pool: Tensor | None
    options: Options
    embedding: Embedding | None
    networks: dict[str, Any]
    device: torch.device
    checkpoint: Path | None
    identity: dict[str, Any]
    progress: Reporter


def fit_ensemble(job: Job, pairs: Pairs, seed: int) -> Ensemble:
    """All members in turn, each with a seed of its own.

    With ``ensemble="seeds"`` they share training and validation pairs. With ``"folds"`` each
    validates on its own fold and trains on the others, so that all pairs are trained on.
    """
    number = job.options.members
    split = pairs.split(job.options.validation_fraction, seed)
    fold = pairs.folds(number, seed) if job.options.ensemble == "folds" else None
    members = []
    for index in range(number):
        if fold is not None:
            split = pairs[fold != index], pairs[fold == index]
        name = f"member-{index}"
        title = f"training {index + 1} of {number}"
        members.append(fit_one(job, *split, derive(seed, "member", index), name, title))
    return Ensemble(members, fold, None if fold is None else _out_of_fold(members, fold, pairs))


def fit_one(
    job: Job,
    training: Pairs,
    validation: Pairs,
    seed: int,
    name: str = "",
    title: str = "training",
) -> NeuralEstimator:
    """One network; its checkpoints are in the directory of that name."""
    objective = job.method.objective(job.prior, job.options, job.pool)
    embedding = job.embedding
    if job.options.members > 1 and isinstance(embedding, nn.Module):
        embedding = copy.deepcopy(embedding)
    dim, x_shape = training.theta.shape[1], training.x.shape[1:]
    with seeded(seed, "initialisation"):
        estimator = KINDS[job.method.family](job.prior, dim, x_shape, embedding, **job.networks)
    estimator.adapt(training.theta, training.x)
    checkpoints = None
    if job.checkpoint is not None:
        checkpoints = Checkpoints(job.checkpoint / name, {**job.identity, "member": name})
    train(
        estimator.to(job.device),
        objective,
        training,
        validation,
        options=job.options,
        seed=seed,
        progress=job.progress,
        checkpoints=checkpoints,
        title=title,
    )
    return estimator


@torch.no_grad()
def _out_of_fold(members: list[NeuralEstimator], fold: Tensor, pairs: Pairs) -> Tensor:
    """The log-density of each pair under the member that did not train on it."""
    values = torch.empty(len(pairs))
    for index, member in enumerate(members):
        device = next(member.parameters()).device
        for rows in (fold == index).nonzero()[:, 0].split(CHUNK):
            batch = pairs[rows].to(device)
            values[rows] = member(batch.x).log_prob(batch.theta).cpu()
    return values
