"""Simulations as training and test data."""

from prudent.datasets.joint import Pairs

__all__ = ["Pairs"]
