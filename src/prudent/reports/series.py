"""Series of runs, their names and looks; plain data, which needs no matplotlib."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from prudent.training import methods

# Further settings of one method.
DASHES = ("-", "--", ":", "-.")
MARKERS = ("X", "*", "p", "h", "d", "<", ">")


@dataclass(frozen=True)
class Series:
    """Runs of one method with one setting, mostly none, which share a name and a look everywhere.

    The number is the place of the setting among those of the method: the first has the look of
    the method, the others have its color.
    """

    method: str
    setting: str = ""
    number: int = 0

    @property
    def name(self) -> str:
        """The method as the paper writes it, with the setting if there are several."""
        label = methods.look(self.method).label
        return f"{label} ({self.setting})" if self.setting else label

    @property
    def color(self) -> str:
        """The color of the method."""
        return methods.look(self.method).color

    @property
    def line(self) -> dict[str, Any]:
        """The keywords of matplotlib's ``plot``."""
        _, color, dash, marker = methods.look(self.method)
        if self.number:
            dash = DASHES[(DASHES.index(dash) + self.number) % len(DASHES)]
            marker = MARKERS[(self.number - 1) % len(MARKERS)]
        return {"color": color, "linestyle": dash, "marker": marker}


def series_of(pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Series]:
    """The series of some pairs of method and setting, in the order in which they are shown.

    >>> found = series_of([("nre", "weight 10"), ("nre", "weight 5"), ("nre", "weight 5")])
    >>> [(one.name, one.line["marker"]) for one in found.values()]
    [('NRE (weight 5)', 'o'), ('NRE (weight 10)', 'X')]
    """
    found: dict[tuple[str, str], Series] = {}
    for method, setting in sorted(set(pairs), key=_order):
        number = sum(one.method == method for one in found.values())
        found[method, setting] = Series(method, setting, number)
    return found


def _order(pair: tuple[str, str]) -> tuple[Any, ...]:
    """Methods as in their table, and numbers inside of settings by their size."""
    method, setting = pair
    parts = re.split(r"(\d+(?:\.\d+)?)", setting)
    sizes = [float(part) if number % 2 else part for number, part in enumerate(parts)]
    return methods.position(method), method, sizes
