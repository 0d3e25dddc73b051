"""One self-contained HTML page from finished runs: verdict first, set-up last."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from html import escape
from importlib import resources
from string import Template

import torch

from prudent.diagnostics import Coverage, verdict
from prudent.experiments.store import Run
from prudent.extras import require
from prudent.files import write_atomic
from prudent.reports import tables
from prudent.version import __version__

__all__ = ["run_verdict", "write_report"]

# Training curves of so many runs are drawn; a page of hundreds would be slow.
MOST_CURVES = 12


def run_verdict(run: Run) -> str:
    """The coverage of a stored run in words."""
    curves = {name: torch.tensor(values) for name, values in run.coverage.items()}
    return verdict(Coverage(**curves, num_pairs=run.metrics["num_pairs"]), run.metrics)


def write_report(runs: Sequence[Run], path: str | os.PathLike[str]) -> None:
    """Write the report of some runs to one file."""
    require("matplotlib", "report", "figures")
    from prudent.reports.figures import LABELS, coverage_figure, svg

    verdicts = [(_label(LABELS[run.config.method], run), run_verdict(run)) for run in runs]
    problems = " and ".join(sorted({run.config.problem for run in runs}))
    source = resources.files("prudent.reports").joinpath("templates/report.html")
    page = Template(source.read_text(encoding="utf-8"))
    text = page.substitute(
        title=escape(f"Coverage on {problems}"),
        subtitle=f"{len(runs)} finished {'run' if len(runs) == 1 else 'runs'}",
        verdicts="\n".join(
            f"<li><strong>{escape(name)}</strong>: {escape(words)}</li>"
            for name, words in verdicts
        ),
        description=escape("; ".join(f"{name}: {words}" for name, words in verdicts), quote=True),
        figure=svg(coverage_figure(runs)),
        header="".join(f'<th scope="col">{escape(name)}</th>' for name in tables.COLUMNS),
        rows="\n".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in tables.rows(runs)
        ),
        training=_training(runs),
        setup=escape(_setup(runs)),
        version=__version__,
    )
    write_atomic(path, text.encode())


def _label(method: str, run: Run) -> str:
    config = run.config
    return f"{method}, {config.problem}, {config.budget:,} simulations, seed {config.seed}"


def _training(runs: Sequence[Run]) -> str:
    """The training curves, as long as there are few."""
    if len(runs) > MOST_CURVES:
        return f"<p>Not drawn for more than {MOST_CURVES} runs.</p>"
    from prudent.reports.figures import LABELS, history_figure, svg

    parts = []
    for number, run in enumerate(runs):
        name = _label(LABELS[run.config.method], run)
        figure = svg(history_figure(run), prefix=f"h{number}-")
        label = escape(f"Training curves of {name}", quote=True)
        parts.append(
            f"<details><summary>{escape(name)}</summary>"
            f'<figure role="img" aria-label="{label}">{figure}</figure></details>'
        )
    return "\n".join(parts)


def _setup(runs: Sequence[Run]) -> str:
    """Settings that all runs share, then those that differ, then versions."""
    configs = [run.config.flat() for run in runs]
    shared = {
        key: value
        for key, value in configs[0].items()
        if all(config.get(key) == value for config in configs)
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in sorted(shared.items())]
    for run, config in zip(runs, configs, strict=True):
        own = {key: value for key, value in config.items() if key not in shared}
        lines.append(f"{run.config.identity}: {json.dumps(own, sort_keys=True)}")
    versions = runs[0].timing["versions"]
    lines.append("versions: " + ", ".join(f"{name} {versions[name]}" for name in sorted(versions)))
    return "\n".join(lines)
