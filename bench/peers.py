"""The defaults of sbi and of prudent on the same pairs: log posterior, coverage and CPU time.

`peers.py sbi` and `peers.py prudent` measure what is missing in peers.json, `peers.py times` what
is missing in times.json: both trainings of a cell, one after the other. All can be killed and go
on. `peers.py table` compares.
"""

import argparse
import contextlib
import dataclasses
import io
import itertools
import time
import warnings
from importlib.metadata import version
from unittest.mock import Mock

import numpy as np
import torch
from study import Study, marked, spread
from torch.distributions import Independent, MultivariateNormal, Normal

import prudent
from prudent.datasets.simulate import draw, draw_pairs
from prudent.problems.problem import custom

PROBLEMS = ("slcp", "two_moons", "weinberg", "mg1", "gaussian", "correlated")
BUDGETS, SEEDS, FAMILIES = (1024, 4096), (0, 1, 2), ("npe", "nre")
NUM_TEST = 1000
# This ratio is slow to normalize: only the first of the test pairs, and last.
SLOW, FEWER = ("nre", "mg1"), {"mg1": 500}
STUDY = Study("peers", ("peer", "family", "problem", "budget", "seed"))
# CPU times are compared only if they were measured side by side: machines and loads differ.
TIMES, PEERS = Study("times", STUDY.key[1:]), ("prudent", "sbi")
HEAD = ("network", "problem", "simulations", "seeds", "ours", "sbi", "no worse",
        "ours, CPU s", "sbi, CPU s", "ratio")  # fmt: skip


def correlated():
    """Three parameters, seen through noise of correlation 0.95; normal prior."""
    covariance = 0.09 * (0.05 * torch.eye(3) + 0.95 * torch.ones(3, 3))
    factor = torch.linalg.cholesky(covariance)
    precision = torch.eye(3) + covariance.inverse()
    gain = torch.linalg.solve(precision, covariance.inverse())

    def simulate(theta, generator):
        return theta + torch.randn(theta.shape, generator=generator) @ factor.T

    def log_posterior(theta, x):
        return MultivariateNormal(x @ gain.T, precision_matrix=precision).log_prob(theta)

    prior = Independent(Normal(torch.zeros(3), torch.ones(3)), 1)
    problem = custom(simulate, prior, name="correlated")
    return dataclasses.replace(problem, log_posterior=log_posterior)


def problem_named(name):
    return correlated() if name == "correlated" else prudent.problems.get(name)


def test_pairs(problem, seed):
    """The test pairs of a run of the same seed, and their mean exact log posterior or None."""
    number, exact = FEWER.get(problem.name), problem.log_posterior
    theta, x = (values[:number] for values in draw(problem, NUM_TEST, seed, "test")[:2])
    return theta, x, exact and float(exact(theta, x).double().mean())


def train(peer, problem, family, budget, seed):
    """An estimator by the defaults, and the CPU seconds that it took."""
    pairs, prior = draw_pairs(problem, budget, seed), problem.prior
    if peer == "prudent":
        options, start = {"seed": seed, "progress": False}, time.process_time()
        estimator = prudent.fit(pairs.theta, pairs.x, prior, method=family, **options)
        return estimator, time.process_time() - start
    from sbi.inference import NPE, NRE

    torch.manual_seed(seed)
    # Without a tracker of ours it would leave its logs in the working directory.
    quiet = {"tracker": Mock(), "show_progress_bars": False}
    trainer = {"npe": NPE, "nre": NRE}[family](prior, **quiet)
    trainer.append_simulations(pairs.theta, pairs.x)
    start = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        network = trainer.train().eval()
    return prudent.adapt(network, prior), time.process_time() - start


def measured(peer, family, name, budget, seed):
    """One result; the log posterior is that of the posterior cut to the prior's support."""
    problem = problem_named(name)
    theta, x, exact = test_pairs(problem, seed)
    estimator, _ = train(peer, problem, family, budget, seed)
    # Draws count the mass of a flow inside the support; that of a ratio is integrated.
    method = "samples" if family == "npe" else "auto"
    diagnosis = prudent.diagnose(estimator, theta, x, method=method, seed=seed, progress=False)
    found = diagnosis.measurement
    # A flow is known at every truth, a ratio where it is resolved.
    known = found.resolved | (family == "npe")
    log_posterior, log_norm = found.log_posterior[known], found.log_norm[known]
    of_flow = float((log_posterior + log_norm).double().mean())  # before it was cut
    return {
        "version": version(peer),
        "log_posterior": float(log_posterior.double().mean()),
        "log_posterior_of_flow": of_flow if family == "npe" else None,
        "log_posterior_exact": exact,
        "leakage": diagnosis.leakage,
        "auc": diagnosis.auc,
        "worst_shortfall": diagnosis.worst_shortfall,
        "num_test": len(theta),
        "num_unresolved": int((~found.resolved).sum()),
    }


def select(results, *cell):
    return [one for one in results if STUDY.cell(one)[: len(cell)] == cell]


def timed(family, name, budget, seed):
    """The CPU seconds of both trainings, each of which comes first for every other seed."""
    problem, order = problem_named(name), PEERS[:: 1 if seed % 2 else -1]
    return {peer: train(peer, problem, family, budget, seed)[1] for peer in order}


def warm_up(*peers):
    """Train a little: the first training of a process takes longer."""
    for peer, family in itertools.product(peers, FAMILIES):
        train(peer, problem_named("gaussian"), family, 256, 0)


def run(peer):
    """Measure what is missing, the slowest of each budget last."""
    warm_up(peer)
    cells = [
        (peer, f, p, b, s) for b in BUDGETS for s in SEEDS for f in FAMILIES for p in PROBLEMS
    ]
    STUDY.measure(sorted(cells, key=lambda cell: (cell[3], cell[1:3] == SLOW)), measured)


def run_times():
    """Measure the times that are missing, a seed after the other."""
    warm_up(*PEERS)
    cells = ((f, p, b, s) for s in SEEDS for b in BUDGETS for f in FAMILIES for p in PROBLEMS)
    TIMES.measure(cells, timed)


def table(results):
    """A row for each kind of network, problem and budget, over the seeds that both sides have."""
    rows = []
    for cell in itertools.product(FAMILIES, PROBLEMS, BUDGETS):
        sides = [{one["seed"]: one for one in select(results, peer, *cell)} for peer in PEERS]
        seeds = sorted(sides[0].keys() & sides[1].keys())
        if not seeds:
            continue
        sharp = [np.array([side[seed]["log_posterior"] for seed in seeds]) for side in sides]
        better = "yes" if sharp[0].mean() >= sharp[1].mean() else "no"
        numbers = (*map(spread, sharp), better, *times(cell))
        rows.append((cell[0].upper(), cell[1], f"{cell[2]:,}", str(len(seeds)), *numbers))
    return rows


def times(cell):
    """The mean CPU seconds of both sides, and the mean ratio."""
    found = [one for one in TIMES.read() if TIMES.cell(one)[:3] == cell]
    if not found:
        return ("–",) * 3
    ours, theirs = (np.array([one[peer] for one in found]) for peer in PEERS)
    return *(f"{side.mean():.1f}" for side in (ours, theirs)), f"{(ours / theirs).mean():.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=(*PEERS, "times", "table"))
    what = parser.parse_args().what
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if what == "times":
        run_times()
    elif what != "table":
        run(what)
    print(marked(HEAD, table(STUDY.read())), end="")


if __name__ == "__main__":
    main()
