"""Where runs are worked on: processes of this machine, Dask workers, or Slurm jobs.

An engine is anything with ``submit(function, *arguments) -> Future``; :class:`Engine` says what
else a sweep needs of it. Adding one is a module here and a line in :func:`open_engine`.
"""

from pathlib import Path

from prudent.experiments.engines.contract import Engine as Engine
from prudent.experiments.engines.contract import WorkerDied as WorkerDied
from prudent.experiments.engines.local import Local as Local
from prudent.experiments.engines.local import local as local
from prudent.experiments.engines.slurm import Job, slurm_cluster

ENGINES = ("local", "dask", "slurm")


def open_engine(
    name: str, workers: int, scratch: Path, *, address: str | None = None, job: Job | None = None
) -> Engine:
    """Open one of ``ENGINES`` with so many processes, to be used in a ``with`` statement.

    The directory ``scratch`` is shared by all machines. A Dask scheduler that runs at an
    ``address``, such as ``tls://10.0.0.1:8786``, has workers of its own, which are used instead.
    """
    assert name in ENGINES
    if name == "local":
        return Local(workers)
    from prudent.experiments.engines import dask

    if name == "dask":
        return dask.connect(address) if address else dask.local_cluster(workers, scratch)
    return slurm_cluster(job or Job(), workers, scratch)
