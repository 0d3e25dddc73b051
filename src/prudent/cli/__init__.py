"""The command line: thin calls, and errors without tracebacks."""

from prudent.cli.entry import main

__all__ = ["main"]
