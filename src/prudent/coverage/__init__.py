"""Differentiable coverage: the method, in pure torch, usable in anybody's training loop."""

from prudent.coverage.algorithm import CoveragePenalty
from prudent.coverage.alpha import alpha
from prudent.coverage.draws import sample_alpha
from prudent.coverage.nominal import Nominal
from prudent.coverage.penalty import penalty
from prudent.coverage.proposals import Even
from prudent.coverage.schedule import Sometimes

__all__ = ["CoveragePenalty", "Even", "Nominal", "Sometimes", "alpha", "penalty", "sample_alpha"]
