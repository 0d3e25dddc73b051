"""Networks that turn observations into posteriors, and how they are read from files."""

import copy
import os
from typing import Any

from torch import nn

from prudent._files import load_tensors
from prudent.contracts import Prior
from prudent.errors import InputError, StoreError
from prudent.estimators.base import FORMAT
from prudent.estimators.base import KINDS as KINDS
from prudent.estimators.base import NeuralEstimator as NeuralEstimator
from prudent.estimators.ensemble import Ensemble as Ensemble
from prudent.estimators.networks import DilatedCNN as DilatedCNN
from prudent.estimators.networks import ResNet18 as ResNet18
from prudent.estimators.networks import SeriesCNN as SeriesCNN
from prudent.estimators.npe import FlowEstimator as FlowEstimator
from prudent.estimators.nre import RatioEstimator as RatioEstimator
from prudent.estimators.priors import check_prior, from_spec
from prudent.history import History


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
    if prior is None:
        if settings["prior"] is None:
            raise InputError(f"{path} does not hold its prior; pass load(path, prior=...).")
        prior = from_spec(settings["prior"])
    check_prior(prior)
    estimator: NeuralEstimator | Ensemble
    if settings["kind"] == "ensemble":
        members = [
            _rebuild(member, prior, copy.deepcopy(embedding), path)
            for member in settings["members"]
        ]
        estimator = Ensemble(members, state.get("fold"), state.get("out_of_fold"))
    else:
        estimator = _rebuild(settings, prior, embedding, path)
    try:
        estimator.load_state_dict(state)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise InputError(f"the weights in {path} do not fit the networks: {reason}") from error
    estimator.info = settings["info"]
    # Files of 0.1.0 have none.
    estimator.history = History.from_jsonl(settings.get("history", ""))
    return estimator.eval()


def _rebuild(
    settings: dict[str, Any], prior: Prior, embedding: nn.Module | None, path: object
) -> NeuralEstimator:
    """The networks that the settings describe, not yet with their weights."""
    kind = settings["kind"]
    if kind not in KINDS:
        raise StoreError(f"{path} holds an estimator of unknown kind `{kind}`.")
    network = settings["embedding"] if embedding is None else embedding
    if network is None:
        raise InputError(
            f"{path} was made with an embedding network of its own; pass "
            "load(path, embedding=...) with a network of the same architecture."
        )
    names = ("dim", "x_shape", "hidden", *KINDS[kind].extra_names)
    arguments = {name: settings[name] for name in names if name in settings}
    return KINDS[kind](prior=prior, embedding=network, **arguments)
