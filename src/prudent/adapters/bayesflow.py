"""Approximators of BayesFlow 2, on Keras's torch backend.

BayesFlow switches gradients off for all of torch when it is imported; a training loop of one's own
needs ``torch.enable_grad()`` around it.
"""

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from prudent.adapters.model import Model, rows_for
from prudent.errors import InputError

Keys = tuple[str | Sequence[str], str]


def model_of(approximator: Any, keys: Keys = ("theta", "x")) -> Model:
    """What an approximator, or that of a workflow, can do.

    Args:
        approximator: The approximator or the workflow, trained.
        keys: The names that its data have: of theta, or of its parts in their order, and of x.
    """
    approximator = getattr(approximator, "approximator", approximator)
    parts = [keys[0]] if isinstance(keys[0], str) else list(keys[0])

    def sample(number: int, x: Tensor) -> Tensor:
        # Its draws have a generator of their own, and a progress bar for each call.
        seed = int(torch.randint(2**31, ()))
        with contextlib.redirect_stderr(io.StringIO()):
            found = approximator.sample(
                num_samples=number, conditions=_arrays({keys[1]: x}), seed=seed
            )
        if missing := [name for name in parts if name not in found]:
            raise InputError(
                f"the approximator draws {' '.join(found)} and not {missing[0]}; pass "
                f"keys=({list(found)!r}, x) with the name of x."
            )
        draws = [torch.as_tensor(found[name]).flatten(2) for name in parts]
        return torch.cat(draws, dim=-1).transpose(0, 1)

    def log_prob(theta: Tensor, x: Tensor) -> Tensor:
        widths = _widths(approximator, parts, theta.shape[-1], keys[1], x)
        flat = dict(zip(parts, theta.flatten(0, 1).split(widths, dim=-1), strict=True))
        data = {**flat, keys[1]: rows_for(x, len(theta))}
        value = _log_prob(approximator, data)
        return value.reshape(theta.shape[:-1])

    return Model(
        "approximator of BayesFlow", log_prob=log_prob, sample=sample, networks=[approximator]
    )


def _arrays(data: dict[str, Tensor]) -> dict[str, Any]:
    return {name: value.detach().cpu().numpy() for name, value in data.items()}


def _widths(approximator: Any, parts: Sequence[str], dim: int, key: str, x: Tensor) -> list[int]:
    """The number of parameters in each part of theta."""
    if len(parts) == 1:
        return [dim]
    if len(parts) == dim:
        return [1] * dim
    drawn = approximator.sample(num_samples=1, conditions=_arrays({key: x[:1]}))
    return [drawn[name][0, 0].size for name in parts]


def _log_prob(approximator: Any, data: dict[str, Tensor]) -> Tensor:
    """What ``approximator.log_prob`` computes, with the gradient that it drops."""
    adapted, jacobian = approximator.adapter(
        _arrays(data), strict=False, log_det_jac=True, stage="inference"
    )
    like = next(iter(data.values()))
    tensors = {name: torch.as_tensor(value).to(like) for name, value in adapted.items()}
    conditions, _ = approximator._standardize_and_resolve(
        tensors.get("inference_conditions"), tensors.get("summary_variables"), stage="inference"
    )
    variables, scale = approximator.standardizer.maybe_standardize(
        tensors["inference_variables"],
        key="inference_variables",
        stage="inference",
        log_det_jac=True,
    )
    value: Tensor = approximator.inference_network.log_prob(variables, conditions=conditions)
    jacobian_term: Tensor = torch.as_tensor(jacobian.get("inference_variables", 0.0)).to(like)
    total: Tensor = value + scale + jacobian_term
    return total
