"""What the commands say: results to stdout, the rest to stderr."""

import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from prudent.errors import InputError


def emit(command: str, value: dict[str, Any]) -> None:
    """Show a result as one JSON object."""
    show(json.dumps({"schema": f"prudent.{command}/1", **value}, allow_nan=False))


def plain(text: str) -> str:
    r"""Text in which nothing steers a terminal.

    >>> plain("a\x1b[31mb\r\n")
    'a?[31mb?\n'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def show(text: str) -> None:
    """Show a result; a terminal that cannot show ± gets +/-."""
    text = plain(text)
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        text = text.replace("±", "+/-").encode("ascii", "replace").decode()
    click.echo(text)


def say(text: str, *, quiet: bool) -> None:
    """Tell what goes on."""
    if not quiet:
        click.echo(plain(text), err=True)


def remember(ctx: click.Context, parameter: click.Parameter, value: bool) -> bool:
    """Keep a flag in the context, for errors that end the command."""
    ctx.ensure_object(dict)[parameter.name] = value
    return value


def fail(message: str, code: int, *, as_json: bool) -> NoReturn:
    """End with an error; a script that asked for JSON gets it as JSON too."""
    click.echo(f"Error: {plain(message)}", err=True)
    if as_json:
        show(json.dumps({"error": {"code": code, "message": message}}))
    sys.exit(code)


def allow_import(problem: str | None, *, quiet: bool) -> None:
    """Let a problem named ``module:attribute`` be found in the current directory, and say so."""
    if problem and ":" in problem:
        say(f"importing {problem}", quiet=quiet)
        sys.path.insert(0, os.getcwd())


def check_writable(directory: Path) -> None:
    """Refuse an output that cannot be written before any work is done."""
    try:
        parents = (directory, *directory.absolute().parents)
        existing = next(path for path in parents if path.exists())
    except (OSError, ValueError) as error:  # a name that is too long, or with a NUL
        raise InputError(f"cannot write to {str(directory)[:80]!r}: {error}.") from error
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise InputError(f"cannot write below {existing}; choose another output with -o.")
