"""Coverage, measured honestly, on pairs that training never saw."""

from typing import TYPE_CHECKING

from prudent._lazy import attach

if TYPE_CHECKING:
    from prudent.diagnostics.diagnosis import Diagnosis as Diagnosis
    from prudent.diagnostics.diagnosis import diagnose as diagnose
    from prudent.diagnostics.distances import Distance as Distance
    from prudent.diagnostics.distances import c2st as c2st
    from prudent.diagnostics.distances import kl as kl
    from prudent.diagnostics.distances import mmd as mmd
    from prudent.diagnostics.expected_coverage import Coverage as Coverage
    from prudent.diagnostics.expected_coverage import expected_coverage as expected_coverage
    from prudent.diagnostics.expected_coverage import measure as measure
    from prudent.diagnostics.local_coverage import LocalCoverage as LocalCoverage
    from prudent.diagnostics.local_coverage import local_coverage as local_coverage
    from prudent.diagnostics.predictive import PredictiveCheck as PredictiveCheck
    from prudent.diagnostics.predictive import predictive_check as predictive_check
    from prudent.diagnostics.ranks import Ranks as Ranks
    from prudent.diagnostics.ranks import ReferenceDistance as ReferenceDistance
    from prudent.diagnostics.ranks import parameters as parameters
    from prudent.diagnostics.ranks import posterior_ranks as posterior_ranks
    from prudent.diagnostics.sbc import SBC as SBC
    from prudent.diagnostics.sbc import sbc as sbc
    from prudent.diagnostics.tarp import TARP as TARP
    from prudent.diagnostics.tarp import tarp as tarp
    from prudent.diagnostics.verdict import Verdict as Verdict
    from prudent.diagnostics.verdict import judge as judge

__getattr__, __dir__, __all__ = attach(__name__)
