"""Networks that turn observations into posteriors."""

from prudent.estimators._load import load
from prudent.estimators.base import KINDS, NeuralEstimator
from prudent.estimators.embeddings import DilatedCNN, ResNet18, SeriesCNN
from prudent.estimators.ensemble import Ensemble
from prudent.estimators.npe import FlowEstimator
from prudent.estimators.nre import RatioEstimator

__all__ = [
    "KINDS",
    "DilatedCNN",
    "Ensemble",
    "FlowEstimator",
    "NeuralEstimator",
    "RatioEstimator",
    "ResNet18",
    "SeriesCNN",
    "load",
]
