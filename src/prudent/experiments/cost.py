"""What a run costs, before it is run: measured seconds per step, and what finished runs took.

The table was measured by ``bench/steps.py`` on one machine (2 cores of x86-64, torch 2.13.0, one
thread, little else going on): batches of 128, the shortest of a few epochs, validation included,
and where an embedding dominates the shortest of all methods. Diagnoses of ratios in three
dimensions differ most between runs. Elsewhere it can be wrong by a factor of two and more;
finished runs in the same directory correct it.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from prudent.experiments.config import RunConfig
from prudent.training import methods

__all__ = ["Estimate", "disk_bytes", "estimate", "seconds"]

# Importing torch and writing the results.
START_SECONDS = 2.0
MOST_READ = 500


class Cost(NamedTuple):
    """Measured for a problem and a family of estimators.

    Args:
        step: Seconds of a step without a regulariser.
        balance: The same with the balance of the classifier.
        coverage: The same with the coverage penalty and 16 draws.
        diagnose: Seconds for 1,000 test pairs.
        megabytes: Of a finished run.
    """

    step: float
    balance: float
    coverage: float
    diagnose: float
    megabytes: float


TABLE = {
    ("gaussian", "nre"): Cost(0.014, 0.016, 0.113, 34.0, 1.4),
    ("gaussian", "npe"): Cost(0.014, 0.022, 0.040, 1.2, 0.2),
    ("two_moons", "nre"): Cost(0.014, 0.015, 0.102, 10.3, 1.4),
    ("two_moons", "npe"): Cost(0.014, 0.029, 0.038, 1.3, 0.2),
    ("slcp", "nre"): Cost(0.014, 0.014, 0.097, 12.4, 1.4),
    ("slcp", "npe"): Cost(0.015, 0.031, 0.046, 1.5, 0.2),
    ("weinberg", "nre"): Cost(0.012, 0.012, 0.087, 1.9, 1.4),
    ("weinberg", "npe"): Cost(0.006, 0.009, 0.010, 0.2, 0.1),
    ("mg1", "nre"): Cost(0.014, 0.014, 0.093, 156.0, 1.4),
    ("mg1", "npe"): Cost(0.017, 0.033, 0.051, 3.0, 0.2),
    ("lotka_volterra", "nre"): Cost(0.065, 0.065, 0.093, 2.6, 0.5),
    ("lotka_volterra", "npe"): Cost(0.023, 0.027, 0.057, 1.1, 0.7),
    ("spatial_sir", "nre"): Cost(2.3, 2.3, 2.3, 10.1, 46.0),
    ("spatial_sir", "npe"): Cost(0.051, 0.070, 0.094, 1.9, 2.1),
    ("gravitational_waves", "nre"): Cost(7.4, 7.4, 7.4, 15.5, 0.2),
    ("gravitational_waves", "npe"): Cost(7.5, 7.5, 7.5, 8.8, 0.2),
}
# Seconds for 1,000 simulations; problems that are not here take no time to speak of.
SIMULATE = {"gravitational_waves": 3.4, "spatial_sir": 0.7, "lotka_volterra": 0.1}


class Estimate(NamedTuple):
    """What is to be expected of several runs.

    Args:
        seconds: On the given number of workers.
        bytes: On disk, with the checkpoints of runs at work.
        corrected: Whether finished runs corrected the table.
    """

    seconds: float
    bytes: int
    corrected: bool


def seconds(config: RunConfig) -> float:
    """The expected seconds of a run on one core, from the table alone."""
    method, training = methods.get(config.method), config.training
    cost = _cost(config)
    step = {None: cost.step, "balance": cost.balance}.get(method.regularizer, 0.0)
    if method.regularizer == "coverage":
        draws = (cost.coverage - cost.step) * training.num_samples / 16
        step = cost.step + max(draws, 0.0) * training.fraction
    steps = max(1, int(config.budget * (1 - training.validation_fraction)) // training.batch_size)
    # Small batches cost nearly as much as large ones.
    step *= max(0.5, training.batch_size / 128)
    simulations = (config.budget + config.num_test) / 1000
    networks = training.members
    return (
        START_SECONDS
        + simulations * SIMULATE.get(config.problem, 0.0)
        + training.epochs * networks * steps * step
        + networks * cost.diagnose * config.num_test / 1000
    )


def disk_bytes(configs: Iterable[RunConfig], workers: int) -> int:
    """What the runs take on disk, with two checkpoints of each that is at work."""
    sizes = sorted(_cost(c).megabytes * c.training.members for c in configs)
    # A checkpoint holds the weights, the best ones, and two moments of each.
    at_work = sum(8 * size for size in sizes[-workers:])
    return round((sum(sizes) + at_work) * 1e6)


def estimate(
    configs: Sequence[RunConfig], finished: Iterable[RunConfig], root: Path, workers: int
) -> Estimate:
    """What the runs cost.

    Args:
        configs: Runs to come.
        finished: Runs in the same directory, whose times correct the table.
        root: The directory.
        workers: How many runs at once.
    """
    factors = _factors(finished, root)
    usual = statistics.median(factors.values()) if factors else 1.0
    costs = [seconds(c) * factors.get((c.problem, c.method), usual) for c in configs]
    workers = min(workers, max(1, len(costs)))
    # No schedule is shorter than its longest run.
    total = max(sum(costs) / workers, max(costs, default=0.0))
    return Estimate(total, disk_bytes(configs, workers), bool(factors))


def _factors(finished: Iterable[RunConfig], root: Path) -> dict[tuple[str, str], float]:
    """How much longer runs took than the table says, by problem and method."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for config, _ in zip(finished, range(MOST_READ), strict=False):
        try:
            timing = json.loads((root / config.identity / "timing.json").read_bytes())
            taken = float(sum(timing["seconds"].values())) + START_SECONDS
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        ratios.setdefault((config.problem, config.method), []).append(taken / seconds(config))
    return {key: statistics.median(values) for key, values in ratios.items()}


def _cost(config: RunConfig) -> Cost:
    family = methods.get(config.method).family
    problem = config.problem.removesuffix("_pycbc")
    return TABLE.get((problem, family)) or TABLE["slcp", family]
