"""One estimator, one file: weights as safetensors, everything else as JSON in its header."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from prudent._files import dump_tensors, load_tensors, write_atomic
from prudent.contracts import Prior
from prudent.errors import InputError, StoreError
from prudent.estimators.base import NeuralEstimator
from prudent.estimators.ensemble import Ensemble
from prudent.estimators.networks import build
from prudent.estimators.npe import FlowEstimator
from prudent.estimators.nre import RatioEstimator
from prudent.estimators.priors import check_prior, from_spec, to_spec

__all__ = ["KINDS", "load", "save", "to_bytes"]

FORMAT = 1
KINDS: dict[str, type[NeuralEstimator]] = {"nre": RatioEstimator, "npe": FlowEstimator}


def save(estimator: NeuralEstimator | Ensemble, path: str | os.PathLike[str]) -> None:
    """Write an estimator to one file, atomically."""
    if Path(path).is_dir():
        raise InputError(f"{path} is a directory; give a file name, such as model.safetensors.")
    write_atomic(path, to_bytes(estimator))


def to_bytes(estimator: NeuralEstimator | Ensemble) -> bytes:
    """The contents of the file."""
    settings = {
        "format": FORMAT,
        **_describe(estimator),
        "prior": to_spec(estimator.prior),
        "info": estimator.info,
    }
    return dump_tensors(settings, estimator.state_dict())


def _describe(estimator: NeuralEstimator | Ensemble) -> dict[str, Any]:
    """The networks, without their weights."""
    if isinstance(estimator, Ensemble):
        return {"kind": "ensemble", "members": [_describe(member) for member in estimator]}
    return {
        "kind": estimator.kind,
        "dim": estimator.dim,
        "x_shape": list(estimator.x_shape),
        "hidden": list(estimator.hidden),
        "embedding": getattr(estimator.embedding, "spec", None),
        **estimator.extra_settings(),
    }


def load(
    path: str | os.PathLike[str],
    *,
    prior: Prior | None = None,
    embedding: nn.Module | None = None,
) -> NeuralEstimator | Ensemble:
    """Read an estimator that :meth:`save` wrote.

    Args:
        path: The file.
        prior: Needed only for a prior that is not a plain torch distribution.
        embedding: Needed only for an embedding of your own: a network of the same architecture,
            whose weights are then filled in.

    Returns:
        The estimator, ready for inference.
    """
    settings, state = load_tensors(path, FORMAT, "Restore it or train again.")
    if prior is None and settings["prior"] is None:
        raise InputError(f"{path} does not hold its prior; pass load(path, prior=...).")
    known: Prior = from_spec(settings["prior"]) if prior is None else prior
    check_prior(known)
    estimator = _rebuild(settings, state, known, embedding, path)
    try:
        estimator.load_state_dict(state)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise InputError(f"the weights in {path} do not fit the networks: {reason}") from error
    estimator.info = settings["info"]
    return estimator.eval()


def _rebuild(
    settings: dict[str, Any],
    state: dict[str, Tensor],
    prior: Prior,
    embedding: nn.Module | None,
    path: str | os.PathLike[str],
) -> NeuralEstimator | Ensemble:
    """The networks that the settings describe, not yet with their weights."""
    if settings["kind"] == "ensemble":
        members = [
            _rebuild_one(member, prior, copy.deepcopy(embedding), path)
            for member in settings["members"]
        ]
        return Ensemble(members, state.get("fold"), state.get("out_of_fold"))
    return _rebuild_one(settings, prior, embedding, path)


def _rebuild_one(
    settings: dict[str, Any],
    prior: Prior,
    embedding: nn.Module | None,
    path: str | os.PathLike[str],
) -> NeuralEstimator:
    kind = settings["kind"]
    if kind not in KINDS:
        raise StoreError(f"{path} holds an estimator of unknown kind `{kind}`.")
    if embedding is None:
        if settings["embedding"] is None:
            raise InputError(
                f"{path} was made with an embedding network of its own; pass "
                "load(path, embedding=...) with a network of the same architecture."
            )
        embedding = build(settings["embedding"])
    extra = {key: settings[key] for key in KINDS[kind].extra_names if key in settings}
    return KINDS[kind](
        prior, settings["dim"], settings["x_shape"], embedding, settings["hidden"], **extra
    )
