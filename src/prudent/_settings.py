"""Settings that are described once: type, bounds, choices and help, beside the default.

A dataclass field that :func:`setting` makes carries its description, and its annotation is its
type. The Python call, the command line, files, ``--set``, the documentation and the error texts
all read it, so that they cannot differ.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import typing
from dataclasses import MISSING, dataclass
from functools import cache, cached_property
from typing import Any, TypeVar

from prudent.errors import InputError, unknown_name

__all__ = ["Setting", "check", "documented", "setting", "settings_of", "to_dict", "whole"]

T = TypeVar("T")
LARGEST = sys.float_info.max
# What can be written in a file; objects of other types are judged by who uses them.
PLAIN = (type(None), bool, int, float, str, list, tuple, dict)


@dataclass(frozen=True)
class Setting:
    """The description of one setting.

    Args:
        name: The name, the same everywhere.
        types: The types of its values; ``object`` allows values that no file can hold.
        default: The value where nothing is said; ``...`` if it must be said.
        help: One sentence without a full stop; the choices are added to it.
        least: The smallest number that is allowed.
        most: The largest number that is allowed.
        above: The number that a value must exceed.
        below: The number that a value must stay below.
        choices: The texts that are known; capital letters do not matter.
        others: A regular expression for texts that are allowed beside the choices.
        hint: A sentence for the end of a refusal.
        hidden: Whether the setting is neither a key of a file nor an option of a command.
        identity: ``always``, or ``if set`` to leave out the default in :func:`to_dict`.
    """

    name: str
    types: tuple[type, ...]
    default: Any = ...
    help: str = ""
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    others: str = ""
    hint: str = ""
    hidden: bool = False
    identity: str = "always"

    def check(self, value: Any) -> Any:
        """The value as it is stored: a known text in lower case, a fractional number as float.

        >>> Setting("method", (str,), choices=("nre", "npe")).check("NRE")
        'nre'
        >>> Setting("seed", (int,), least=0).check(1.0)
        Traceback (most recent call last):
            ...
        prudent.errors.InputError: `seed` is 1.0; expected a whole number >= 0: write 1.
        """
        if isinstance(value, str) and str in self.types:
            return self._text(value)
        if isinstance(value, bool) or value is None:
            if type(value) in self.types:
                return value
        elif isinstance(value, int | float) and self._allows(value):
            return float(value) if float in self.types else value
        elif object in self.types and not isinstance(value, PLAIN):
            return value
        whole = int in self.types and isinstance(value, float) and value.is_integer()
        fix = f": write {int(value)}" if whole else ""
        raise InputError(
            f"`{self.name}` is {_shown(value)}; expected {self.expected}{fix}.{self._hint}"
        )

    def _text(self, value: str) -> str:
        if not self.choices or value.lower() in self.choices:
            return value.lower() if self.choices else value
        if self.others and re.fullmatch(self.others, value, re.DOTALL):
            return value
        number = f" Or {self._number}." if self._number else ""
        raise unknown_name(self.name, value[:60], self.choices, number[1:] + self._hint.strip())

    def _allows(self, value: float) -> bool:
        if float not in self.types and (int not in self.types or isinstance(value, float)):
            return False
        return (
            abs(value) <= LARGEST  # neither nan nor infinite
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    @cached_property
    def expected(self) -> str:
        """The values that are allowed, in words."""
        known = f"one of {' '.join(self.choices)}" if self.choices else "text"
        parts = ["true or false"] if bool in self.types else []
        parts += [known] if str in self.types else []
        return " or ".join([*parts, self._number] if self._number else parts)

    @cached_property
    def _number(self) -> str:
        if not {int, float} & set(self.types):
            return ""
        name = "a number" if float in self.types else "a whole number"
        low = self.least if self.above is None else self.above
        high = self.most if self.below is None else self.below
        if low is not None and high is not None:
            left, right = "[" if self.above is None else "(", "]" if self.below is None else ")"
            return f"{name} in {left}{low:g}, {high:g}{right}"
        return name if low is None else f"{name} {'>=' if self.above is None else '>'} {low:g}"

    @property
    def _hint(self) -> str:
        return f" {self.hint}" if self.hint else ""

    @property
    def text(self) -> str:
        """The help with the choices."""
        number = f" or {self._number}" if self._number else ""
        return (
            f"{self.help}: {' '.join(self.choices)}{number}." if self.choices else f"{self.help}."
        )

    def parse(self, text: str) -> Any:
        """The value that a text of the command line stands for; it is not checked yet."""
        if {int, float} & set(self.types):
            for kind in (int, float):
                try:
                    return kind(text)
                except ValueError:
                    continue
        return text


def setting(default: Any = MISSING, **description: Any) -> Any:
    """A field of a dataclass that is a setting.

    Args:
        default: The default value; without one the setting must be given.
        **description: Arguments of :class:`Setting`.
    """
    return dataclasses.field(default=default, metadata={"setting": description})


@cache
def settings_of(owner: Any) -> dict[str, Setting]:
    """The settings of a dataclass, by name."""
    hints = typing.get_type_hints(owner)
    found: dict[str, Setting] = {}
    for field in dataclasses.fields(owner):
        if "setting" in field.metadata:
            types = tuple(object if hint is Any else hint for hint in _union(hints[field.name]))
            default = ... if field.default is MISSING else field.default
            found[field.name] = Setting(field.name, types, default, **field.metadata["setting"])
    return found


def _union(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) or (hint,)


def check(instance: Any) -> None:
    """Check all settings of a dataclass and bring them into their stored form."""
    for name, described in settings_of(instance.__class__).items():
        # Frozen instances are being made when this is called.
        object.__setattr__(instance, name, described.check(getattr(instance, name)))


def to_dict(instance: Any) -> dict[str, Any]:
    """The settings of a dataclass, without defaults that are no part of an identity."""
    found = {}
    for name, described in settings_of(instance.__class__).items():
        value = getattr(instance, name)
        if described.identity == "always" or value != described.default:
            found[name] = value
    return found


def documented(owner: type[T]) -> type[T]:
    """Write the settings of a dataclass into its docstring."""
    found = settings_of(typing.cast(Any, owner))
    lines = [f"        {name}: {one.text}" for name, one in found.items()]
    owner.__doc__ = f"{(owner.__doc__ or '').rstrip()}\n\n    Args:\n" + "\n".join(lines) + "\n"
    return owner


def whole(name: str, value: Any, least: int | None = None) -> int:
    """Refuse an argument that is not a whole number, with the words of every other setting.

    >>> whole("seed", 3)
    3
    """
    found: int = Setting(name, (int,), least=least).check(value)
    return found


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
