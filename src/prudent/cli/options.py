"""Options that several commands share: the same word has the same meaning everywhere."""

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from prudent import problems
from prudent._settings import Setting, settings_of
from prudent.cli.output import remember
from prudent.errors import InputError
from prudent.experiments.config import KEYS
from prudent.experiments.launch import LaunchOptions
from prudent.training import methods

EXIT_CODES = (
    "Exit codes: 0 done, 1 something failed, 2 wrong usage or input (nothing was changed), "
    "130 interrupted by Ctrl-C, 143 by SIGTERM."
)
# Bytes of the name of an output; what is made beside it has a longer one.
LONGEST_NAME = 200
DESCRIPTIONS = {
    **problems.DESCRIPTIONS,
    **{name: row.description for name, row in methods.METHODS.items()},
}


class Value(click.ParamType):  # type: ignore[type-arg]
    """The value of a setting; it is checked with the rest, in the words of the setting."""

    def __init__(self, described: Setting) -> None:
        self.described = described
        kinds = {int: "integer", float: "float"} if not described.choices else {}
        self.name = next((kinds[kind] for kind in described.types if kind in kinds), "text")

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value that a text stands for."""
        return self.described.parse(value) if isinstance(value, str) else value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The choices that begin like this."""
        return [
            CompletionItem(name, help=DESCRIPTIONS.get(name))
            for name in self.described.choices
            if name.startswith(incomplete.lower())
        ]


def options(settings: Iterable[Setting], **changes: dict[str, Any]) -> Callable[[Any], Any]:
    """An option for each setting; ``changes`` are arguments of click by the name of a setting."""

    def decorate(command: Any) -> Any:
        for one in reversed(list(settings)):
            flag = "--" + one.name.replace("_", "-")
            default = None if one.default is ... else one.default
            kind = {"type": Value(one), "default": default, "help": one.text}
            kind = {"is_flag": True, "help": one.text} if bool in one.types else kind
            command = click.option(flag, **{**kind, **changes.get(one.name, {})})(command)
        return command

    return decorate


def check_name(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse an output without a name, which would be the current directory, or too long a one."""
    if value is not None and not value.strip():
        raise InputError("the output is empty; expected a name, such as -o runs/first.")
    if value is not None and (number := len(os.fsencode(Path(value).name))) > LONGEST_NAME:
        raise InputError(f"the output's name has {number} bytes; expected at most {LONGEST_NAME}.")
    return value


LAUNCH = settings_of(LaunchOptions)
PROBLEM = Value(KEYS["problem"])
flag = partial(click.option, is_flag=True, expose_value=False, callback=remember)
debug = flag("--debug", help="Show the traceback of an error.")
output = partial(click.option, "-o", "--output", callback=check_name)
quiet = flag("-q", "--quiet", help="Print the result alone, no progress.")
as_json = flag("--json", "as_json", help="Print the result as one JSON object.")
seed = click.option("--seed", default=0, help="Seed of all random numbers.")
