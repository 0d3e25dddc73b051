"""How numbers are written, the same in terminals, pages, sentences and tables."""

import math
from dataclasses import dataclass

from prudent._progress import duration


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds.

    Args:
        mean: The mean, None if no seed has the number.
        error: The standard error over seeds, or over test pairs if there is one seed; for the
            worst shortfall what chance explains, with 95 %. None if it is not known.
        number: The number of seeds that have the number.
    """

    mean: float | None
    error: float | None
    number: int

    def text(self, form: str) -> str:
        """The mean with its uncertainty.

        >>> Estimate(1.234, 0.05, 3).text("+.2f")
        '+1.23 ± 0.05'
        """
        if self.mean is None:
            return "not finite"
        mean = number(self.mean, form)
        if self.error is None or form == "s":
            return mean
        return f"{mean} ± {number(self.error, form.lstrip('+'))}"


def number(value: object, form: str) -> str:
    """A number as text, a dash for what is none.

    Args:
        value: The number.
        form: A format, ``s`` for seconds, or ``%`` for a share that is shown in percent.

    >>> number(-0.0004, ".2f"), number(0.0123, "%"), number(75, "s"), number(None, ".2f")
    ('0.00', '1.23', '1 min 15 s', '-')
    """
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "-"
    if form == "s":
        return duration(value)
    text = format(100 * value, ".2f") if form == "%" else format(value, form)
    # A number that rounds to zero has no sign that means anything.
    return text.replace("-", "+" if "+" in form else "") if not text.strip("+-0.") else text
