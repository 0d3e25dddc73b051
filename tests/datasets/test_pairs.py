"""Pairs: what is refused and how, splits, batches."""

import numpy as np
import pytest
import torch

from prudent.datasets import Pairs
from prudent.datasets.pairs import num_batches
from prudent.errors import DataError, InputError


@pytest.mark.parametrize(
    ("theta", "x", "message"),
    [
        (np.zeros((4, 2)), np.zeros((3, 5)), "`theta` has 4 rows, `x` has 3"),
        (np.zeros((2, 10)), np.zeros((10, 5)), "Use theta.T"),
        (np.zeros(4), np.zeros((4, 5)), "theta[:, None]"),
        (np.zeros((4, 2)), np.zeros(4), "x[:, None]"),
        (np.zeros((0, 2)), np.zeros((0, 5)), "empty"),
        (np.zeros((4, 0)), np.zeros((4, 5)), "(N, D)"),
        (np.zeros((4, 2)), np.zeros((4, 0)), "(N, ...)"),
        (np.array([[np.nan, 0.0], [0, 0]]), np.zeros((2, 1)), "1 of 2 rows of `theta`"),
        (np.zeros((3, 1)), [[0.0], [np.inf], [np.nan]], "2 of 3 rows of `x`"),
        (np.zeros((2, 1)), [[1e300], [0.0]], "not finite in float32"),
        ("theta", np.zeros((2, 1)), "array of numbers"),
        ([[1.0], [1.0, 2.0]], np.zeros((2, 1)), "array of numbers"),
        (np.zeros((2, 1)), np.zeros((2, 1), complex), "complex"),
        (np.array([[object()]]), np.zeros((1, 1)), "array of numbers"),
    ],
)
def test_bad_data_are_named_in_one_line(theta, x, message):
    with pytest.raises(DataError) as error:
        Pairs.of(theta, x)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", [np.array, torch.tensor, list])
def test_anything_with_numbers_is_taken_and_left_alone(kind):
    theta = kind([[1, 2], [3, 4]])
    pairs = Pairs.of(theta, kind([[1.5], [2.5]]))
    assert pairs.theta.dtype == pairs.x.dtype == torch.float32
    pairs.theta.add_(1.0)
    assert torch.as_tensor(theta).tolist() == [[1, 2], [3, 4]]


def test_split_is_a_function_of_the_seed():
    pairs = Pairs.of(torch.arange(100.0)[:, None], torch.arange(100.0)[:, None])
    first, second = pairs.split(0.2, seed=1), pairs.split(0.2, seed=1)
    other = pairs.split(0.2, seed=2)
    assert [len(part) for part in first] == [80, 20]
    assert torch.equal(first[1].theta, second[1].theta)
    assert not torch.equal(first[1].theta, other[1].theta)
    together = torch.cat([part.theta for part in first]).flatten()
    assert together.sort().values.tolist() == list(range(100))


def test_split_needs_something_on_both_sides():
    pairs = Pairs.of(torch.zeros(2, 1), torch.zeros(2, 1))
    with pytest.raises(InputError, match="each part needs"):
        pairs.split(0.1, seed=0)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 64])
def test_training_batches_hold_every_pair_and_are_never_tiny(batch_size):
    for number in range(batch_size, 3 * batch_size + 2):
        pairs = Pairs(torch.arange(number)[:, None], torch.zeros(number, 1))
        batches = list(pairs.batches(batch_size, torch.Generator().manual_seed(0)))
        sizes = [len(batch) for batch in batches]
        assert sorted(torch.cat([b.theta[:, 0] for b in batches]).tolist()) == list(range(number))
        assert len(sizes) == num_batches(number, batch_size)
        assert max(sizes) - min(sizes) <= 1
        assert min(sizes) >= min(2, batch_size)
        if number % batch_size == 0:
            assert set(sizes) == {batch_size}


def test_batches_are_complete_shuffled_and_paired():
    pairs = Pairs.of(torch.arange(10.0)[:, None], 2 * torch.arange(10.0)[:, None])
    plain = [len(batch) for batch in pairs.batches(4)]
    assert plain == [4, 4, 2]
    order = torch.Generator().manual_seed(0)
    shuffled = list(pairs.batches(4, order))
    assert [len(batch) for batch in shuffled] == [4, 3, 3]
    assert all(torch.equal(2 * batch.theta, batch.x) for batch in shuffled)
    seen = torch.cat([b.theta for b in shuffled]).flatten().tolist()
    assert seen != list(range(10))
    assert sorted(seen) == list(range(10))
