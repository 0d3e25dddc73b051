"""Slurm: jobs that are Dask workers, or jobs that are sweeps of their own.

With :func:`slurm_cluster` the scheduler of Dask runs here and dask-jobqueue submits jobs. With
:func:`script` a job runs the sweep by itself; several of them share the runs through their locks,
and nothing has to stay alive on the log-in node.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prudent._extras import require
from prudent._settings import check, documented, setting
from prudent.errors import InputError

if TYPE_CHECKING:
    from prudent.experiments.engines.dask import Dask

NAME = r"[A-Za-z0-9][\w.@+,:/-]*"
NAME_FORM = "a name of letters, digits and . @ + , : / -"
# Slurm takes 04:00 for four minutes, so the seconds must be there.
WALLTIME = r"(\d+-)?\d{1,3}:\d{2}:\d{2}"
DIRECTIVE = r"-(-[a-z][a-z-]*|[a-zA-Z])([ =][\w.@+,:/%-]+)?"
# Workers leave before Slurm ends them, and not all at once.
MARGIN_SECONDS = 300
STAGGER_SECONDS = 120


@documented
@dataclass(frozen=True)
class Job:
    """One job; the keys of the table ``[slurm]`` in a sweep file.

    Runs that take longer than the wall time continue from their checkpoints in the next job.
    """

    queue: str | None = setting(None, others=NAME, form=NAME_FORM, help="The partition")
    account: str | None = setting(None, others=NAME, form=NAME_FORM, help="The account that pays")
    cores: int = setting(1, least=1, help="Cores of one job; each works on one run")
    memory: str = setting(
        "4 GB",
        others=r"\d+(\.\d+)? ?[KMGT]i?B",
        form="a size such as 4 GB",
        help="The memory of one job",
    )
    walltime: str = setting(
        "04:00:00",
        others=WALLTIME,
        form="hours:minutes:seconds, such as 04:00:00",
        help="The time of one job, with ``days-`` before it if need be",
    )
    interface: str | None = setting(
        None, others=NAME, form=NAME_FORM, help="The network to the scheduler, such as ``ib0``"
    )
    directives: tuple[str, ...] = setting(
        (),
        others=DIRECTIVE,
        form="a list of options such as --constraint=skylake",
        help="Further options of ``sbatch``, such as ``--constraint=skylake``",
    )
    prologue: tuple[str, ...] = setting(
        (),
        form="a list of lines of text",
        help="Shell commands before the work, such as ``module load python``",
    )

    def __post_init__(self) -> None:
        check(self)
        for line in self.prologue:
            if not line.isprintable():
                raise InputError(f"`prologue` has {line!r}; expected a list of lines of text.")

    def arguments(self, logs: Path) -> dict[str, Any]:
        """The arguments of a job of dask-jobqueue."""
        days, _, clock = self.walltime.rpartition("-")
        hours, minutes, seconds = map(int, clock.split(":"))
        seconds += 60 * (minutes + 60 * (hours + 24 * int(days or 0)))
        lifetime = max(seconds // 2, seconds - MARGIN_SECONDS)
        stagger = f"{min(STAGGER_SECONDS, lifetime // 4)}s"
        folder = shlex.quote(str(logs))  # which dask-jobqueue does not do
        same = ("queue", "account", "cores", "walltime", "interface")
        return {
            **{name: getattr(self, name) for name in same},
            "processes": self.cores,
            "memory": self.memory.replace(" ", ""),
            "job_name": "prudent",
            "job_script_prologue": list(self.prologue),
            "python": shlex.quote(sys.executable),
            "local_directory": folder,
            "job_extra_directives": [f"--output={folder}/slurm-%j.out", *self.directives],
            "worker_extra_args": ["--lifetime", f"{lifetime}s", "--lifetime-stagger", stagger],
        }


def slurm_cluster(job: Job, workers: int, scratch: Path) -> Dask:
    """Submit jobs whose processes are the workers of a Dask scheduler in this process.

    All machines must share the directory ``scratch``, for certificates and logs.
    """
    jobqueue = require("dask_jobqueue.slurm", "slurm", "Slurm jobs")
    if shutil.which("sbatch") is None:
        raise InputError(
            "there is no `sbatch` here. Run this where jobs are submitted, or write a job with "
            "--print-script."
        )
    from prudent.experiments.engines.dask import own_cluster

    scratch = scratch.absolute()
    if shlex.quote(str(scratch)) != str(scratch):
        # Dask-jobqueue writes the names of certificates into the script as they are.
        raise InputError(
            f"jobs cannot use {scratch}, whose name a shell would not take as it is. Choose an "
            "output without spaces and signs, or write a job with --print-script."
        )
    scratch.mkdir(parents=True, exist_ok=True)
    jobs = {**job.arguments(scratch), "shared_temp_directory": str(scratch), "n_workers": workers}
    return own_cluster(jobqueue.SLURMCluster, scratch, "scheduler_options", **jobs)


def script(job: Job, command: Sequence[str], directory: Path, logs: Path) -> str:
    """A job that runs a command by itself, to be submitted by hand as often as one likes."""
    for text in (*command, str(directory), str(logs)):
        if not text.isprintable():  # a comment for Slurm ends with its line, quoted or not
            raise InputError(
                f"a job cannot have {text!r} in it; choose names that can be printed."
            )
    jobqueue = require("dask_jobqueue.slurm", "slurm", "Slurm jobs")
    made = jobqueue.SLURMJob(scheduler="", name="", **job.arguments(logs))
    lines = ["#!/usr/bin/env bash", str(made.job_header), f"cd {shlex.quote(str(directory))}"]
    lines += ["export OMP_NUM_THREADS=1", *job.prologue, f"exec {shlex.join(command)}"]
    return "\n".join(lines) + "\n"
