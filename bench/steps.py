"""Measures the table in prudent/experiments/cost.py: seconds of a step and of a diagnosis.

One thread, batches of 128, the shortest of some epochs with their validation. Run it on a machine
that does nothing else: python bench/steps.py [PROBLEM ...]
"""

import sys
import time

import torch

import prudent

FAMILIES = {"nre": ("nre", "bnre", "calnre"), "npe": ("npe", "bnpe", "calnpe")}
# Steps and epochs; those with large embeddings take seconds a step.
SLOW = ("spatial_sir", "gravitational_waves")
NUM_TEST = 100


def measure(name, family):
    """Seconds of a step by method, of diagnosing 1,000 pairs, and megabytes of the model."""
    problem = prudent.problems.get(name)
    num_steps, epochs = (2, 2) if name in SLOW else (8, 4)
    theta, x = problem.draw(160 * num_steps, 0)
    steps, diagnoses = [], []
    for method in FAMILIES[family]:
        estimator = prudent.fit(
            theta,
            x,
            problem.prior,
            method=method,
            epochs=epochs,
            progress=False,
            invalid="exclude",
            **problem.networks.get(family, {}),
        )
        steps.append(min(estimator.history.column("seconds")) / num_steps)
        if len(steps) == 1:
            test = problem.draw(NUM_TEST, 0, "test")
            start = time.perf_counter()
            prudent.diagnose(estimator, *test, progress=False)
            diagnoses.append((time.perf_counter() - start) * 1000 / NUM_TEST)
    return [*steps, *diagnoses, len(estimator.to_bytes()) / 1e6]


def main():
    torch.set_num_threads(1)
    chosen = sys.argv[1:] or [name for name in prudent.problems.names() if "pycbc" not in name]
    for name in chosen:
        for family in FAMILIES:
            values = ", ".join(f"{value:.3g}" for value in measure(name, family))
            print(f'    ("{name}", "{family}"): Cost({values}),', flush=True)


if __name__ == "__main__":
    main()
