"""Neural posteriors that do not claim more than the data supports."""

from typing import TYPE_CHECKING

from prudent._lazy import attach

if TYPE_CHECKING:
    from prudent import adapters as adapters
    from prudent import coverage as coverage
    from prudent import datasets as datasets
    from prudent import diagnostics as diagnostics
    from prudent import errors as errors
    from prudent import estimators as estimators
    from prudent import experiments as experiments
    from prudent import priors as priors
    from prudent import problems as problems
    from prudent import recalibration as recalibration
    from prudent import reports as reports
    from prudent import training as training
    from prudent.adapters.recognition import adapt as adapt
    from prudent.diagnostics.diagnosis import diagnose as diagnose
    from prudent.fitting import fit as fit
    from prudent.loading import load as load
    from prudent.recalibration.temperature import recalibrate as recalibrate
    from prudent.version import __version__ as __version__

__getattr__, __dir__, __all__ = attach(__name__)
