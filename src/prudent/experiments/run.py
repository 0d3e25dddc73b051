"""One config, one result: the only place that chains simulation, training and diagnosis."""

import itertools
import logging
import os
import platform
import shutil
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from prudent import problems
from prudent._files import to_json
from prudent._progress import Reporter
from prudent._randomness import seeded, threads
from prudent.contracts import Estimator
from prudent.datasets.provenance import refuse_outside
from prudent.datasets.readers import names_in
from prudent.datasets.simulate import new_pairs
from prudent.diagnostics import Diagnosis, diagnose
from prudent.diagnostics.sbc import plain
from prudent.errors import InputError, StoreError, shortened
from prudent.experiments import store
from prudent.experiments.config import RunConfig
from prudent.experiments.inputs import Inputs, pairs_to_test, simulated
from prudent.experiments.store import Run
from prudent.fitting import check_device, fit, networks_of
from prudent.history import History
from prudent.loading import load
from prudent.priors.checks import dtype_for
from prudent.priors.density import log_density, support_bounds
from prudent.problems import Problem, source_digest
from prudent.training import methods
from prudent.version import __version__

# The draws that a thorough run keeps of one posterior, and the candidates for exact ones.
NUM_DRAWS = 1000
NUM_CANDIDATES, CHUNK = 1_000_000, 100_000
# A metric of the simulations, not of a diagnosis.
EXCLUDED = "num_simulations_excluded"

logger = logging.getLogger("prudent")


def run_one(
    config: RunConfig, path: Path, progress: Reporter = None, inputs: Inputs | None = None
) -> Run:
    """Simulate, train, diagnose and store; a run that is there already is only read.

    If another process is at it, this one waits and reads what it made.

    Args:
        config: What to run.
        path: The directory of the run.
        progress: See :class:`prudent._progress.Progress`.
        inputs: The pairs of a run from files; see :func:`prudent.experiments.inputs.from_files`.
    """
    finished = store.find(path, config)
    if finished is not None and not store.is_unfinished(path):
        return finished
    place = Path(os.path.abspath(path))  # the code of a user can change the directory
    try:
        with store.claim(place, wait=True):
            return replace(run_claimed(config, place, progress, inputs=inputs), path=path)
    except BaseException as error:
        if not isinstance(error, Exception):  # Ctrl-C, or a signal
            kept = store.epoch(config, place)
            when = (
                f"after {kept}; the same command continues" if kept else "before the first epoch"
            )
            error.add_note(f"interrupted {when}.")
        raise


def run_claimed(
    config: RunConfig,
    path: Path,
    progress: Reporter = None,
    num_simulations: int | None = None,
    inputs: Inputs | None = None,
) -> Run:
    """Do the work of :func:`run_one` for a caller that has claimed the run.

    In a sweep ``num_simulations`` is its largest budget for the problem and seed of the run.
    """
    finished = store.find(path, config)
    if finished is None:
        shutil.rmtree(store.unfinished_path(path), ignore_errors=True)  # an earlier failure
        if config.data and inputs is None:
            raise InputError("the run takes its pairs from a file; say which with --data.")
        _train_and_diagnose(config, path, progress, num_simulations, inputs)
        finished = store.read(path)
    store.clear(path)  # also what a kill right after publishing left
    return finished


def _train_and_diagnose(
    config: RunConfig,
    path: Path,
    progress: Reporter,
    num_simulations: int | None,
    inputs: Inputs | None,
) -> None:
    times = [time.perf_counter()]
    with threads(config.threads):
        if config.source and config.source != source_digest(config.problem):
            raise InputError(f"the file of `{config.problem}` has changed; run the command again.")
        check_device(config.device)
        inputs = inputs or simulated(config, path.parent, num_simulations)
        problem = inputs.problem
        refuse_outside(inputs.test, problem.prior)
        times.append(time.perf_counter())
        family = methods.get(config.method).family
        networks = networks_of(problem, family, config.training.networks)
        estimator = fit(
            inputs.training,
            prior=problem.prior,
            method=config.method,
            seed=config.seed,
            names=problem.parameter_names,
            device=config.device,
            checkpoint=store.unfinished_path(path, ".checkpoint"),
            **networks,
            progress=progress,
            preset=config.training,
        )
        if any(problem.units):
            estimator.info["parameter_units"] = list(problem.units)
        times.append(time.perf_counter())
        result = diagnose(
            estimator,
            inputs.test,
            thorough=config.thorough,
            names=problem.parameter_names,
            seed=config.seed,
            progress=progress,
        )
        times.append(time.perf_counter())
    files = {
        "config.json": to_json(config.to_dict()),
        "data.json": to_json(inputs.record()),
        "coverage.json": to_json(result.coverage.curves()),
        "history.jsonl": estimator.history.to_jsonl(times=False).encode(),
        "model.safetensors": estimator.to_bytes(),
    }
    if config.thorough:
        files["thorough.json"] = to_json(_details(result, estimator, problem, config.seed))
    more = {EXCLUDED: estimator.info["num_invalid"], "tested_on": result.pairs.digest()}
    timing = _timing(times, estimator.history)
    store.publish(path, files, {**result.metrics(), **more}, timing)


def _timing(times: list[float], history: History) -> dict[str, Any]:
    """The contents of ``timing.json``, which alone may differ between repetitions of a run."""
    seconds = [round(end - begin, 3) for begin, end in itertools.pairwise(times)]
    versions = {"torch": str(torch.__version__), "python": platform.python_version()}
    return {
        "seconds": dict(zip(("simulate", "train", "diagnose"), seconds, strict=True)),
        "epoch_seconds": [round(value, 4) for value in history.column("seconds")],
        "versions": {"prudent": __version__, **versions},
    }


def _details(
    diagnosis: Diagnosis, estimator: Estimator, problem: Problem, seed: int
) -> dict[str, Any]:
    """The contents of ``thorough.json``; the posterior of the first test pair is drawn from."""
    theta, x = diagnosis.pairs.theta[:1], diagnosis.pairs.x[:1]
    with seeded(seed, "portrait"):
        drawn = {"truth": theta, "posterior": estimator(x).sample((NUM_DRAWS,))[:, 0]}
    prior = problem.prior
    if (bounds := support_bounds(prior, problem.dim)) is not None:
        drawn["bounds"] = torch.stack(bounds)
    if problem.log_posterior is not None:
        with seeded(seed, "exact"):  # draws of the prior by their weights, some more than once
            found = prior.sample((NUM_CANDIDATES, 1))
            parts = [problem.log_posterior(some, x)[:, 0] for some in found.split(CHUNK)]
            log_weight = torch.cat(parts) - log_density(prior, found[:, 0])
            weight = log_weight.double().softmax(0)
            chosen = torch.multinomial(weight, NUM_DRAWS, replacement=True)
        drawn["exact"] = found[chosen, 0]
    draws = [
        {"kind": kind, "parameter": name, **plain({"values": column})}
        for kind, values in drawn.items()
        for name, column in zip(problem.parameter_names, values.unbind(1), strict=True)
    ]
    results = {name: result.rows() for name, result in diagnosis.results.items()}
    return {"diagnostics": results, "draws": draws}


def diagnose_run(
    path: Path,
    num_test: int | None,
    seed: int,
    *,
    problem: str | None = None,
    data: str | None = None,
    theta: str | None = None,
    x: str | None = None,
    thorough: bool = False,
    progress: Reporter = None,
) -> Diagnosis:
    """Diagnose a stored estimator on new test pairs, from its problem or from a file.

    By default these are 2,000 simulated ones, or all of ``data``, where ``theta`` and ``x`` are
    names; pairs that the run was trained on are refused. A problem of one's own must be named,
    because results never import code. What was measured is kept beside the files of the run, and
    shown from then on in place of what was measured at its end.
    """
    stored = store.finished(path)
    path = stored.path
    estimator = load(path / "model.safetensors")
    names = estimator.info.get("parameter_names")
    if data is None:
        simulator = _simulator(stored, problem)
        names = simulator.parameter_names
        pairs = new_pairs(simulator, num_test or 2000, seed)
    else:
        kind: Any = {"dtype": dtype_for(estimator), "parameters": names or ()}
        arrays = names_in(data, stored.arrays(), {"theta": theta, "x": x})
        pairs = pairs_to_test(data, arrays["theta"], arrays["x"], number=num_test, **kind)
        if getattr(estimator, "trained_on", None) is None:
            told = "the model does not remember its training pairs; these may be among them."
            warnings.warn(told, stacklevel=2)
    options: Any = {"names": names, "thorough": thorough, "seed": seed, "progress": progress}
    with threads(stored.config.threads):
        found = diagnose(estimator, pairs, **options)
    about = (
        f"test pairs of seed {seed}" if data is None else f"pairs of {shortened(Path(data).name)}"
    )
    own = {name: value for name, value in stored.metrics.items() if name == EXCLUDED}
    own["tested_on"] = found.pairs.digest()
    metrics = {**own, **found.metrics(), "pairs": about}
    try:
        store.keep_diagnosis(stored, {"metrics": metrics, "coverage": found.coverage.curves()})
    except StoreError as error:  # of a directory that only others can write
        logger.warning("%s This verdict is not kept.", error)
    return found


def _simulator(stored: Run, problem: str | None) -> Problem:
    """The problem of a stored run, if it can simulate and its user trusts it."""
    path, made_with = stored.path, stored.config.problem
    if stored.config.data and made_with not in problems.names():
        raise InputError(f"{path} was trained on a file; give test pairs with --data FILE.")
    if ":" in made_with and problem is None:
        raise InputError(
            f"{path} was made with `{made_with}`, and results never import code. If you trust it, "
            f"say so: --problem {made_with}"
        )
    if problem not in (None, made_with) and not (":" in made_with and ":" in str(problem)):
        do = f"say --problem {made_with}" if ":" in made_with else "leave --problem out"
        raise InputError(
            f"{path} was made with `{made_with}`, not `{problem}`: {do}, or name another run."
        )
    return problems.get(problem or made_with)
