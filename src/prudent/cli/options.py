"""Options that several commands share: the same word has the same meaning everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from prudent import problems
from prudent.experiments.engines import ENGINES
from prudent.training import methods
from prudent.training.options import Options

__all__ = [
    "address",
    "as_json",
    "debug",
    "engine",
    "method_names",
    "problem_names",
    "quiet",
    "seed",
]

EXIT_CODES = (
    "Exit codes: 0 done, 1 something failed, 2 wrong usage or input (nothing was changed), "
    "130 interrupted by Ctrl-C, 143 by SIGTERM."
)
DEFAULTS = Options().to_dict()
NUMBERS = {"weight": float, "patience": int}  # whose default is None

debug = click.option("--debug", is_flag=True, help="Show tracebacks.", expose_value=False)
quiet = click.option("-q", "--quiet", is_flag=True, help="Only the result, no progress.")
seed = click.option("--seed", default=0, help="The same seed gives the same result.")
engine = click.option("--engine", default="local", help=f"Where to work: {' '.join(ENGINES)}.")
address = click.option("--address", help="Of a Dask scheduler; default: start one here.")
as_json = click.option("--json", "as_json", is_flag=True, help="The result as one JSON object.")


def training_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """An option for every setting of a training, with its documentation as help."""
    for name, text in reversed(Options.descriptions().items()):
        kind = NUMBERS.get(name, type(DEFAULTS[name]))
        flag = "--" + name.replace("_", "-")
        command = click.option(flag, type=kind, default=DEFAULTS[name], help=text)(command)
    return command


def problem_names(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Problems for shell completion."""
    names = problems.names()
    return [
        CompletionItem(name, help=problems.DESCRIPTIONS[name])
        for name in names
        if name.startswith(incomplete)
    ]


def method_names(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Methods for shell completion."""
    return [
        CompletionItem(name, help=methods.METHODS[name].description)
        for name in methods.names()
        if name.startswith(incomplete)
    ]
