"""The command line: thin calls, and errors without tracebacks."""

from __future__ import annotations

from prudent.cli.entry import main

__all__ = ["main"]
