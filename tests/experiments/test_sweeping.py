"""Sweeps with real processes: kills, signals, two at once, failing runs, full disks."""

import json
import os
import random
import signal
import sys

import pytest
from sweeping import (
    GUARD,
    command,
    end,
    finish,
    prepare,
    results,
    semaphores,
    session,
    start,
    started,
    sweep,
    wait_for,
    work_with_a_hanging_run,
)

from faults import file_size_limit, tree_digest
from prudent.experiments import load_results
from prudent.experiments.engines.local import Local
from terminal import seen_on_a_terminal

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

GRID = {"budgets": [160, 161, 162], "methods": '["npe", "nre"]'}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    place = tmp_path_factory.mktemp("undisturbed")
    prepare(place, **GRID)
    code, out, err = sweep(place)
    assert code == 0, err
    assert "6 of 6 runs done: runs" in out
    assert "\r" not in out + err
    assert "\x1b" not in out + err
    assert sorted(started(place).values()) == [2, 2, 2]
    assert not (place / "runs" / ".work").exists()
    watched = sweep(place, "--watch", "--json")[1].splitlines()
    assert [json.loads(line)["counts"]["done"] for line in watched] == [6]
    return results(place / "runs")


def test_kills_change_nothing(tmp_path, undisturbed):
    """Of everything or, every other time, of the parent alone, whose workers must follow it.

    Four kills are both of one worker and both of two workers.
    """
    moments, mid_run, kills, sweeps = random.Random(0), 0, 0, 0
    while kills < 4:
        place = tmp_path / str(sweeps)
        place.mkdir()
        prepare(place, **GRID)
        sweeps, seen, code = sweeps + 1, set(), None
        while code != 0 and kills < 4:
            code = _kill(place, len(seen) + moments.randrange(3), kills)
            kills += code != 0
            mid_run += any((place / "runs" / ".work").glob("*.lock"))
            finished = {name for name, _ in results(place / "runs")}
            assert seen <= finished  # what is finished stays
            seen = finished
        code, out, err = finish(start(place))
        assert code == 0, err
        assert "6 of 6 runs done" in out
        assert results(place / "runs") == undisturbed
        assert not (place / "runs" / ".work").exists()
    assert mid_run >= 2


def _kill(place, finished, number):
    """Kill a sweep that is at work on a run, after so many others; its exit code."""
    process = start(place, workers=1 + number // 2)
    try:
        locks = place / "runs" / ".work"
        runs = place / "runs"
        assert wait_for(
            lambda: (
                process.poll() is not None
                or (len([*runs.glob("*/metrics.json")]) >= finished and any(locks.glob("*.lock")))
            )
        )
        if process.poll() is None:
            process.kill() if number % 2 else os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert wait_for(lambda: not session(process.pid))
        return process.returncode
    finally:
        end(process)


def test_a_kill_leaves_nothing_in_shared_memory(tmp_path):
    prepare(tmp_path, [160, 161], epochs=100_000)
    process = start(tmp_path)
    try:
        assert wait_for(lambda: len(list((tmp_path / "runs").rglob("epoch-*"))) >= 2)
        used = semaphores(process.pid)
        os.killpg(process.pid, signal.SIGKILL)  # also who would tidy up
    finally:
        end(process)
    assert wait_for(lambda: not session(process.pid))
    assert not [path for path in used if path.exists()]


def test_two_sweeps_at_once_share_the_work(tmp_path, undisturbed):
    """And whoever looks at the results meanwhile sees all runs, each in one state."""
    prepare(tmp_path, **GRID)
    both = [start(tmp_path, "--json") for _ in range(2)]
    assert wait_for(lambda: (tmp_path / "runs" / "sweep.json").exists())
    for _ in range(20):
        found = load_results(tmp_path / "runs")
        assert len(found.runs) == found.runs["run"].nunique() == 6
        done = set(found.runs.query("state == 'done'")["run"])
        assert set(found.curves["run"]) == done
        assert not set(found.runs["state"]) & {"failed"}
    for code, out, err in map(finish, both):
        assert code == 0, err
        assert json.loads(out)["counts"]["done"] == 6
    assert sorted(started(tmp_path).values()) == [2, 2, 2]  # each once by each method
    assert results(tmp_path / "runs") == undisturbed
    assert not (tmp_path / "runs" / ".work").exists()


def test_failing_runs_and_dying_workers_do_not_stop_the_others(tmp_path):
    prepare(tmp_path, [160, 201, 202, 203, 204, 205])
    code, out, err = finish(start(tmp_path))
    assert code == 1, err
    assert "3 of 6 runs done, 3 failed: runs" in out
    assert "worker died (signal 9, 3 times): out of memory?" in out
    assert "OverflowError: bad <cell> of the grid" in out
    assert "mine:problem npe 204 seed 0" in out
    assert started(tmp_path) == {160: 1, 201: 3, 202: 2, 203: 2, 204: 1, 205: 1}
    assert "Traceback" not in out + err
    errors = sorted((tmp_path / "runs" / ".work").glob("*/error.txt"))
    assert len(errors) == 3
    assert sum("Traceback" in path.read_text() for path in errors) == 2
    # Asked again, only those are tried, and a script can read what happened.
    code, out, _ = sweep(tmp_path, "--status", "--json")
    assert code == 0
    assert json.loads(out)["counts"]["failed"] == 3
    code, out, _ = sweep(tmp_path, "--dry-run")
    assert "Skipping 3 finished runs; 3 to do (3 failed before)" in out
    (tmp_path / "repaired").touch()
    code, out, err = sweep(tmp_path, workers=1)
    assert code == 0, err
    assert "6 of 6 runs done" in out
    assert started(tmp_path) == {160: 1, 201: 4, 202: 2, 203: 2, 204: 2, 205: 2}
    assert not (tmp_path / "runs" / ".work").exists()


def test_a_hungry_run_fails_and_the_other_finishes(tmp_path):
    prepare(tmp_path, [160, 207])
    code, out, err = sweep(tmp_path)
    assert code == 1, err
    assert "1 of 2 runs done, 1 failed: runs" in out
    assert f"tried to allocate {2**52} bytes" in out
    assert started(tmp_path) == {160: 1, 207: 1}
    index = (tmp_path / "runs" / "index.csv").read_text().splitlines()
    assert index[0] == "run,problem,method,budget,seed,state"
    states = [line.rsplit(",", 3)[1::2] for line in index[1:]]
    assert states == [["160", "done"], ["207", "failed"]]


def test_a_hanging_run_fails_and_the_others_finish(tmp_path, monkeypatch):
    failed = work_with_a_hanging_run(tmp_path, monkeypatch, lambda: Local(2), [160, 161, 204])
    assert set(failed) == {204, 206}
    assert failed[206] == "took longer than 100 s (--timeout)"
    assert started(tmp_path) == {160: 1, 161: 1, 204: 1, 206: 1}


def test_the_time_of_a_run_is_limited(tmp_path):
    """It hangs, so that no machine is fast enough, and one that is too slow fails alike."""
    prepare(tmp_path, [206])
    code, out, err = sweep(tmp_path, "--timeout", "3")
    assert code == 1, err
    assert "took longer than 3 s (--timeout)" in out


def test_a_changed_simulator_is_not_mixed_with_the_old_one(tmp_path):
    prepare(tmp_path, [160])
    assert sweep(tmp_path, workers=1)[0] == 0
    (old,) = (tmp_path / "runs").glob("*/metrics.json")
    with (tmp_path / "mine.py").open("a") as file:
        file.write("# another noise\n")
    before = tree_digest(tmp_path)
    code, _, err = sweep(tmp_path, workers=1)
    assert code == 2
    assert "1 runs of a simulator whose file has changed since" in err
    assert tree_digest(tmp_path) == before
    code, out, err = sweep(tmp_path, "--force", workers=1)
    assert code == 0, err
    assert started(tmp_path) == {160: 2}
    (new,) = (tmp_path / "runs").glob("*/metrics.json")
    assert new != old
    assert (tmp_path / "runs" / ".trash" / old.parent.name / "metrics.json").exists()
    status = json.loads(sweep(tmp_path, "--status", "--json")[1])
    assert status["counts"]["done"] == status["num_runs"] == 1


@pytest.mark.parametrize(
    ("number", "expected"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)],
)
def test_a_signal_ends_it_in_order(tmp_path, number, expected):
    prepare(tmp_path, [160, 161, 162], epochs=100_000)
    # Under nohup the tests themselves ignore SIGHUP, and so would the sweep.
    process = start(tmp_path, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
    try:
        assert wait_for(lambda: len(list((tmp_path / "runs").rglob("epoch-*"))) >= 2)
        status = sweep(tmp_path, "--status")[1]
        assert "running 2" in status
        assert "of 100000" in status
        os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
        code, _, err = finish(process)  # which is much sooner than its runs would end
        assert code == expected
        assert "Error: interrupted: 0 done, 2 continue from checkpoints, 1 left." in err
        assert "Continue with: prudent sweep my.toml -o runs" in err
        assert "Traceback" not in err
        assert wait_for(lambda: not session(process.pid))
    finally:
        end(process)


def test_a_second_signal_ends_it_at_once(tmp_path):
    prepare(tmp_path, [160], epochs=100_000)
    process = start(tmp_path)
    try:
        assert wait_for(lambda: any((tmp_path / "runs").rglob("epoch-*")))
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        assert process.wait(GUARD) == 130
        assert wait_for(lambda: not session(process.pid))
    finally:
        end(process)
    code, out, err = sweep(tmp_path, "--status", "--json")
    assert json.loads(out)["counts"]["interrupted"] == 1


def test_a_full_disk_stops_it_without_failures(tmp_path):
    prepare(tmp_path, [160, 161, 162], '"nre"')
    code, out, err = finish(
        start(tmp_path, workers=1, preexec_fn=lambda: file_size_limit(200_000))
    )
    assert code == 1
    assert "File too large" in err
    assert "free some space and run the same command again" in err
    assert "Traceback" not in err
    status = json.loads(sweep(tmp_path, "--status", "--json")[1])
    assert status["counts"]["failed"] == status["counts"]["done"] == 0
    code, out, err = sweep(tmp_path, workers=1)
    assert code == 0, err
    assert "3 of 3 runs done" in out


def test_a_terminal_sees_counts_and_time_left(tmp_path):
    prepare(tmp_path, [160])
    seen = seen_on_a_terminal(command("my.toml", "-o", "runs"), tmp_path)
    assert b"sweep: 100%" in seen
    assert b"| 0/1 done, 1 running, 0 failed" in seen  # no comma after the bar
    assert b"1 of 1 runs done: runs" in seen


def test_a_reader_that_goes_away_is_no_reason_for_a_traceback(tmp_path):
    prepare(tmp_path, [160])
    process = start(tmp_path, "--dry-run")
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=GUARD)
    assert err == ""
