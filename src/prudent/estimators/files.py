"""How estimators are read from their files."""

import contextlib
import copy
import os
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from prudent._files import load_tensors
from prudent.contracts import Prior
from prudent.errors import InputError, StoreError, one_line, shortened
from prudent.estimators import npe, nre
from prudent.estimators._headers import Header, check_weights
from prudent.estimators.base import (
    FORMAT,
    NEARBY,
    NOVELTY,
    TRAINED_ON,
    NeuralEstimator,
)
from prudent.estimators.base import KINDS as KINDS
from prudent.estimators.ensemble import OUT_OF_FOLD, Ensemble
from prudent.estimators.nearby import Nearby
from prudent.estimators.novelty import Novelty
from prudent.history import History
from prudent.priors.checks import check_prior, from_spec
from prudent.priors.given import as_prior

# Tensors of a file that are no part of the networks begin with one of these.
APART = (OUT_OF_FOLD, "conformal.", NOVELTY, NEARBY, TRAINED_ON)
REMEDY = "Restore it or train again."
# The kinds of network that files may hold are entered where their modules are imported.
assert {npe.FlowEstimator.kind, nre.RatioEstimator.kind} <= KINDS.keys()


def load(
    path: str | os.PathLike[str],
    *,
    prior: Prior | None = None,
    embedding: nn.Module | None = None,
) -> NeuralEstimator | Ensemble:
    """Read an estimator that its method ``save`` wrote; :func:`prudent.load` does more.

    Args:
        path: The file.
        prior: Needed only for a prior that no file can hold: one in code of your own.
        embedding: Needed only for an embedding of your own: a network of the same architecture,
            whose weights are then filled in.

    Returns:
        The estimator, ready for inference.
    """
    settings, found = load_tensors(path, FORMAT, REMEDY)
    state = {name: value for name, value in found.items() if not name.startswith(APART)}
    header = Header(settings, state)
    try:
        known = _prior(header, path) if prior is None else as_prior(prior).prior
        estimator = _build(header, known, embedding)
        _fill(estimator, state, path)
        estimator.info = header.value("info", dict)
        estimator.history = History.from_jsonl(header.value("history", str))
        kept, judged = (
            {name.removeprefix(own): v for name, v in found.items() if name.startswith(own)}
            for own in (NOVELTY, NEARBY)
        )
        estimator.novelty = Novelty(kept) if kept else None
        estimator.nearby = Nearby.from_tensors(judged)
        estimator.trained_on = found[TRAINED_ON].long() if TRAINED_ON in found else None
    except InputError:  # something that the caller can mend
        raise
    except Exception as error:
        reason = one_line(error).rstrip(".")
        raise StoreError(f"{path} does not hold a sound model: {reason}. {REMEDY}") from error
    apart = {name: value for name, value in found.items() if name not in state}
    estimator.stored = settings, apart
    return estimator.eval()


def _prior(header: Header, path: object) -> Prior:
    if header.settings.get("prior", ...) is None:
        raise InputError(f"{path} does not hold its prior; pass load(path, prior=...).")
    return from_spec(header.value("prior", dict))


def _build(
    header: Header, prior: Prior, embedding: nn.Module | None
) -> NeuralEstimator | Ensemble:
    """The networks that a header describes, not yet with their weights."""
    several = header.settings.get("kind") == Ensemble.kind
    described = header.members() if several else [header.settings]
    dim = check_prior(prior)
    for one in described:
        header.check(one, dim, own_embedding=embedding is not None)
    with contextlib.nullcontext() if embedding is not None else header.bounded(described):
        made = [_rebuild(one, prior, copy.deepcopy(embedding)) for one in described]
    if not several:
        warm = "temperature" in header.settings
        return made[0].tempered(*_warmth(header)) if warm else made[0]
    return Ensemble(made, header.state.get("fold"), *_warmth(header))


def _warmth(header: Header) -> tuple[float, float]:
    """Temperature and floor."""
    return header.value("temperature", float), header.value("floor", float)


def _rebuild(
    settings: dict[str, Any], prior: Prior, embedding: nn.Module | None
) -> NeuralEstimator:
    kind = settings["kind"]
    if not isinstance(kind, str) or kind not in KINDS:
        raise StoreError(f"an estimator of unknown kind `{shortened(kind)}`")
    network = settings["embedding"] if embedding is None else embedding
    if network is None:
        raise InputError(
            "the model was made with an embedding network of its own; pass "
            "load(path, embedding=...) with a network of the same architecture."
        )
    names = ("dim", "x_shape", "hidden", "linear", *KINDS[kind].extra_names)
    if missing := [name for name in names if name not in settings]:
        raise StoreError(f"`{missing[0]}` is missing")
    arguments = {name: settings[name] for name in names}
    return KINDS[kind](prior=prior, embedding=network, **arguments)


def _fill(
    estimator: NeuralEstimator | Ensemble, state: Mapping[str, Tensor], path: object
) -> None:
    """Put the weights of a file into networks, and judge what the networks make of them."""
    if odd := [name for name, value in state.items() if value.is_complex()]:
        raise StoreError(f"`{odd[0]}` is complex")
    try:
        estimator.load_state_dict(state)
    except RuntimeError as error:
        reason = shortened(str(error).splitlines()[-1].strip(), 200)
        raise InputError(f"the weights in {path} do not fit the networks: {reason}") from error
    check_weights(estimator.state_dict())
