"""One self-contained HTML page: the verdict first, then figures, table, failures and set-up.

The page asks for nothing from outside. Its policy allows only the two scripts that are written
into it here, by their hashes, so that no text from a store can become code.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from prudent._extras import require
from prudent._files import write_atomic
from prudent.errors import InputError
from prudent.reports.cells import Cell, arranged, cells
from prudent.reports.data import embedded, page_data
from prudent.reports.page import COLUMNS, SIGNS, contents
from prudent.version import __version__

if TYPE_CHECKING:
    from prudent.experiments import Results

# Panels that can be compared at a glance; of more, the smallest budget of each problem is shown.
MOST_PANELS = 12
# One script in the order of its parts: each uses those before it.
SCRIPTS = ("values", "choice", "layout", "figures", "one_run", "drawing", "table", "page")


def write_report(
    results: Results, path: str | os.PathLike[str], *, directory: str | os.PathLike[str] = "runs"
) -> None:
    """Write the report of a store to one file.

    Args:
        results: The results from :func:`prudent.experiments.load_results`.
        path: The file, replaced in one step.
        directory: Where the runs are, for the title and the commands that repeat it. Of an
            absolute path the page shows the last part only: the rest can tell who one is.
    """
    require("pandas", "report", "reports")
    require("jinja2", "report", "reports")
    require("matplotlib", "report", "figures")
    if results.runs.empty:
        raise InputError("there are no runs to report. Make some with: prudent demo")
    write_atomic(path, _page(results, _public(Path(directory))).encode())


def _public(directory: Path) -> str:
    hidden = directory.is_absolute() or ".." in directory.parts
    return directory.resolve().name if hidden else str(directory)


def _page(results: Results, name: str) -> str:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    runs = arranged(results.runs)
    found, single = (cells(runs, results.curves, one_each=each) for each in (False, True))
    data = page_data(results, runs, found, single)
    data |= {"columns": COLUMNS, "signs": SIGNS, "most_panels": MOST_PANELS}
    figure, note = _static_figure(results, found)
    library, script = _read("vendor/plotly-basic.min.js"), _script()
    text = _read("templates/report.html")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(text).render(
        **contents(runs, found, name),
        policy=_policy(library, script),
        style=Markup(_read("templates/report.css")),
        problems=data["problems"],
        methods=data["methods"],
        budgets=sorted({budget for budget in data["runs"]["budget"] if budget}),
        seeds=sorted({seed for seed in data["runs"]["seed"] if seed is not None}),
        description=" ".join(f"{cell.name}, {cell.verdict}." for cell in found[:MOST_PANELS]),
        figure=Markup(figure),
        note=note,
        step=data["history"]["step"],
        version=__version__,
        data=Markup(embedded(data)),
        library=Markup(library),
        script=Markup(script),
    )


def _static_figure(results: Results, found: Sequence[Cell]) -> tuple[str, str]:
    """Coverage as SVG for readers without JavaScript, and a note on what is left out."""
    from prudent.reports.figures.coverage import coverage
    from prudent.reports.figures.registry import with_runs
    from prudent.reports.figures.saving import svg

    every = sorted({(cell.problem, cell.budget) for cell in found if cell.num_done})
    if not every:
        return "", "No run is finished yet."
    shown = every
    if len(every) > MOST_PANELS:
        smallest = {problem: budget for problem, budget in reversed(every)}
        shown = sorted(smallest.items())[:MOST_PANELS]
    left = len(every) - len(shown)
    note = f"{left} more combinations of problem and budget are in the table below."
    table = with_runs(results)
    places = zip(table["problem"], table["budget"], strict=True)
    drawn = svg(coverage(table[[place in shown for place in places]]), "main-")
    return re.sub(r"<!--.*?-->\s*", "", drawn, flags=re.DOTALL), note if left else ""


def _policy(*scripts: str) -> str:
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in scripts)
    allowed = " ".join(f"'sha256-{value.decode()}'" for value in hashes)
    return (
        "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; "
        f"script-src {allowed}; base-uri 'none'; form-action 'none'"
    )


def _script() -> str:
    parts = "\n".join(_read(f"templates/report/{name}.js") for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


def _read(name: str) -> str:
    return resources.files("prudent.reports").joinpath(name).read_text(encoding="utf-8")
