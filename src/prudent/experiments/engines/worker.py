"""What happens in a worker process, whichever engine started it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prudent.experiments.attempt import Outcome, attempt
from prudent.experiments.config import RunConfig

__all__ = ["prepare", "work"]

Tell = Callable[[dict[str, Any]], None]
_tell: Tell | None = None


def prepare(tell: Tell | None) -> None:
    """Make a process ready for work: one thread, so that workers do not fight over cores.

    Args:
        tell: Receives rows of progress.
    """
    global _tell
    _tell = tell
    import torch
    from tqdm import tqdm

    torch.set_num_threads(1)
    # Its own lock is a named semaphore, which a worker that is killed would leave to the system.
    tqdm.set_lock(threading.RLock())


def work(config: RunConfig, root: Path) -> Outcome:
    """Attempt a run and tell how it goes."""

    def tell(row: dict[str, Any]) -> None:
        told: dict[str, Any] = {"stage": "diagnosing"}
        if "validation_loss" in row:
            told = {"validation_loss": row["validation_loss"]}
        if _tell is not None:
            _tell({"run": str(config), "identity": config.identity, **told})

    return attempt(config, root, tell)
