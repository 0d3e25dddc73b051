"""Networks that turn observations into posteriors."""

from prudent.estimators.base import NeuralEstimator
from prudent.estimators.ensemble import Ensemble
from prudent.estimators.npe import FlowEstimator
from prudent.estimators.nre import RatioEstimator
from prudent.estimators.store import load

__all__ = ["Ensemble", "FlowEstimator", "NeuralEstimator", "RatioEstimator", "load"]
