"""Dask workers: the same bytes as local ones, deaths survived, closed to others."""

import multiprocessing
import os
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from sweeping import (
    GUARD,
    end,
    finish,
    prepare,
    results,
    session,
    start,
    started,
    sweep,
    wait_for,
    work_with_a_hanging_run,
)

from command import prudent
from faults import tree_digest

pytest.importorskip("distributed")
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    # Dask's own sockets and tasks, at the end of the process.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

GRID = {"budgets": [160, 161], "methods": '["npe", "calnre"]'}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    place = tmp_path_factory.mktemp("local")
    prepare(place, **GRID)
    assert sweep(place, workers=1)[0] == 0
    return results(place / "runs")


def workers(place):
    """Process ids of Dask workers whose current directory is the place."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            here = os.readlink(entry / "cwd") == str(place)
            text = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if here and b"spawn_main" in text:
            found.append(int(entry.name))
    return found


def test_the_same_bytes_as_local_processes(tmp_path, undisturbed):
    prepare(tmp_path, **GRID)
    code, out, err = finish(start(tmp_path, "--engine", "dask"))
    assert code == 0, err
    assert "4 of 4 runs done" in out
    assert "distributed" not in err
    assert "Traceback" not in err
    assert results(tmp_path / "runs") == undisturbed
    assert sorted(started(tmp_path).values()) == [2, 2]
    assert not (tmp_path / "runs" / ".work").exists()


def test_a_killed_worker_is_replaced_and_its_run_redone(tmp_path, undisturbed):
    prepare(tmp_path, GRID["budgets"])
    process = start(tmp_path, "--engine", "dask", workers=1)
    try:
        assert wait_for(lambda: started(tmp_path))
        (worker,) = workers(tmp_path)
        os.kill(worker, signal.SIGKILL)
        code, out, err = finish(process)
        assert code == 0, err
        assert "2 of 2 runs done" in out
    finally:
        end(process)
    found = results(tmp_path / "runs")
    assert len({name for name, _ in found}) == 2
    assert found.items() <= undisturbed.items()


def test_a_run_that_kills_its_workers_fails_and_the_others_finish(tmp_path, monkeypatch):
    from prudent.experiments.engines import open_engine

    def engine():
        return open_engine("dask", 2, tmp_path / "scratch")

    before = {*multiprocessing.active_children()}
    failed = work_with_a_hanging_run(tmp_path, monkeypatch, engine, [160, 201, 204])
    # Also the worker that has just begun, in place of the one that hung.
    assert wait_for(lambda: {*multiprocessing.active_children()} <= before)
    assert set(failed) == {201, 204, 206}
    assert failed[201] == "worker died (on Dask workers, 3 times)"
    assert "OverflowError: bad <cell> of the grid" in failed[204]
    assert failed[206] == "took longer than 100 s (--timeout)"
    assert started(tmp_path)[201] == 3
    assert started(tmp_path)[206] == 1


def test_a_worker_that_dask_gives_up_is_begun_again(tmp_path):
    """As it does with one that dies while it starts."""
    import dask

    from prudent.experiments.engines import open_engine

    lost = {"distributed.deploy.lost-worker-timeout": "1s"}
    with dask.config.set(lost), open_engine("dask", 1, tmp_path / "scratch") as engine:
        (nanny,) = engine._cluster.workers.values()
        engine._cluster.sync(nanny.close)
        future = engine.submit(os.getpid)
        assert wait_for(lambda: list(engine.rows()) or future.done())


def test_nobody_is_left_when_the_sweep_is_killed(tmp_path):
    prepare(tmp_path, [160], epochs=100_000)
    process = start(tmp_path, "--engine", "dask", workers=1)
    try:
        assert wait_for(lambda: any((tmp_path / "runs").rglob("epoch-*")))
        process.kill()
        process.communicate()
        assert wait_for(lambda: not session(process.pid))
    finally:
        end(process)


def test_ctrl_c_ends_it_in_order(tmp_path):
    prepare(tmp_path, [160], epochs=100_000)
    process = start(tmp_path, "--engine", "dask", workers=1)
    try:
        assert wait_for(lambda: any((tmp_path / "runs").rglob("epoch-*")))
        os.killpg(process.pid, signal.SIGINT)
        code, _, err = finish(process)  # which is much sooner than its run would end
        assert code == 130
        assert "1 continue from checkpoints" in err
        assert "Traceback" not in err
        assert wait_for(lambda: not session(process.pid))
    finally:
        end(process)


def test_an_unreachable_address_is_refused(tmp_path):
    prepare(tmp_path, [160])
    before = tree_digest(tmp_path)
    for address, message in (
        ("tcp://127.0.0.1:1", "no Dask scheduler answers at tcp://127.0.0.1:1"),
        ("nonsense", "`address` is 'nonsense'; expected an address"),
    ):
        code, out, err = finish(start(tmp_path, "--engine", "dask", "--address", address))
        assert code == 2, err
        assert message in err
        assert "Traceback" not in err
    assert tree_digest(tmp_path) == before


@pytest.fixture
def scheduler(tmp_path):
    """A scheduler and a worker that somebody else started; yields the address and the two."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    begin = [sys.executable, "-m"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
    processes = [
        subprocess.Popen([*begin, "distributed.cli.dask_scheduler", *arguments], **quiet),
        subprocess.Popen(
            [*begin, "distributed.cli.dask_worker", address, "--nthreads", "2", "--no-dashboard"]
            + ["--local-directory", str(tmp_path / "scratch"), "--death-timeout", str(GUARD)],
            cwd="/",
            **quiet,
        ),
    ]
    assert wait_for(lambda: _get(port, b"") is not None)
    yield address, processes
    for process in processes:
        end(process)


def test_a_scheduler_of_somebody_else_is_used_and_may_die(tmp_path, scheduler):
    """Its workers have another directory, and two threads, of which one is used at a time."""
    address, processes = scheduler
    place = tmp_path / "a place"
    place.mkdir()
    prepare(place, [160])
    arguments = ("--engine", "dask", "--address", address)
    code, out, err = finish(start(place, *arguments))
    assert code == 0, err
    assert "1 of 1 runs done" in out
    prepare(place, [160, 161], epochs=100_000)
    process = start(place, *arguments)
    try:
        assert wait_for(lambda: any((place / "runs").rglob("epoch-*")))
        os.kill(processes[0].pid, signal.SIGKILL)
        code, _, err = finish(process)
        assert code == 1
        assert "the Dask scheduler is lost. Nothing is lost on disk; run the same command" in err
        assert "Traceback" not in err
    finally:
        end(process)


def test_other_users_of_this_machine_are_refused(tmp_path):
    from prudent.experiments.engines import open_engine

    with open_engine("dask", 1, tmp_path / "scratch") as engine:
        address = engine._client.scheduler.address
        assert address.startswith("tls://127.0.0.1:")
        pid = engine.submit(os.getpid).result(GUARD)
        listening = _listeners({os.getpid(), pid})
        assert listening
        assert {host for host, _ in listening} == {"127.0.0.1"}
        # Somebody without our certificate, in plain text and with TLS.
        stranger = (
            "import sys\nfrom distributed import Client\n"
            "Client(sys.argv[1], timeout=5).submit(print, 1).result()\n"
        )
        plain = address.replace("tls", "tcp")
        words = [sys.executable, "-c", stranger, plain]
        done = subprocess.run(words, capture_output=True, check=False, timeout=GUARD)
        assert done.returncode != 0
        context = ssl._create_unverified_context()
        host, port = address.removeprefix("tls://").split(":")
        with (
            socket.create_connection((host, int(port)), GUARD) as raw,
            pytest.raises(OSError, match="certificate|alert|reset|EOF"),
        ):
            # TLS 1.3 tells of the missing certificate at the first byte.
            assert not context.wrap_socket(raw).recv(1), "a stranger was let in"
        for _, number in listening:
            assert b" 200 " not in (_get(number) or b"")


def _listeners(pids):
    """Addresses that processes listen on."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            name = os.readlink(link) if link.exists() or link.is_symlink() else ""
            if name.startswith("socket:["):
                inodes.add(name[8:-1])
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            host, port = fields[1].split(":")
            found.add((socket.inet_ntoa(bytes.fromhex(host)[::-1]), int(port, 16)))
    return found


def _get(port, request=b"GET / HTTP/1.0\r\n\r\n"):
    """What a web browser would be told; None if nobody is there."""
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as raw:
            raw.sendall(request)
            return raw.recv(200) if request else b""
    except OSError:
        return None


def test_simulations_are_the_same_bytes(tmp_path):
    for name, arguments in (("a", []), ("b", ["--engine", "dask", "--workers", "2"])):
        done = prudent("simulate", "slcp", "-n", "1000", "-o", name, *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert tree_digest(tmp_path / "a") == tree_digest(tmp_path / "b")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}


def test_the_extra_is_named(monkeypatch, tmp_path):
    from prudent.errors import InputError
    from prudent.experiments.engines import open_engine

    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r'-e "\.\[dask\]"'):
        open_engine("dask", 1, tmp_path)
