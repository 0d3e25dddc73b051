"""Parts of pages that are made from the code at build time, so that they cannot drift.

A line ``% generated: NAME`` of a page is replaced by what the function of that name returns, as
Markdown. A notebook gets a hidden first cell that makes its figures vector graphics.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType

import click

from prudent._progress import duration
from prudent._settings import Setting, settings_of
from prudent.cli.entry import cli
from prudent.cli.options import EXIT_CODES
from prudent.diagnostics import Diagnosis
from prudent.experiments.config import KEYS, RunConfig
from prudent.experiments.cost import TABLE, seconds
from prudent.experiments.engines.slurm import Job
from prudent.experiments.sweep import read_sweep
from prudent.problems import DESCRIPTIONS
from prudent.training.methods import METHODS
from prudent.training.options import PRESETS

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench" / "results.json"
COSTS = {
    ("nre", "step"): "NRE",
    ("nre", "balance"): "BNRE",
    ("nre", "coverage"): "CalNRE",
    ("npe", "step"): "NPE",
    ("npe", "balance"): "BNPE",
    ("npe", "coverage"): "CalNPE",
    ("nre", "diagnose"): "diagnosis of NRE",
    ("npe", "diagnose"): "diagnosis of NPE",
}
SWEEPS = {
    "smoke": "everything once, small",
    "laptop": "all problems and methods, 1,024 to 4,096 simulations, 3 seeds",
    "overhead": "training time against L on SLCP",
    "unseen": "the recommended estimator against other ways to be conservative",
    "price": "the penalty in every fifth step against all steps",
    "sensitivity": "weight and L on Weinberg, with ensembles",
    "paper": "the paper's experiments as far as a small machine gets",
    "conservative": "the paper's main figures",
    "calibrated": "the paper's appendix C",
}
SCHEDULED = ("conservative", "laptop")
HAND_OUT = 0.001  # seconds that handing out a run takes, measured by bench/schedule.py
MARKER = re.compile(r"^% generated: (\w+)$", re.MULTILINE)
NOTEBOOK = re.compile(r"\A---\n.*?file_format: mystnb.*?\n---\n", re.DOTALL)
FIRST_CELL = """
```{code-cell} ipython3
:tags: [remove-cell]

%config InlineBackend.figure_formats = ["svg"]
import warnings

# Bars are off here, so nothing is lost without the widgets that tqdm asks for.
warnings.filterwarnings("ignore", "IProgress not found")
```
"""


def commands() -> str:
    """The help of every command."""
    group = cli.make_context("prudent", [], terminal_width=80, resilient_parsing=True)
    parts = [_help("prudent", group)]
    for name in cli.list_commands(group):
        command = cli.commands[name]
        context = command.make_context(
            name, [], parent=group, terminal_width=80, resilient_parsing=True
        )
        parts.append(_help(f"prudent {name}", context))
    return "\n".join(parts)


def _help(title: str, context: click.Context) -> str:
    return f"## `{title}`\n\n```text\n{context.get_help()}\n```\n"


def exit_codes() -> str:
    """What the commands return."""
    codes = re.findall(
        r"(\d+) ([^,(]+(?:\([^)]*\))?)", EXIT_CODES.removeprefix("Exit codes: ").rstrip(".")
    )
    # The last one leaves out the word that the one before it has.
    full = [(code, re.sub(r"^by ", "interrupted by ", text)) for code, text in codes]
    return table(("code", "meaning"), full)


def run_keys() -> str:
    """The plain keys of a file."""
    return _keys(one for key, one in KEYS.items() if "." not in key)


def training_keys() -> str:
    """The keys of the table ``[training]``."""
    return _keys(one for key, one in KEYS.items() if "." in key)


def _keys(settings: Iterable[Setting]) -> str:
    rows = [
        (f"`{s.name}`", _default(s.default), plain(f"{s.help}."), s.expected) for s in settings
    ]
    return table(("key", "default", "meaning", "values"), rows)


def slurm_keys() -> str:
    """The keys of the table ``[slurm]``."""
    return _keys(settings_of(Job).values())


def presets() -> str:
    """What each preset sets."""
    rows = [
        (f"`{name}`", " ".join(f"`{key}={value}`" for key, value in settings.items()))
        for name, settings in PRESETS.items()
    ]
    return table(("preset", "settings"), rows)


def methods() -> str:
    """The table of methods."""
    rows = [
        (f"`{name}`", row.description, f"{row.weight:g}" if row.regularizer else "")
        for name, row in METHODS.items()
    ]
    return table(("method", "what it is", "default weight"), rows)


def problems() -> str:
    """The built-in problems."""
    return table(("problem", "what it is"), [(f"`{k}`", v) for k, v in DESCRIPTIONS.items()])


def metrics() -> str:
    """The scalars of a diagnosis."""
    scalars = {name: getattr(Diagnosis, name).__doc__ for name in Diagnosis.scalars()}
    rows = [(f"`{name}`", plain(" ".join(text.split()))) for name, text in scalars.items()]
    excluded = ("`num_excluded`", arguments(Diagnosis)["num_excluded"])
    return table(("metric", "meaning"), [*rows, excluded])


def bench() -> str:
    """What the benchmark wrote when it was last run."""
    rows = json.loads(BENCH.read_text())
    return table(("quantity", "value"), [(key, f"{value:g}") for key, value in rows.items()])


def cost() -> str:
    """The table by which the time of sweeps is expected, in milliseconds and seconds."""
    rows = []
    for problem, row in sorted(json.loads(TABLE.read_bytes()).items()):
        cells = [problem.replace("_", " ")]
        for family, key in COSTS:
            known = (row.get("paper", row)[family][key], row[family][key])
            unit = 1 if key == "diagnose" else 1000
            cells.append(" / ".join(f"{unit * value:.3g}" for value in known))
        rows.append(tuple(cells))
    return table(("problem", *COSTS.values()), rows)


def sweep_files() -> str:
    """The files of the folder sweeps, and what they cost on two cores."""
    rows = []
    for name, text in SWEEPS.items():
        configs = read_sweep(ROOT / "sweeps" / f"{name}.toml").configs
        rows.append((f"`{name}.toml`", text, f"{len(configs):,}", lasting(configs, 2)))
    return table(("file", "what it is", "runs", "estimate, 2 cores"), rows)


def schedule() -> str:
    """How long the paper's main figures and a small sweep take on many cores."""
    full, laptop = (read_sweep(ROOT / "sweeps" / f"{name}.toml").configs for name in SCHEDULED)
    quick = [one for one in full if one.problem not in ("gravitational_waves", "spatial_sir")]
    rows = [
        (f"{cores:,}", *(lasting(configs, cores) for configs in (full, quick, laptop)))
        for cores in script("schedule").CORES
    ]
    head = ("cores", "all six problems", "without gravitational waves and spatial SIR")
    return table((*head, "`laptop.toml`"), rows)


def lasting(configs: Sequence[RunConfig], cores: int) -> str:
    """How long runs take on so many cores."""
    taken = script("schedule").makespan([*map(seconds, configs)], cores, HAND_OUT)
    return duration(taken, about=True)


def unseen() -> str:
    """The results of the study of coverage on unseen pairs."""
    study = script("unseen")
    return table(study.HEAD, study.table(study.everything()))


def unseen_short() -> str:
    """The same for each estimator, at the smaller budget."""
    study = script("unseen")
    return table(study.SHORT_HEAD, study.short_table(study.everything()))


def study(name: str) -> str:
    """The results of a study of the folder bench."""
    found = script(name)
    return table(found.HEAD, found.table(found.STUDY.read()))


def script(name: str) -> ModuleType:
    """A script of the folder bench, as a module."""
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


def figures() -> str:
    """All figures, each with the cell that draws it."""
    from prudent.reports.figures import FIGURES

    parts = []
    for name, entry in FIGURES.items():
        # The tables are named in the first cells of the page.
        source = "thorough" if entry.table in ("ranks", "draws") else "sweep"
        source = "scan" if name == "overhead" or name.startswith("sensitivity") else source
        parts.append(
            f"## `{name}`\n\n**{entry.question}** {entry.reading}\n\n"
            f'```{{code-cell}} ipython3\ndraw("{name}", {source})\n```\n'
        )
    return "\n".join(parts)


def arguments(owner: type) -> dict[str, str]:
    """What the docstring of a class says about its arguments."""
    found = re.findall(r"^        (\w+): (.*(?:\n {12}.*)*)", owner.__doc__ or "", re.MULTILINE)
    return {name: plain(" ".join(text.split())) for name, text in found}


def plain(text: str) -> str:
    """Markdown from the little reST that docstrings use."""
    text = re.sub(r":(class|func|meth|mod):`~?([^`]+)`", r"{py:\1}`\2`", text)
    return text.replace("``", "`")


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines
    )


def _default(value: object) -> str:
    if value is ...:
        return "needed"
    if value is None or value == ():
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


PARTS: dict[str, Callable[[], str]] = {
    part.__name__: part
    for part in (
        bench,
        commands,
        cost,
        exit_codes,
        figures,
        methods,
        metrics,
        presets,
        problems,
        run_keys,
        schedule,
        slurm_keys,
        sweep_files,
        training_keys,
        unseen,
        unseen_short,
    )
} | {name: partial(study, name) for name in ("ablation", "peers", "price", "support")}


def fill(text: str) -> str:
    """A page with its generated parts."""
    text = MARKER.sub(lambda found: PARTS[found[1]](), text)
    return NOTEBOOK.sub(lambda found: found[0] + FIRST_CELL, text)


def setup(app):
    def read(app, name, source):
        source[0] = fill(source[0])

    app.connect("source-read", read)
    return {"parallel_read_safe": True}
