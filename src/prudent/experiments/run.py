"""One config, one result: the only place that chains simulation, training and diagnosis."""

from __future__ import annotations

import platform
import time
from pathlib import Path

import torch

from prudent import problems
from prudent._files import to_json
from prudent._progress import Reporter
from prudent._threads import threads
from prudent.diagnostics import Diagnosis, diagnose
from prudent.errors import InputError
from prudent.estimators import load
from prudent.experiments import store
from prudent.experiments.config import RunConfig
from prudent.experiments.store import Run
from prudent.experiments.thorough import details
from prudent.problems import source_digest
from prudent.training import methods
from prudent.training.fitting import fit
from prudent.version import __version__

__all__ = ["diagnose_run", "run_claimed", "run_one"]


def run_one(config: RunConfig, path: Path, progress: Reporter = None) -> Run:
    """Simulate, train, diagnose and store; a run that is there already is only read.

    If another process is at it, this one waits and reads what it made.

    Args:
        config: What to run.
        path: The directory of the run.
        progress: See :class:`prudent._progress.Progress`.
    """
    finished = store.find(path, config)
    if finished is not None and not store.is_unfinished(path):
        return finished
    with store.claim(path, wait=True):
        return run_claimed(config, path, progress)


def run_claimed(
    config: RunConfig, path: Path, progress: Reporter = None, num_simulations: int | None = None
) -> Run:
    """The same, for a caller that holds the run already.

    Args:
        config: What to run.
        path: The directory of the run, below that of its sweep.
        progress: See :class:`prudent._progress.Progress`.
        num_simulations: The largest budget in the sweep for this problem and seed, if it is part
            of one.
    """
    finished = store.find(path, config)
    if finished is None:
        store.forget_failure(path)
        _simulate_train_diagnose(config, path, progress)
        finished = store.read(path)
    store.clear(path)  # also what a kill right after publishing left
    return finished


def _simulate_train_diagnose(config: RunConfig, path: Path, progress: Reporter) -> None:
    seconds = {}
    with threads(config.threads):
        start = time.perf_counter()
        if config.source and config.source != source_digest(config.problem):
            raise InputError(f"the file of `{config.problem}` has changed; run the command again.")
        problem = problems.get(config.problem)
        theta, x = problem.draw(config.budget, config.seed, "budget")
        seconds["simulate"] = time.perf_counter() - start
        start = time.perf_counter()
        networks = problem.networks.get(methods.get(config.method).family, {})
        estimator = fit(
            theta,
            x,
            problem.prior,
            method=config.method,
            seed=config.seed,
            invalid="exclude",
            device=config.device,
            checkpoint=store.unfinished_path(path, ".checkpoint"),
            **networks,
            progress=progress,
            **config.training.to_dict(),
        )
        seconds["train"] = time.perf_counter() - start
        start = time.perf_counter()
        test = problem.draw(config.num_test, config.seed, "test")
        result = diagnose(
            estimator,
            *test,
            thorough=config.thorough,
            names=problem.parameter_names,
            seed=config.seed,
            progress=progress,
        )
        seconds["diagnose"] = time.perf_counter() - start
    # Times change from run to run, so they live apart from what must not.
    timing = {
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "epoch_seconds": [round(value, 4) for value in estimator.history.column("seconds")],
        "versions": {
            "prudent": __version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
    }
    files = {
        "config.json": to_json(config.to_dict()),
        "coverage.json": to_json(result.coverage.curves()),
        "history.jsonl": estimator.history.to_jsonl(times=False).encode(),
        "model.safetensors": estimator.to_bytes(),
        "timing.json": to_json(timing),
    }
    if config.thorough:
        files["thorough.json"] = to_json(details(result, estimator, problem, config.seed))
    excluded = {"num_simulations_excluded": estimator.info["num_invalid"]}
    store.publish(path, files, {**result.metrics(), **excluded})


def diagnose_run(
    path: Path,
    num_test: int,
    seed: int,
    *,
    problem: str | None = None,
    thorough: bool = False,
    progress: Reporter = None,
) -> Diagnosis:
    """Diagnose a stored estimator on new test pairs of its problem.

    Args:
        path: The directory of the run.
        num_test: Test pairs.
        seed: Of the test pairs.
        problem: Needed for a problem of one's own, because results never import code.
        thorough: See :func:`prudent.diagnose`.
        progress: See :class:`prudent._progress.Progress`.
    """
    stored = store.read(path)
    name = problem or stored.config.problem
    if problem is None and ":" in name:
        raise InputError(
            f"{path} was made with `{name}`, and results never import code. If you trust it, say "
            f"so: --problem {name}"
        )
    simulator = problems.get(name)
    stored.file("model.safetensors")  # the one of this run, not another's
    estimator = load(path / "model.safetensors")
    with threads(stored.config.threads):
        theta, x = simulator.draw(num_test, seed, "test")
        return diagnose(
            estimator,
            theta,
            x,
            names=simulator.parameter_names,
            thorough=thorough,
            seed=seed,
            progress=progress,
        )
