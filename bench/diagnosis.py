"""What a diagnosis takes: seconds on one thread, and a thorough one against a plain one.

The networks are trained for a few epochs: their size decides, not how good they are. CPU time of
this process, both sides of a ratio on the same pairs.
"""

import time

import torch

import prudent
from prudent._randomness import threads
from prudent.contracts import Estimator

NUM_TRAINING, EPOCHS = 2048, 5
# Problem, method, and as many pairs as a ratio of times needs. Of mg1 the first are looked at
# thoroughly, which would be most of the time of few.
CASES = (("mg1", "nre", 500), ("slcp", "nre", 200), ("slcp", "npe", 300))


def diagnosis() -> dict[str, float]:
    """CPU seconds per 1,000 pairs of each case, and thorough over plain."""
    found = {}
    with threads(1):
        for name, method, number in CASES:
            problem = prudent.problems.get(name)
            estimator = prudent.fit(
                *problem.draw(NUM_TRAINING, 0), problem.prior, method=method, epochs=EPOCHS,
                seed=0, progress=False,
            )  # fmt: skip
            pairs = problem.draw(number, 0, "test")
            plain = _seconds(estimator, pairs, thorough=False)
            thorough = _seconds(estimator, pairs, thorough=True)
            found[f"diagnosis_{name}_{method}_seconds_per_1000"] = 1000 * plain / number
            found[f"diagnosis_{name}_{method}_thorough_over_plain"] = thorough / plain
    return found


def _seconds(estimator: Estimator, pairs: tuple[torch.Tensor, ...], *, thorough: bool) -> float:
    start = time.process_time()
    prudent.diagnose(estimator, *pairs, thorough=thorough, progress=False)
    return time.process_time() - start


if __name__ == "__main__":
    for name, value in diagnosis().items():
        print(f"{name:<50}{value:10.2f}", flush=True)
