"""Measures the table prudent/experiments/cost.json: seconds of a step and of a diagnosis.

One thread, batches of 128, the median of some epochs with their validation, for the standard
networks and those of the paper. These are seconds of the processor, which other work on the
machine disturbs little: python bench/steps.py [PROBLEM ...]
"""

import json
import math
import sys
import time
from itertools import pairwise, product
from statistics import median

import torch

import prudent
from prudent._files import to_json, write_atomic
from prudent.experiments.cost import TABLE
from prudent.fitting import networks_of

FAMILIES = {"nre": ("nre", "bnre", "calnre"), "npe": ("npe", "bnpe", "calnpe")}
# Steps and epochs; those with large embeddings take seconds a step.
SLOW = ("spatial_sir", "gravitational_waves")
NUM_TEST = 500
COSTS = ("step", "balance", "coverage", "diagnose", "megabytes")


def measure(name, family, networks):
    """Seconds of 1,000 simulations, and the costs of a family; see prudent.experiments.cost."""
    problem = prudent.problems.get(name)
    num_steps, epochs = (2, 5) if name in SLOW else (8, 30)
    start = time.process_time()
    theta, x = problem.draw(160 * num_steps, 0)
    simulate = (time.process_time() - start) * 1000 / len(theta)
    steps = []
    for method in FAMILIES[family]:
        options = {"method": method, "epochs": epochs, "batch_size": 128, "invalid": "exclude"}
        if networks == "paper":
            options["preset"] = "paper"
        elif method.startswith("cal"):
            options["fraction"] = 1.0  # `cost.seconds` knows how many steps have the penalty
        options |= networks_of(problem, family, networks)
        ends = []
        estimator = prudent.fit(
            theta,
            x,
            problem.prior,
            progress=lambda _, ends=ends: ends.append(time.process_time()),
            **options,
        )
        steps.append(median(end - begin for begin, end in pairwise(ends)) / num_steps)
        if len(steps) == 1:
            test = problem.draw(NUM_TEST, 0, "test")
            start = time.process_time()
            prudent.diagnose(estimator, *test, progress=False)
            diagnose = (time.process_time() - start) * 1000 / NUM_TEST
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
        for family, networks in product(FAMILIES, ("standard", "paper")):
            place = row if networks == "standard" else row.setdefault(networks, {})
            row["simulate"], place[family] = measure(name, family, networks)
            print(name, family, networks, place[family], flush=True)
        write_atomic(TABLE, to_json(table))


if __name__ == "__main__":
    main()
