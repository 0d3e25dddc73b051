"""Read an estimator back: from its file, or from the directory of a run."""

import os
from pathlib import Path

from torch import nn

from prudent import estimators
from prudent.contracts import Prior
from prudent.diagnostics.diagnosis import Diagnosis
from prudent.errors import StoreError, one_line
from prudent.estimators import REMEDY, Ensemble, NeuralEstimator
from prudent.estimators.ensemble import OUT_OF_FOLD
from prudent.experiments.store import DIAGNOSED, MODEL, finished, locate
from prudent.recalibration.conformal import PREFIX, Conformal, Levels


def load(
    path: str | os.PathLike[str],
    *,
    prior: Prior | None = None,
    embedding: nn.Module | None = None,
) -> NeuralEstimator | Ensemble | Conformal:
    """Read an estimator that its method ``save`` wrote, or that of a run.

    Args:
        path: The file, or the directory of a run, of whose name the beginning is enough.
        prior: Needed only for a prior that no file can hold: one in code of your own.
        embedding: Needed only for an embedding of your own: a network of the same architecture,
            whose weights are then filled in.

    Returns:
        The estimator, ready for inference, with its ``out_of_fold`` diagnosis if it is
        cross-fitted.
    """
    place = Path(path)
    if not place.is_file() and place.suffix != Path(MODEL).suffix:
        place = place if (place / MODEL).is_file() else locate(place)
        place = place / MODEL
    estimator = estimators.load(place, prior=prior, embedding=embedding)
    if place != Path(path) and (place.parent / DIAGNOSED).is_file():
        estimator.info["verdict"] = str(finished(place.parent).verdict)
    settings, tensors = estimator.stored
    diagnosis, levels = (
        {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        for prefix in (OUT_OF_FOLD, PREFIX)
    )
    try:
        if isinstance(estimator, Ensemble) and diagnosis:
            estimator.out_of_fold = Diagnosis.of(settings["out_of_fold"], diagnosis)
        if not levels:
            return estimator
        conformal = Conformal(estimator, Levels.of(levels))
        conformal.info = {**settings["conformal"]}
        return conformal
    except (KeyError, RuntimeError, IndexError, TypeError, AttributeError) as error:
        reason = one_line(error).rstrip(".")
        raise StoreError(f"{place} does not hold a sound model: {reason}. {REMEDY}") from error
