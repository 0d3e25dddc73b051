"""Simulations as training and test data: in memory, on disk, streamed."""

from typing import TYPE_CHECKING

from prudent._lazy import attach

if TYPE_CHECKING:
    from prudent.datasets.pairs import Pairs as Pairs
    from prudent.datasets.readers import read as read
    from prudent.datasets.store import Store as Store
    from prudent.datasets.streaming import Data as Data
    from prudent.datasets.streaming import Stream as Stream

__getattr__, __dir__, __all__ = attach(__name__)
