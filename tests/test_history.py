"""What a history says about the coverage penalty itself."""

import pytest

from prudent.history import History


def rows(effective=16.0, coverage=0.02, shortfall=0.01, best=3, epochs=5, **other):
    """Epochs with the least validation loss in one of them; each value may change by epoch."""

    def at(value, epoch):
        return value[epoch - 1] if isinstance(value, list) else value

    return [
        {
            "epoch": epoch,
            "validation_loss": abs(epoch - best),
            "effective_samples": at(effective, epoch),
            "coverage": at(coverage, epoch),
            "validation_shortfall": at(shortfall, epoch),
            **other,
        }
        for epoch in range(1, epochs + 1)
    ]


@pytest.mark.parametrize(
    "found",
    [
        [],
        rows(),
        rows(effective=[1.0, 1.0, 8.0, 8.0, 8.0]),  # seeing again before the best epoch
        rows(coverage=0.0),  # satisfied, and rightly so
        rows(coverage=0.0, shortfall=[0.2, 0.2, 0.01, 0.2, 0.2]),  # short in other epochs only
        rows(coverage=0.01, shortfall=0.2),  # not satisfied: the penalty is still at work
        rows(effective=None, coverage=None, shortfall=None),
        rows(coverage=0.0, shortfall=0.12, validation_pairs=200),  # chance explains 0.09
        [{"epoch": 1, "loss": 1.0, "validation_loss": None}],
    ],
)
def test_nothing_to_say(found):
    assert History(found).notes() == []


def test_draws_without_information():
    (note,) = History(rows(effective=[9.0, 1.9, 2.1, 1.6, 1.3])).notes()
    assert "no information from epoch 4 on (worth 1.3 of equal weight);" in note
    assert 'proposal="nominal" for ratios or "model" for flows' in note
    (note,) = History(rows(effective=[9.0, 9.0, 1.4, 9.0, 9.0])).notes()
    assert "no information in the best epoch, 3 (worth 1.4" in note


def test_a_penalty_satisfied_on_training_pairs_only():
    (note,) = History(rows(coverage=3e-4, shortfall=0.123)).notes()
    assert "training pairs (0.0003) while regions fall short by 0.12 on validation pairs:" in note
    assert 'method="prudent"' in note
    assert History(rows(coverage=3e-4, shortfall=0.123, validation_pairs=1000)).notes() == [note]


def test_members_are_treated_apart_and_each_note_comes_once():
    found = [
        *rows(effective=1.5, member=0),
        *rows(effective=[3.0, 3.0, 3.0, 3.0, 1.1], coverage=0.0, shortfall=0.3, member=1),
        *rows(member=2),
    ]
    blind, short = History(found).notes()
    assert "from epoch 5 on (worth 1.1 of equal weight), in 2 of 3 members;" in blind
    assert "by 0.30 on validation pairs, in 1 of 3 members:" in short
    assert History(found) == found
