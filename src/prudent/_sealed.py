"""Tensors and settings in one file that notices damage.

safetensors refuses a truncated file but not a flipped bit or an edited header, so the header
carries a SHA-256 over the settings and all tensors. It guards against damage, not against forgery.
Reading never runs code from the file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from prudent._files import canonical_json
from prudent.errors import StoreError

__all__ = ["seal", "unseal"]


def seal(settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """The contents of the file; settings must be plain JSON and hold a ``format``."""
    # Copies, because safetensors refuses tensors that share memory, as tied weights do.
    state = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
    # One entry: safetensors writes several in random order, and a file must repeat bit for bit.
    header = {"settings": settings, "sha256": _digest(settings, state)}
    metadata = {"prudent": canonical_json(header).decode()}
    data: bytes = safetensors.torch.save(state, metadata)
    return data


def unseal(
    path: str | os.PathLike[str], version: int, remedy: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The settings and tensors of a file that is whole and of a known version.

    Args:
        path: The file.
        version: The ``format`` that can be read.
        remedy: What to do about a damaged file, for the message.
    """
    if not Path(path).is_file():
        raise StoreError(f"no file {path}.")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {key: file.get_tensor(key) for key in file.keys()}
    except (safetensors.SafetensorError, OSError) as error:
        raise StoreError(f"{path} is not a whole safetensors file: {error}. {remedy}") from error
    try:
        header = json.loads(metadata["prudent"])
        settings = header["settings"]
        found = settings["format"]
    except (KeyError, ValueError, TypeError) as error:
        raise StoreError(f"{path} was not written by prudent; its header is missing.") from error
    if found != version:
        raise StoreError(
            f"{path} has format {found}, this version reads format {version}. Upgrade prudent."
        )
    if header.get("sha256") != _digest(settings, state):
        raise StoreError(f"{path} does not match its checksum (damaged or edited). {remedy}")
    return settings, state


def _digest(settings: Mapping[str, Any], state: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(canonical_json(settings))
    for key in sorted(state):
        tensor = state[key]
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
