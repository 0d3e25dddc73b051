"""Differentiable coverage: the method, in pure torch, usable in anybody's training loop."""

from prudent.coverage.alpha import alpha
from prudent.coverage.draws import sample_alpha
from prudent.coverage.nominal import Nominal
from prudent.coverage.penalty import CoveragePenalty, penalty
from prudent.coverage.proposals import Even

__all__ = ["CoveragePenalty", "Even", "Nominal", "alpha", "penalty", "sample_alpha"]
