"""Files that users write: TOML or JSON, read with limits, and all their mistakes told at once."""

import contextlib
import itertools
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prudent._files import check_file
from prudent.errors import InputError

#: The format of runs and sweeps. It is part of the identity of every run, and studies are stored
#: under those names: so the first release begins with 3.
FORMAT = 3
MOST_SHOWN = 10
LARGEST_FILE = 2**18
DEEPEST = 16
MOST_DOTS = 32
# Python 3.11 needs time quadratic in the parts of a dotted key. A part begins where none goes on,
# and never gives back what it took, so that the search itself is linear.
LONG_KEY = re.compile(rf"""(?<![\w"'.-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){{{MOST_DOTS + 1}}}""")


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a TOML file, or in the ``config.json`` of a run.

    A stored config and a stored sweep say their format, which must be that of this version.
    """
    kind, parse = ("JSON", json.loads) if path.suffix == ".json" else ("TOML", tomllib.loads)
    text = _read_text(path)
    if kind == "TOML" and (found := LONG_KEY.search(text)):
        line = text.count("\n", 0, found.start()) + 1
        raise InputError(f"{path}:{line}: a key has more than {MOST_DOTS} dots.")
    try:
        values: Any = parse(text)
        if _is_deeper(values, DEEPEST):
            raise RecursionError
    except RecursionError as error:
        raise InputError(f"{path} is nested deeper than {DEEPEST} levels.") from error
    except ValueError as error:
        raise InputError(f"{path} is not valid {kind}: {error}.") from error
    if not isinstance(values, dict):
        raise InputError(f"{path} does not hold a table of settings.")
    if values.pop("format", FORMAT) != FORMAT:
        raise InputError(f"{path} was written by another version of prudent. Use that version.")
    return dict(values)


def _read_text(path: Path) -> str:
    """The text of a small file."""
    check_file(path)
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


def _is_deeper(value: object, levels: int) -> bool:
    """Whether tables and lists hold anything below so many levels."""
    inner = list(value.values()) if isinstance(value, dict) else value
    return levels <= 0 or (
        isinstance(inner, list) and any(_is_deeper(one, levels - 1) for one in inner)
    )


class Mistakes:
    """Everything that is wrong with what a user wrote, perhaps in a file whose lines are named.

    A place is a key, such as ``runs[0].seed[1]``, an option such as ``--set seed=x``, or empty.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.found: dict[tuple[str, str], None] = {}

    def add(self, place: str, reason: str) -> None:
        """Note the reason why something cannot be used, once."""
        self.found[place, reason] = None

    def try_to(self, place: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a function; if it refuses its arguments, that is a mistake."""
        try:
            return function(*arguments)
        except InputError as error:
            self.add(place, str(error))
            return None

    def refuse(self) -> None:
        """Raise all mistakes in one error, if there are any."""
        if not self.found:
            return
        text = ""
        if self.path is not None:
            with contextlib.suppress(InputError):
                text = _read_text(self.path)
        number = len(self.found)
        told = [self._told(*one, text) for one in itertools.islice(self.found, MOST_SHOWN)]
        if number == 1:
            raise InputError(told[0])
        more = [f"and {number - MOST_SHOWN} more"] if number > MOST_SHOWN else []
        raise InputError("\n  ".join([f"{number} mistakes:", *told, *more]))

    def _told(self, place: str, reason: str, text: str) -> str:
        placed = f"{place}: {reason}" if place else reason
        if self.path is None or place.startswith("--"):
            return placed
        return f"{self.path}{_position(place, text)}: {placed}"


def _position(place: str, text: str) -> str:
    """``:line:column`` of the key that a place names, if it occurs once where it is looked for.

    That is the whole text, or the part of the table in a list, such as ``[[runs]]``, that the
    place counts.
    """
    key = re.sub(r"\[\d+\]", "", place).rsplit(".", 1)[-1]
    first, last = 0, len(text)
    if found := re.match(r"(\w+)\[(\d+)\]\.", place):
        heads = [one.start() for one in re.finditer(rf"(?m)^[ \t]*\[\[{found[1]}\]\]", text)]
        if (number := int(found[2])) < len(heads):
            first, last = heads[number], [*heads, len(text)][number + 1]
    pattern = rf"(?<![\w-]){re.escape(key)}[\"']?[ \t]*="
    starts = [one.start() for one in re.finditer(pattern, text)] if key else []
    starts = [start for start in starts if first <= start < last]
    if len(starts) != 1:
        return ""
    line = text.count("\n", 0, starts[0]) + 1
    return f":{line}:{starts[0] - text.rfind(chr(10), 0, starts[0])}"
