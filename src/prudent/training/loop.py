"""The only training loop.

Every method goes through it with the same optimizer, clipping, schedule and selection rule.
"""

import logging
import math
import time
from typing import Any

import torch
from torch import Tensor

from prudent._progress import Progress, Reporter
from prudent._randomness import derive, seeded
from prudent.contracts import Evaluation, PerPair
from prudent.datasets import Data, Pairs
from prudent.datasets.pairs import num_batches
from prudent.errors import TrainingError
from prudent.estimators import NeuralEstimator
from prudent.posteriors.density import undivided
from prudent.training.checkpoint import Checkpoints, TrainingState
from prudent.training.objectives import WeightedSum
from prudent.training.options import Options

# The share of an epoch's steps that may be skipped because something was not finite.
MAX_SKIPPED = 0.05
# Validation pairs at a time; the coverage penalty wants many.
VALIDATION_BATCH = 4096

logger = logging.getLogger("prudent")


def train(
    estimator: NeuralEstimator,
    objective: WeightedSum,
    training: Data,
    validation: Data,
    *,
    options: Options,
    seed: int,
    progress: Reporter = None,
    checkpoints: Checkpoints | None = None,
    title: str = "training",
) -> None:
    """Train in place and leave the weights of the epoch with the best validation loss.

    Rows of ``estimator.history`` hold the mean of every term over the epoch's steps, the same
    terms on the validation pairs, the gradient norm, the learning rate, the skipped steps and the
    seconds, and the figures that terms report: of a coverage penalty the effective number of its
    draws, and the largest shortfall of coverage on the validation pairs.

    The estimator is adapted to the pairs already; by the validation pairs the learning rate is
    lowered as well. The seed is that of the batches and of the draws inside the objective. The
    ``progress`` is as in :func:`prudent.fit`; ``checkpoints`` are written and continued from.
    """
    state = TrainingState(estimator, objective, options, seed)
    with seeded(seed, "training"):
        if checkpoints is not None and (stored := checkpoints.latest()) is not None:
            state.restore(*stored)
            if not state.finished:
                logger.info("%s continues after epoch %d.", title, state.epoch)
        with Progress(title, options.epochs, progress, "epoch", done=state.epoch) as bar:
            while not state.finished:
                row = _one_epoch(state, training, validation, seed)
                estimator.history.append(row)
                if checkpoints is not None and (state.finished or checkpoints.due()):
                    checkpoints.write(state.epoch, *state.export())
                shown = (*objective.weights, "validation_loss", "validation_shortfall", "skipped")
                bar.advance({name: row[name] for name in shown if name in row})
    if not state.best:
        raise TrainingError(
            f"the validation loss ({objective}) was never finite in {state.epoch} epochs; "
            "lower the learning rate or look at the simulations."
        )
    estimator.load_state_dict(state.best)
    estimator.eval()


def _one_epoch(
    state: TrainingState, training: Data, validation: Data, seed: int
) -> dict[str, Any]:
    """Train and validate once; the row of the history."""
    start = time.perf_counter()
    row: dict[str, Any] = {"epoch": state.epoch + 1, "learning_rate": state.learning_rate}
    row |= _pass(state, training)
    with seeded(derive(seed, "validation")):
        held_out = _validate(state, validation)
    row |= {f"validation_{name}": value for name, value in held_out.items()}
    row["validation_pairs"] = len(validation)
    row["selected"] = state.end_epoch(held_out["loss"])
    row["seconds"] = time.perf_counter() - start
    return row


def _pass(state: TrainingState, training: Data) -> dict[str, Any]:
    """One pass; the mean of each figure over the steps that have it, and how many were skipped."""
    estimator, objective, options = state.estimator, state.objective, state.options
    estimator.train()
    objective.train()
    batch_size = options.pairs_per_step(len(training))
    num_steps = num_batches(len(training), batch_size)
    found: dict[str, list[float]] = {}
    skipped = 0
    for step, batch in enumerate(training.batches(batch_size, state.order), start=1):
        # Batch normalization changes its buffers in a step that may have to be taken back.
        buffers = [(buffer, buffer.clone()) for buffer in estimator.embedding.buffers()]
        figures = _step(state, batch)
        broken = [name for name, value in figures.items() if not math.isfinite(value)]
        if broken:
            skipped += 1
            for buffer, before in buffers:
                buffer.copy_(before)
            if skipped > max(1.0, MAX_SKIPPED * num_steps):
                rows = ", ".join(map(str, batch.row_numbers[:8].tolist()))
                raise TrainingError(
                    f"training stopped in epoch {state.epoch + 1}: {skipped} of {num_steps} steps "
                    f"were not finite, the last in `{broken[0]}` (objective {objective}) at step "
                    f"{step}, whose batch holds the simulations {rows}, ... Lower the learning "
                    "rate or the weight, or look for extreme simulations."
                )
            continue
        state.step()
        for name, value in figures.items():
            found.setdefault(name, []).append(value)
    means = {name: math.fsum(values) / len(values) for name, values in found.items()}
    # A term that left out all of these few steps has no value.
    return {**dict.fromkeys(objective.weights), **means, "skipped": skipped}


def _step(state: TrainingState, batch: Pairs) -> dict[str, float]:
    """Gradients of one batch, clipped but not yet applied; its figures."""
    batch = batch.to(state.device)
    terms = state.objective.evaluate(state.estimator(batch.x), batch.theta)
    loss = state.objective.total(terms)
    state.optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(state.weights, state.options.clip_norm)
    figures = {name: term.value for name, term in terms.items() if term.factor}
    figures |= {"loss": loss, "gradient_norm": norm}
    for term in terms.values():
        figures |= {name: f for name, f in term.figures.items() if isinstance(f, Tensor)}
    # All at once, as an accelerator is waited for each time.
    numbers = torch.stack([value.detach().to(loss) for value in figures.values()]).cpu().tolist()
    return dict(zip(figures, numbers, strict=True))


@torch.no_grad()
def _validate(state: TrainingState, validation: Data) -> dict[str, float]:
    """The terms on held-out pairs; the caller seeds their draws alike in every epoch."""
    estimator, objective = state.to_validate(), state.objective
    objective.train(mode=False)
    sums = dict.fromkeys(objective.weights, 0.0)
    parts: dict[str, list[PerPair]] = {}
    for batch in validation.batches(VALIDATION_BATCH):
        batch = batch.to(state.device)
        posterior = undivided(estimator(batch.x))  # the loss is that of what is being trained
        for name, term in objective.evaluate(posterior, batch.theta).items():
            sums[name] += float(term.value) * len(batch) / len(validation)
            for key, figure in term.figures.items():
                if isinstance(figure, PerPair):
                    parts.setdefault(key, []).append(figure)
    found = {name: Evaluation(torch.tensor(value)) for name, value in sums.items()}
    sums["loss"] = float(objective.total(found))
    for key, figures in parts.items():
        sums[key] = float(figures[0].reduce(torch.cat([figure.values for figure in figures])))
    return sums
