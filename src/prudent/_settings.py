"""Settings that are described once: type, bounds, choices and help, beside the default.

A dataclass field that :func:`setting` makes carries its description, and its annotation is its
type. The Python call, the command line, files, ``--set``, the documentation and the error texts
all read it, so that they cannot differ.
"""

import contextlib
import dataclasses
import re
import sys
import typing
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass
from functools import cache, cached_property
from typing import Any, TypeVar

from prudent.errors import InputError, shortened, unknown_name

T = TypeVar("T", bound=type)
Made = TypeVar("Made")
TYPES: dict[Any, type] = {Any: object, tuple[str, ...]: tuple}
LARGEST = sys.float_info.max
# What can be written in a file; objects of other types are judged by who uses them.
PLAIN = (type(None), bool, int, float, str, list, tuple, dict)


@dataclass(frozen=True)
class Setting:
    """The description of one setting."""

    name: str
    types: tuple[type, ...]  # ``object`` allows values that no file can hold
    default: Any = ...  # the value where nothing is said; ``...`` if it must be said
    help: str = ""  # one sentence without a full stop; the choices are added to it
    least: float | None = None  # of a number; ``above`` and ``below`` exclude the bound itself
    above: float | None = None
    most: float | None = None
    below: float | None = None
    choices: Collection[str] = ()  # known texts, perhaps a table that grows; in any capitals
    others: str = ""  # a regular expression for texts that are allowed beside the choices
    form: str = "text"  # the form of a text that is not among the choices, in words
    hint: str = ""  # a sentence for the end of a refusal
    hidden: bool = False  # neither a key of a file nor an option of a command
    identity: str = "always"  # or ``if set``, for a default that `to_dict` leaves out

    def check(self, value: Any) -> Any:
        """The value as it is stored: a known text in lower case, a fractional number as float.

        >>> Setting("method", (str,), choices=("nre", "npe")).check("NRE")
        'nre'
        >>> Setting("seed", (int,), least=0).check(1.0)
        Traceback (most recent call last):
            ...
        prudent.errors.InputError: `seed` is 1.0; expected a whole number >= 0: write 1.
        """
        if tuple in self.types and isinstance(value, list | tuple):
            one = dataclasses.replace(self, types=(str,))
            return tuple(one.check(text) for text in value)
        if isinstance(value, str) and str in self.types:
            return self._text(value)
        if value is None or isinstance(value, bool):
            fits = type(value) in self.types
        elif isinstance(value, int | float):
            fits = self._allows(value)
        else:
            fits = object in self.types and not isinstance(value, PLAIN)
        if fits:
            return float(value) if type(value) is int and float in self.types else value
        raise self._refusal(value)

    def _refusal(self, value: Any) -> InputError:
        whole = int in self.types and isinstance(value, float) and value.is_integer()
        fix = f": write {int(value)}" if whole else ""
        hint = f" {self.hint}" if self.hint else ""
        return InputError(
            f"`{self.name}` is {shortened(repr(value))}; expected {self.expected}{fix}.{hint}"
        )

    def _text(self, value: str) -> str:
        if value in self.choices or not (self.choices or self.others):
            return value
        if value.lower() in self.choices:
            return value.lower()
        if self.others and re.fullmatch(self.others, value, re.DOTALL):
            return value
        if not self.choices:
            raise self._refusal(value)
        hint = f"Or {self._number}." if self._number else self.hint
        raise unknown_name(self.name, value[:60], self.choices, hint)

    def _allows(self, value: float) -> bool:
        if float not in self.types and (int not in self.types or isinstance(value, float)):
            return False
        return (
            abs(value) <= LARGEST  # neither nan nor infinite
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    @property
    def expected(self) -> str:
        """The values that are allowed, in words."""
        parts = ["true", "false"] if bool in self.types else list(self.choices)
        parts += [self.form] if {str, tuple} & {*self.types} and not self.choices else []
        parts += [self._number] if self._number else []
        return " or ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)

    @cached_property
    def _number(self) -> str:
        if int not in self.types and float not in self.types:
            return ""
        name = "a number" if float in self.types else "a whole number"
        left, low = ("[", self.least) if self.above is None else ("(", self.above)
        right, high = ("]", self.most) if self.below is None else (")", self.below)
        if low is not None and high is not None:
            return f"{name} in {left}{low:g}, {high:g}{right}"
        if low is not None:
            return f"{name} {'>=' if left == '[' else '>'} {low:g}"
        return name if high is None else f"{name} {'<=' if right == ']' else '<'} {high:g}"

    @property
    def text(self) -> str:
        """The help with the choices."""
        return f"{self.help}: {self.expected}." if self.choices else f"{self.help}."

    def parse(self, text: str) -> Any:
        """The value that a text of the command line stands for; it is not checked yet."""
        for kind in (int, float) if self._number else ():
            with contextlib.suppress(ValueError):
                return kind(text)
        return text


def setting(default: Any = MISSING, **description: Any) -> Any:
    """A field of a dataclass that is a setting; the description is that of :class:`Setting`."""
    return dataclasses.field(default=default, metadata={"setting": description})


@cache
def settings_of(owner: Any) -> dict[str, Setting]:
    """The settings of a dataclass, by name."""
    hints, found = typing.get_type_hints(owner), {}
    for field in dataclasses.fields(owner):
        if "setting" in field.metadata:
            hint = hints[field.name]
            union = (typing.get_origin(hint) is not tuple and typing.get_args(hint)) or (hint,)
            types = tuple(TYPES.get(one, one) for one in union)
            default = ... if field.default is MISSING else field.default
            found[field.name] = Setting(field.name, types, default, **field.metadata["setting"])
    return found


def check(instance: Any) -> None:
    """Check all settings of a dataclass and bring them into their stored form."""
    for name, described in settings_of(instance.__class__).items():
        value = getattr(instance, name)
        if value is not described.default:  # which would cost most of the time of a large sweep
            object.__setattr__(instance, name, described.check(value))  # frozen, but being made


def made(owner: type[Made], values: Mapping[str, Any]) -> Made:
    """A dataclass of settings that were checked before, one by one, and are not checked again."""
    found, known = object.__new__(owner), settings_of(owner)  # type: ignore[arg-type]
    defaults = {name: one.default for name, one in known.items()}
    vars(found).update({**defaults, **values})  # also where it is frozen
    return found


def to_dict(instance: Any) -> dict[str, Any]:
    """The settings of a dataclass, without defaults that are no part of an identity."""
    return {
        name: getattr(instance, name)
        for name, one in settings_of(instance.__class__).items()
        if one.identity == "always" or getattr(instance, name) != one.default
    }


def documented(owner: T) -> T:
    """Write the settings of a dataclass into its docstring."""
    lines = [f"        {name}: {one.text}" for name, one in settings_of(owner).items()]
    owner.__doc__ = f"{(owner.__doc__ or '').rstrip()}\n\n    Args:\n" + "\n".join(lines) + "\n"
    return owner


def whole(name: str, value: Any, least: int | None = None) -> int:
    """Refuse an argument that is not a whole number, with the words of every other setting."""
    found: int = Setting(name, (int,), least=least).check(value)
    return found


def positive(name: str, value: Any) -> float:
    """Refuse an argument that is not a positive number, with the words of every other setting."""
    found: float = Setting(name, (float,), above=0).check(value)
    return found
