"""Slurm: jobs that are Dask workers, or jobs that are sweeps of their own.

With :func:`slurm_cluster` the scheduler of Dask runs here and dask-jobqueue submits jobs. With
:func:`script` a job runs the sweep by itself; several of them share the runs through their locks,
and nothing has to stay alive on the log-in node.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prudent._extras import require
from prudent.errors import InputError, unknown_name

if TYPE_CHECKING:
    from prudent.experiments.engines.dask import Dask

__all__ = ["Job", "script", "slurm_cluster"]

NAME = re.compile(r"[A-Za-z0-9][\w.@+,:/-]*"), "a name of letters, digits and . @ + , : / -"
# Slurm takes 04:00 for four minutes, so the seconds must be there.
WALLTIME = re.compile(r"(?:(\d+)-)?(\d{1,3}):(\d{2}):(\d{2})")
DIRECTIVE = re.compile(r"-(-[a-z][a-z-]*|[a-zA-Z])([ =][\w.@+,:/%-]+)?")
# What could break a script is refused.
FORMS = {
    "queue": NAME,
    "account": NAME,
    "interface": NAME,
    "memory": (re.compile(r"\d+(\.\d+)? ?[KMGT]i?B"), "a size such as 4 GB"),
    "walltime": (WALLTIME, "hours:minutes:seconds, such as 04:00:00"),
    "directives": (DIRECTIVE, "options such as --constraint=skylake"),
    "prologue": (re.compile(r".*"), "one line of text"),
}
# Workers leave before Slurm ends them, and not all at once.
MARGIN_SECONDS = 300
STAGGER_SECONDS = 120


@dataclass(frozen=True)
class Job:
    """One job; the keys of the table ``[slurm]`` in a sweep file.

    Args:
        queue: The partition.
        account: Who pays.
        cores: Of one job; each works on one run.
        memory: Of one job, such as ``8 GB``.
        walltime: ``hours:minutes:seconds``, with ``days-`` before it if need be. Runs that take
            longer continue from their checkpoints in the next job.
        interface: The network that workers reach the scheduler by, such as ``ib0``.
        directives: Further options of ``sbatch``, such as ``--constraint=skylake``.
        prologue: Shell commands before the work, such as ``module load python``.
    """

    queue: str | None = None
    account: str | None = None
    cores: int = 1
    memory: str = "4 GB"
    walltime: str = "04:00:00"
    interface: str | None = None
    directives: tuple[str, ...] = ()
    prologue: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, (form, expected) in FORMS.items():
            found = getattr(self, name)
            for value in found if isinstance(found, tuple) else (found,):
                fits = isinstance(value, str) and form.fullmatch(value) and value.isprintable()
                if not fits and (value is not None or getattr(type(self), name) is not None):
                    raise InputError(f"slurm.{name}: {str(value)[:60]!r} is not {expected}.")
        if type(self.cores) is not int or self.cores < 1:
            raise InputError(f"slurm.cores: {self.cores!r} is not a whole number >= 1.")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Job:
        """A job from what a user wrote."""
        known = [field.name for field in dataclasses.fields(cls)]
        values: dict[str, Any] = {}
        for name, value in settings.items():
            if name not in known:
                raise unknown_name("key of [slurm]", name, known)
            if name in ("directives", "prologue"):
                if not isinstance(value, list):
                    raise InputError(f"slurm.{name}: expected a list of texts.")
                value = tuple(value)
            values[name] = value
        return cls(**values)

    @property
    def seconds(self) -> int:
        """The wall time."""
        match = WALLTIME.fullmatch(self.walltime)
        assert match is not None
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return ((24 * days + hours) * 60 + minutes) * 60 + seconds

    def arguments(self, logs: Path) -> dict[str, Any]:
        """What dask-jobqueue takes."""
        lifetime = max(self.seconds // 2, self.seconds - MARGIN_SECONDS)
        return {
            "queue": self.queue,
            "account": self.account,
            "cores": self.cores,
            "processes": self.cores,
            "memory": self.memory.replace(" ", ""),
            "walltime": self.walltime,
            "interface": self.interface,
            "job_name": "prudent",
            "job_script_prologue": list(self.prologue),
            # Dask-jobqueue quotes neither of these.
            "python": shlex.quote(sys.executable),
            "local_directory": shlex.quote(str(logs)),
            "job_extra_directives": [
                f"--output={shlex.quote(str(logs))}/slurm-%j.out",
                *self.directives,
            ],
            "worker_extra_args": [
                *("--lifetime", f"{lifetime}s"),
                *("--lifetime-stagger", f"{min(STAGGER_SECONDS, lifetime // 4)}s"),
            ],
        }


def slurm_cluster(job: Job, workers: int, scratch: Path) -> Dask:
    """Submit jobs whose processes are the workers of a Dask scheduler in this process.

    Args:
        job: One of them.
        workers: Processes, in as many jobs as that takes.
        scratch: A directory that all machines share, for certificates and logs.
    """
    jobqueue = require("dask_jobqueue.slurm", "slurm", "Slurm jobs")
    if shutil.which("sbatch") is None:
        raise InputError(
            "there is no `sbatch` here. Run this where jobs are submitted, or write a job with "
            "--print-script."
        )
    import distributed

    from prudent.experiments.engines.dask import Dask, quiet_dask, settings

    quiet_dask()
    scratch = scratch.absolute()
    if shlex.quote(str(scratch)) != str(scratch):
        # Dask-jobqueue writes the names of certificates into the script as they are.
        raise InputError(
            f"jobs cannot use {scratch}, whose name a shell would not take as it is. Choose an "
            "output without spaces and signs, or write a job with --print-script."
        )
    scratch.mkdir(parents=True, exist_ok=True)
    with settings():
        cluster = jobqueue.SLURMCluster(
            **job.arguments(scratch),
            protocol="tls://",
            security=distributed.Security.temporary(),
            shared_temp_directory=str(scratch),
            scheduler_options={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
        )
        cluster.scale(jobs=-(-workers // job.cores))
        return Dask(distributed.Client(cluster, set_as_default=False), cluster, scratch)


def script(job: Job, command: Sequence[str], directory: Path, logs: Path) -> str:
    """A job that runs a command by itself, to be submitted by hand as often as one likes.

    Args:
        job: Its resources.
        command: The command.
        directory: Where to run it.
        logs: Where Slurm writes what it says.
    """
    jobqueue = require("dask_jobqueue.slurm", "slurm", "Slurm jobs")
    made = jobqueue.SLURMJob(scheduler="", name="", **job.arguments(logs))
    lines = ["#!/usr/bin/env bash", str(made.job_header), f"cd {shlex.quote(str(directory))}"]
    lines += ["export OMP_NUM_THREADS=1", *job.prologue, f"exec {shlex.join(command)}"]
    return "\n".join(lines) + "\n"
