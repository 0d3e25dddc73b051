"""Engines, which work on runs: processes of this machine, Dask workers, or Slurm jobs.

An engine is anything with ``submit(function, *arguments) -> Future``; :class:`Engine` says what
else a sweep needs of it. Adding one is a module here and two lines below.
"""

from __future__ import annotations

from pathlib import Path

from prudent.experiments.engines import dask, local, slurm
from prudent.experiments.engines.contract import Engine as Engine
from prudent.experiments.engines.contract import Stopped as Stopped
from prudent.experiments.engines.contract import WorkerDied as WorkerDied
from prudent.experiments.engines.contract import report as report

ENGINES = ("local", "dask", "slurm")


def open_engine(
    name: str,
    workers: int,
    scratch: Path,
    *,
    address: str | None = None,
    job: slurm.Job | None = None,
) -> Engine:
    """Open one of ``ENGINES`` with so many processes, to be used in a ``with`` statement.

    The directory ``scratch`` is shared by all machines. A Dask scheduler that runs at an
    ``address``, such as ``tls://10.0.0.1:8786``, has workers of its own, which are used instead.
    """
    assert name in ENGINES
    if name == "local":
        return local.Local(workers)
    if name == "dask":
        return dask.connect(address) if address else dask.local_cluster(workers, scratch)
    return slurm.slurm_cluster(job or slurm.Job(), workers, scratch)
