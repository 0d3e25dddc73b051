"""The price of the coverage penalty: a step of training beside a plain one and beside the peers'.

All sides see the same pairs, batches and sizes of networks, in turn and in one process. A number
is the median of ratios of CPU times that were taken right after each other: on a shared machine
the shortest times are those of other moments on either side.
"""

import contextlib
import io
import json
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import lampe
import torch
import zuko
from lampe.inference import dcp
from lampe.utils import GDStep

import prudent
from prudent.datasets.simulate import draw_pairs
from prudent.estimators import KINDS
from prudent.estimators.networks import MLP
from prudent.fitting import untrained
from prudent.training import Options, methods
from prudent.training.checkpoint import TrainingState
from prudent.training.loop import _step, train
from prudent.training.objectives import WeightedSum, make_term

# Where the soft sort that lampe asks for is not installed, torch's own, which is faster.
if not hasattr(dcp, "torchsort"):
    dcp.torchsort = SimpleNamespace(soft_sort=lambda values, **_: values.sort(dim=-1).values)

BATCH, REPEATS = 128, 15
# A penalty of ours is in every fifth to fourteenth step, others are in each.
STEPS, FEW_STEPS = 70, 7
NUM_SAMPLES = (4, 16, 64, 128)
# Epochs by which the networks are trained before they are timed: gradients are typical then.
WARM_EPOCHS = 10
# The peers have layers as wide as ours.
HIDDEN = {family: KINDS[family].default_hidden for family in ("nre", "npe")}
# sbi's spline flow has two hidden layers, whatever one asks for.
HIDDEN_OF_SBI = {"nre": HIDDEN["nre"], "npe": HIDDEN["npe"][:2]}
MEMORY = """
import re, sys, torch
sys.path.insert(0, {here!r})
import penalty
torch.set_num_threads(1)
one = penalty.ours("calnre", {number})
for _ in range(5):
    one()
# Not ru_maxrss, which a process inherits from who started it.
print(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
"""


def pairs_of(problem, number=1024):
    return draw_pairs(problem, number, 0)


def ours(method, num_samples=16, target="conservative", **options):
    """A function that makes one step of a training that has begun."""
    problem, chosen = prudent.problems.get("slcp"), methods.get(method)
    pairs = pairs_of(problem)
    settings = chosen.resolve(
        Options(num_samples=num_samples, target=target, epochs=WARM_EPOCHS, **options)
    )
    estimator = untrained(chosen.family, problem.prior, pairs, {}, 0)
    plain = WeightedSum((1.0, make_term(chosen.loss, chosen.family, problem.prior, settings)))
    train(estimator, plain, *pairs.split(0.2, 0), options=settings, seed=0, progress=False)
    objective = chosen.objective(problem.prior, settings)
    state = TrainingState(estimator.train(), objective, settings, 0)
    batches = iter(())

    def step():
        nonlocal batches
        batch = next(batches, None)
        if batch is None:
            batches = iter(pairs.batches(BATCH, state.order))
            batch = next(batches)
        _step(state, batch, 1.0)
        state.step()

    return step


def of_lampe(family, num_samples=None, *, calibrated=False):
    """A step by lampe's losses, networks of our sizes, its own gradient step."""
    problem = prudent.problems.get("slcp")
    pairs = pairs_of(problem)
    dim, width = pairs.theta.shape[1], pairs.x.shape[1]
    inference = lampe.inference
    if family == "nre":
        network = inference.NRE(
            dim, width, hidden_features=HIDDEN["nre"], activation=torch.nn.SELU
        )
        plain, penalized = inference.NRELoss, inference.DCPNRELoss
        more = {"prior": problem.prior}
    else:
        network = inference.NPE(
            dim, width, build=zuko.flows.NSF, transforms=2, bins=8, hidden_features=HIDDEN["npe"]
        )
        plain, penalized = inference.NPELoss, inference.DCPNPELoss
        more = {"proposal": problem.prior}
    loss = plain(network)
    if num_samples is not None:
        loss = penalized(network, n_samples=num_samples, calibration=calibrated, **more)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    apply = GDStep(optimizer, clip=1.0)
    theta = (pairs.theta - pairs.theta.mean(0)) / pairs.theta.std(0)
    x = (pairs.x - pairs.x.mean(0)) / pairs.x.std(0)
    # Standardized theta stay inside the box, where the prior has its density.
    theta = theta.clamp(*(edge.max() * 0.999 for edge in (-pairs.theta.abs(), pairs.theta.abs())))

    def step():
        index = torch.randperm(len(theta))[:BATCH]
        apply(loss(theta[index], x[index]))

    return step


def of_sbi(family, epochs):
    """A function that trains sbi's NPE or NRE, on networks of our sizes, for some epochs."""
    from sbi.inference import NPE, NRE
    from sbi.neural_nets import posterior_nn
    from sbi.neural_nets.ratio_estimators import RatioEstimator

    problem = prudent.problems.get("slcp")
    pairs = pairs_of(problem)

    def classifier(theta, x):
        layers = MLP(theta.shape[1] + x.shape[1], 1, HIDDEN["nre"]).layers
        return RatioEstimator(layers, theta[0].shape, x[0].shape)

    flow = posterior_nn(
        "zuko_nsf", hidden_features=HIDDEN["npe"][0], num_transforms=2, num_bins=8,
    )  # fmt: skip
    make, network = {"npe": (NPE, flow), "nre": (NRE, classifier)}[family]
    name = {"npe": "density_estimator", "nre": "classifier"}[family]

    def run():
        trainer = make(problem.prior, **{name: network}, tracker=Mock(), show_progress_bars=False)
        trainer.append_simulations(pairs.theta, pairs.x)
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.train(training_batch_size=BATCH, max_num_epochs=epochs, stop_after_epochs=999,
                          validation_fraction=0.2)  # fmt: skip

    return run


def of_fit(family, epochs):
    """The same for prudent."""
    problem = prudent.problems.get("slcp")
    pairs = pairs_of(problem)

    def run():
        prudent.fit(
            pairs.theta, pairs.x, problem.prior, method=family, epochs=epochs, patience=None,
            hidden=HIDDEN_OF_SBI[family], batch_size=BATCH, progress=False,
        )  # fmt: skip

    return run


def cpu_seconds(function, steps):
    """The mean CPU time of some calls."""
    start = time.process_time()
    for _ in range(steps):
        function()
    return (time.process_time() - start) / steps


def ratios(above, below, steps=(STEPS, STEPS), repeats=REPEATS):
    """Ratios of the CPU times of a step, the two sides of each one right after the other."""
    above(), below()
    return [cpu_seconds(above, steps[0]) / cpu_seconds(below, steps[1]) for _ in range(repeats)]


def step_prices():
    """Steps of CalNRE and CalNPE over plain ones, and lampe's over ours."""
    rows = {}
    for family in ("nre", "npe"):
        cal, plain = f"cal{family}", ours(family)
        price = f"{cal} over {family}, CPU time of a step"
        rows[f"{family}, CPU milliseconds of a step of {BATCH}"] = 1e3 * statistics.median(
            cpu_seconds(plain, STEPS) for _ in range(REPEATS)
        )
        rows[f"lampe over prudent, CPU time of a step of {family}"] = statistics.median(
            ratios(of_lampe(family), plain)
        )
        for number in NUM_SAMPLES:
            one = ours(cal, number)
            found = ratios(one, plain)
            rows[f"{price} (L = {number})"] = statistics.median(found)
            if number == 16:
                low, _, high = statistics.quantiles(found)
                rows[f"{price} (L = {number}), upper over lower quartile"] = high / low
            rows[f"lampe over prudent, CPU time of a step of {cal} (L = {number})"] = (
                statistics.median(ratios(of_lampe(family, number), one, (FEW_STEPS, STEPS)))
            )
        for number in (16, 128):
            rows[f"{price} (calibrated, L = {number})"] = statistics.median(
                ratios(ours(cal, number, "calibrated"), plain)
            )
        rows[f"{price} (penalty in all steps, L = 16)"] = statistics.median(
            ratios(ours(cal, 16, fraction=1.0), plain, (FEW_STEPS, STEPS))
        )
    return rows


def epochs_against_sbi(epochs=10):
    """CPU time of some epochs of sbi over those of prudent, same data, sizes and batches."""
    rows = {}
    for family in ("nre", "npe"):
        name = f"sbi over prudent, CPU time of {epochs} epochs of {family} (SLCP, 1,024)"
        found = ratios(of_sbi(family, epochs), of_fit(family, epochs), (1, 1), repeats=5)
        rows[name] = statistics.median(found)
    return rows


def finished_runs():
    """CPU seconds of a whole `fit` with 1,024 simulations, early stopping included."""
    problem = prudent.problems.get("slcp")
    pairs, rows = pairs_of(problem), {}
    for method in ("nre", "calnre", "npe", "calnpe"):
        start = time.process_time()
        prudent.fit(pairs.theta, pairs.x, problem.prior, method=method, progress=False)
        rows[f"{method}, CPU seconds of fit (SLCP, 1,024)"] = time.process_time() - start
    return rows


def peak_memory():
    """Peak memory of a process that trains with many draws over that with 16."""
    here = str(Path(__file__).parent)
    peaks = {}
    for number in (16, 128, 1024):
        code = MEMORY.format(here=here, number=number)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        peaks[number] = int(json.loads(done.stdout))
    return {
        f"peak memory of calnre at L = {number} over L = 16": peaks[number] / peaks[16]
        for number in (128, 1024)
    }


def prices():
    """All rows of this file."""
    return {**step_prices(), **epochs_against_sbi(), **finished_runs(), **peak_memory()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, value in prices().items():
        print(f"{value:8.3f}  {name}", flush=True)
