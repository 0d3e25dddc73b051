"""The short way from simulations to an estimator: one network, or the members of an ensemble."""

import copy
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from prudent import problems
from prudent._progress import Reporter
from prudent._randomness import derive, seeded
from prudent._settings import whole
from prudent.contracts import Prior
from prudent.datasets import Data, Pairs, Store, Stream
from prudent.datasets.provenance import checked, remembered
from prudent.datasets.readers import open_rows, read
from prudent.diagnostics.diagnosis import diagnose_parts
from prudent.errors import DataError, InputError
from prudent.estimators import KINDS, Ensemble, NeuralEstimator
from prudent.estimators.nearby import Nearby
from prudent.estimators.networks import Embedding
from prudent.estimators.novelty import Novelty
from prudent.estimators.summaries import check_names
from prudent.priors.checks import check_prior, dtype_of, to_spec
from prudent.priors.files import Described
from prudent.priors.given import as_prior
from prudent.problems.problem import Problem
from prudent.recalibration.temperature import fit_temperature
from prudent.training import methods
from prudent.training.checkpoint import Checkpoints
from prudent.training.loop import train
from prudent.training.options import Options
from prudent.version import __version__

logger = logging.getLogger("prudent")


def fit(
    theta: Any,
    x: Any = None,
    prior: Any = None,
    *,
    method: str | None = None,
    seed: int = 0,
    invalid: str = "refuse",
    names: Sequence[str] | None = None,
    embedding: Embedding | None = None,
    hidden: Sequence[int] | None = None,
    transforms: int | None = None,
    device: str | torch.device = "cpu",
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Reporter = None,
    **options: Any,
) -> NeuralEstimator | Ensemble:
    """Train an estimator on simulations: ``fit(theta, x, prior)`` or ``fit(data, prior=prior)``.

    Args:
        theta: Parameters (N, D), drawn from the prior: array, tensor, data frame or list. Or, with
            x left out, all data: a :class:`~prudent.datasets.Store`, the path of one or of a
            ``.npz``, ``.h5`` or ``.safetensors`` file, :class:`~prudent.datasets.Pairs` or a
            :class:`~prudent.datasets.Stream`. Data of more than 2 GiB stay on disk.
        x: The simulated observations (N, ...).
        prior: The distribution that theta was drawn from: of :mod:`prudent.priors`, of torch with
            event_shape (D,), of scipy or sbi, a list of one for each parameter, or a TOML file. A
            store of a registered problem knows its prior and its networks.
        method: The name of a row of the table of methods, such as ``calnre``. The default is
            ``prudent``: five cross-fitted flows, pooled, with a temperature fitted on pairs that
            the members did not see; with ``preset="paper"`` it is ``calnpe``.
        seed: The same seed gives the same weights, on one machine and one number of threads.
        invalid: What to do with simulations whose x holds NaN or infinity: ``refuse`` them all, or
            ``exclude`` those, which warns with their number. They count in the budget, and the
            ratio methods still see their theta, without which their posterior would be biased.
        names: The D names of the parameters; by default those of the prior, else the columns of a
            data frame, or those of the problem or store, else theta_1, theta_2 and so on.
        embedding: A network from (N, ...) to (N, F) for structured observations, a function that
            makes one, or the specification of one of ours, such as ``{"kind": "resnet18"}``. The
            members of an ensemble begin from copies of a network, or call the function each.
        hidden: Widths of the hidden layers of the ratio network or of the flow's conditioners.
        transforms: How many the flow has; only for NPE methods.
        device: Where to train, such as ``cuda``. The estimator stays there; data are on the CPU.
        checkpoint: A directory. The state is kept there while training, and the same call goes on
            from it after a crash, with the same result as without.
        progress: None for a bar on terminals, True, False, or a function of each history row.
        **options: See :class:`prudent.training.Options`; ``preset="paper"`` sets them all, and
            ``preset="fast"`` trains a single network.

    Returns:
        The estimator of the best epoch, with ``history`` and ``info``; an
        :class:`prudent.estimators.Ensemble` if ``members`` is more than 1. If it is cross-fitted,
        its ``out_of_fold`` is a :class:`prudent.diagnostics.Diagnosis` by all pairs, each judged
        by members that did not see it.

    >>> import prudent
    >>> problem = prudent.problems.get("gaussian")
    >>> theta, x = problem.draw(256, seed=0)
    >>> estimator = fit(theta, x, problem.prior, method="calnre", hidden=[16], epochs=2)
    >>> estimator(x[:5]).log_prob(theta[:5]).shape
    torch.Size([5])
    """
    if method is None:
        published = str(options.get("preset")).lower() == "paper"
        method = methods.PUBLISHED if published else methods.RECOMMENDED
    method, seed = methods.canonical(method), whole("seed", seed)
    chosen = methods.get(method)
    settings = chosen.resolve(Options.of(**options))
    if transforms is not None and chosen.family != "npe":
        raise InputError(f"`transforms` is {transforms}, but {method} has no flow.")
    given = Described(None, [], []) if prior is None else as_prior(prior)
    dtype = torch.float32 if prior is None else dtype_of(given.prior)
    data, problem = _data(theta, x, invalid, dtype)
    source = _checked_prior(given.prior, problem, data)
    names = check_names(_known_names(theta, given.names) if names is None else names, data.dim)
    note_constant(data)
    data, astray = checked(data, source, names)
    if chosen.regularizer == "coverage" and settings.num_samples == 1:
        logger.warning(
            "`num_samples` is 1: a pair's coverage is then all or nothing, and the penalty learns "
            "little. Pass num_samples=16, or more."
        )
    wanted = {"embedding": embedding, "hidden": hidden, "transforms": transforms}
    paper = KINDS[chosen.family].paper(data.x_shape) if settings.networks == "paper" else {}
    networks = {
        **paper,
        **networks_of(problem, chosen.family, settings.networks),
        **{name: value for name, value in wanted.items() if value is not None},
    }
    info = {
        "method": method,
        "seed": seed,
        "num_simulations": len(data) + data.num_invalid,
        "num_invalid": data.num_invalid,
        "options": settings.to_dict(),
        "parameter_names": names,
        "threads": torch.get_num_threads(),
        "version": __version__,
        **({"strays": astray} if astray else {}),
    }
    identity = _identity(info, networks, source, data) if checkpoint is not None else {}
    place, learn = check_device(device), partial(train, options=settings, progress=progress)
    if settings.members != 1 and isinstance(embedding, torch.nn.Module):
        networks["embedding"] = partial(copy.deepcopy, embedding)

    def train_one(split: tuple[Data, Data], seed: int, name: str, title: str) -> NeuralEstimator:
        estimator = untrained(chosen.family, source, split[0], networks, seed).to(place)
        objective = chosen.objective(source, settings, data.pool)
        checkpoints = None
        settings.pairs_per_step(len(split[0]))  # refused before a directory is made
        if checkpoint is not None:
            checkpoints = Checkpoints(Path(checkpoint, name), {**identity, "member": name})
        learn(estimator, objective, *split, seed=seed, checkpoints=checkpoints, title=title)
        return estimator

    estimator, unseen = _train_members(train_one, data, settings, seed)
    if settings.recalibrate not in (None, "no"):
        repair = fit_temperature(unseen, target=settings.recalibrate, seed=seed)
        estimator = estimator.tempered(*repair)
        unseen = [(member.tempered(*repair), pairs) for member, pairs in unseen]
        info |= dict(zip(("temperature", "floor"), repair, strict=True))
    if isinstance(estimator, Ensemble) and settings.ensemble == "folds":
        estimator.out_of_fold = replace(diagnose_parts(unseen, seed=seed), strays=astray)
    estimator.info, estimator.novelty = info, Novelty.of(data.sample().x, seed)
    if (judged := getattr(estimator, "out_of_fold", None)) is not None:
        alphas = judged.measurement.alpha
        test = None if astray else estimator.novelty
        estimator.nearby = Nearby.of(test, judged.pairs.x, alphas)
    estimator.trained_on = remembered(data)
    for note in estimator.history.notes():
        logger.warning("%s", note)
    return estimator


def networks_of(problem: Problem | None, family: str, kind: str) -> dict[str, Any]:
    """The networks that a problem brings: those of the paper, or only what its x needs.

    That is an embedding, if its observations are structured.
    """
    own = {} if problem is None else problem.networks
    known = own.get(family, {})
    return {name: v for name, v in known.items() if kind == "paper" or name == "embedding"}


def untrained(
    family: str, prior: Prior, training: Data, networks: dict[str, Any], seed: int
) -> NeuralEstimator:
    """A fresh network, whose standardization is that of the training pairs."""
    with seeded(seed, "initialisation"):
        estimator = KINDS[family](prior, training.dim, training.x_shape, **networks)
    sample = training.sample()
    estimator.adapt(sample.theta, sample.x)
    return estimator


Unseen = list[tuple[Any, Pairs]]


def _train_members(
    train_one: Callable[..., NeuralEstimator], data: Data, options: Options, seed: int
) -> tuple[NeuralEstimator | Ensemble, Unseen]:
    """Train one network, or all members of an ensemble in turn, each with a seed of its own.

    With ``ensemble="seeds"`` they share training and validation pairs. With ``"folds"`` each
    validates on its own fold and trains on the others, so that all pairs are trained on.

    Returns:
        The estimator, and parts of it with the pairs that they did not train on.
    """
    number = options.members or 1
    split = data.split(options.validation_fraction, seed)
    if number == 1:
        single = train_one(split, seed, "", "training")
        return single, [(single, split[1].sample())]
    fold = data.folds(number, seed) if options.ensemble == "folds" else None
    members = []
    for index in range(number):
        if fold is not None:
            split = data.held_out(fold, index)
        own, title = derive(seed, "member", index), f"training {index + 1} of {number}"
        members.append(train_one(split, own, f"member-{index}", title))
    if fold is None:
        ensemble = Ensemble(members)
        return ensemble, [(ensemble, split[1].sample())]
    held_out = [data.held_out(fold, k)[1].sample() for k in range(number)]
    unseen: Unseen = list(zip(members, held_out, strict=True))
    return Ensemble(members, data.fold_of_pairs(fold)), unseen


def _data(theta: Any, x: Any, invalid: str, dtype: torch.dtype) -> tuple[Data, Problem | None]:
    """The pairs to train on, and the registered problem that they come from, if any."""
    if x is not None:
        return Pairs.of(theta, x, invalid, dtype), None
    if isinstance(theta, Pairs):
        return theta, None
    if isinstance(theta, Stream):
        return theta, _problem_of(theta.rows)
    if not isinstance(theta, str | os.PathLike | Store):
        raise InputError("`x` is missing; expected fit(theta, x, prior) or fit(data, prior=...).")
    rows = open_rows(theta, dtype=dtype)
    return read(rows, invalid=invalid), _problem_of(rows)


def _known_names(source: Any, given: list[str]) -> list[str] | None:
    """The names that the prior, a data frame or a store of simulations gives to parameters."""
    source = source.rows if isinstance(source, Stream) else source
    if isinstance(source, str | os.PathLike) and Path(source).is_dir():
        source = open_rows(source)
    store = isinstance(source, Store)
    columns = list(
        source.attributes["parameter_names"] if store else getattr(source, "columns", ())
    )
    if given and columns != given and sorted(map(str, columns)) == sorted(given):
        raise InputError(
            f"the columns of theta are {' '.join(columns)}, those of the prior {' '.join(given)}; "
            "expected one order, such as theta[prior.parameter_names]."
        )
    named = columns and all(isinstance(name, str) for name in columns)
    return given or (columns if named else None)


def _problem_of(rows: Any) -> Problem | None:
    """The registered problem whose simulations these are."""
    if not isinstance(rows, Store) or rows.problem not in problems.names():
        return None
    problem = problems.get(rows.problem)
    return problem if (problem.dim, problem.x_shape) == (rows.dim, rows.x_shape) else None


def _checked_prior(prior: Prior | None, problem: Problem | None, data: Data) -> Prior:
    """The prior of the data."""
    if prior is None and problem is not None:
        prior = problem.prior
    if prior is None:
        raise InputError("no prior; pass the torch distribution that theta was drawn from.")
    if data.dim != (dim := check_prior(prior)):
        got = (len(data), data.dim)
        raise DataError(f"expected `theta` of shape (N, {dim}) to match the prior, got {got}.")
    return prior


def note_constant(data: Data) -> None:
    """Refuse theta that never changes, and say that a component of x does not.

    That is usual in an image, but perhaps not in a vector.
    """
    looked = data.sample()
    if len(looked.theta.unique(dim=0)) == 1 < len(looked):
        raise DataError(
            "`theta` is the same in all simulations; draw it from the prior. If float32 has lost "
            "its digits, subtract a constant, or pass theta and a prior of float64."
        )
    constant = (looked.x == looked.x[0]).all(dim=0)
    if constant.ndim == 1 and bool(constant.any()):
        told = f"{int(constant.sum())} of {len(constant)} components of x are the same in all"
        places = ", ".join(map(str, constant.nonzero()[:8, 0].tolist()))
        logger.warning("%s simulations looked at (%s); they are kept.", told, places)


def check_device(device: str | torch.device) -> torch.device:
    """The device, if this machine has it."""
    try:
        chosen = torch.device(device)
        torch.empty(1, device=chosen).sum().item()
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        known = ["cpu", *(name for name, there in found.items() if there)]
        raise InputError(
            f"`device` is {str(device)!r}, which does not work here; available: {' '.join(known)}."
        ) from error
    return chosen


def _identity(
    info: dict[str, Any], networks: dict[str, Any], prior: Prior, data: Data
) -> dict[str, Any]:
    """What makes a training the same one, in plain JSON."""
    embedding, hidden = networks.get("embedding"), networks.get("hidden")
    network = embedding if isinstance(embedding, dict) else getattr(embedding, "spec", None)
    if embedding is not None and network is None:
        network = str(embedding) if isinstance(embedding, torch.nn.Module) else "from a function"
    return {
        **{name: info[name] for name in ("method", "seed", "version")},
        **info["options"],
        **networks,
        "hidden": None if hidden is None else list(hidden),
        "embedding": network,
        "prior": to_spec(prior) or type(prior).__name__,
        "data": data.digest(),
    }
