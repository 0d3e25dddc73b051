"""Neural posteriors that do not claim more than the data supports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prudent._lazy import attach
from prudent.version import __version__

if TYPE_CHECKING:
    from prudent import coverage as coverage
    from prudent import datasets as datasets
    from prudent import diagnostics as diagnostics
    from prudent import errors as errors
    from prudent import estimators as estimators
    from prudent import problems as problems
    from prudent import training as training
    from prudent.diagnostics.diagnosis import diagnose as diagnose
    from prudent.estimators._load import load as load
    from prudent.training.fitting import fit as fit

__all__ = [
    "__version__",
    "coverage",
    "datasets",
    "diagnose",
    "diagnostics",
    "errors",
    "estimators",
    "fit",
    "load",
    "problems",
    "training",
]

_PACKAGES = ("coverage", "datasets", "diagnostics", "errors", "estimators", "problems", "training")
_FUNCTIONS = {
    "diagnose": "diagnostics.diagnosis",
    "fit": "training.fitting",
    "load": "estimators._load",
}
__getattr__, _listing = attach(__name__, {**{name: name for name in _PACKAGES}, **_FUNCTIONS})


def __dir__() -> list[str]:
    return [*_listing(), "__version__"]
