"""Coverage, measured honestly, on pairs that training never saw."""

from prudent.diagnostics.diagnosis import Diagnosis, diagnose
from prudent.diagnostics.expected_coverage import Coverage, expected_coverage, measure
from prudent.diagnostics.verdict import verdict

__all__ = ["Coverage", "Diagnosis", "diagnose", "expected_coverage", "measure", "verdict"]
