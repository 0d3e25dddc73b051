"""Flows inside the prior's support against the paper's flow, cut there, on the same pairs.

`support.py run` measures what is missing in support.json; it can be killed and goes on.
`support.py table` compares. The paper trains for 500 epochs and keeps the best by validation;
here both kinds stop after 20 epochs without progress, which keeps the same epoch unless a better
one comes later than that.
"""

import argparse
import math
import time
import warnings
from statistics import mean

import torch
from study import Study, marked, spread

import prudent
from prudent.datasets.simulate import draw, draw_pairs
from prudent.training.options import PRESETS

PROBLEMS, SEEDS = ("slcp", "mg1"), range(5)
BUDGET, NUM_TEST, PATIENCE = 4096, 1000, 20
# The settings of the flow that lives inside the support, and of the paper's.
KINDS = {"inside": {}, "paper, cut": PRESETS["paper"]}
STUDY = Study("support", ("problem", "seed", "kind"))
HEAD = ("problem", "simulations", "seeds", "inside the support", "paper's, cut to it",
        "difference", "paper's, mass outside")  # fmt: skip


def measured(name, seed, kind):
    """One result: the mean log posterior of the test pairs, and the coverage of the same flow."""
    problem = prudent.problems.get(name)
    pairs, prior = draw_pairs(problem, BUDGET, seed), problem.prior
    theta, x = draw(problem, NUM_TEST, seed, "test")[:2]
    options = {**KINDS[kind], "patience": PATIENCE, "seed": seed, "progress": False}
    start = time.process_time()
    estimator = prudent.fit(pairs.theta, pairs.x, prior, method="npe", **options)
    seconds = time.process_time() - start
    with torch.no_grad():
        posterior = estimator(x)
        log_posterior = posterior.log_prob(theta).double()
        inside = posterior.density.log_norm.double().exp() if estimator.leaks else torch.ones(())
    diagnosis = prudent.diagnose(estimator, theta, x, method="samples", seed=seed, progress=False)
    if not math.isfinite(float(log_posterior.mean())):
        raise SystemExit(f"{name}, {seed}, {kind}: the log posterior is not finite.")
    return {
        "log_posterior": float(log_posterior.mean()),
        "leakage": float(1 - inside.mean()),
        "auc": diagnosis.auc,
        "worst_shortfall": diagnosis.worst_shortfall,
        "epochs": len(estimator.history),
        "cpu_seconds": seconds,
    }


def table(results):
    """A row for each problem, over the seeds that both kinds have."""
    rows = []
    for name in PROBLEMS:
        found = {kind: {} for kind in KINDS}
        for one in results:
            if one["problem"] == name:
                found[one["kind"]][one["seed"]] = one
        ours, before = found.values()
        seeds = sorted(ours.keys() & before.keys())
        if not seeds:
            continue
        sharp = [[kind[seed]["log_posterior"] for seed in seeds] for kind in (ours, before)]
        gain = [new - old for new, old in zip(*sharp, strict=True)]
        outside = mean(before[seed]["leakage"] for seed in seeds)
        means = (*(spread(values, 3) for values in sharp), spread(gain, 3, "+"))
        rows.append((name, f"{BUDGET:,}", str(len(seeds)), *means, f"{100 * outside:.1f} %"))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "table"))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if parser.parse_args().what == "run":
        # Whole pairs of kinds first.
        cells = [(name, seed, kind) for seed in SEEDS for name in PROBLEMS for kind in KINDS]
        STUDY.measure(cells, measured)
    print(marked(HEAD, table(STUDY.read())), end="")


if __name__ == "__main__":
    main()
