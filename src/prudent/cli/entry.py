"""The group of commands and the one place where exceptions become exit codes.

Nothing heavy is imported before the arguments have been checked, so help and mistakes are answered
at once.
"""

import contextlib
import json
import logging
import os
import platform
import signal
import sys
import warnings
from importlib import metadata
from typing import Any, NoReturn

import click

from prudent import __version__
from prudent._files import DISK_FULL
from prudent.cli.demo import demo
from prudent.cli.diagnose import diagnose
from prudent.cli.options import EXIT_CODES
from prudent.cli.output import as_options, plain, show
from prudent.cli.posterior import plot, sample
from prudent.cli.report import report
from prudent.cli.simulate import list_problems, simulate
from prudent.cli.sweep import sweep
from prudent.cli.train import train
from prudent.errors import InputError, PrudentError, one_line, shortened

CONTEXT = {"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 80}
LONGEST = 4000
BUILT_ON = ("torch", "numpy", "zuko", "safetensors", "h5py", "zarr", "matplotlib", "arviz")
EPILOG = f"""{EXIT_CODES}

\b
Completion: eval "$(_PRUDENT_COMPLETE=bash_source prudent)"
in ~/.bashrc; for zsh and fish put zsh_source or fish_source.
"""
INTERRUPTED = "interrupted; finished runs are kept, the same command continues."


class Terminated(BaseException):
    """SIGTERM or SIGHUP came."""


class Plain(logging.Formatter):
    """Log lines with options in place of arguments of Python."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        return as_options(plain(super().format(record)))


class Group(click.Group):
    """Commands in the order of the work, not of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands."""
        return list(self.commands)


@click.group(cls=Group, context_settings=CONTEXT, epilog=EPILOG, invoke_without_command=True)
@click.option("--version", is_flag=True, help="Show the version and exit.")
@click.option("-v", "verbose", is_flag=True, help="With --version: also those of its libraries.")
@click.pass_context
def cli(ctx: click.Context, version: bool, verbose: bool) -> None:
    """Neural posteriors that do not claim more than the data supports.

    \b
    Examples:
      prudent demo
      prudent train slcp --budget 1024 -o runs/first
      prudent diagnose runs/first
      prudent plot runs/first --observation x.npy -o corner.pdf
      prudent sweep sweeps/smoke.toml -o runs/smoke
    """
    if version:
        show("\n".join([f"prudent {__version__}", *(_surroundings() if verbose else [])]))
        ctx.exit()
    if ctx.invoked_subcommand is None:
        show(ctx.get_help())


def _surroundings() -> list[str]:
    """The versions that the report of a bug should have; nothing heavy is imported for them."""
    lines = [f"python {platform.python_version()}", platform.platform()]
    for name in BUILT_ON:
        try:
            lines.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{name} not installed")
    return lines


for command in (demo, list_problems, simulate, train, diagnose, sample, plot, sweep, report):
    cli.add_command(command)


def main() -> NoReturn:
    """Run the command line; every mistake of a user is one line and exit code 2."""
    _log_to_stderr()
    _listen_to_signals()
    flags: dict[str, bool] = {}
    try:
        code = cli.main(prog_name="prudent", standalone_mode=False, obj=flags)
        if sys.stdout is not None:
            sys.stdout.flush()
        sys.exit(code or 0)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except (click.Abort, KeyboardInterrupt, Terminated) as error:
        message, code = _interruption(error), 143 if isinstance(error, Terminated) else 130
    except BrokenPipeError:
        # Whoever read our output has gone; say nothing more, also not at exit.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        if "--json" in sys.argv:
            show_error(error.exit_code, error.format_message())
        sys.exit(error.exit_code)
    except SystemExit:
        raise
    except BaseException as error:
        if flags.get("debug"):
            raise
        code = 2 if isinstance(error, InputError) else 1
        if isinstance(error, PrudentError):
            message = str(error)
        elif isinstance(error, OSError) and error.errno in DISK_FULL and error.filename is None:
            message = "standard output is full; what was written to files is kept."
        elif isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            message = "there is not enough memory for that; ask for less, or use another machine."
        else:
            message = (
                f"unexpected {one_line(error)}. This is a bug in prudent; repeat the command "
                "with --debug and report what it says."
            )
    message = shortened(as_options(message), LONGEST)
    click.echo(f"Error: {plain(message)}", err=True)
    if flags.get("as_json"):
        with contextlib.suppress(PrudentError, OSError):  # standard output is closed or full
            show_error(code, message)
    sys.exit(code)


def show_error(code: int, message: str) -> None:
    """Give a script that asked for JSON its errors as JSON too."""
    show(json.dumps({"error": {"code": code, "message": message}}))


def _interruption(error: BaseException) -> str:
    """The message of a command that was interrupted; click wraps the error of Ctrl-C."""
    told = getattr(error, "__notes__", []) or getattr(error.__cause__, "__notes__", [])
    return str(told[-1]) if told else INTERRUPTED


def _log_to_stderr() -> None:
    """Show what the library logs and warns of as plain lines, without lines of source code."""
    log = logging.getLogger("prudent")
    handler = logging.StreamHandler()
    handler.setFormatter(Plain("%(asctime)s %(message)s", "%H:%M"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    warnings.showwarning = lambda message, *_, **__: log.warning("%s", message)


def _listen_to_signals() -> None:
    """End in order at the first signal, and at once at the second."""

    def first(number: int, frame: Any) -> None:
        os.write(2, b"\nstopping; once more to stop at once ...\n")
        for name in watched:
            signal.signal(name, lambda *_: os._exit(128 + number))
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated

    watched = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        watched.append(signal.SIGHUP)
    for name in watched:
        signal.signal(name, first)
