"""Sweeps in processes of their own, of a problem that can be told to misbehave."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

from command import prudent
from prudent.experiments._runner import Runner
from prudent.experiments.sweep import read_sweep

# What it does depends on the budget of the run that asks for the problem, which each attempt does
# once; simulations are shared. One parameter, because a diagnosis in more takes seconds.
PROBLEM = """
import ctypes, os, signal, sys, time
import torch
from prudent import problems

def once(name):
    if os.path.exists(name):
        return False
    open(name, "w").close()
    return True

def budget():
    frame = sys._getframe()
    while frame is not None:
        found = getattr(frame.f_locals.get("config"), "budget", None)
        if found is not None:
            return found
        frame = frame.f_back
    return 0

def misbehave(number):
    with open("started", "a") as file:
        file.write(f"{number}\\n")
    if number == 202 and once("segfault"):
        ctypes.string_at(0)
    if number == 203 and once("left"):
        os._exit(0)
    if os.path.exists("repaired"):
        return
    if number == 201:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 204:
        raise OverflowError("bad <cell>\\nof the grid")
    if number == 205:
        raise FloatingPointError("nothing is finite")
    while number == 206:
        time.sleep(1000)
    if number == 207:
        torch.empty(2**50)

def simulate(theta):
    return theta + 0.1 * torch.randn(len(theta), 1)

def __getattr__(name):
    if name != "problem":
        raise AttributeError(name)
    if number := budget():
        misbehave(number)
    return problems.custom(simulate, problems.box([0.0], [1.0]))
"""
SWEEP = """
problem = "mine:problem"
method = {methods}
budget = {budgets}
num_test = 16
training.epochs = {epochs}
training.patience = {epochs}
training.batch_size = 32
"""
# Seconds after which a test that would hang for ever fails, on however slow a machine.
GUARD = 600
SAME = (
    *("config.json", "coverage.json", "data.json", "history.jsonl"),
    *("metrics.json", "model.safetensors"),
)


def prepare(place, budgets, methods='"npe"', epochs=2):
    """Write the problem and the sweep, whose runs go through all epochs: no patience ends them."""
    (place / "mine.py").write_text(PROBLEM)
    text = SWEEP.format(budgets=budgets, methods=methods, epochs=epochs)
    (place / "my.toml").write_text(text)


def command(*arguments):
    return [sys.executable, "-m", "prudent", "sweep", *arguments]


def start(place, *arguments, workers=2, **options):
    return subprocess.Popen(
        command("my.toml", "-o", "runs", "--workers", str(workers), *arguments),
        cwd=place,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def sweep(place, *arguments, workers=2):
    """A sweep of this process, whose workers are forked from what earlier ones have imported."""
    done = prudent(
        "sweep", "my.toml", "-o", "runs", "--workers", str(workers), *arguments, cwd=place
    )
    return done.returncode, done.stdout, done.stderr


def finish(process):
    out, err = process.communicate(timeout=GUARD)
    return process.returncode, out, err


def started(place):
    """How often each run was begun, by budget."""
    path = place / "started"
    return Counter(map(int, path.read_text().split())) if path.exists() else Counter()


def results(root):
    """The bytes of all finished runs that must not depend on what happened on the way."""
    found = {}
    for path in sorted(root.glob("*/metrics.json")):
        for name in SAME:
            found[path.parent.name, name] = (path.parent / name).read_bytes()
    return found


def work_with_a_hanging_run(place, monkeypatch, open_engine, budgets):
    """Why runs failed, by budget, of some and one that hangs until its time is over.

    The clock of the runner stands still until all others have ended and the last one hangs.
    """
    prepare(place, [*budgets, 206])
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(place)
    configs = read_sweep(place / "my.toml").configs
    ended, names = set(), {config.identity: config.budget for config in configs}

    def listen(row):
        if row.get("event") in ("done", "failed"):
            ended.add(names[row["identity"]])

    def monotonic():
        return 1000.0 if ended >= {*budgets} and started(place)[206] else 0.0

    clock = SimpleNamespace(monotonic=monotonic, sleep=time.sleep)
    monkeypatch.setattr("prudent.experiments._runner.time", clock)
    with open_engine() as engine:
        failed = Runner(configs, place / "runs", engine, listen, timeout=100.0).run()
    return {names[identity]: reason for identity, reason in failed.items()}


def session(leader):
    """The living processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        if entry.name.isdigit() and int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def wait_for(condition):
    """Whether a condition comes true, on however slow a machine."""
    deadline = time.monotonic() + GUARD
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def semaphores(leader):
    """Files of named semaphores that the living processes of a session use."""
    found = set()
    for pid in session(leader):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                *_, name = line.split(maxsplit=5)
                if name.startswith("/dev/shm/sem.") and "(deleted)" not in name:
                    found.add(Path(name))
    return found


def end(process):
    """Kill what a test may have left of a session."""
    for pid in session(process.pid):
        os.kill(pid, signal.SIGKILL)
    process.communicate()
