"""Benchmarks against peers, as ratios within one run; nothing here is an absolute promise.

Each entry runs both sides in turn several times and compares the fastest of each, so that noise
of a shared machine hits both.
"""

import json
import time
from pathlib import Path

import lampe
import torch

import prudent
from prudent.coverage import alpha, penalty
from prudent.datasets import Pairs
from prudent.diagnostics import expected_coverage, measure

REPEATS = 3


def fastest(*functions):
    """The shortest time of each function over interleaved repeats."""
    times = [[] for _ in functions]
    for _ in range(REPEATS):
        for times_of_one, function in zip(times, functions, strict=True):
            start = time.perf_counter()
            function()
            times_of_one.append(time.perf_counter() - start)
    return [min(times_of_one) for times_of_one in times]


def overhead_of_the_penalty(problem, pairs):
    """Seconds per epoch of CalNRE and BNRE over NRE; the paper reads 3.0 to 3.4 at L = 16."""

    def training(method):
        return lambda: prudent.fit(
            pairs.theta, pairs.x, problem.prior, method=method, epochs=3, progress=False
        )

    plain, balanced, calibrated = fastest(*(training(m) for m in ("nre", "bnre", "calnre")))
    return {
        "bnre over nre, time of training": balanced / plain,
        "calnre over nre, time of training (L = 16)": calibrated / plain,
    }


class LampeGrid(torch.nn.Module):
    """Our network behind the call that lampe expects."""

    def __init__(self, estimator):
        super().__init__()
        self.estimator = estimator

    def forward(self, theta, x):
        posterior = self.estimator(x.reshape(-1, x.shape[-1]))
        return posterior.log_prob(theta.reshape(-1, theta.shape[-1])).reshape(x.shape[:-1])


def coverage_on_a_grid(problem, pairs):
    """Pairs per second of `diagnose` over lampe's 90 x 90 grid, on the same network and pairs."""
    estimator = prudent.fit(
        pairs.theta, pairs.x, problem.prior, method="nre", epochs=5, progress=False
    )
    test = Pairs(*problem.draw(60, 0, "test"))
    domain = (problem.prior.base_dist.low, problem.prior.base_dist.high)
    curves = {}

    def ours():
        curves["ours"] = expected_coverage(measure(estimator, test, progress=False).alpha).curve

    def theirs():
        batches = [(test.theta, test.x)]
        with torch.no_grad():
            levels, coverage = lampe.diagnostics.expected_coverage_ni(
                LampeGrid(estimator), batches, domain, bins=90
            )
        wanted = torch.tensor([round(0.05 * i, 2) for i in range(1, 20)])
        index = (levels[None] <= wanted[:, None] + 1e-6).sum(1) - 1
        curves["lampe"] = coverage[index].float()

    fast, slow = fastest(ours, theirs)
    difference = float((curves["ours"] - curves["lampe"]).abs().max())
    return {
        "lampe over prudent, time of expected coverage (NRE, SLCP)": slow / fast,
        "largest difference of the two curves (60 pairs)": difference,
    }


def cost_of_the_direct_computation():
    """Forward and backward of the direct ECDF over the sorted one, N = 128, L = 16."""
    torch.manual_seed(0)
    log_prob = torch.randn(128, requires_grad=True)
    draws = torch.randn(16, 128, requires_grad=True)

    def step(computation):
        def repeat():
            for _ in range(300):
                penalty(alpha(log_prob, draws, draws), computation=computation).backward()

        return repeat

    by_sort, direct = fastest(step("sort"), step("direct"))
    return {"direct over sort, time of a penalty": direct / by_sort}


def main():
    problem = prudent.problems.get("slcp")
    pairs = Pairs(*problem.draw(1024, 0, "budget"))
    results = {
        **overhead_of_the_penalty(problem, pairs),
        **coverage_on_a_grid(problem, pairs),
        **cost_of_the_direct_computation(),
    }
    width = max(map(len, results))
    for name, value in results.items():
        print(f"{name:<{width}}  {value:.3g}")
    text = json.dumps({name: round(value, 4) for name, value in results.items()}, indent=2)
    Path(__file__).with_name("results.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
