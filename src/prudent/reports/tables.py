"""Numbers as text, the same in terminals, pages and sentences; the table for terminals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from prudent._progress import duration

if TYPE_CHECKING:
    from prudent.experiments import Run

# How each metric is written: by a format, as seconds, or as a share in percent.
FORMS = {
    "worst_shortfall": ".3f",
    "auc": "+.3f",
    "log_posterior": ".2f",
    "information_gain": ".2f",
    "region_volume": "%",
    "train_seconds": "s",
}


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds; None if no seed has the number."""

    mean: float | None
    # The standard error over seeds, or over test pairs if there is one; None if it is not known.
    error: float | None
    number: int  # of seeds that have the number

    def text(self, form: str) -> str:
        """The mean with its standard error.

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
    """A number as text in one of the forms above, a dash for what is none.

    >>> number(-0.0004, ".2f"), number(0.0123, "%"), number(75, "s"), number(None, ".2f")
    ('0.00', '1.23', '1 min 15 s', '-')
    """
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "-"
    if form == "s":
        return duration(value)
    # A number that rounds to zero has no sign that means anything: "z" leaves it out.
    return format(100 * value, "z.2f") if form == "%" else format(value, form.replace(".", "z."))


def _metric(run: Run, *names: str) -> str:
    return " ± ".join(number(run.metrics.get(name), FORMS.get(name, ".2f")) for name in names)


COLUMNS: dict[str, Callable[[Run], str]] = {
    "problem": lambda run: run.config.problem,
    "method": lambda run: run.config.method,
    "budget": lambda run: f"{run.config.budget:,}",
    "seed": lambda run: f"{run.config.seed}",
    "AUC": lambda run: _metric(run, "auc"),
    "worst shortfall": lambda run: _metric(run, "worst_shortfall"),
    "log posterior": lambda run: _metric(run, "log_posterior", "log_posterior_error"),
    "log prior": lambda run: _metric(run, "log_prior"),
    "test pairs": lambda run: f"{run.metrics['num_pairs']:,}",
    "train": lambda run: number(run.timing["seconds"]["train"], "s"),
}


def rows(runs: Sequence[Run]) -> list[list[str]]:
    """One row of text per run."""
    return [[show(run) for show in COLUMNS.values()] for run in runs]


def text(runs: Sequence[Run], width: int = 100) -> str:
    """A table for the terminal; columns drop from the right until it fits."""
    table = [list(COLUMNS), *rows(runs)]
    sizes = [max(map(len, column)) for column in zip(*table, strict=True)]
    fitting = sum(end - 2 <= width for end in accumulate(size + 2 for size in sizes))
    forms = [f"{{:{'<' if place < 2 else '>'}{size}}}" for place, size in enumerate(sizes)]
    line = "  ".join(forms[: max(1, fitting)])
    return "\n".join(line.format(*row).rstrip() for row in table)
