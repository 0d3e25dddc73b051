"""Figures, tables and the HTML report, made from the store alone."""

from __future__ import annotations

from importlib.util import find_spec

from prudent.errors import InputError

__all__ = ["require_matplotlib"]


def require_matplotlib() -> None:
    """Say what to install before any work is done for a figure."""
    if find_spec("matplotlib") is None:
        raise InputError('figures need matplotlib: pip install "prudent[report]"')
