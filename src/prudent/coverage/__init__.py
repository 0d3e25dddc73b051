"""Differentiable coverage: the method, in pure torch, usable in anybody's training loop."""

from prudent.coverage.penalty import CoveragePenalty, penalty
from prudent.coverage.ranks import alpha

__all__ = ["CoveragePenalty", "alpha", "penalty"]
