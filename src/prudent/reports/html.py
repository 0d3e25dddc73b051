"""One self-contained HTML page: the verdict first, then figures, table, failures and set-up.

The page asks for nothing from outside. Its policy allows only the two scripts that are written
into it here, by their hashes, so that no text from a store can become code.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import os
import re
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from prudent._extras import require
from prudent._files import write_atomic
from prudent.errors import InputError
from prudent.version import __version__

if TYPE_CHECKING:
    from prudent.experiments import Results
    from prudent.reports.summary import Cell

__all__ = ["write_report"]

# Panels that can be compared at a glance; of more, the smallest budget of each problem is shown.
MOST_PANELS = 12
# One script in the order of its parts: each uses those before it.
SCRIPTS = ("values", "choice", "layout", "figures", "one_run", "drawing", "table", "page")


def write_report(
    results: Results, path: str | os.PathLike[str], *, directory: str | os.PathLike[str] = "runs"
) -> None:
    """Write the report of a store to one file.

    Args:
        results: From :func:`prudent.experiments.load_results`.
        path: The file, replaced in one step.
        directory: Where the runs are, for the title and the commands that repeat it. Of an
            absolute path the page shows the last part only: the rest can tell who one is.
    """
    require("pandas", "report", "reports")
    require("matplotlib", "report", "figures")
    if results.runs.empty:
        raise InputError("there are no runs to report. Make some with: prudent demo")
    write_atomic(path, _page(results, _public(Path(directory))).encode())


def _public(directory: Path) -> str:
    hidden = directory.is_absolute() or ".." in directory.parts
    return directory.resolve().name if hidden else str(directory)


def _page(results: Results, name: str) -> str:
    from prudent.reports import background, parts, sentences
    from prudent.reports.data import arranged, embedded, page_data
    from prudent.reports.summary import cells

    results = dataclasses.replace(results, runs=arranged(results))
    found = cells(results)
    cases = sentences.cases(found)
    data = page_data(results, found)
    data["columns"] = [[key, title] for key, title, _ in parts.COLUMNS]
    data["most_panels"] = MOST_PANELS
    figure, figure_note = _static_figure(results, found)
    library = _read("vendor/plotly-basic.min.js")
    script = _script()
    step = data["history"]["step"]
    return Template(_read("templates/report.html")).substitute(
        policy=_policy(library, script),
        title=escape(f"{name}: which posterior can you trust?"),
        style=_read("templates/report.css"),
        subtitle=escape(parts.subtitle(results)),
        snapshot=parts.snapshot(results),
        headline=escape(sentences.headline(cases)),
        answer=parts.answer(cases),
        problem_options=parts.options(data["problems"]),
        budget_options=parts.options(sorted({b for b in data["runs"]["budget"] if b}), ","),
        seed_options=parts.options(sorted({s for s in data["runs"]["seed"] if s is not None})),
        method_boxes=parts.method_boxes(data["methods"]),
        description=escape(" ".join(f"{c.name}, {c.verdict}." for c in found[:MOST_PANELS])),
        figure=figure,
        figure_note=escape(figure_note),
        table_head=parts.table_head(),
        table_rows=parts.table_rows(found),
        thinned=f" Of these many runs every {step}-th epoch is drawn." if step > 1 else "",
        unfinished=background.unfinished(results),
        made=background.made(results, name),
        version=__version__,
        data=embedded(data),
        library=library,
        script=script,
    )


def _static_figure(results: Results, found: list[Cell]) -> tuple[str, str]:
    """Coverage as SVG for readers without JavaScript, and a note on what is left out."""
    from prudent.reports.figures import draw, svg

    done = [cell for cell in found if cell.num_done]
    if not done:
        return "", "No run is finished yet."
    every = sorted({(cell.problem, cell.budget) for cell in done})
    shown = every
    if len(every) > MOST_PANELS:
        smallest = {problem: budget for problem, budget in reversed(every)}
        shown = sorted(smallest.items())[:MOST_PANELS]
    kept = {}
    for table in ("runs", "curves"):
        frame = getattr(results, table)
        places = list(zip(frame["problem"], frame["budget"], strict=True))
        kept[table] = frame[[place in shown for place in places]]
    left = len(every) - len(shown)
    note = (
        f"{left} more combinations of problem and budget are in the table below." if left else ""
    )
    drawn = svg(draw("coverage", dataclasses.replace(results, **kept)), "main-")
    return re.sub(r"<!--.*?-->\s*", "", drawn, flags=re.DOTALL), note


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
