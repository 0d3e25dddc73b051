"""What happens in a worker process, whichever engine started it.

Whatever becomes of a run is an outcome. Nothing heavy is imported before the work begins, so that
the process that hands out the runs stays small.
"""

import errno
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from prudent._locks import Busy
from prudent.errors import one_line
from prudent.experiments import store
from prudent.experiments.config import RunConfig

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Tell = Callable[[dict[str, Any]], None]
_tell: Tell | None = None


class Outcome(NamedTuple):
    """How a run ended: ``done``, ``failed``, ``busy`` (elsewhere) or ``full`` (the disk)."""

    state: str
    reason: str = ""


def prepare(tell: Tell | None) -> None:
    """Make a process ready for work that reports to ``tell``, on one thread of its own."""
    global _tell
    _tell = tell
    import torch
    from tqdm import tqdm

    torch.set_num_threads(1)
    # Its own lock is a named semaphore, which a worker that is killed would leave to the system.
    tqdm.set_lock(threading.RLock())


def attempt(config: RunConfig, root: Path, num_simulations: int | None = None) -> Outcome:
    """Run a config below ``root`` unless another process does; errors are stored, not raised."""

    def tell(row: dict[str, Any]) -> None:
        told: dict[str, Any] = {"stage": "diagnosing"}
        if "validation_loss" in row:
            told = {"validation_loss": row["validation_loss"]}
        if _tell is not None:
            _tell({"run": str(config), "identity": config.identity, **told})

    path = root / config.identity
    try:
        with store.claim(path, wait=False):
            try:
                from prudent.experiments.run import run_claimed

                run_claimed(config, path, tell, num_simulations)
            except (Exception, SystemExit) as error:
                reason = one_line(error)
                if _disk_is_full(error):
                    return Outcome("full", reason)
                store.record_failure(config, path, reason, traceback.format_exc())
                return Outcome("failed", reason)
            return Outcome("done")
    except Busy:
        return Outcome("busy")


def _disk_is_full(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        error = error.__cause__ or error.__context__
    return False
