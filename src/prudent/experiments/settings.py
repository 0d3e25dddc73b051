"""Settings files of users: TOML or JSON, with limits that are checked before they are parsed."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from prudent.errors import InputError

__all__ = ["FORMAT", "read_settings", "read_text"]

FORMAT = 1
LARGEST_FILE = 2**18
DEEPEST = 16
MOST_DOTS = 32
# Python 3.11 needs time quadratic in the parts of a dotted key. A part begins where none goes on,
# and never gives back what it took, so that the search itself is linear.
LONG_KEY = re.compile(rf"""(?<![\w"'.-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){{{MOST_DOTS + 1}}}""")


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a TOML file, or in the ``config.json`` of a run."""
    kind = "JSON" if path.suffix == ".json" else "TOML"
    text = read_text(path)
    if kind == "TOML" and (found := LONG_KEY.search(text)):
        line = text.count("\n", 0, found.start()) + 1
        raise InputError(f"{path}:{line}: a key has more than {MOST_DOTS} dots.")
    try:
        values = json.loads(text) if kind == "JSON" else tomllib.loads(text)
    except RecursionError as error:
        raise InputError(f"{path} is nested deeper than {DEEPEST} levels.") from error
    except ValueError as error:
        raise InputError(f"{path} is not valid {kind}: {error}.") from error
    if not isinstance(values, dict):
        raise InputError(f"{path} does not hold a table of settings.")
    if _depth(values) > DEEPEST:
        raise InputError(f"{path} is nested deeper than {DEEPEST} levels.")
    if values.pop("format", FORMAT) != FORMAT:
        raise InputError(f"{path} was written by another version of prudent. Upgrade prudent.")
    return values


def read_text(path: Path) -> str:
    """The text of a small file."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}.") from error
    except ValueError as error:  # a NUL in the name
        raise InputError(f"cannot read {str(path)!r}: {error}.") from error
    if len(data) > LARGEST_FILE:
        raise InputError(f"{path} is larger than {LARGEST_FILE:,} bytes; is it a config?")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}:{line}: the text is not UTF-8; save it as UTF-8.") from error
    if text.startswith("\ufeff"):
        raise InputError(f"{path}:1:1: begins with a byte order mark; save it as plain UTF-8.")
    return text


def _depth(value: object) -> int:
    """Levels of tables and lists, without recursion."""
    level, depth = [value], 0
    while level and depth <= DEEPEST:
        inner: list[object] = []
        for item in level:
            inner += item.values() if isinstance(item, dict) else []
            inner += item if isinstance(item, list) else []
        level, depth = inner, depth + 1
    return depth
