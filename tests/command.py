"""The command line, called in this process or in one of its own."""

import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
import warnings
from unittest.mock import patch

SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


def prudent_process(*arguments, cwd=None, **environment):
    """Run the command as a shell would."""
    return subprocess.run(
        [sys.executable, "-m", "prudent", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **environment},
        timeout=600,
        check=False,
    )


def prudent(*arguments, cwd=None, **environment):
    """The same in this process, which starts no interpreter and leaves no trace."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(cwd or "."))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.enter_context(patch.dict(os.environ, environment))
        stack.enter_context(patch.object(sys, "argv", ["prudent", *arguments]))
        stack.enter_context(patch.object(sys, "path", list(sys.path)))
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(_as_before())
        warnings.simplefilter("default")
        try:
            from prudent.cli import main

            main()
        except SystemExit as stop:
            code = stop.code or 0
        except Exception:  # as an interpreter would, after --debug
            import traceback

            traceback.print_exc()
            code = 1
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())
    return subprocess.CompletedProcess(["prudent", *arguments], code, *texts)


def refused(*arguments, cwd):
    """The one line with which a command refuses; it must have written nothing."""
    before = sorted(path.name for path in cwd.iterdir())
    result = prudent(*arguments, cwd=cwd)
    assert result.returncode == 2, result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("Error: ")
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert sorted(path.name for path in cwd.iterdir()) == before
    return last


@contextlib.contextmanager
def _as_before():
    """Take back what a command does to its process: signals, logging, modules of users."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    log = logging.getLogger("prudent")
    listeners, level, modules = list(log.handlers), log.level, set(sys.modules)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        log.handlers[:], log.level = listeners, level
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None) or sys.prefix
            if file.startswith(os.getcwd()) and "site-packages" not in file:
                del sys.modules[name]
