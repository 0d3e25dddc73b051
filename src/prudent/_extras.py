"""Libraries that only some users need."""

from __future__ import annotations

from importlib.util import find_spec

from prudent.errors import InputError

__all__ = ["require"]


def require(package: str, extra: str, purpose: str) -> None:
    """Say what to install before any work is done that needs it.

    >>> require("matplotlib", "report", "figures")
    """
    if find_spec(package) is None:
        raise InputError(f'{purpose} need {package}: pip install "prudent[{extra}]"')
