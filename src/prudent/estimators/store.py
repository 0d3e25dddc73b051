"""One estimator, one file: weights as safetensors, everything else as JSON in its header.

safetensors notices a truncated file but not a flipped bit or an edited header, so the header
carries a SHA-256 over the settings and all tensors. It guards against damage, not against forgery.
Loading never runs code from the file.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor, nn

from prudent.contracts import Prior
from prudent.errors import InputError, StoreError
from prudent.estimators.base import NeuralEstimator
from prudent.estimators.networks import build
from prudent.estimators.npe import FlowEstimator
from prudent.estimators.nre import RatioEstimator
from prudent.estimators.priors import check_prior, from_spec, to_spec
from prudent.files import canonical_json, write_atomic

__all__ = ["KINDS", "load", "save", "to_bytes"]

FORMAT = 1
KINDS: dict[str, type[NeuralEstimator]] = {"nre": RatioEstimator, "npe": FlowEstimator}


def save(estimator: NeuralEstimator, path: str | os.PathLike[str]) -> None:
    """Write an estimator to one file, atomically."""
    if Path(path).is_dir():
        raise InputError(f"{path} is a directory; give a file name, such as model.safetensors.")
    write_atomic(path, to_bytes(estimator))


def to_bytes(estimator: NeuralEstimator) -> bytes:
    """The contents of the file."""
    state = {key: value.detach().cpu().contiguous() for key, value in _state(estimator).items()}
    settings = {
        "format": FORMAT,
        "kind": estimator.kind,
        "dim": estimator.dim,
        "x_shape": list(estimator.x_shape),
        "hidden": list(estimator.hidden),
        "embedding": getattr(estimator.embedding, "spec", None),
        "prior": to_spec(estimator.prior),
        "info": estimator.info,
    }
    # One entry: safetensors writes several in random order, and a file must repeat bit for bit.
    header = {"settings": settings, "sha256": _digest(settings, state)}
    metadata = {"prudent": canonical_json(header).decode()}
    data: bytes = safetensors.torch.save(state, metadata)
    return data


def load(
    path: str | os.PathLike[str],
    *,
    prior: Prior | None = None,
    embedding: nn.Module | None = None,
) -> NeuralEstimator:
    """Read an estimator that :meth:`save` wrote.

    Args:
        path: The file.
        prior: Needed only for a prior that is not a plain torch distribution.
        embedding: Needed only for an embedding of your own: a network of the same architecture,
            whose weights are then filled in.

    Returns:
        The estimator, ready for inference.
    """
    settings, state = _read(path)
    if prior is None and settings["prior"] is None:
        raise InputError(f"{path} does not hold its prior; pass load(path, prior=...).")
    known: Prior = from_spec(settings["prior"]) if prior is None else prior
    check_prior(known)
    if embedding is None:
        if settings["embedding"] is None:
            raise InputError(
                f"{path} was made with an embedding network of its own; pass "
                "load(path, embedding=...) with a network of the same architecture."
            )
        embedding = build(settings["embedding"])
    estimator = KINDS[settings["kind"]](
        known, settings["dim"], settings["x_shape"], embedding, settings["hidden"]
    )
    try:
        estimator.load_state_dict(state)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise InputError(f"the weights in {path} do not fit the networks: {reason}") from error
    estimator.info = settings["info"]
    return estimator.eval()


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not Path(path).is_file():
        raise StoreError(f"no file {path}. Write one with estimator.save(path).")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {key: file.get_tensor(key) for key in file.keys()}
    except (safetensors.SafetensorError, OSError) as error:
        raise StoreError(f"{path} is not a whole safetensors file: {error}.") from error
    try:
        header = json.loads(metadata["prudent"])
        settings = header["settings"]
        version = settings["format"]
    except (KeyError, ValueError, TypeError) as error:
        raise StoreError(f"{path} was not written by prudent; its header is missing.") from error
    if version != FORMAT:
        raise StoreError(
            f"{path} has format {version}, this version reads format {FORMAT}. Upgrade prudent."
        )
    if header.get("sha256") != _digest(settings, state):
        raise StoreError(
            f"{path} does not match its checksum (damaged or edited). Restore it or train again."
        )
    if settings["kind"] not in KINDS:
        raise StoreError(f"{path} holds an estimator of unknown kind `{settings['kind']}`.")
    return settings, state


def _state(estimator: NeuralEstimator) -> dict[str, Tensor]:
    state: dict[str, Tensor] = estimator.state_dict()
    return state


def _digest(settings: dict[str, Any], state: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(canonical_json(settings))
    for key in sorted(state):
        tensor = state[key]
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
