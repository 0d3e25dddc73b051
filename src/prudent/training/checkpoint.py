"""The state of a training on disk, so that a killed one continues where it stopped.

A checkpoint is one file, written atomically and sealed with a checksum. The last two are kept; the
newest that is whole is read. Weights, optimiser, schedule and all random states are in it, so that
an interrupted training ends with the same bits as an undisturbed one.
"""

import contextlib
import logging
import os
import platform
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prudent._files import dump_tensors, load_tensors, write_atomic
from prudent.errors import InputError, StoreError

FORMAT = 1
KEPT = 2
# A checkpoint may cost one per cent of the time, and a kill at most a minute or an epoch.
COST_SHARE = 0.01
LONGEST_SECONDS = 60.0

logger = logging.getLogger("prudent")


class Checkpoints:
    """The checkpoints of one training, in a directory of their own.

    Args:
        directory: Made if it is missing.
        identity: What the training is, in plain JSON; another one in the directory is refused.
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
                continue
            self._check(file, settings)
            return settings["state"], tensors
        if damaged is not None:
            raise StoreError(
                f"no checkpoint in {self.directory} is whole ({damaged}). Delete the directory to "
                "train from the start."
            )
        return None

    def _check(self, file: Path, settings: dict[str, Any]) -> None:
        theirs = settings["identity"]
        differing = [
            f"{key}: {_short(theirs.get(key))} there, {_short(self.identity.get(key))} now"
            for key in sorted({*theirs, *self.identity})
            if theirs.get(key) != self.identity.get(key)
        ]
        if differing:
            raise InputError(
                f"{file} belongs to another training ({'; '.join(differing)}). Pass another "
                "directory, or delete this one to train from the start."
            )
        fingerprint = _fingerprint()
        if settings["fingerprint"] != fingerprint:
            before = settings["fingerprint"]
            changed = [key for key in fingerprint if before.get(key) != fingerprint[key]]
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
        write_atomic(
            self.directory / f"epoch-{epoch:06d}.safetensors", dump_tensors(settings, tensors)
        )
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


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
