"""Figures, tables and the HTML report, made from the store alone."""

from typing import TYPE_CHECKING

from prudent._lazy import attach

if TYPE_CHECKING:
    from prudent.reports import figures as figures
    from prudent.reports.answers import Answer as Answer
    from prudent.reports.answers import answer as answer
    from prudent.reports.html import write_report as write_report

__getattr__, __dir__, __all__ = attach(__name__)
