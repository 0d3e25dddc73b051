"""Networks that turn observations into posteriors."""

from prudent.estimators._load import load as load
from prudent.estimators.base import KINDS as KINDS
from prudent.estimators.base import NeuralEstimator as NeuralEstimator
from prudent.estimators.embeddings import DilatedCNN as DilatedCNN
from prudent.estimators.embeddings import ResNet18 as ResNet18
from prudent.estimators.embeddings import SeriesCNN as SeriesCNN
from prudent.estimators.ensemble import Ensemble as Ensemble
from prudent.estimators.npe import FlowEstimator as FlowEstimator
from prudent.estimators.nre import RatioEstimator as RatioEstimator
