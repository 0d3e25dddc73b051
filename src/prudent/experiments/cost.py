"""The expected cost of a run, from measured seconds per step and the times of finished runs.

The table ``cost.json`` was measured by ``bench/steps.py`` on one machine (2 cores of x86-64, torch
2.13.0, one thread, seconds of the processor). For each problem it has the seconds of 1,000
simulations and, for each family of estimators and kind of networks, the seconds of a step without
a regularizer, with the balance of the classifier, and with the coverage penalty and 16 draws; the
seconds of diagnosing 1,000 test pairs; and the megabytes of a finished run. It can be wrong by a
factor of two and more, elsewhere or beside other work; finished runs in the same directory help.
"""

import json
import statistics
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from prudent.experiments.config import RunConfig
from prudent.training import methods

# Importing torch and writing the results.
START_SECONDS = 2.0
MOST_READ = 500
TABLE = Path(__file__).with_name("cost.json")
# Whose costs stand for those of a problem that was not measured.
TYPICAL = "slcp"


class Cost(NamedTuple):
    """The expected time and space of several runs, and whether finished ones corrected it."""

    seconds: float
    bytes: int
    corrected: bool


def seconds(config: RunConfig) -> float:
    """The expected seconds of a run on one core, from the table alone."""
    method, cost, training = methods.get(config.method), _cost(config), config.training
    # A regularizer that was not measured costs as much as the dearest that was.
    step = {None: cost["step"], "balance": cost["balance"]}.get(
        method.regularizer, cost["coverage"]
    )
    if method.regularizer == "coverage":
        draws = (cost["coverage"] - cost["step"]) * training.num_samples / 16
        step = cost["step"] + max(draws, 0.0) * (training.fraction or 1.0)
    num_pairs = int(config.budget * (1 - training.validation_fraction))
    batch_size = training.pairs_per_step(num_pairs)
    steps = max(1, num_pairs // batch_size)
    # Small batches cost nearly as much as large ones.
    step *= max(0.5, batch_size / 128)
    simulate = cost["simulate"] * (config.budget + config.num_test) / 1000
    diagnose = cost["diagnose"] * config.num_test / 1000
    one_network = training.epochs * steps * step + diagnose
    return START_SECONDS + simulate + config.num_networks * one_network


def disk_bytes(configs: Sequence[RunConfig], workers: int) -> int:
    """The space that runs take on disk: simulations once, two checkpoints of each at work."""
    sizes = sorted(_cost(c)["megabytes"] * c.num_networks for c in configs)
    # A checkpoint holds the weights, the best ones, and two moments of each.
    at_work = sum(8 * size for size in sizes[-workers:])
    shared = (c.budget * _cost(c)["row_bytes"] for c in largest(configs).values())
    return round((sum(sizes) + at_work) * 1e6 + sum(shared))


def largest(configs: Iterable[RunConfig]) -> dict[tuple[str, int], RunConfig]:
    """For each problem and seed the run with the largest budget, whose pairs serve all others."""
    ordered = sorted(configs, key=lambda config: config.budget)
    return {(config.problem, config.seed): config for config in ordered}


def cost_of(
    configs: Sequence[RunConfig], finished: Iterable[RunConfig], root: Path, workers: int
) -> Cost:
    """The expected cost of runs to come, corrected by the times of finished ones in ``root``."""
    factors = _factors(finished, root)
    usual = statistics.median(factors.values()) if factors else 1.0
    costs = [seconds(c) * factors.get((c.problem, c.method), usual) for c in configs]
    workers = min(workers, max(1, len(costs)))
    # No schedule is shorter than its longest run.
    total = max(sum(costs) / workers, max(costs, default=0.0))
    return Cost(total, disk_bytes(configs, workers), bool(factors))


def _factors(finished: Iterable[RunConfig], root: Path) -> dict[tuple[str, str], float]:
    """The ratio of the time that runs took to that of the table, by problem and method."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for config, _ in zip(finished, range(MOST_READ), strict=False):
        try:
            timing = json.loads((root / config.identity / "timing.json").read_bytes())
            taken = float(sum(timing["seconds"].values())) + START_SECONDS
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        ratios.setdefault((config.problem, config.method), []).append(taken / seconds(config))
    return {key: statistics.median(values) for key, values in ratios.items()}


@cache
def _table(networks: str) -> Any:
    return {n: r | r.get(networks, {}) for n, r in json.loads(TABLE.read_bytes()).items()}


def _cost(config: RunConfig) -> dict[str, float]:
    table, family = _table(config.training.networks), methods.get(config.method).family
    unknown = {"simulate": 0.0, "row_bytes": table[TYPICAL]["row_bytes"]}
    row = table.get(config.problem.removesuffix("_pycbc"), unknown)
    known = row.get(family) or table[TYPICAL].get(family) or table[TYPICAL]["nre"]
    return {"simulate": row["simulate"], "row_bytes": row["row_bytes"], **known}
