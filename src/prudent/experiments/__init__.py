"""Runs as data: configs in, finished results out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prudent.lazy import attach

if TYPE_CHECKING:
    from prudent.experiments.config import RunConfig as RunConfig
    from prudent.experiments.store import Run as Run
    from prudent.experiments.store import load as load

__all__ = ["Run", "RunConfig", "load"]

__getattr__, __dir__ = attach(__name__, {"Run": "store", "RunConfig": "config", "load": "store"})
