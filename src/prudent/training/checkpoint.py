"""The state of a training, and how it is kept on disk, so that a killed one goes on.

A checkpoint is one file, written atomically and sealed with a checksum. The last two are kept; the
newest that is whole is read. Weights, optimizer, schedule and all random states are in it, so that
an interrupted training ends with the same bits as an undisturbed one.
"""

import contextlib
import copy
import inspect
import logging
import math
import os
import platform
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import ReduceLROnPlateau

from prudent._files import dump_tensors, load_tensors, write_atomic
from prudent._randomness import generator
from prudent.errors import InputError, StoreError, shortened
from prudent.estimators import NeuralEstimator
from prudent.history import History
from prudent.training.objectives import WeightedSum
from prudent.training.options import LEARNING_RATE, Options

FORMAT = 1
KEPT = 2
# A checkpoint may cost one per cent of the time, and a kill at most a minute or an epoch.
COST_SHARE = 0.01
LONGEST_SECONDS = 60.0

# Where torch can apply AdamW in one call.
FUSED = ("cpu", "cuda", "mps")
# An average that is younger than so many steps looks back less far.
FIRST_STEPS = 10

logger = logging.getLogger("prudent")


class _AdamW(AdamW):
    """AdamW that is never compiled.

    Torch makes sure of that by importing its compiler, which takes as long as importing torch.
    """

    add_param_group = inspect.unwrap(AdamW.add_param_group)
    zero_grad = inspect.unwrap(AdamW.zero_grad)
    step = torch.no_grad()(inspect.unwrap(AdamW.step))
    state_dict = inspect.unwrap(AdamW.state_dict)
    load_state_dict = inspect.unwrap(AdamW.load_state_dict)


class TrainingState:
    """Everything that changes in a training: weights, optimizer, randomness, the best epoch.

    Validated and kept are averages of the weights over the last steps, which are less noisy.
    """

    def __init__(
        self, estimator: NeuralEstimator, objective: WeightedSum, options: Options, seed: int
    ) -> None:
        self.estimator, self.objective, self.options = estimator, objective, options
        self.device = next(estimator.parameters()).device
        # One call for all weights; a call for each would take longer than the arithmetic.
        fused = self.device.type in FUSED or None
        self.optimizer = _AdamW(
            estimator.parameters(),
            lr=options.learning_rate or LEARNING_RATE,
            weight_decay=0.0,
            fused=fused,
        )
        self.schedule = ReduceLROnPlateau(self.optimizer)
        self.order = generator(seed, "batches")
        self.averaged = copy.deepcopy(estimator) if options.averaging else estimator
        # Listed once: a walk over the modules in every step takes as long as the update itself.
        self.weights: list[Tensor] = list(estimator.parameters())
        self.averages: list[Tensor] = list(self.averaged.parameters())
        self.epoch = self.best_epoch = self.steps = 0
        self.best_loss = math.inf
        self.best: dict[str, Tensor] = {}

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        rate: float = self.optimizer.param_groups[0]["lr"]
        return rate

    @property
    def finished(self) -> bool:
        """True when all epochs are done, or none was the best for too long."""
        patience = self.options.patience
        impatient = patience is not None and self.epoch - self.best_epoch >= patience
        return impatient or self.epoch >= self.options.epochs

    @torch.no_grad()
    def step(self) -> None:
        """Apply the gradients, and take the new weights into the average."""
        self.optimizer.step()
        self.steps += 1
        if self.averaged is not self.estimator:
            kept = min(self.options.averaging, self.steps / (self.steps + FIRST_STEPS))
            torch._foreach_lerp_(self.averages, self.weights, 1 - kept)

    def to_validate(self) -> NeuralEstimator:
        """The averaged network, with what the trained one knows of its batches."""
        if self.averaged is not self.estimator:
            for mine, new in zip(self.averaged.buffers(), self.estimator.buffers(), strict=True):
                mine.copy_(new)
        return self.averaged.eval()

    def end_epoch(self, loss: float) -> bool:
        """Count an epoch, and return whether its validation loss is the best so far."""
        self.epoch += 1
        better = loss < self.best_loss
        if better:
            self.best_loss, self.best_epoch = loss, self.epoch
            # A real copy: the tensors of a state follow later updates.
            state = self.averaged.state_dict()
            self.best = {name: value.detach().clone() for name, value in state.items()}
        self.schedule.step(loss)
        return better

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Plain JSON and tensors that :meth:`restore` takes."""
        optimizer = self.optimizer.state_dict()
        tensors = {f"model.{name}": value for name, value in self.estimator.state_dict().items()}
        tensors |= {f"best.{name}": value for name, value in self.best.items()}
        if self.averaged is not self.estimator:
            averaged = self.averaged.state_dict()
            tensors |= {f"averaged.{name}": value for name, value in averaged.items()}
        for index, moments in optimizer["state"].items():
            tensors |= {f"optimizer.{index}.{name}": value for name, value in moments.items()}
        tensors |= {f"objective.{name}": value for name, value in self.objective.state().items()}
        tensors |= {"random": torch.get_rng_state(), "order": self.order.get_state()}
        if self.device.type != "cpu":
            tensors["device_random"] = torch.get_device_module(self.device).get_rng_state()
        state = {
            "epoch": self.epoch,
            "steps": self.steps,
            "best_loss": _to_json(self.best_loss),
            "best_epoch": self.best_epoch,
            "groups": optimizer["param_groups"],
            "schedule": {name: _to_json(v) for name, v in self.schedule.state_dict().items()},
            "history": list(self.estimator.history),
        }
        return state, tensors

    def restore(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Go back to an exported state, the global random state included."""
        self.estimator.load_state_dict(_part(tensors, "model."))
        self.best = _part(tensors, "best.")
        if self.averaged is not self.estimator:
            self.averaged.load_state_dict(_part(tensors, "averaged."))
        self.objective.restore(_part(tensors, "objective."))
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in _part(tensors, "optimizer.").items():
            index, key = name.split(".", 1)
            moments.setdefault(int(index), {})[key] = value
        self.optimizer.load_state_dict({"state": moments, "param_groups": state["groups"]})
        self.schedule.load_state_dict({k: _from_json(v) for k, v in state["schedule"].items()})
        torch.set_rng_state(tensors["random"])
        self.order.set_state(tensors["order"])
        if self.device.type != "cpu" and "device_random" in tensors:
            torch.get_device_module(self.device).set_rng_state(tensors["device_random"])
        self.epoch, self.steps, self.best_epoch = (
            state[name] for name in ("epoch", "steps", "best_epoch")
        )
        self.best_loss = _from_json(state["best_loss"])
        self.estimator.history = History(state["history"])


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _to_json(value: Any) -> Any:
    """A value as JSON can hold it, which has no infinity, from which schedules start."""
    infinite = isinstance(value, float) and not math.isfinite(value)
    return {"float": str(value)} if infinite else value


def _from_json(value: Any) -> Any:
    return float(value["float"]) if isinstance(value, dict) else value


class Checkpoints:
    """The checkpoints of one training, in a directory of their own.

    The identity says what the training is, in plain JSON; another one is refused.
    """

    def __init__(self, directory: str | os.PathLike[str], identity: Mapping[str, Any]) -> None:
        self.directory, self.identity = Path(directory), dict(identity)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            for leftover in self.directory.glob(".*.tmp"):
                leftover.unlink()
        except OSError as error:
            raise StoreError(
                f"cannot write checkpoints to {self.directory}: {error.strerror}."
            ) from error
        self.written = time.monotonic()
        self.interval = 0.0

    def files(self) -> list[Path]:
        """The checkpoints, oldest first."""
        return sorted(self.directory.glob("epoch-*.safetensors"))

    def latest(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """The newest state that is whole, or None if there is no checkpoint."""
        damaged = None
        for file in reversed(self.files()):
            try:
                settings, tensors = load_tensors(file, FORMAT, "")
            except StoreError as error:
                logger.warning("%s Going back to the checkpoint before it.", error)
                damaged = error
            else:
                self._check(file, settings)
                return settings["state"], tensors
        if damaged is None:
            return None
        raise StoreError(
            f"no checkpoint in {self.directory} is whole ({damaged}). Delete the directory to "
            "train from the start."
        )

    def _check(self, file: Path, settings: dict[str, Any]) -> None:
        """Refuse the checkpoint of another training, and warn of one from another machine."""
        there, now = settings["identity"], self.identity
        differing = [
            f"{key}: {shortened(there.get(key))} there, {shortened(now.get(key))} now"
            for key in sorted({*there, *now})
            if there.get(key) != now.get(key)
        ]
        if differing:
            raise InputError(
                f"{file} belongs to another training ({'; '.join(differing)}). Pass another "
                "directory, or delete this one to train from the start."
            )
        before = settings["fingerprint"]
        changed = [key for key, value in _fingerprint().items() if before.get(key) != value]
        if changed:
            warnings.warn(
                f"the checkpoint was written with another {', '.join(changed)}; the last bits of "
                "the result may differ from those of an undisturbed training.",
                stacklevel=2,
            )

    def due(self) -> bool:
        """Whether it is time for the next one."""
        return time.monotonic() - self.written >= self.interval

    def write(self, epoch: int, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Write a checkpoint and remove those that it replaces."""
        start = time.monotonic()
        settings = {
            "format": FORMAT,
            "identity": self.identity,
            "fingerprint": _fingerprint(),
            "state": dict(state),
        }
        path = self.directory / f"epoch-{epoch:06d}.safetensors"
        write_atomic(path, dump_tensors(settings, tensors))
        for old in self.files()[:-KEPT]:
            with contextlib.suppress(OSError):
                old.unlink()
        self.written = time.monotonic()
        self.interval = min(LONGEST_SECONDS, (self.written - start) / COST_SHARE)


def _fingerprint() -> dict[str, Any]:
    """What the last bits depend on besides the identity."""
    return {
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
    }
