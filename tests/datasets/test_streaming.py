"""Streaming: every valid pair once, in an order of its own, in little memory."""

import numpy as np
import pytest
import torch

from prudent import problems
from prudent.datasets.layout import REASONS
from prudent.datasets.store import Store
from prudent.datasets.streaming import Stream
from prudent.errors import InputError, StoreError
from prudent.problems import Problem, box

GAUSSIAN = problems.get("gaussian")


@pytest.fixture
def store(tmp_path):
    """100 numbered rows in chunks of 16, every tenth invalid."""
    problem = Problem("numbers", box([0.0], [100.0]), lambda theta, g: theta, (2,), ("a",))
    store = Store.create(tmp_path / "s", problem, 100, 0, 16)
    for index in range(store.num_chunks):
        theta = torch.arange(*store.bounds(index), dtype=torch.float32)[:, None]
        bad = theta[:, 0] % 10 == 0
        x = torch.where(bad[:, None], torch.nan, 2 * theta.expand(-1, 2))
        store.write(index, theta, x, bad * REASONS.index("nan"))
    return store


def numbers(batches):
    return torch.cat([batch.theta for batch in batches]).flatten().tolist()


@pytest.mark.parametrize("batch_size", [1, 7, 9, 16, 45, 90])
@pytest.mark.parametrize("buffer_chunks", [1, 2, 100])
def test_every_valid_row_comes_once(store, batch_size, buffer_chunks):
    stream = Stream(store, batch_size, seed=0, buffer_chunks=buffer_chunks)
    batches = list(stream.epoch(0))
    assert len(batches) == len(stream) == 90 // batch_size
    assert all(len(batch) == batch_size for batch in batches)
    assert all(torch.equal(batch.x, 2 * batch.theta.expand(-1, 2)) for batch in batches)
    seen = numbers(batches)
    assert len(seen) == len(set(seen)) == 90 - 90 % batch_size
    assert not any(number % 10 == 0 for number in seen)


def test_the_order_is_a_function_of_seed_and_epoch(store):
    stream = Stream(store, 9, seed=0)
    first = numbers(stream.epoch(0))
    assert numbers(stream.epoch(0)) == numbers(Stream(store, 9, seed=0).epoch(0)) == first
    assert numbers(stream.epoch(1)) != first
    assert numbers(Stream(store, 9, seed=1).epoch(0)) != first
    assert sorted(first) == sorted(numbers(stream.epoch(1)))


def test_rows_are_mixed_between_chunks(store):
    batch = next(Stream(store, 30, seed=0, buffer_chunks=4).epoch(0))
    assert len(set((batch.theta // 16).flatten().tolist())) == 4


def test_chunks_can_be_held_out(store):
    held_out = numbers(Stream(store, 1, chunks=[5, 6]).epoch(0))
    rest = numbers(Stream(store, 1, chunks=range(5)).epoch(0))
    assert sorted(held_out + rest) == [number for number in range(100) if number % 10]
    assert min(held_out) > max(rest)


def test_what_cannot_be_streamed_is_refused(store):
    with pytest.raises(InputError, match="a batch of 91 needs more than the 90 valid pairs"):
        Stream(store, 91)
    with pytest.raises(InputError, match="both must be at least 1"):
        Stream(store, 0)
    data = bytearray((store.path / "x" / "c.3.0").read_bytes())
    data[5] ^= 1
    (store.path / "x" / "c.3.0").write_bytes(data)
    with pytest.raises(StoreError, match="chunk 3 does not match its checksum"):
        list(Stream(store, 9).epoch(0))


def test_memory_is_bounded_by_the_buffer(tmp_path):
    """A store of 64 MB through a buffer of 4 MB."""
    rows, width = 256, 1024
    problem = Problem("wide", box([0.0], [1.0]), lambda theta, g: theta, (width,), ("a",))
    store = Store.create(tmp_path / "s", problem, 64 * rows, 0, rows)
    rng = np.random.default_rng(0)
    reason = np.zeros(rows, dtype=np.uint8)
    for index in range(64):
        x = rng.random((rows, width), dtype=np.float32)
        store.write(index, x[:, :1], x, reason)
    stream = Stream(store, 128, seed=0, buffer_chunks=4)
    next(stream.epoch(1))  # what is loaded once is not counted
    before, highest, count = resident(), 0, 0
    for _ in stream.epoch(0):
        highest, count = max(highest, resident()), count + 1
    assert count == len(stream) == 128
    print(f"RSS grew by {(highest - before) / 2**20:.1f} MB")
    assert highest - before < 20 * 2**20


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
