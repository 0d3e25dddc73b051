"""Benchmarks against peers, as ratios within one run; nothing here is an absolute promise.

Each entry runs both sides in turn several times and compares the fastest of each, so that noise
of a shared machine hits both.
"""

import importlib.util
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from convolutions import convolutions
from diagnosis import diagnosis
from lampe.diagnostics import expected_coverage_mc, expected_coverage_ni
from penalty import prices
from sweeps import throughput

import prudent
from adapters import adapters
from prudent.coverage import alpha, penalty
from prudent.datasets import Pairs
from prudent.datasets.simulate import draw_pairs
from prudent.diagnostics import measure, parameters, posterior_ranks, sbc

REPEATS = 3
ROOT = Path(__file__).parents[1]


def fastest(*functions):
    """The shortest time of each function over interleaved repeats."""
    times = [[] for _ in functions]
    for _ in range(REPEATS):
        for times_of_one, function in zip(times, functions, strict=True):
            start = time.perf_counter()
            function()
            times_of_one.append(time.perf_counter() - start)
    return [min(times_of_one) for times_of_one in times]


def cost_of_the_recommended_estimator(problem, pairs):
    """CPU time of `fit` without settings over that of one flow, which stops when it is done."""

    def seconds(method, seed):
        start = time.process_time()
        prudent.fit(pairs.theta, pairs.x, problem.prior, method=method, seed=seed, progress=False)
        return time.process_time() - start

    # The time of a flow depends on its seed, and both on the minute: several, in turn.
    all_of_it, single = 0.0, 0.0
    for seed in range(REPEATS):
        single += seconds("npe", seed) / 2
        all_of_it += seconds("prudent", seed)
        single += seconds("npe", REPEATS + seed) / 2
    return {"prudent over npe, CPU time of fit (SLCP, 1,024)": all_of_it / single}


def average_difference(one, other):
    """How far two coverage curves are apart, on average over all levels."""
    return float((one.sort().values - other.sort().values).abs().mean())


def coverage_of_a_ratio(problem, pairs):
    """Time of lampe's 90 x 90 grid over that of `measure`, on the same network and pairs."""
    estimator = prudent.fit(
        pairs.theta, pairs.x, problem.prior, method="nre", epochs=20, progress=False
    )
    test = Pairs(*problem.draw(60, 0, "test"))
    domain = (problem.prior.base_dist.low, problem.prior.base_dist.high)
    found = {}

    def ours():
        found["prudent"] = measure(estimator, test, progress=False).alpha

    def log_prob(theta, x):
        return estimator(x[None]).log_prob(theta.reshape(-1, 1, 2)).reshape(theta.shape[:-1])

    def theirs(bins=90, name="lampe"):
        batches = zip(test.theta, test.x, strict=True)
        ranks, _ = expected_coverage_ni(log_prob, batches, domain, bins=bins)
        found[name] = 1 - ranks[1:-1]

    fast, slow = fastest(ours, theirs)
    theirs(bins=200, name="fine")
    title = "(NRE, SLCP)"
    return {
        f"lampe over prudent, time of expected coverage {title}": slow / fast,
        **{
            f"{name}, error of coverage, mean over levels {title}": average_difference(
                found[name], found["fine"]
            )
            for name in ("prudent", "lampe")
        },
    }


@torch.no_grad()
def alphas_of_many_draws(estimator, pairs, number=8192):
    """Alpha by a plain loop, of the flow as it is and of the flow cut to the prior."""
    whole, cut = [], []
    for theta, x in zip(pairs.theta, pairs.x, strict=True):
        posterior = estimator(x[None])
        draws = posterior.sample((number,))
        lower = posterior.log_prob(draws) < posterior.log_prob(theta[None])
        inside = estimator.prior.support.check(draws)
        whole.append(lower.float().mean())
        cut.append(lower[inside].float().mean())
    return torch.stack(whole), torch.stack(cut)


def coverage_of_a_flow(problem, pairs):
    """Time of lampe's 1,024 draws over that of `measure`, by its choice and by as many draws."""
    estimator = prudent.fit(
        pairs.theta, pairs.x, problem.prior, method="npe", epochs=40, progress=False
    )
    test = Pairs(*problem.draw(200, 0, "test"))
    found = {}

    def ours(method, name):
        def run():
            found[name] = measure(estimator, test, method, progress=False).alpha

        return run

    def posterior(x):
        # The flow itself, as zuko makes it: lampe's own loop, on the same weights.
        return estimator.head(estimator.embed(x[None]))

    def theirs():
        batches = zip(estimator.theta_scale(test.theta), test.x, strict=True)
        found["lampe"] = 1 - expected_coverage_mc(posterior, batches, n=1024)[0][1:-1]

    chosen, drawn, slow = fastest(ours("auto", "prudent"), ours("samples", "draws"), theirs)
    whole, cut = alphas_of_many_draws(estimator, test)
    title = "(NPE, SLCP)"
    return {
        f"lampe over prudent, time of expected coverage {title}": slow / chosen,
        f"lampe over prudent, time of expected coverage by draws {title}": slow / drawn,
        **{
            f"{name}, error of coverage, mean over levels {title}": average_difference(
                found[name], whole if name == "lampe" else cut
            )
            for name in ("prudent", "draws", "lampe")
        },
    }


class ForSbi:
    """What sbi's diagnostics ask of a posterior."""

    def __init__(self, estimator):
        self.estimator = estimator

    def sample_batched(self, shape, x, **options):
        return self.estimator(x).sample(shape)


def ranks_against_sbi(problem, pairs):
    """Time of sbi's `run_sbc` over that of `sbc`: same flow, pairs and draws, if installed."""
    if importlib.util.find_spec("sbi") is None:
        return {}
    from sbi.diagnostics import run_sbc

    estimator = prudent.fit(
        pairs.theta, pairs.x, problem.prior, method="npe", epochs=5, progress=False
    )
    theta, x = problem.draw(200, 0, "test")

    def ours():
        functions = parameters(theta.shape[1])
        sbc(posterior_ranks(estimator, theta, x, functions, num_samples=1000, progress=False))

    def theirs():
        run_sbc(theta, x, ForSbi(estimator), num_posterior_samples=1000, show_progress_bar=False)

    fast, slow = fastest(ours, theirs)
    return {"sbi over prudent, time of SBC, 1,000 draws (NPE, SLCP)": slow / fast}


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


# How many simulations each side makes: enough for a tenth of a second or more.
SIMULATIONS = {
    "slcp": (131_072, 2_000),
    "weinberg": (65_536, 300),
    "mg1": (65_536, 500),
    "two_moons": (131_072, 5_000),
    "lotka_volterra": (8_000, 100),
    "spatial_sir": (2_048, 60),
}


def simulators_against_plain_loops():
    """Simulations per second over the per-event transcription that the tests compare with."""
    sys.path.insert(0, str(ROOT / "tests" / "problems"))
    results = {}
    for name, (many, few) in SIMULATIONS.items():
        problem = prudent.problems.get(name)
        plain = importlib.import_module(f"references.{name}").simulate_one
        theta = problem.draw(few, 0)[0].numpy()

        def batched(problem=problem, many=many):
            problem.draw(many, 0)

        def loop(theta=theta, plain=plain):
            rng = np.random.default_rng(0)
            for row in theta:
                plain(row, rng)

        fast, slow = fastest(batched, loop)
        results[f"plain over prudent, time of a simulation ({name})"] = slow / few * many / fast
    return results


def gravitational_waves_against_pycbc():
    """Simulations per second over PyCBC with IMRPhenomPv2, where it is installed."""
    if importlib.util.find_spec("pycbc") is None:
        return {}
    ours = prudent.problems.get("gravitational_waves")
    theirs = prudent.problems.get("gravitational_waves_pycbc")
    theirs.draw(1, 0)
    fast, slow = fastest(lambda: ours.draw(64, 0), lambda: theirs.draw(8, 0))
    return {"pycbc over prudent, time of a simulation (gravitational waves)": slow / 8 * 64 / fast}


def of_slcp(function):
    """The rows of a function of SLCP and of 1,024 pairs of it."""

    def rows():
        problem = prudent.problems.get("slcp")
        return function(problem, draw_pairs(problem, 1024, 0))

    return rows


PARTS = {
    "penalty": prices,
    "default": of_slcp(cost_of_the_recommended_estimator),
    "ratio": of_slcp(coverage_of_a_ratio),
    "flow": of_slcp(coverage_of_a_flow),
    "ranks": of_slcp(ranks_against_sbi),
    "direct": cost_of_the_direct_computation,
    "simulators": simulators_against_plain_loops,
    "waves": gravitational_waves_against_pycbc,
    "convolutions": convolutions,
    "diagnosis": diagnosis,
    "adapters": adapters,
    "sweeps": throughput,
}


def main():
    """Run the parts that are named, or all, and keep the rows of the others."""
    # One thread for everybody: plain loops have no more, and two on a shared machine are noise.
    torch.set_num_threads(1)
    named = sys.argv[1:] or list(PARTS)
    if unknown := [name for name in named if name not in PARTS]:
        raise SystemExit(f"unknown part {unknown[0]!r}; there are {' '.join(PARTS)}.")
    path = Path(__file__).with_name("results.json")
    results = json.loads(path.read_text()) if sys.argv[1:] and path.exists() else {}
    for name in named:
        rows = PARTS[name]()
        results |= {key: round(value, 4) for key, value in rows.items()}
        for key, value in rows.items():
            print(f"{value:<10.3g}{key}", flush=True)
        path.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
