"""Who does what when: runs of other processes, strikes, failures; no run is done here."""

import json
from concurrent.futures import Future

import pytest

from prudent._locks import holder
from prudent._progress import Progress
from prudent.experiments import RunConfig
from prudent.experiments._runner import DiskFull, Outcome, Runner, View
from prudent.experiments.engines import WorkerDied
from prudent.experiments.store import claim, failure, record_failure, unfinished_path

CONFIGS = [RunConfig("slcp", "nre", budget) for budget in (128, 1280, 12800)]


class Scripted:
    """An engine whose answers are given."""

    def __init__(self, answer, capacity=2):
        self.answer, self.capacity, self.calls = answer, capacity, []

    def submit(self, function, config, root, num_simulations):
        self.num_simulations = num_simulations
        self.calls.append(config.budget)
        future = Future()
        try:
            future.set_result(self.answer(config, self.calls.count(config.budget)))
        except WorkerDied as error:
            future.set_exception(error)
        return future

    def rows(self):
        return iter(())


@pytest.fixture(autouse=True)
def _hurry(monkeypatch):
    monkeypatch.setattr("prudent.experiments._runner.POLL_SECONDS", 0.001)
    monkeypatch.setattr("prudent.experiments._runner.HELD_SECONDS", 0.002)


def work(answer, root, configs=CONFIGS):
    events = []
    engine = Scripted(answer)
    failed = Runner(configs, root, engine, events.append).run()
    return engine, failed, [(row["event"], row["run"].split()[2]) for row in events]


def test_long_runs_come_first(tmp_path):
    engine, failed, events = work(lambda *_: Outcome("done"), tmp_path)
    assert engine.calls == sorted(engine.calls, reverse=True)
    assert {run for event, run in events if event == "done"} == {"128", "1,280", "12,800"}
    assert failed == {}


def test_a_worker_learns_how_many_simulations_serve_all_runs(tmp_path):
    engine = Scripted(lambda *_: Outcome("done"))
    Runner(CONFIGS[:1], tmp_path, engine, print, None, {("slcp", 0): 12800}).run()
    assert engine.num_simulations == 12800
    Runner(CONFIGS[:1], tmp_path, engine, print, None, {("slcp", 1): 12800}).run()
    assert engine.num_simulations is None


def test_a_dead_worker_is_tried_three_times(tmp_path):
    def answer(config, number):
        if config.budget == 128 or (config.budget == 1280 and number == 1):
            raise WorkerDied("signal 9")
        return Outcome("done")

    engine, failed, events = work(answer, tmp_path)
    assert (engine.calls.count(128), engine.calls.count(1280)) == (3, 2)
    reason = "worker died (signal 9, 3 times): out of memory?"
    assert failed == {CONFIGS[0].identity: reason}
    assert failure(tmp_path / CONFIGS[0].identity) == reason
    assert [event for event, _ in events].count("done") == 2
    assert events.count(("retry", "128")) == 2


@pytest.mark.parametrize("end", ["finished", "failed", "killed"])
def test_a_run_of_another_process_is_waited_for(tmp_path, end):
    """The other one is this test, which holds the lock for a while."""
    config = CONFIGS[0]
    path = tmp_path / config.identity
    other = claim(path, wait=False)
    other.__enter__()
    looks, ends = [], []

    def answer(config, number):
        looks.append(holder(unfinished_path(path, ".lock")) is not None)
        return Outcome("busy") if looks[-1] else Outcome("done")

    def listen(row):
        ends.append(row["event"])
        if row["event"] != "busy":
            return
        if end == "finished":
            path.mkdir()
            (path / "metrics.json").write_text(json.dumps({"files": {}}))
        elif end == "failed":
            record_failure(config, path, "no luck")
        other.__exit__(None, None, None)

    failed = Runner([config], tmp_path, Scripted(answer), listen).run()
    assert failed == ({config.identity: "no luck"} if end == "failed" else {})
    begun = ["start", "busy"] + (["start"] if end == "killed" else [])
    assert ends == [*begun, "failed" if end == "failed" else "done"]
    assert looks == ([True, False] if end == "killed" else [True])


def test_a_full_disk_ends_it(tmp_path):
    with pytest.raises(DiskFull, match="no space"):
        work(lambda *_: Outcome("full", "no space"), tmp_path)
    assert not list(tmp_path.rglob("error.txt"))


def test_time_left_follows_the_pace(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("prudent.experiments._runner.time.monotonic", lambda: clock[0])
    configs = [RunConfig("slcp", "nre", 1024, seed) for seed in range(10)]
    view = View(configs, 2, Progress("sweep", 1.0, report=False))
    assert view.seconds_left() is None
    for config in configs[:5]:
        view.listen({"run": "", "identity": config.identity, "event": "start"})
        clock[0] += 100.0
        view.listen({"run": "", "identity": config.identity, "event": "done"})
        done = len([share for share in view.shares.values() if share == 1])
        assert view.seconds_left() == pytest.approx(100.0 * (10 - done))
    assert view.text().startswith("7/12 done, 0 running, 0 failed")
    assert view.text().endswith("about 8 min left")
