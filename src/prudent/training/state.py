"""Everything that changes while a network is trained."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import ReduceLROnPlateau

from prudent._randomness import generator
from prudent.estimators import NeuralEstimator
from prudent.history import History
from prudent.training.options import Options


class TrainingState:
    """Weights, optimizer, schedule, random states, and the best epoch so far.

    Args:
        estimator: The network to train.
        options: The settings of the training.
        seed: The seed of the order of batches.
    """

    def __init__(self, estimator: NeuralEstimator, options: Options, seed: int) -> None:
        self.estimator, self.options = estimator, options
        self.optimizer = AdamW(estimator.parameters(), lr=options.learning_rate, weight_decay=0.0)
        self.schedule = ReduceLROnPlateau(self.optimizer)
        self.order = generator(seed, "batches")
        self.epoch = 0
        self.best_loss = math.inf
        self.best_epoch = 0
        self.best: dict[str, Tensor] = {}

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.estimator.parameters()).device

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

    def end_epoch(self, loss: float) -> bool:
        """Count an epoch, and return whether its validation loss is the best so far."""
        self.epoch += 1
        better = loss < self.best_loss
        if better:
            self.best_loss, self.best_epoch = loss, self.epoch
            # A real copy: the tensors of a state follow later updates.
            state = self.estimator.state_dict()
            self.best = {name: value.detach().clone() for name, value in state.items()}
        self.schedule.step(loss)
        return better

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Plain JSON and tensors that :meth:`restore` takes."""
        optimizer = self.optimizer.state_dict()
        tensors = {f"model.{name}": value for name, value in self.estimator.state_dict().items()}
        tensors |= {f"best.{name}": value for name, value in self.best.items()}
        for index, moments in optimizer["state"].items():
            tensors |= {f"optimizer.{index}.{name}": value for name, value in moments.items()}
        tensors |= {"random": torch.get_rng_state(), "order": self.order.get_state()}
        device = self._device_random()
        if device is not None:
            tensors["device_random"] = device.get_rng_state()
        state = {
            "epoch": self.epoch,
            "best_loss": self.best_loss,
            "best_epoch": self.best_epoch,
            "groups": optimizer["param_groups"],
            "schedule": self.schedule.state_dict(),
            "history": list(self.estimator.history),
        }
        return _without_infinity(state), tensors

    def restore(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Go back to an exported state, the global random state included."""
        state = _with_infinity(state)
        self.estimator.load_state_dict(_part(tensors, "model."))
        self.best = _part(tensors, "best.")
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in _part(tensors, "optimizer.").items():
            index, key = name.split(".", 1)
            moments.setdefault(int(index), {})[key] = value
        self.optimizer.load_state_dict({"state": moments, "param_groups": state["groups"]})
        self.schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(tensors["random"])
        self.order.set_state(tensors["order"])
        device = self._device_random()
        if device is not None and "device_random" in tensors:
            device.set_rng_state(tensors["device_random"])
        self.epoch, self.best_loss = state["epoch"], state["best_loss"]
        self.best_epoch = state["best_epoch"]
        self.estimator.history = History(state["history"])

    def _device_random(self) -> Any:
        """The module that holds the random state of an accelerator."""
        return None if self.device.type == "cpu" else torch.get_device_module(self.device)


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _without_infinity(value: Any) -> Any:
    """Write infinity, from which schedules start, as JSON can hold it."""
    if isinstance(value, dict):
        return {key: _without_infinity(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinity(item) for item in value]
    infinite = isinstance(value, float) and not math.isfinite(value)
    return {"float": str(value)} if infinite else value


def _with_infinity(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"float"}:
            return float(value["float"])
        return {key: _with_infinity(item) for key, item in value.items()}
    return [_with_infinity(item) for item in value] if isinstance(value, list) else value
