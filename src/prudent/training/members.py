"""One network, or the several of an ensemble."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prudent._progress import Reporter
from prudent._randomness import derive, seeded
from prudent.contracts import Prior
from prudent.datasets import Data
from prudent.estimators import KINDS, Ensemble, NeuralEstimator
from prudent.training.checkpoint import Checkpoints
from prudent.training.loop import train
from prudent.training.methods import Method
from prudent.training.options import Options

# Pairs at a time whose out-of-fold density is computed.
CHUNK = 4096


def fit_ensemble(
    one: Callable[..., NeuralEstimator], data: Data, options: Options, seed: int
) -> Ensemble:
    """Train all members in turn, each with a seed of its own.

    With ``ensemble="seeds"`` they share training and validation pairs. With ``"folds"`` each
    validates on its own fold and trains on the others, so that all pairs are trained on.

    Args:
        one: :func:`fit_one` with all that the members share.
        data: The pairs of all members.
        options: The number of members, and in what they differ.
        seed: The seed from which the members' own are derived.
    """
    number = options.members
    split = data.split(options.validation_fraction, seed)
    fold = data.folds(number, seed) if options.ensemble == "folds" else None
    members = []
    for index in range(number):
        if fold is not None:
            split = data.held_out(fold, index)
        name = f"member-{index}"
        title = f"training {index + 1} of {number}"
        members.append(one(*split, derive(seed, "member", index), name, title))
    if fold is None or (fold_of_pairs := data.fold_of_pairs(fold)) is None:
        return Ensemble(members)
    return Ensemble(members, fold_of_pairs, _out_of_fold(members, fold, fold_of_pairs, data))


def fit_one(
    training: Data,
    validation: Data,
    seed: int,
    name: str = "",
    title: str = "training",
    *,
    method: Method,
    prior: Prior,
    pool: Tensor | None,
    options: Options,
    networks: dict[str, Any],
    device: torch.device,
    checkpoint: Path | None,
    identity: dict[str, Any],
    progress: Reporter,
) -> NeuralEstimator:
    """Train one network; its checkpoints are in the directory of that name."""
    if options.members > 1 and isinstance(networks.get("embedding"), nn.Module):
        networks = {**networks, "embedding": copy.deepcopy(networks["embedding"])}
    with seeded(seed, "initialisation"):
        estimator = KINDS[method.family](prior, training.dim, training.x_shape, **networks)
    sample = training.sample()
    estimator.adapt(sample.theta, sample.x)
    del sample
    checkpoints = None
    if checkpoint is not None:
        checkpoints = Checkpoints(checkpoint / name, {**identity, "member": name})
    train(
        estimator.to(device),
        method.objective(prior, options, pool),
        training,
        validation,
        options=options,
        seed=seed,
        progress=progress,
        checkpoints=checkpoints,
        title=title,
    )
    return estimator


@torch.no_grad()
def _out_of_fold(
    members: list[NeuralEstimator], fold: Tensor, fold_of_pairs: Tensor, data: Data
) -> Tensor:
    """The log-density of each pair under the member that did not train on it."""
    values = torch.empty(len(data))
    for index, member in enumerate(members):
        device = next(member.parameters()).device
        batches = (batch.to(device) for batch in data.held_out(fold, index)[1].batches(CHUNK))
        densities = [member(batch.x).log_prob(batch.theta).cpu() for batch in batches]
        values[fold_of_pairs == index] = torch.cat(densities)
    return values
