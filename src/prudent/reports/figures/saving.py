"""Figures as files: the same bytes for the same figure."""

import io
import os
import re
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from prudent._files import write_atomic
from prudent._plots import themed
from prudent.errors import InputError

# Without the time and the program, which differ from one day or machine to the next.
METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
FORMATS = tuple(METADATA)


@themed
def _bytes(figure: Figure, form: str, dpi: int) -> bytes:
    if isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        # Laid out once: every further time moves things by a little, so that the bytes of a file
        # would depend on what was saved before.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, dpi=dpi, metadata=METADATA[form])
    return buffer.getvalue()


def png(figure: Figure, dpi: int = 150) -> bytes:
    """The figure as a PNG file."""
    return _bytes(figure, "png", dpi)


def svg(figure: Figure, prefix: str = "") -> str:
    """The figure as SVG text for a page.

    Args:
        figure: The figure.
        prefix: The beginning of all identifiers, so that several figures can share a page.
    """
    text = _bytes(figure, "svg", 72).decode()
    text = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{prefix}", text)
    return text[text.index("<svg") :]


def save(figure: Figure, path: str | os.PathLike[str], dpi: int = 300) -> None:
    """Write a figure; the ending of the name is the format.

    Args:
        figure: The figure.
        path: Ends with ``.png``, ``.svg`` or ``.pdf``.
        dpi: Dots per inch of a PNG.
    """
    form = Path(path).suffix.lower().removeprefix(".")
    if form not in FORMATS:
        raise InputError(f"cannot draw to {path}; expected a name that ends with .png .svg .pdf.")
    write_atomic(path, _bytes(figure, form, dpi))
