"""Figures: functions from tables of results to matplotlib figures, without global state.

``draw(name, load_results(directory))`` makes any of ``names()``, and ``save`` writes it.
"""

from typing import TYPE_CHECKING

from prudent._lazy import attach

if TYPE_CHECKING:
    from prudent.reports.figures.registry import FIGURES as FIGURES
    from prudent.reports.figures.registry import FORMATS as FORMATS
    from prudent.reports.figures.registry import Entry as Entry
    from prudent.reports.figures.registry import draw as draw
    from prudent.reports.figures.registry import get as get
    from prudent.reports.figures.registry import names as names
    from prudent.reports.figures.registry import png as png
    from prudent.reports.figures.registry import save as save
    from prudent.reports.figures.registry import svg as svg

__getattr__, __dir__, __all__ = attach(__name__)
