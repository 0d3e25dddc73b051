"""Simulate: the same bytes whatever happens, and simulators that misbehave."""

import errno
import logging
import multiprocessing
import os
import random
import shutil
import threading
import warnings
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
import torch

from faults import (
    exit_code,
    fault_points,
    file_size_limit,
    hold,
    in_child,
    killed_along_the_way,
    tree_digest,
)
from prudent import problems
from prudent.datasets._layout import REASONS
from prudent.datasets.simulate import default_chunk_size, draw_pairs, draw_sequence, simulate
from prudent.datasets.store import Store
from prudent.errors import DataError, InputError, StoreError
from prudent.problems import Problem, box

GAUSSIAN = problems.get("gaussian")


def problem_of(simulator, x_shape=(2,)):
    return Problem("custom", box([0.0], [1.0]), simulator, x_shape, ("a",))


def good(theta, generator):
    return theta + torch.randn((len(theta), 2), generator=generator)


class Shuffled(Executor):
    """Runs tasks in another order, when the last one has come."""

    def __init__(self, count):
        self.count, self.tasks = count, []

    def submit(self, function, /, *args, **kwargs):
        future = Future()
        self.tasks.append((future, function, args))
        if len(self.tasks) == self.count:
            random.Random(0).shuffle(self.tasks)
            for waiting, task, arguments in self.tasks:
                waiting.set_result(task(*arguments))
        return future


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "s"
    simulate("gaussian", 300, path, chunk_size=16, progress=False)
    return tree_digest(path)


def run(path, executor=None, **options):
    return simulate(
        "gaussian", 300, path, chunk_size=16, executor=executor, progress=False, **options
    )


@pytest.mark.process
@pytest.mark.parametrize(
    ("workers", "method"), [(2, "spawn"), (1, "forkserver"), (4, "forkserver")]
)
def test_workers_do_not_change_a_byte(tmp_path, undisturbed, workers, method):
    context = multiprocessing.get_context(method)
    if method == "forkserver":  # one process imports torch, the others come from it
        context.set_forkserver_preload(["prudent.datasets.simulate", "zarr"])
    with ProcessPoolExecutor(workers, context) as pool:
        run(tmp_path / "s", pool)
    assert tree_digest(tmp_path / "s") == undisturbed


def test_neither_do_order_and_threads(tmp_path, undisturbed):
    run(tmp_path / "shuffled", Shuffled(19))
    with ThreadPoolExecutor(3) as pool:
        run(tmp_path / "threads", pool)
    assert tree_digest(tmp_path / "shuffled") == undisturbed
    assert tree_digest(tmp_path / "threads") == undisturbed


def counting(calls):
    """The Gaussian problem, with a line in a file for each call of the simulator."""
    calls.touch()

    def simulator(theta, generator):
        with calls.open("a") as file:
            file.write("x\n")
        return GAUSSIAN.simulator(theta, generator)

    return Problem("gaussian", GAUSSIAN.prior, simulator, (2,), GAUSSIAN.parameter_names)


@pytest.fixture
def unhurried(monkeypatch):
    """Chunks that wait before they are written, so that kills find the work undone."""

    def draw(*arguments, **options):
        rows = draw_sequence(*arguments, **options)
        hold()
        return rows

    monkeypatch.setattr("prudent.datasets.simulate.draw_sequence", draw)


@pytest.mark.process
@pytest.mark.usefixtures("unhurried")
def test_killed_along_the_way_it_ends_the_same(tmp_path, undisturbed):
    path, calls = tmp_path / "s", tmp_path / "calls"
    counted = counting(calls)
    done = killed_along_the_way(
        lambda: simulate(counted, 300, path, chunk_size=16, progress=False),
        kills=sorted(random.Random(0).sample(range(19), 10)),
        progress=lambda: len(list(path.glob("done/*.json"))),
    )
    assert tree_digest(path) == undisturbed
    assert len(done) >= 5, "the kills came too late and prove nothing"
    assert any(0 < count < 19 for count in done), "no kill came in the middle"
    begun = len(calls.read_text().splitlines())
    assert 19 <= begun <= 19 + len(done), "a finished chunk was simulated again"


@pytest.mark.process
@pytest.mark.usefixtures("unhurried")
def test_so_it_does_with_worker_processes(tmp_path, undisturbed):
    path = tmp_path / "s"

    def action():
        with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
            run(path, pool)

    done = killed_along_the_way(
        action,
        kills=sorted(random.Random(1).sample(range(19), 5)),
        progress=lambda: len(list(path.glob("done/*.json"))),
    )
    assert tree_digest(path) == undisturbed
    assert any(0 < count < 19 for count in done), "no kill came in the middle"


def test_finished_chunks_are_left_alone(tmp_path, undisturbed):
    store = run(tmp_path / "s")
    times = {path: path.stat().st_mtime_ns for path in store.path.rglob("*")}
    rows = []
    simulate("gaussian", 300, store.path, progress=rows.append)
    assert rows == []
    assert {path: path.stat().st_mtime_ns for path in store.path.rglob("*")} == times
    (store.path / "done" / "18.json").unlink()
    simulate("gaussian", 300, store.path, progress=rows.append)
    assert [row["invalid"] for row in rows] == [0]
    assert rows[0]["per_second"] > 0
    assert tree_digest(store.path) == undisturbed


@pytest.mark.process
def test_full_disk_says_so_once_and_the_same_command_finishes(tmp_path, undisturbed):
    path, log = tmp_path / "s", tmp_path / "log"

    def limited():
        file_size_limit(300)  # less than a document
        run(path)

    assert exit_code(in_child(limited, log)) != 0
    assert log.read_text().startswith("StoreError: could not write")
    assert "File too large" in log.read_text()
    assert "\n" not in log.read_text()
    shutil.rmtree(path)
    whole = simulate("gaussian", 300, tmp_path / "large", chunk_size=100, progress=False)
    before = tree_digest(whole.path)
    for file in [*whole.path.glob("done/[12].json"), *whole.path.glob("*/c.[12]*")]:
        file.unlink()

    def again():
        file_size_limit(600)  # a chunk of 100 does not fit, its record would
        simulate("gaussian", 300, whole.path, chunk_size=100, progress=False)

    assert exit_code(in_child(again, log)) != 0
    assert log.read_text().startswith("StoreError: could not write")
    assert whole.missing() == [1, 2]
    simulate("gaussian", 300, whole.path, chunk_size=100, progress=False)
    assert tree_digest(whole.path) == before


@pytest.mark.process
def test_no_space_at_any_write_event_keeps_what_is_finished(tmp_path):
    path, log, kept = tmp_path / "s", tmp_path / "log", tmp_path / "kept"

    def action():
        simulate("gaussian", 24, path, chunk_size=8, progress=False)

    action()
    whole = tree_digest(path)
    (path / "done" / "1.json").unlink()
    path.rename(kept)

    def prepare():
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(kept, path)

    points = 0
    for _, code in fault_points(prepare, action, log, fault=28):
        points += 1
        if code != 0:
            assert log.read_text().startswith("StoreError: could not write")
            assert "No space left on device" in log.read_text()
        assert Store.open(path).missing() in ([], [1])
        action()
        assert tree_digest(path) == whole
    assert points == 20  # four for the directory and the lock, and four for each of four files


def test_leftovers_of_killed_writers_are_removed(tmp_path, undisturbed, caplog):
    store = run(tmp_path / "s")
    for name in ("x/c.1.0.abc.partial", "done/.1.json.0123456789ab.tmp", ".zarr.json.ab.tmp"):
        (store.path / name).write_text("half")
    with caplog.at_level(logging.INFO, "prudent"):
        run(store.path)
    assert tree_digest(store.path) == undisturbed
    assert "removed 3 unfinished files" in caplog.text


@pytest.mark.process
@pytest.mark.parametrize("flock", [True, False], ids=["with locks", "without"])
def test_two_writers_do_the_work_once(tmp_path, undisturbed, monkeypatch, flock):
    def missing(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    if not flock:
        monkeypatch.setattr("fcntl.flock", missing)
    path, calls = tmp_path / "s", tmp_path / "calls"
    counted = counting(calls)

    def action():
        simulate(counted, 300, path, chunk_size=16, progress=False)

    children = [in_child(action) for _ in range(3)]
    assert [exit_code(child) for child in children] == [0, 0, 0]
    assert tree_digest(path) == undisturbed
    assert len(calls.read_text().splitlines()) == 19


@pytest.mark.parametrize(
    ("name", "count", "options", "message"),
    [
        ("gaussian", 300, {"seed": 1}, "seed 0, not 1"),
        ("gaussian", 301, {}, "num_simulations 300, not 301"),
        ("gaussian", 300, {"chunk_size": 8}, "chunk_size 16, not 8"),
        ("two_moons", 300, {}, "problem gaussian, not two_moons"),
    ],
)
def test_another_store_is_refused_and_left_alone(tmp_path, name, count, options, message):
    store = run(tmp_path / "s")
    before = tree_digest(tmp_path)
    with pytest.raises(InputError, match=message):
        simulate(name, count, store.path, progress=False, **options)
    assert tree_digest(tmp_path) == before


def test_wrong_input_changes_nothing(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "a.tex").write_text("")
    with ThreadPoolExecutor(1) as pool:
        for call, message in [
            (lambda: simulate("gausian", 8, tmp_path / "s"), "Did you mean `gaussian`"),
            (lambda: simulate("no.module:x", 8, tmp_path / "s"), "cannot import `no.module`"),
            (lambda: simulate("math:pi", 8, tmp_path / "s"), "`math:pi` is a float"),
            (lambda: simulate("gaussian", 0, tmp_path / "s"), "`num_simulations` is 0"),
            (lambda: simulate("gaussian", 8, tmp_path / "thesis"), "holds `a.tex`"),
            (lambda: simulate(GAUSSIAN, 8, tmp_path / "s", executor=pool), "problem by name"),
        ]:
            before = tree_digest(tmp_path)
            with pytest.raises(InputError, match=message):
                call()
            assert tree_digest(tmp_path) == before


def test_a_problem_may_be_a_module_and_an_attribute(tmp_path, undisturbed):
    assert problems.get("prudent.problems.gaussian:problem").name == "gaussian"
    simulate(
        "prudent.problems.gaussian:problem", 300, tmp_path / "s", chunk_size=16, progress=False
    )
    assert tree_digest(tmp_path / "s") == undisturbed


def blocks(number, seed=0):
    parts = [GAUSSIAN.draw(256, seed, f"chunk {index}") for index in range(number)]
    return (torch.cat([part[place] for part in parts]) for place in (0, 1))


@pytest.mark.parametrize("chunk_size", [None, 256, 1024])
def test_a_problem_and_a_seed_have_one_sequence_of_pairs(tmp_path, chunk_size):
    theta, x = blocks(4)
    for number in (100, 700, 1000):
        options = {"chunk_size": chunk_size, "progress": False}
        store = simulate("gaussian", number, tmp_path / str(number), **options)
        found = store.read(0, number)
        assert torch.equal(found[0], theta[:number])
        assert torch.equal(found[1], x[:number])
        drawn = draw_pairs(GAUSSIAN, number, 0)
        assert torch.equal(drawn.theta, theta[:number])
        assert torch.equal(drawn.x, x[:number])
    assert not torch.equal(draw_pairs(GAUSSIAN, 100, 1).x, x[:100])


def test_a_store_can_be_filled_as_far_as_it_is_needed(tmp_path):
    store = simulate("gaussian", 1000, tmp_path / "s", stop=300, progress=False)
    assert store.missing() == [2, 3]
    assert torch.equal(store.pairs(300).x, draw_pairs(GAUSSIAN, 300, 0).x)
    with pytest.raises(StoreError, match="chunk 2 is missing"):
        store.pairs(600)
    simulate("gaussian", 1000, tmp_path / "s", stop=600, progress=False)
    assert store.missing() == [3]
    simulate("gaussian", 1000, tmp_path / "s", progress=False)
    simulate("gaussian", 1000, tmp_path / "whole", progress=False)
    assert tree_digest(tmp_path / "s") == tree_digest(tmp_path / "whole")


def test_failed_simulations_of_a_draw_are_left_out_but_not_forgotten():
    pairs = draw_pairs(problem_of(raises_above), 400, 0)
    assert bool((pairs.theta <= 0.75).all())
    assert len(pairs.pool) == 400
    assert pairs.num_invalid == int((pairs.pool > 0.75).sum()) > 0
    with pytest.raises(DataError, match=r"all 8 .*8 raised.*ZeroDivisionError") as error:
        draw_pairs(problem_of(lambda theta, generator: 1 / 0), 8, 0)
    assert "bug in prudent" not in str(error.value)


def test_default_chunks_are_neither_many_nor_large():
    assert default_chunk_size(GAUSSIAN, 100) == 256
    assert default_chunk_size(GAUSSIAN, 10_000) == 256
    assert default_chunk_size(GAUSSIAN, 20_000) == 512
    assert default_chunk_size(GAUSSIAN, 2**20) == 2**15
    large = problem_of(good, (3, 1000, 1000))
    assert default_chunk_size(large, 10_000) == 1


def returns(change):
    return lambda theta, generator: change(good(theta, generator))


def raises_above(theta, generator):
    if bool((theta > 0.75).any()):
        raise ValueError("too\nlarge")
    return good(theta, generator)


def mutates(theta, generator):
    x = good(theta, generator)
    theta.fill_(-1.0)
    return x


def prints(theta, generator):
    print("x" * 10_000)
    return good(theta, generator)


def changes_everything(theta, generator):
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    torch.set_num_threads(3)
    torch.set_default_dtype(torch.float64)
    os.chdir("/")
    warnings.simplefilter("ignore")
    return good(theta.double(), generator)


GOOD = {
    "plain": good,
    "float64": returns(torch.Tensor.double),
    "numpy": returns(torch.Tensor.numpy),
    "big endian": returns(lambda x: x.numpy().astype(">f8")),
    "not contiguous": returns(lambda x: x.T.contiguous().T),
    "requires grad": returns(lambda x: x.requires_grad_()),
    "mutates theta": mutates,
    "prints": prints,
}


@pytest.mark.parametrize("name", GOOD)
def test_harmless_habits_give_the_same_data(tmp_path, name, capsys):
    store = simulate(problem_of(GOOD[name]), 40, tmp_path / "s", chunk_size=16, progress=False)
    expected = [problem_of(good).draw(n, 0, f"chunk {i}") for i, n in enumerate((16, 16, 8))]
    theta, x, reason = store.read(0, 40)
    assert torch.equal(theta, torch.cat([part[0] for part in expected]))
    assert torch.equal(x, torch.cat([part[1] for part in expected]))
    assert not x.requires_grad
    assert not bool(reason.any())
    assert capsys.readouterr().out == ""


def test_integers_are_converted_with_a_note(tmp_path, caplog):
    integers = problem_of(returns(lambda x: (10 * x).long()))
    with caplog.at_level(logging.INFO, "prudent"):
        store = simulate(integers, 8, tmp_path / "s", progress=False)
    assert "x came as int64 and is stored as float32" in caplog.text
    assert torch.equal(store.pairs().x, store.pairs().x.round())


BAD = {
    "none": (lambda theta, generator: None, "malformed", "NoneType"),
    "wrong shape": (returns(lambda x: x[:, :1]), "malformed", "shape"),
    "wrong count": (returns(lambda x: x[:0]), "malformed", "shape"),
    "object dtype": (returns(lambda x: x.numpy().astype(object)), "malformed", "object"),
    "complex": (returns(lambda x: x.to(torch.complex64)), "malformed", "complex"),
    "masked": (returns(lambda x: np.ma.masked_array(x.numpy(), x > 0)), "malformed", "Masked"),
    "list": (returns(torch.Tensor.tolist), "malformed", "list"),
    "nan": (returns(lambda x: x * torch.nan), "nan", "8 nan"),
    "infinity": (returns(lambda x: x / 0), "infinite", "8 infinite"),
    "too large": (returns(lambda x: x.double() * 1e300), "infinite", "8 infinite"),
    "raises": (lambda theta, generator: 1 / 0, "raised", "ZeroDivisionError"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_simulator_that_never_works_is_an_error_with_its_reason(tmp_path, name):
    simulator, reason, message = BAD[name]
    for _ in range(2):  # the second time from the records alone
        with pytest.raises(
            DataError, match=f"all 8 simulations of `custom` .*8 {reason}"
        ) as error:
            simulate(problem_of(simulator), 8, tmp_path / "s", progress=False)
        assert "\n" not in str(error.value)
        assert message in str(error.value)
        message = reason
    counts = Store.open(tmp_path / "s").num_invalid()
    assert counts == {name: 8 * (name == reason) for name in REASONS[1:]}


def test_bad_rows_are_counted_exactly_and_cost_no_others(tmp_path, caplog):
    def simulator(theta, generator):
        x = raises_above(theta, generator)
        x[theta[:, 0] < 0.25, 1] = torch.nan
        x[(theta[:, 0] > 0.25) & (theta[:, 0] < 0.5), 0] = -torch.inf
        return x

    rows = []
    store = simulate(
        problem_of(simulator), 400, tmp_path / "s", chunk_size=50, progress=rows.append
    )
    theta, x, reason = (tensor.numpy() for tensor in store.read(0, 400))
    expected = np.select(
        [theta[:, 0] < 0.25, theta[:, 0] < 0.5, theta[:, 0] <= 0.75], [1, 2, 0], 3
    )
    assert np.array_equal(reason, expected)
    noise = (x - theta)[reason == 0]
    assert len(np.unique(noise)) > 0.99 * noise.size, "rows shared their random numbers"
    counts = np.bincount(expected, minlength=5).tolist()
    assert store.num_invalid() == dict(zip(REASONS[1:], counts[1:], strict=True))
    assert rows[-1]["invalid"] == sum(counts[1:])
    assert len(store.pairs()) == counts[0]
    assert len(store.pairs().pool) == 400
    assert "The first error: ValueError: too large" in caplog.text
    assert "% of simulations are invalid" in caplog.text


def test_rows_that_a_simulator_drops_are_found(tmp_path):
    def simulator(theta, generator):
        return good(theta, generator)[theta[:, 0] < 0.5]

    store = simulate(problem_of(simulator), 100, tmp_path / "s", progress=False)
    theta, _, reason = store.read(0, 100)
    assert torch.equal(reason == REASONS.index("malformed"), theta[:, 0] >= 0.5)


def state():
    return (
        torch.get_rng_state().tolist(),
        np.random.get_state()[1].tolist(),
        random.getstate(),
        torch.get_num_threads(),
        torch.get_default_dtype(),
        os.getcwd(),
        list(warnings.filters),
        threading.active_count() < 50,
    )


@pytest.mark.parametrize("simulator", [good, changes_everything])
def test_the_process_is_left_as_it_was(tmp_path, simulator):
    simulate(problem_of(good), 8, tmp_path / "warm", progress=False)
    before = state()
    store = simulate(problem_of(simulator), 40, tmp_path / "s", chunk_size=16, progress=False)
    assert state() == before
    plain = simulate(problem_of(good), 40, tmp_path / "p", chunk_size=16, progress=False)
    assert torch.equal(store.pairs().theta, plain.pairs().theta)


def test_simulators_on_global_random_numbers_are_repeatable(tmp_path):
    def simulator(theta, generator):
        noise = torch.rand(len(theta), 2) + torch.from_numpy(np.random.rand(len(theta), 2))
        return theta + noise + random.random()

    first = simulate(problem_of(simulator), 40, tmp_path / "a", chunk_size=16, progress=False)
    torch.rand(3)
    np.random.rand(3)
    second = simulate(problem_of(simulator), 40, tmp_path / "b", chunk_size=16, progress=False)
    assert torch.equal(first.pairs().x, second.pairs().x)


class Dying(Executor):
    def submit(self, function, /, *args, **kwargs):
        from concurrent.futures.process import BrokenProcessPool

        future = Future()
        if args[2] < 2:
            future.set_result(function(*args))
        else:
            future.set_exception(BrokenProcessPool("gone"))
        return future


def test_a_dead_worker_loses_nothing_that_was_finished(tmp_path, undisturbed):
    with pytest.raises(StoreError, match="a worker process died"):
        run(tmp_path / "s", Dying())
    assert Store.open(tmp_path / "s").missing() == list(range(2, 19))
    run(tmp_path / "s")
    assert tree_digest(tmp_path / "s") == undisturbed
