"""The parts of the page that are there without JavaScript; all text from a store is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from prudent.reports.sentences import Case, case_sentence, number
from prudent.reports.summary import Cell, Estimate
from prudent.reports.tables import duration

if TYPE_CHECKING:
    from prudent.experiments import Results

__all__ = [
    "COLUMNS",
    "answer",
    "method_boxes",
    "options",
    "snapshot",
    "subtitle",
    "table_head",
    "table_rows",
]

# Key, title, and how a mean is written; None for text.
COLUMNS: tuple[tuple[str, str, str | None], ...] = (
    ("problem", "problem", None),
    ("budget", "budget", ","),
    ("method", "method", None),
    ("seeds", "seeds", None),
    ("verdict", "verdict", None),
    ("worst_shortfall", "worst shortfall", ".3f"),
    ("auc", "AUC", "+.3f"),
    ("log_posterior", "log posterior", ".2f"),
    ("information_gain", "information gain, nats", ".2f"),
    ("region_volume", "90 % region, % of prior", ".3g"),
    ("num_pairs", "test pairs", ","),
    ("train_seconds", "time to train", "s"),
)
SIGNS = {
    "over-confident": ("bad", "▼"),
    "conservative": ("good", "▲"),
    "calibrated": ("good", "●"),
    "uninformative": ("unsure", "○"),
    "not enough test pairs": ("unsure", "?"),
    "no finished run": ("unsure", "–"),
}
# With more cases than this a table is easier to read than sentences.
MOST_SENTENCES = 4


def subtitle(results: Results) -> str:
    """How much there is, in numbers."""
    runs = results.runs
    done = runs[runs["state"] == "done"]
    counts = ", ".join(
        f"{runs[name].nunique()} {name if runs[name].nunique() == 1 else name + 's'}"
        for name in ("problem", "budget", "method", "seed")
    )
    tested = ""
    if len(done) and "num_pairs" in done:
        least, most = int(done["num_pairs"].min()), int(done["num_pairs"].max())
        tested = (
            f", {least:,} test pairs each"
            if least == most
            else f", {least:,} to {most:,} test pairs each"
        )
    return f"{counts}: {len(done):,} of {len(runs):,} runs finished{tested}."


def snapshot(results: Results) -> str:
    """A line that warns of a store that is not complete."""
    counts = results.runs["state"].value_counts()
    if not any(counts.get(name, 0) for name in ("running", "interrupted", "left")):
        return ""
    return (
        f'<p class="snapshot">snapshot while running: {counts.get("done", 0):,} of '
        f"{len(results.runs):,}</p>"
    )


def answer(found: Sequence[Case]) -> str:
    """What to use in each case: sentences for a few, a table for many."""
    if len(found) <= 1:
        return ""
    if len(found) <= MOST_SENTENCES:
        items = "".join(f"<li>{escape(case_sentence(case))}</li>" for case in found)
        return f'<ul class="cases">{items}</ul>'
    budgets = sorted({case.budget for case in found})
    by_place = {(case.problem, case.budget): case for case in found}
    head = "".join(f'<th scope="col">{budget:,}</th>' for budget in budgets)
    rows = "".join(
        f'<tr><th scope="row" class="name">{escape(problem)}</th>'
        + "".join(_choice(by_place.get((problem, budget))) for budget in budgets)
        + "</tr>"
        for problem in sorted({case.problem for case in found})
    )
    return (
        "<p>The sharpest method that is not over-confident, by number of simulations, with its "
        "information gain in nats and its time to train:</p>"
        '<div class="scroll" role="region" tabindex="0" aria-label="Best method by budget">'
        f'<table class="matrix"><thead><tr><th scope="col">problem</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _choice(case: Case | None) -> str:
    if case is None:
        return "<td><span>not run</span></td>"
    if case.best is None:
        bad = sum(cell.kind == "over-confident" for cell in case.cells)
        return f"<td>none<span>{bad} of {len(case.cells)} over-confident</span></td>"
    gain, seconds = case.best.estimates["information_gain"], case.best.estimates["train_seconds"]
    time = "" if seconds.mean is None else f"<span>{duration(seconds.mean)}</span>"
    sharp = "" if gain.mean is None else f"<span>{number(gain, '.2f')}</span>"
    useless = "<span>no more than the prior</span>" if case.best.kind == "uninformative" else ""
    return f"<td><strong>{escape(case.best.name)}</strong>{sharp}{time}{useless}</td>"


def options(values: Iterable[Any], form: str = "") -> str:
    """The choices of a list."""
    return "".join(
        f'<option value="{escape(str(value))}">{escape(format(value, form))}</option>'
        for value in values
    )


def method_boxes(methods: Sequence[dict[str, str]]) -> str:
    """A box to tick for every method, with its colour."""
    return "".join(
        f'<label><input type="checkbox" name="method" value="{escape(one["name"])}" checked>'
        f'<span class="swatch" style="background:{one["colour"]}"></span>'
        f"{escape(one['label'])}</label>"
        for one in methods
    )


def table_head() -> str:
    """The titles of the columns."""
    return "".join(
        f'<th scope="col" data-key="{key}"{_right(form)}>{escape(title)}</th>'
        for key, title, form in COLUMNS
    )


def table_rows(cells: Sequence[Cell]) -> str:
    """One row per cell."""
    return "\n".join(f"<tr>{''.join(_table_cells(cell))}</tr>" for cell in cells)


def _table_cells(cell: Cell) -> Iterable[str]:
    style, sign = SIGNS[cell.kind]
    words = cell.verdict.text.removeprefix(f"{cell.kind}: ")
    if cell.num_short and cell.num_seeds > 1:
        words += f" ({cell.num_short} of {cell.num_done} seeds over-confident)"
    text = {
        "problem": f'<td class="name">{escape(cell.problem)}</td>',
        "budget": f'<td class="number">{cell.budget:,}</td>',
        "method": f'<td class="name">{escape(cell.name)}</td>',
        "seeds": f"<td>{_seeds(cell)}</td>",
        "verdict": f'<td><span class="kind {style}">{sign} {cell.kind}</span>'
        f'<span class="words">{escape(words)}</span></td>',
        "num_pairs": f'<td class="number">{cell.num_pairs:,}</td>',
    }
    for key, _, form in COLUMNS:
        if key in text:
            yield text[key]
        else:
            yield f'<td class="number">{_value(cell, key, form or "")}</td>'


def _value(cell: Cell, key: str, form: str) -> str:
    found = cell.estimates[key]
    if found.number == 0:
        return "none finished" if cell.num_done == 0 else "not finite"
    few = ""
    if found.number < cell.num_seeds:
        few = f' <span class="few">{found.number} of {cell.num_seeds} seeds</span>'
    if form == "s":
        return duration(found.mean or 0.0) + few
    if key == "region_volume":
        found = Estimate(
            100 * (found.mean or 0.0), found.error and 100 * found.error, found.number
        )
        form = ".2f"
    return number(found, form) + few


def _seeds(cell: Cell) -> str:
    return (
        str(cell.num_done)
        if cell.num_done == cell.num_seeds
        else f"{cell.num_done} of {cell.num_seeds}"
    )


def _right(form: str | None) -> str:
    return ' class="number"' if form else ""
