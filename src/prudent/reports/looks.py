"""How methods are named and drawn; plain data, which needs no matplotlib."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from prudent.reports.figures.methods import LABELS, STYLES

__all__ = ["Series", "label", "look", "order", "series"]

# For methods without a look of their own, and for further settings of one method.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#767676")
DASHES = ("-", "--", ":", "-.")
MARKERS = ("X", "*", "p", "h", "d", "<", ">")


@dataclass(frozen=True)
class Series:
    """Runs of one method with one setting, which share a name and a look everywhere.

    Args:
        method: The name of the method.
        setting: What tells the runs from others of the method; mostly nothing.
        color: The color of the method.
        dashes: The dashes of lines, as matplotlib writes them.
        marker: The marker of points, as matplotlib writes it.
    """

    method: str
    setting: str
    color: str
    dashes: str
    marker: str

    @property
    def name(self) -> str:
        """The method as the paper writes it, with the setting if there are several."""
        return f"{label(self.method)} ({self.setting})" if self.setting else label(self.method)

    @property
    def line(self) -> dict[str, Any]:
        """The keywords of ``plot``."""
        return {"color": self.color, "linestyle": self.dashes, "marker": self.marker}


def label(method: str) -> str:
    """The name of a method as the paper writes it."""
    return LABELS.get(method, method)


def order(method: str) -> tuple[int, str]:
    """The key that sorts methods as their table does, and unknown ones after them."""
    known = list(STYLES)
    return known.index(method) if method in known else len(known), method


def series(pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Series]:
    """The series of some pairs of method and setting, in the order in which they are shown.

    >>> [one.line["marker"] for one in series([("nre", "weight 1"), ("nre", "weight 5")]).values()]
    ['o', 'X']
    """
    found: dict[tuple[str, str], Series] = {}
    numbers: dict[str, int] = {}
    ordered = sorted(dict.fromkeys(pairs), key=lambda pair: (order(pair[0]), _natural(pair[1])))
    for method, setting in ordered:
        number = numbers[method] = numbers.get(method, -1) + 1
        color, dashes, marker = STYLES.get(method) or _automatic(method)
        if number:
            dashes = DASHES[(DASHES.index(dashes) + number) % len(DASHES)]
            marker = MARKERS[(number - 1) % len(MARKERS)]
        found[method, setting] = Series(method, setting, color, dashes, marker)
    return found


def look(method: str) -> Series:
    """The look of a method alone."""
    return series([(method, "")])[method, ""]


def _natural(text: str) -> list[Any]:
    """A key that sorts numbers inside of texts by their size."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [float(part) if number % 2 else part for number, part in enumerate(parts)]


def _automatic(method: str) -> tuple[str, str, str]:
    """A look for a method that has none, the same every time."""
    number = zlib.crc32(method.encode())
    return COLORS[number % len(COLORS)], ":", MARKERS[number % len(MARKERS)]
