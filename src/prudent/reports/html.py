"""One self-contained HTML page: the verdict first, then figures, table, failures and set-up.

The page asks for nothing from outside. Its policy allows only the two scripts that are written
into it here, by their hashes, and its template escapes every text, so that no text from a store
can become code.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shlex
from collections import defaultdict
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prudent._extras import require
from prudent._files import write_atomic
from prudent.diagnostics.verdict import MOST_MISSED
from prudent.errors import InputError
from prudent.estimators.summaries import COLUMNS as COLUMNS_OF_SUMMARY
from prudent.experiments.results import Results
from prudent.reports.cells import CELL, SETTINGS, Cell, arranged, cells
from prudent.reports.data import embedded, page_data
from prudent.reports.sentences import Case, case_sentence, cases, headline
from prudent.reports.tables import number
from prudent.training.methods import METHODS
from prudent.training.options import COVERAGE_OPTIONS
from prudent.version import __version__

if TYPE_CHECKING:
    from pandas import DataFrame

    from prudent.reports.answers import Answer

# Key, title and class of each column of the table.
COLUMNS = (
    ("problem", "problem", "name"),
    ("budget", "budget", "number"),
    ("method", "method", "name"),
    ("seeds", "seeds", "seeds"),
    ("verdict", "verdict", "judged"),
    ("worst_shortfall", "worst shortfall", "number"),
    ("auc", "AUC", "number"),
    ("log_posterior", "log posterior", "number"),
    ("information_gain", "information gain, nats", "number"),
    ("region_volume", "90 % region, % of prior", "number"),
    ("pairs", "test pairs", "number"),
    ("train_seconds", "time to train", "number"),
)
SIGNS = {
    "over-confident": ("bad", "▼"),
    "conservative": ("good", "▲"),
    "calibrated": ("good", "●"),
    "uninformative": ("unsure", "○"),
    "wrong in places": ("bad", "◆"),
    "cannot be measured": ("unsure", "?"),
    "not enough test pairs": ("unsure", "?"),
    "no finished run": ("unsure", "–"),
}
# The states of runs that are not done, in order, and what is said where no reason is stored.
SILENT = {
    "failed": "no reason stored",
    "interrupted": "no reason stored",
    "running": "at work",
    "left": "not begun",
}
# What a page of several runs asks, and one of a single run.
QUESTIONS = (
    "Which posterior can you trust, and what does it cost?",
    "Can you trust this posterior, and what did it cost?",
)
# Posteriors to look at; more would make the page slow to load.
MOST_POSTERIORS = 4
# With more cases than this a table is easier to read than sentences.
MOST_SENTENCES = 4
# Panels that can be compared at a glance; of more, the smallest budget of each problem is shown.
MOST_PANELS = 12
# One script in the order of its parts: each uses those before it.
SCRIPTS = ("values", "choice", "layout", "figures", "one_run", "drawing", "table", "page")


def write_report(
    results: Results,
    path: str | os.PathLike[str],
    *,
    directory: str | os.PathLike[str] = "runs",
    answer: Answer | None = None,
) -> None:
    """Write the report of a store to one file.

    Args:
        results: The results from :func:`prudent.experiments.load_results`.
        path: The file, replaced in one step.
        directory: Where the runs are, for the title and the commands that repeat it. Of an
            absolute path the page shows the last part only: the rest can tell who one is.
        answer: The posterior of an observation to show below the verdict, from
            :func:`prudent.reports.answer` or made of a posterior and its verdict.
    """
    require("pandas", "report", "reports")
    require("jinja2", "report", "reports")
    require("matplotlib", "report", "figures")
    if results.runs.empty:
        raise InputError("there are no runs to report. Make some with: prudent demo")
    place = Path(directory)
    hidden = place.is_absolute() or ".." in place.parts
    name = place.resolve().name if hidden else str(place)
    write_atomic(path, _page(results, name, answer).encode())


def _page(results: Results, name: str, answer: Answer | None) -> str:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    runs = arranged(results.runs)
    found, single = (cells(runs, results.curves, one_each=each) for each in (False, True))
    data = page_data(results, runs, found, single)
    data |= {
        "columns": COLUMNS,
        "signs": SIGNS,
        "most_panels": MOST_PANELS,
        "most_missed": MOST_MISSED,
    }
    figure, note = _static_figure(results, found)
    posteriors, more = _posteriors(results, runs)
    library, script = _read("vendor/plotly-basic.min.js"), _script()
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_read("templates/report.html")).render(
        **_summary(runs, found),
        **_made(results, runs, name, answer),
        title=f"{name}: which posterior can you trust?",
        policy=_policy(library, script),
        style=Markup(_read("templates/report.css")),
        cells=found,
        observed=None if answer is None else _observed(answer),
        unfinished=_unfinished(single, data["runs"]),
        page=data,
        description=" ".join(f"{cell.name}, {cell.verdict}." for cell in found[:MOST_PANELS]),
        figure=Markup(figure),
        note=note,
        posteriors=[Markup(drawn) for drawn in posteriors],
        more=more,
        version=__version__,
        data=Markup(embedded(data)),
        library=Markup(library),
        script=Markup(script),
    )


def _summary(runs: DataFrame, found: Sequence[Cell]) -> dict[str, Any]:
    """The number of runs, and the answer in words or, of many cases, in a table."""
    done = runs[runs["state"] == "done"]
    counts = {name: runs[name].nunique() for name in ("problem", "budget", "method", "seed")}
    listing = ", ".join(f"{number} {name}{'s' * (number != 1)}" for name, number in counts.items())
    tested = ""
    if len(done) and "num_pairs" in done:
        ends = dict.fromkeys((int(done["num_pairs"].min()), int(done["num_pairs"].max())))
        tested = f", {' to '.join(f'{end:,}' for end in ends)} test pairs each"
    every = cases(found)
    return {
        "question": QUESTIONS[len(runs) == 1],
        "subtitle": f"{listing}: {len(done):,} of {len(runs):,} runs finished{tested}.",
        "running": runs["state"].isin(("running", "interrupted", "left")).any(),
        "num_done": len(done),
        "num_runs": len(runs),
        "headline": headline(every),
        "sentences": [case_sentence(case) for case in every] if len(every) > 1 else [],
        "matrix": _matrix(every) if len(every) > MOST_SENTENCES else None,
    }


def _matrix(found: Sequence[Case]) -> dict[str, Any]:
    """The best method of each case: a row per problem, a column per budget."""
    places = {(case.problem, case.budget): case for case in found}
    problems, budgets = (sorted(set(names)) for names in zip(*places, strict=True))
    rows = [(name, [places.get((name, budget)) for budget in budgets]) for name in problems]
    return {"budgets": budgets, "rows": rows}


def _unfinished(single: Sequence[Cell], runs: dict[str, Any]) -> list[tuple[str, str, list[str]]]:
    """State, reason and names of runs that are not done; equal reasons are told once."""
    groups = defaultdict[tuple[str, str], list[str]](list)
    for cell, run, seed in zip(single, runs["run"], runs["seed"], strict=True):
        state, budget = cell.verdict.kind, f"{cell.budget:,}" if cell.budget else "?"
        if state in SILENT:
            name = f"{cell.problem} {cell.series.method} {budget} seed"
            name += f" {'?' if seed is None else seed} ({run})"
            groups[state, cell.evidence or SILENT[state]].append(name)
    ordered = sorted(groups.items(), key=lambda item: (list(SILENT).index(item[0][0]), item[0]))
    return [(state, reason, names) for (state, reason), names in ordered]


def _observed(answer: Answer) -> dict[str, Any]:
    """The posterior of an observation: its picture, its numbers, and what to read before them."""
    from markupsafe import Markup

    from prudent.reports.figures import svg

    kind = None if answer.verdict is None else answer.verdict.kind
    sign, posterior = SIGNS.get(str(kind), ("unsure", "?")), answer.posterior
    return {
        "name": answer.name,
        "sign": sign,
        "verdict": answer.judged,
        "warnings": answer.warnings(),
        "columns": COLUMNS_OF_SUMMARY,
        "rows": posterior.table(),
        "figure": Markup(_bare(svg(posterior.plot(), "observed-"))),
    }


def _made(results: Results, runs: DataFrame, name: str, answer: Answer | None) -> dict[str, Any]:
    """Commands that repeat the runs, versions, and the settings that differ or are shared."""
    alone = {Path(str(path)).name for path in runs["path"]} == {Path(name).name}
    config = f"{name}/config.json" if alone else f"{name}/RUN/config.json"
    hint = "" if alone else "   # RUN: see the table, one row per run"
    # Digests are for machines, and only some methods have the settings of the penalty.
    unread = {"data", "prior", "source"}
    if not any(
        METHODS[name].regularizer == "coverage" for name in runs["method"] if name in METHODS
    ):
        unread |= {*COVERAGE_OPTIONS}
    known = [n for n in (*CELL, "seed", *SETTINGS) if n in runs and n not in unread]
    values = {name: _values(runs[name]) for name in known}
    versions = [field for field in runs.columns if str(field).endswith("_version")]
    known = [name for name in ("simulate", "train", "diagnose") if f"{name}_seconds" in runs]
    times = {name: [number(float(runs[f"{name}_seconds"].sum()), "s")] for name in known}
    facts = {
        "Time of all runs together": times,
        "Versions": {name.removesuffix("_version"): _values(runs[name]) for name in versions},
        "Settings that differ": {key: found for key, found in values.items() if len(found) > 1},
        "Settings of all runs": {key: found for key, found in values.items() if len(found) == 1},
    }
    observed = "" if answer is None else " --observation FILE"
    commands = f"prudent report {name}{observed} -o report.html\n"
    given = results.finished[0].given() if results.finished else {}
    files = "".join(
        f" --{option.replace('_', '-')} {shlex.quote(text)}"
        for option, text in given.items()
        if (option, text) not in (("theta", "theta"), ("x", "x"))
    )
    commands += f"prudent train{files} --config {config} -o again{hint}"
    if runs["path"].isna().all():  # diagnoses that no run made
        commands = "# in Python, of the same diagnoses\n"
        observed = "" if answer is None else ", answer=answer"
        commands += (
            f"write_report(prudent.experiments.results_of(diagnoses), 'report.html'{observed})"
        )
    return {
        "commands": commands,
        "facts": {title: found for title, found in facts.items() if found},
    }


def _values(column: Any) -> list[str]:
    """The distinct values as text, in order of size where they are numbers."""
    found = column.dropna().unique().tolist()
    numbers = all(isinstance(value, int | float) for value in found)
    found = sorted(found, key=None if numbers else str)
    return [f"{value:g}" if isinstance(value, float) else str(value) or "none" for value in found]


def _static_figure(results: Results, found: Sequence[Cell]) -> tuple[str, str]:
    """Coverage as SVG for readers without JavaScript, and a note on what is left out."""
    from prudent.reports.figures import draw, svg

    every = shown = sorted({(cell.problem, cell.budget) for cell in found if cell.num_done})
    if not every:
        return "", "No run is finished yet."
    if len(every) > MOST_PANELS:
        shown = sorted(dict(reversed(every)).items())[:MOST_PANELS]
    left = len(every) - len(shown)
    note = f"{left} more combinations of problem and budget are in the table below."
    places = zip(results.runs["problem"], results.runs["budget"], strict=True)
    runs = results.runs[[place in shown for place in places]]
    drawn = svg(draw("coverage", Results(runs=runs, curves=results.curves)), "main-")
    return _bare(drawn), note if left else ""


def _posteriors(results: Results, runs: DataFrame) -> tuple[list[str], int]:
    """The posteriors of test observations as SVG, one of each cell, and how many are left out."""
    from prudent.reports.figures import draw, svg

    drawn = runs[runs["run"].isin(results.draws["run"])]
    first = drawn.drop_duplicates(CELL)["run"].tolist()[:MOST_POSTERIORS]
    made = [svg(draw("corner", results, run=run), f"{run}-") for run in first]
    return [_bare(text) for text in made], len(drawn) - len(first)


def _bare(drawn: str) -> str:
    return re.sub(r"<!--.*?-->\s*", "", drawn, flags=re.DOTALL)


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
