"""Coverage, measured honestly, on pairs that training never saw."""

from prudent.diagnostics.diagnosis import Diagnosis, diagnose
from prudent.diagnostics.distances import Distance, c2st, kl, mmd
from prudent.diagnostics.expected_coverage import Coverage, expected_coverage, measure
from prudent.diagnostics.local_coverage import LocalCoverage, local_coverage
from prudent.diagnostics.predictive import PredictiveCheck, predictive_check
from prudent.diagnostics.rank_tests import RankTests, rank_tests
from prudent.diagnostics.sbc import SBC, sbc
from prudent.diagnostics.spread import Spread, spread
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
    "RankTests",
    "Spread",
    "Verdict",
    "c2st",
    "diagnose",
    "expected_coverage",
    "judge",
    "kl",
    "local_coverage",
    "measure",
    "mmd",
    "predictive_check",
    "rank_tests",
    "sbc",
    "spread",
    "tarp",
]
