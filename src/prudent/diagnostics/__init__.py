"""Coverage, measured honestly, on pairs that training never saw."""

from prudent.diagnostics._references import ReferenceDistance
from prudent.diagnostics.diagnosis import Diagnosis, diagnose
from prudent.diagnostics.distances import Distance, c2st, kl, mmd
from prudent.diagnostics.expected_coverage import Coverage, expected_coverage, measure
from prudent.diagnostics.local_coverage import LocalCoverage, local_coverage
from prudent.diagnostics.predictive import PredictiveCheck, predictive_check
from prudent.diagnostics.ranks import Ranks, parameters, posterior_ranks
from prudent.diagnostics.sbc import SBC, sbc
from prudent.diagnostics.tarp import TARP, tarp
from prudent.diagnostics.verdict import Verdict, judge

__all__ = [
    "SBC",
    "TARP",
    "Coverage",
    "Diagnosis",
    "Distance",
    "LocalCoverage",
    "PredictiveCheck",
    "Ranks",
    "ReferenceDistance",
    "Verdict",
    "c2st",
    "diagnose",
    "expected_coverage",
    "judge",
    "kl",
    "local_coverage",
    "measure",
    "mmd",
    "parameters",
    "posterior_ranks",
    "predictive_check",
    "sbc",
    "tarp",
]
