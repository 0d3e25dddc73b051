"""What a command writes to a terminal."""

import os
import subprocess

import pytest


def seen_on_a_terminal(command, cwd):
    """Run a command on a terminal of its own; all that it wrote. It must succeed."""
    pty = pytest.importorskip("pty", reason="needs a terminal of Unix")
    master, slave = pty.openpty()
    process = subprocess.Popen(command, cwd=cwd, stdout=slave, stderr=slave)
    os.close(slave)
    seen = b""
    try:
        while data := os.read(master, 4096):
            seen += data
    except OSError:  # the other end was closed
        pass
    os.close(master)
    assert process.wait(timeout=600) == 0  # a guard against waiting for ever
    return seen
