"""Measures the table prudent/experiments/cost.json: seconds of a step and of a diagnosis.

One thread, batches of 128, the shortest of some epochs with their validation. Run it on a machine
that does nothing else: python bench/steps.py [PROBLEM ...]
"""

import json
import math
import sys
import time

import torch

import prudent
from prudent._files import to_json, write_atomic
from prudent.experiments.cost import TABLE

FAMILIES = {"nre": ("nre", "bnre", "calnre"), "npe": ("npe", "bnpe", "calnpe")}
# Steps and epochs; those with large embeddings take seconds a step.
SLOW = ("spatial_sir", "gravitational_waves")
NUM_TEST = 500
COSTS = ("step", "balance", "coverage", "diagnose", "megabytes")


def measure(name, family):
    """Seconds of 1,000 simulations, and the costs of a family; see prudent.experiments.cost."""
    problem = prudent.problems.get(name)
    num_steps, epochs = (2, 2) if name in SLOW else (8, 4)
    start = time.perf_counter()
    theta, x = problem.draw(160 * num_steps, 0)
    simulate = (time.perf_counter() - start) * 1000 / len(theta)
    steps = []
    for method in FAMILIES[family]:
        estimator = prudent.fit(
            theta,
            x,
            problem.prior,
            method=method,
            epochs=epochs,
            batch_size=128,
            # `cost.seconds` knows how many steps have the penalty.
            **({"fraction": 1.0} if method.startswith("cal") else {}),
            progress=False,
            invalid="exclude",
            **problem.networks.get(family, {}),
        )
        steps.append(min(estimator.history.column("seconds")) / num_steps)
        if len(steps) == 1:
            test = problem.draw(NUM_TEST, 0, "test")
            start = time.perf_counter()
            prudent.diagnose(estimator, *test, progress=False)
            diagnose = (time.perf_counter() - start) * 1000 / NUM_TEST
    values = [*steps, diagnose, len(estimator.to_bytes()) / 1e6]
    rounded = (float(f"{value:.3g}") for value in values)
    return float(f"{simulate:.1g}"), dict(zip(COSTS, rounded, strict=True))


def main():
    torch.set_num_threads(1)
    chosen = sys.argv[1:] or [name for name in prudent.problems.names() if "pycbc" not in name]
    table = json.loads(TABLE.read_bytes())
    for name in chosen:
        row, problem = table.setdefault(name, {}), prudent.problems.get(name)
        row["row_bytes"] = 4 * (problem.dim + math.prod(problem.x_shape))
        for family in FAMILIES:
            row["simulate"], row[family] = measure(name, family)
            print(name, family, row[family], flush=True)
        write_atomic(TABLE, to_json(table))


if __name__ == "__main__":
    main()
