"""Estimators from the files that they wrote."""

import copy
import os
from typing import Any

from torch import Tensor, nn

from prudent._files import load_tensors
from prudent.contracts import Prior
from prudent.errors import InputError, StoreError
from prudent.estimators.base import FORMAT, KINDS, NeuralEstimator
from prudent.estimators.ensemble import Ensemble
from prudent.estimators.networks import build
from prudent.estimators.priors import check_prior, from_spec


def load(
    path: str | os.PathLike[str],
    *,
    prior: Prior | None = None,
    embedding: nn.Module | None = None,
) -> NeuralEstimator | Ensemble:
    """Read an estimator that its method ``save`` wrote.

    Args:
        path: The file.
        prior: Needed only for a prior that is not a plain torch distribution.
        embedding: Needed only for an embedding of your own: a network of the same architecture,
            whose weights are then filled in.

    Returns:
        The estimator, ready for inference.
    """
    settings, state = load_tensors(path, FORMAT, "Restore it or train again.")
    if prior is None and settings["prior"] is None:
        raise InputError(f"{path} does not hold its prior; pass load(path, prior=...).")
    known: Prior = from_spec(settings["prior"]) if prior is None else prior
    check_prior(known)
    estimator = _rebuild(settings, state, known, embedding, path)
    try:
        estimator.load_state_dict(state)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise InputError(f"the weights in {path} do not fit the networks: {reason}") from error
    estimator.info = settings["info"]
    return estimator.eval()


def _rebuild(
    settings: dict[str, Any],
    state: dict[str, Tensor],
    prior: Prior,
    embedding: nn.Module | None,
    path: str | os.PathLike[str],
) -> NeuralEstimator | Ensemble:
    """The networks that the settings describe, not yet with their weights."""
    kind = settings["kind"]
    if kind == "ensemble":
        members: list[Any] = [
            _rebuild(member, state, prior, copy.deepcopy(embedding), path)
            for member in settings["members"]
        ]
        return Ensemble(members, state.get("fold"), state.get("out_of_fold"))
    if kind not in KINDS:
        raise StoreError(f"{path} holds an estimator of unknown kind `{kind}`.")
    if embedding is None:
        if settings["embedding"] is None:
            raise InputError(
                f"{path} was made with an embedding network of its own; pass "
                "load(path, embedding=...) with a network of the same architecture."
            )
        embedding = build(settings["embedding"])
    extra = {key: settings[key] for key in KINDS[kind].extra_names if key in settings}
    return KINDS[kind](
        prior, settings["dim"], settings["x_shape"], embedding, settings["hidden"], **extra
    )
