"""Networks that turn observations into posteriors, and how they are read from files."""

from typing import TYPE_CHECKING

from prudent._lazy import attach

if TYPE_CHECKING:
    from prudent.estimators.base import NeuralEstimator as NeuralEstimator
    from prudent.estimators.ensemble import Ensemble as Ensemble
    from prudent.estimators.files import KINDS as KINDS
    from prudent.estimators.files import REMEDY as REMEDY
    from prudent.estimators.files import load as load
    from prudent.estimators.networks import DilatedCNN as DilatedCNN
    from prudent.estimators.networks import ResNet18 as ResNet18
    from prudent.estimators.networks import SeriesCNN as SeriesCNN
    from prudent.estimators.npe import FlowEstimator as FlowEstimator
    from prudent.estimators.nre import RatioEstimator as RatioEstimator

__getattr__, __dir__, __all__ = attach(__name__)
