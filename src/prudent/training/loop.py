"""The only training loop.

Every method goes through it with the same optimiser, clipping, schedule and selection rule.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import ReduceLROnPlateau

from prudent.datasets import Pairs
from prudent.errors import InputError, TrainingError
from prudent.estimators import NeuralEstimator
from prudent.progress import Progress, Reporter
from prudent.randomness import derive, generator, seeded
from prudent.training.objectives import WeightedSum
from prudent.training.options import Options

__all__ = ["train"]

# The share of an epoch's steps that may be skipped because something was not finite.
MAX_SKIPPED = 0.05
# Validation pairs at a time; the coverage penalty wants many.
VALIDATION_BATCH = 4096


def train(
    estimator: NeuralEstimator,
    objective: WeightedSum,
    training: Pairs,
    validation: Pairs,
    *,
    options: Options,
    seed: int,
    progress: Reporter = None,
) -> None:
    """Train in place and leave the weights of the epoch with the best validation loss.

    Rows of ``estimator.history`` hold the mean of every term over the epoch's steps, the same
    terms on the validation pairs, the gradient norm, the learning rate and the skipped steps.

    Args:
        estimator: Adapted to the pairs already.
        objective: What to minimise.
        training: Pairs to learn from.
        validation: Pairs to select the epoch and to lower the learning rate by.
        options: See :class:`Options`.
        seed: Of batches and of the draws inside the objective.
        progress: See :class:`Progress`.
    """
    if options.batch_size > len(training):
        raise InputError(
            f"`batch_size` is {options.batch_size}, but only {len(training):,} pairs are left to "
            f"train on; pass batch_size={max(1, len(training) // 4)} or simulate more."
        )
    optimizer = AdamW(estimator.parameters(), lr=options.learning_rate, weight_decay=0.0)
    schedule = ReduceLROnPlateau(optimizer)
    order = generator(seed, "batches")
    best_loss, best_state = math.inf, None
    with (
        seeded(seed, "training"),
        Progress("training", options.epochs, progress, unit="epoch") as bar,
    ):
        for epoch in range(options.epochs):
            start = time.perf_counter()
            row: dict[str, Any] = {"epoch": epoch + 1}
            row |= _epoch(estimator, objective, training, optimizer, order, options, epoch + 1)
            terms = _validate(estimator, objective, validation, derive(seed, "validation"))
            loss = float(objective.total({k: torch.tensor(v) for k, v in terms.items()}))
            row |= {f"validation_{name}": value for name, value in terms.items()}
            row |= {"validation_loss": loss, "learning_rate": optimizer.param_groups[0]["lr"]}
            row["selected"] = loss < best_loss
            if row["selected"]:
                best_loss, best_state = loss, _copy(estimator.state_dict())
            schedule.step(loss)
            row["seconds"] = time.perf_counter() - start
            estimator.history.append(row)
            bar.advance({k: row[k] for k in (*terms, "validation_loss", "skipped")})
    if best_state is None:
        raise TrainingError(
            f"the validation loss ({objective}) was never finite in {options.epochs} epochs; "
            "lower the learning rate or look at the simulations."
        )
    estimator.load_state_dict(best_state)
    estimator.eval()


def _epoch(
    estimator: NeuralEstimator,
    objective: WeightedSum,
    training: Pairs,
    optimizer: AdamW,
    order: torch.Generator,
    options: Options,
    epoch: int,
) -> dict[str, Any]:
    """One pass; the mean of each term, the mean gradient norm and the number of skipped steps."""
    estimator.train()
    sums: dict[str, float] = {}
    num_steps = len(training) // options.batch_size
    taken = 0
    causes: Counter[str] = Counter()
    for batch in training.batches(options.batch_size, order):
        terms = objective.terms(estimator(batch.x), batch.theta)
        optimizer.zero_grad()
        objective.total(terms).backward()
        norm = torch.nn.utils.clip_grad_norm_(estimator.parameters(), options.clip_norm)
        figures = {name: float(value.detach()) for name, value in terms.items()}
        figures["gradient_norm"] = float(norm)
        broken = [name for name, value in figures.items() if not math.isfinite(value)]
        if broken:
            causes[broken[0]] += 1
            if sum(causes.values()) > max(1.0, MAX_SKIPPED * num_steps):
                raise TrainingError(
                    f"training stopped in epoch {epoch}: {sum(causes.values())} of {num_steps} "
                    f"steps were not finite, first in `{broken[0]}` (objective {objective}). "
                    "Lower the learning rate or the weight, or look for extreme simulations."
                )
            continue
        optimizer.step()
        taken += 1
        for name, value in figures.items():
            sums[name] = sums.get(name, 0.0) + value
    means = {name: total / max(1, taken) for name, total in sums.items()}
    return {**means, "skipped": sum(causes.values())}


@torch.no_grad()
def _validate(
    estimator: NeuralEstimator, objective: WeightedSum, validation: Pairs, seed: int
) -> dict[str, float]:
    """The terms on held-out pairs, with the same random draws in every epoch."""
    estimator.eval()
    sums = dict.fromkeys(objective.weights, 0.0)
    with seeded(seed):
        for batch in validation.batches(VALIDATION_BATCH):
            for name, value in objective.terms(estimator(batch.x), batch.theta).items():
                sums[name] += float(value) * len(batch) / len(validation)
    return sums


def _copy(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A real copy: the tensors of a state follow later updates."""
    return {name: value.detach().clone() for name, value in state.items()}
