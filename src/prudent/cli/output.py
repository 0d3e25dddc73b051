"""The output of the commands: results to stdout, the rest to stderr.

The flags ``--json``, ``--quiet`` and ``--debug`` are kept in the context of click, where whoever
says something looks them up.
"""

import json
import logging
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from prudent._files import DISK_FULL
from prudent.errors import InputError, PrudentError
from prudent.experiments.config import KEYS

NAMES = {one.name for one in KEYS.values()}


def remember(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Keep a flag in the context."""
    ctx.ensure_object(dict)[parameter.name] = value
    if value and parameter.name == "quiet":
        logging.getLogger("prudent").setLevel(logging.ERROR)


def asked_for(*flags: str) -> bool:
    """Whether the command that runs was given one of some flags."""
    kept = click.get_current_context().ensure_object(dict)
    return any(kept.get(flag, False) for flag in flags)


def progress() -> bool | None:
    """The way to show progress: none if only the result is wanted, else as the terminal can."""
    return False if asked_for("quiet", "as_json") else None


def emit(command: str, facts: dict[str, Any]) -> bool:
    """Show a result as one JSON object if that was asked for, and return whether it was."""
    if asked_for("as_json"):
        show(json.dumps({"schema": f"prudent.{command}/1", **facts}, allow_nan=False))
    return asked_for("as_json")


def plain(text: str) -> str:
    r"""Text in which nothing steers a terminal.

    >>> plain("a\x1b[31mb\r\n")
    'a?[31mb?\n'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def as_options(text: str) -> str:
    """Advice of the library, which names arguments of Python, as it is typed here.

    >>> as_options('pass batch_size=20, or use proposal="nominal"; see --set seed=3')
    'pass --batch-size 20, or use --proposal nominal; see --set seed=3'
    """

    def option(match: re.Match[str]) -> str:
        return f"--{match[1].replace('_', '-')} {match[2]}" if match[1] in NAMES else match[0]

    return re.sub(r"(?<!--set )(?<![\w.(])([a-z_]+)=\"?([\w.-]*\w)\"?", option, text)


def show(text: str) -> None:
    """Show a result; a terminal that cannot show ± gets +/-."""
    text = plain(text)
    if sys.stdout is None:
        raise PrudentError("standard output is closed; what was written to files is kept.")
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        text = text.replace("±", "+/-").encode("ascii", "replace").decode()
    click.echo(text)


def say(text: str) -> None:
    """Tell what goes on, unless only the result is wanted."""
    if not asked_for("quiet", "as_json"):
        click.echo(plain(text), err=True)


def allow_import(problem: str | None) -> None:
    """Let a problem named ``module:attribute`` be found in the current directory, and say so."""
    if problem and ":" in problem and not problem.startswith("file:"):
        say(f"importing {problem}")
        sys.path.insert(0, os.getcwd())


def check_writable(directory: Path) -> None:
    """Refuse an output that cannot be written before any work is done."""
    try:
        parents = (directory, *directory.absolute().parents)
        existing = next(path for path in parents if path.exists())
    except (OSError, ValueError) as error:  # a name that is too long, or with a NUL
        raise InputError(f"cannot write to {str(directory)[:80]!r}: {error}.") from error
    if not existing.is_dir() or not os.access(existing, os.W_OK) or not _can_make(existing):
        raise InputError(f"cannot write below {existing}; choose another output with -o.")


def _can_make(directory: Path) -> bool:
    """Whether files can be made in a directory; in /proc the rights alone do not tell."""
    try:
        with tempfile.TemporaryDirectory(prefix=".", dir=directory):
            return True
    except OSError as error:
        return error.errno in DISK_FULL  # which is told with the space that is needed
