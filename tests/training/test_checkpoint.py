"""Killed, crashed, damaged: training goes on from its checkpoint and ends with the same bits."""

import errno
import logging
import random
import subprocess
import sys
import time
from itertools import pairwise

import pytest
import torch

import prudent
from faults import CRASHED, exit_code, fault_points, in_child, killed_when, mutations
from prudent import fit
from prudent.errors import InputError, StoreError
from prudent.training import checkpoint as module
from prudent.training import methods
from prudent.training.checkpoint import Checkpoints, TrainingState, _AdamW
from prudent.training.options import Options

PROBLEM = prudent.problems.get("gaussian")
THETA, X = PROBLEM.draw(128, 0)
SMALL = {"hidden": [32, 32], "epochs": 6, "batch_size": 32, "seed": 3, "patience": None}


def train(method="calnre", progress=False, **options):
    return fit(THETA, X, PROBLEM.prior, method=method, progress=progress, **{**SMALL, **options})


def outcome(estimator):
    """Weights and settings as bytes, and the history without its times."""
    return estimator.to_bytes(), estimator.history.to_jsonl(times=False)


@pytest.fixture
def every_epoch(monkeypatch):
    """Write a checkpoint after every epoch, whatever it costs."""
    monkeypatch.setattr(module, "LONGEST_SECONDS", 0.0)


class Stop(BaseException):
    pass


def stop_after(number):
    """A progress function that ends the training after so many epochs of this call."""
    rows = []

    def report(row):
        rows.append(row)
        if len(rows) == number:
            raise Stop

    return report


# A high rate makes the plateau schedule act, and patience ends the training, within a few epochs.
PLATEAU = {"epochs": 45, "learning_rate": 0.05, "hidden": [8]}
EARLY = {"epochs": 26, "learning_rate": 0.05, "hidden": [8], "patience": 4}


# The schedules of the others are like those of a method with a penalty; see `make nightly`.
OFTEN = {"prudent", "calnre", "calnpe", "bnre"}


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=[] if name in OFTEN else pytest.mark.nightly)
        for name in methods.names()
    ],
)
@pytest.mark.slow
def test_stopping_after_any_epoch_changes_nothing(method, tmp_path, every_epoch):
    """In one go and with a stop after the first epoch, after each member's next, and so on."""
    members = 2 if method == "prudent" else 1
    total = members * SMALL["epochs"]
    undisturbed = outcome(train(method, members=members))
    ends = list(range(1, total, members))
    for before, number in pairwise([0, *ends]):
        with pytest.raises(Stop):
            train(method, stop_after(number - before), members=members, checkpoint=tmp_path)
    rows = []
    assert outcome(train(method, rows.append, members=members, checkpoint=tmp_path)) == undisturbed
    assert len(rows) == total - ends[-1]


@pytest.mark.parametrize("options", [PLATEAU, EARLY], ids=["plateau", "early stopping"])
@pytest.mark.slow
def test_stopping_inside_schedule_and_patience(options, tmp_path, every_epoch):
    whole = train("nre", **options)
    if "patience" in options:
        assert len(whole.history) < options["epochs"]
        best = max(row["epoch"] for row in whole.history if row["selected"])
        assert len(whole.history) == best + options["patience"]
    else:
        assert whole.history[-1]["learning_rate"] < 0.05
    for number in [1, *[4] * ((len(whole.history) - 2) // 4)]:
        with pytest.raises(Stop):
            train("nre", stop_after(number), checkpoint=tmp_path, **options)
    rows = []
    assert outcome(train("nre", rows.append, checkpoint=tmp_path, **options)) == outcome(whole)
    assert 1 <= len(rows) <= 4


def test_a_finished_training_is_only_read(tmp_path):
    first = train(checkpoint=tmp_path)
    rows = []
    assert outcome(train(progress=rows.append, checkpoint=tmp_path)) == outcome(first)
    assert rows == []


@pytest.mark.parametrize("ensemble", ["seeds", "folds"])
def test_an_ensemble_goes_on_with_the_member_that_was_stopped(
    ensemble, tmp_path, every_epoch, caplog
):
    caplog.set_level("INFO", "prudent")
    options = {"members": 3, "ensemble": ensemble, "epochs": 3}
    undisturbed = outcome(train("npe", **options))
    with pytest.raises(Stop):
        train("npe", stop_after(5), checkpoint=tmp_path, **options)
    rows = []
    assert outcome(train("npe", rows.append, checkpoint=tmp_path, **options)) == undisturbed
    assert len(rows) == 4
    told = [text for text in caplog.messages if "continues" in text]
    assert told == ["training 2 of 3 continues after epoch 2."]


@pytest.mark.parametrize(
    "method",
    [
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("nre", "npe")),
        "calnre",
        "calnpe",
    ],
)
@pytest.mark.process
def test_kill_9_at_random_moments(method, tmp_path, every_epoch):
    options = {"epochs": 30, "checkpoint": tmp_path / "work"}
    undisturbed = train(method, epochs=30)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a fork must not inherit a pool of threads

    def action(progress=None):
        train(method, progress, **options).save(tmp_path / "model")

    def lingering():
        """Never finish, so that a kill finds it at work on any machine."""

        def linger(row):
            while reached() >= 28:
                time.sleep(0.01)

        action(linger)

    def reached():
        files = sorted((tmp_path / "work").glob("epoch*"))
        return int(files[-1].stem.removeprefix("epoch-")) if files else 0

    moments = random.Random(method)
    try:
        for least in (2, 10, 18):  # in the middle of the training, at any point of an epoch
            epoch, delay = moments.randint(least, least + 7), moments.uniform(0, 0.03)
            assert killed_when(lingering, lambda epoch=epoch: reached() >= epoch, delay)
        assert exit_code(in_child(action)) == 0
    finally:
        torch.set_num_threads(threads)
    assert (tmp_path / "model").read_bytes() == undisturbed.to_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("fault", [None, errno.ENOSPC], ids=["crash", "full disk"])
def test_a_crash_at_any_write_leaves_a_whole_checkpoint(fault, tmp_path, every_epoch):
    undisturbed = outcome(train(epochs=4))
    directory = tmp_path / "work"

    def prepare():
        with pytest.raises(Stop):
            train(progress=stop_after(2), epochs=4, checkpoint=directory)

    def action():
        train(epochs=4, checkpoint=directory)

    points = 0
    for _, code in fault_points(prepare, action, tmp_path / "log", fault):
        points += 1
        assert code == CRASHED if fault is None else code in (0, 99)
        if code == 99:
            assert "Error: could not write" in (tmp_path / "log").read_text()
            assert "free some space" in (tmp_path / "log").read_text()
        rows = []
        assert outcome(train(progress=rows.append, epochs=4, checkpoint=directory)) == undisturbed
        assert len(rows) <= 2
        for file in directory.glob("*"):
            file.unlink()
    assert points >= 4


@pytest.fixture
def two_checkpoints(tmp_path, every_epoch):
    with pytest.raises(Stop):
        train(progress=stop_after(3), checkpoint=tmp_path)
    return sorted(tmp_path.glob("epoch-*"))


@pytest.mark.slow
def test_any_damage_is_noticed_and_the_checkpoint_before_is_used(two_checkpoints, caplog):
    before, newest = two_checkpoints
    data = newest.read_bytes()
    store = Checkpoints(newest.parent, identity_of(newest))
    whole, _ = store.latest()
    assert whole["epoch"] == 3
    number = 0
    for damaged in mutations(data, 1000):
        newest.write_bytes(damaged)
        state, _ = store.latest()
        assert state["epoch"] == 2
        number += 1
    assert number > 1000
    assert "Going back to the checkpoint before it" in caplog.text


def identity_of(file):
    from prudent._files import load_tensors

    return load_tensors(file, module.FORMAT, "")[0]["identity"]


def test_a_truncated_checkpoint_costs_an_epoch_only(two_checkpoints, caplog):
    newest = two_checkpoints[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    rows = []
    with caplog.at_level(logging.WARNING):
        resumed = train(progress=rows.append, checkpoint=newest.parent)
    assert outcome(resumed) == outcome(train())
    assert len(rows) == 4
    assert f"{newest} is not a whole safetensors file" in caplog.text


def test_if_none_is_whole_the_user_decides(two_checkpoints):
    for file in two_checkpoints:
        file.write_bytes(b"\0" * 100)
    with pytest.raises(StoreError, match="no checkpoint in .* is whole.*Delete the directory"):
        train(checkpoint=two_checkpoints[0].parent)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 7}, "epochs: 6 there, 7 now"),
        ({"seed": 4}, "seed: 3 there, 4 now"),
        ({"method": "nre"}, "method: calnre there, nre now"),
        ({"weight": 2.0}, "weight: None there, 2.0 now"),
        ({"hidden": [32]}, r"hidden: \[32, 32\] there, \[32\] now"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_checkpoint_of_another_training_is_refused_and_kept(two_checkpoints, change, message):
    with pytest.raises(InputError, match=message):
        train(**change, checkpoint=two_checkpoints[0].parent)
    assert outcome(train(checkpoint=two_checkpoints[0].parent)) == outcome(train())


def test_other_data_are_noticed(two_checkpoints):
    changed = X.clone()
    changed[5, 0] += 1e-4
    with pytest.raises(InputError, match="belongs to another training \\(data: "):
        fit(
            THETA,
            changed,
            PROBLEM.prior,
            method="calnre",
            checkpoint=two_checkpoints[0].parent,
            **SMALL,
        )


def test_another_machine_is_told_of(two_checkpoints, monkeypatch):
    monkeypatch.setattr(module.platform, "machine", lambda: "abacus")
    with pytest.warns(UserWarning, match="another machine; the last bits"):
        train(checkpoint=two_checkpoints[0].parent)


def test_an_output_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write checkpoints to"):
        train(checkpoint=tmp_path / "file" / "below")


def test_two_are_kept_and_nothing_else(tmp_path, every_epoch):
    (tmp_path / ".epoch-000001.safetensors.abc.tmp").write_bytes(b"half")
    train(checkpoint=tmp_path)
    assert [p.name for p in sorted(tmp_path.iterdir())] == [
        "epoch-000005.safetensors",
        "epoch-000006.safetensors",
    ]


def test_cost_and_lost_work_are_bounded(tmp_path, monkeypatch):
    """A checkpoint that takes 0.1 s waits 10 s for the next; one of 5 s waits a minute at most."""
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    for duration, wait in ((0.1, 10.0), (5.0, 60.0)):
        store = Checkpoints(tmp_path, {})
        assert store.due()

        def slow(path, data, duration=duration):
            clock[0] += duration

        monkeypatch.setattr(module, "write_atomic", slow)
        store.write(1, {}, {})
        clock[0] += wait - 0.01
        assert not store.due()
        clock[0] += 0.02
        assert store.due()


def test_each_part_of_the_state_makes_the_trip():
    """Restore into a fresh state and take the same next step.

    Of optimizer, schedule and randomness, and of the steps that the penalty leaves out.
    """
    options = methods.get("calnpe").resolve(Options(epochs=9, learning_rate=0.01))

    def fresh(seed):
        torch.manual_seed(seed)
        estimator = prudent.estimators.FlowEstimator(PROBLEM.prior, 2, (2,), hidden=[8])
        objective = methods.get("calnpe").objective(PROBLEM.prior, options)
        return TrainingState(estimator, objective, options, seed)

    def move(state):
        state.optimizer.zero_grad()
        (state.objective(state.estimator(X), THETA) + torch.rand(())).backward()
        state.optimizer.step()
        state.end_epoch(float(torch.rand((), generator=state.order)) + 10)
        return [p.detach().clone() for p in state.estimator.parameters()], state.learning_rate

    first, other = fresh(0), fresh(1)
    for _ in range(30):
        move(first)
    settings, tensors = first.export()
    assert first.learning_rate < 0.01
    tensors = {name: value.clone() for name, value in tensors.items()}
    assert tensors["objective.coverage.calls"] == 30
    expected = [move(first) for _ in range(3)]
    other.restore(settings, tensors)
    again = [move(other) for _ in range(3)]
    for (weights, rate), (weights_again, rate_again) in zip(expected, again, strict=True):
        assert rate == rate_again
        assert all(torch.equal(a, b) for a, b in zip(weights, weights_again, strict=True))
    assert first.best_epoch == other.best_epoch
    assert first.best_loss == other.best_loss


def test_the_optimizer_is_that_of_torch():
    def moved(kind):
        torch.manual_seed(0)
        weights = [torch.randn(3, 2, requires_grad=True), torch.randn(4, requires_grad=True)]
        optimizer = kind(weights, lr=0.1, weight_decay=0.0, fused=True)
        for _ in range(4):
            optimizer.zero_grad()
            sum(weight.sin().sum() for weight in weights).backward()
            optimizer.step()
            again = kind(weights, lr=0.2, fused=True)
            again.load_state_dict(optimizer.state_dict())
            optimizer = again
        return weights

    for found, expected in zip(moved(_AdamW), moved(torch.optim.AdamW), strict=True):
        assert torch.equal(found, expected)
        assert found.requires_grad


@pytest.mark.process
@pytest.mark.parametrize(("method", "imported"), [("npe", False), ("calnre", False), (None, True)])
def test_training_leaves_the_compiler_alone(method, imported):
    """It would take as long as to import torch, in every process of a sweep."""
    train = f"prudent.fit(*p.draw(64, 0), p.prior, method={method!r}, epochs=1, progress=False)"
    compiled = "torch.optim.AdamW([torch.zeros(1)])"
    code = f"""
import sys, torch, prudent
p = prudent.problems.get("gaussian")
{train if method else compiled}
print("torch._dynamo" in sys.modules)
"""
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(imported)]
