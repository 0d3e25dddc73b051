"""Progress of long work: a bar on a terminal or in a notebook, log lines elsewhere."""

import logging
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from tqdm import tqdm

Reporter = bool | None | Callable[[dict[str, Any]], None]

LOG_SECONDS = 30.0
# The figures that are shown, in words; what else a row holds is for functions.
FIGURES = {
    "validation_loss": "validation loss {:.3g}",
    "validation_shortfall": "shortfall {:.2g}",
    "skipped": "skipped steps {:,}",
    "invalid": "invalid {:,}",
    "per_second": "{:.3g} per second",
}
logger = logging.getLogger("prudent")


def duration(seconds: float, *, about: bool = False) -> str:
    """A time for people, in at most two units; ``about`` rounds estimates to minutes.

    >>> duration(0.4), duration(200), duration(200, about=True), duration(5400), duration(500000)
    ('0.4 s', '3 min 20 s', '3 min', '1 h 30 min', '5 d 18 h')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = 60 * round(seconds / 60) if about and seconds >= 120 else round(seconds)
    minutes, hours = whole // 60, whole // 3600
    parts = (hours // 24, "d"), (hours % 24, "h")
    if hours < 48:
        parts = (hours, "h"), (minutes % 60, "min")
    if hours < 1:
        parts = (minutes, "min"), (whole % 60, "s")
    return " ".join(f"{number} {unit}" for number, unit in parts if number)


class Progress:
    """Counts steps of a task and shows the figures that matter.

    Args:
        title: What is going on.
        total: The number of steps.
        report: None for automatic, True or False to force a bar on or off, or a function that
            receives each row of figures.
        unit: What a step is.
        done: Steps that were done before.
    """

    def __init__(
        self, title: str, total: float, report: Reporter = None, unit: str = "it", done: float = 0
    ) -> None:
        self.title, self.total, self.report = title, total, report
        self.first = self.done = done
        self.started = self.logged = time.monotonic()
        notebook = "ipykernel" in sys.modules
        self.logs = report is None and not notebook and not sys.stderr.isatty()
        hidden = self.logs if report is None else callable(report) or not report
        # Some terminals do not tell their size; tqdm alone would then show nothing.
        columns, lines = shutil.get_terminal_size()
        shape = {"disable": hidden, "ncols": columns, "nrows": lines}
        self.bar = tqdm(total=total, initial=done, desc=title, unit=unit, **shape)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def advance(self, row: Mapping[str, Any], steps: int = 1) -> None:
        """Count steps and show a row of figures."""
        if callable(self.report):
            self.done += steps
            self.report(dict(row))
            return
        done = self.done + steps
        parts = [f"{done:,}/{self.total:,}"]
        if (left := self.seconds_left(done)) > 0:
            parts.append(f"{tqdm.format_interval(left)} left")
        figures = {name: value for name, value in row.items() if value or name != "skipped"}
        parts += [FIGURES[name].format(figures[name]) for name in FIGURES if name in figures]
        self._move(done, "{desc} |{bar}| ", ", ".join(parts))

    def seconds_left(self, done: float) -> float:
        """The time that the rest takes at the pace so far."""
        elapsed = time.monotonic() - self.started
        return elapsed * (self.total - done) / max(done - self.first, 1e-9)

    def show(self, done: float, text: str) -> None:
        """Move to a place and show a text beside the bar instead of figures."""
        self._move(done, "{l_bar}{bar}| ", text)

    def warn(self, text: str) -> None:
        """Log a warning without disturbing the bar."""
        if self.report in (None, True):
            with self.bar.external_write_mode():
                logger.warning("%s", text)

    def _move(self, done: float, form: str, text: str) -> None:
        self.bar.bar_format = form + text.replace("{", "{{").replace("}", "}}")
        self.bar.update(done - self.done)
        self.done = done
        if self.logs and time.monotonic() - self.logged >= LOG_SECONDS:
            self.logged = time.monotonic()
            logger.info("%s: %s", self.title, text)
