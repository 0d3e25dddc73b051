"""After training: temperatures and conformal regions, fitted on pairs that training never saw."""

from typing import TYPE_CHECKING

from prudent._lazy import attach

if TYPE_CHECKING:
    from prudent.recalibration.conformal import Conformal as Conformal
    from prudent.recalibration.conformal import conformalize as conformalize
    from prudent.recalibration.temperature import fit_temperature as fit_temperature
    from prudent.recalibration.temperature import recalibrate as recalibrate

__getattr__, __dir__, __all__ = attach(__name__)
