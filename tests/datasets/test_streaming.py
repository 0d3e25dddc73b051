"""Streaming: every valid pair once, in an order of its own, in little memory."""

import numpy as np
import pytest
import torch

from prudent import problems
from prudent.datasets._layout import REASONS
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


def order(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("batch_size", [1, 7, 9, 16, 45, 90])
@pytest.mark.parametrize("buffer_chunks", [1, 2, 100])
def test_every_valid_row_comes_once(store, batch_size, buffer_chunks):
    stream = Stream(store, buffer_chunks=buffer_chunks)
    assert len(stream) == 90
    batches = list(stream.batches(batch_size, order()))
    sizes = [len(batch) for batch in batches]
    assert len(batches) == -(-90 // batch_size)
    assert max(sizes) <= batch_size
    assert max(sizes) - min(sizes) <= 1
    assert all(torch.equal(batch.x, 2 * batch.theta.expand(-1, 2)) for batch in batches)
    assert all(torch.equal(batch.row_numbers.float(), batch.theta[:, 0]) for batch in batches)
    seen = numbers(batches)
    assert len(seen) == len(set(seen)) == 90
    assert not any(number % 10 == 0 for number in seen)
    plain = list(stream.batches(batch_size))
    assert numbers(plain) == [number for number in range(100) if number % 10]
    assert {len(batch) for batch in plain[:-1]} <= {batch_size}


def test_the_order_is_a_function_of_the_generator(store):
    stream, own = Stream(store), order()
    first = numbers(stream.batches(9, own))
    assert numbers(stream.batches(9, order())) == numbers(Stream(store).batches(9, order()))
    assert numbers(stream.batches(9, order())) == first
    second = numbers(stream.batches(9, own))
    assert second != first
    assert numbers(stream.batches(9, order(1))) != first
    assert sorted(first) == sorted(second)


def test_rows_are_mixed_between_chunks(store):
    batch = next(Stream(store, buffer_chunks=4).batches(30, order()))
    assert len(set((batch.theta // 16).flatten().tolist())) == 4


def test_what_is_known_before_training_takes_one_pass(store, monkeypatch):
    stream, passed = Stream(store), []
    monkeypatch.setattr(
        store, "read", lambda *rows: passed.append(rows) or Store.read(store, *rows)
    )
    everything = stream.sample()
    assert (len(everything), len(stream), stream.num_invalid) == (90, 90, 10)
    assert len(stream.pool) == 100
    assert len(stream.digest()) == 64
    rest, held_out = stream.split(0.3, 0)
    parts = [rest.sample(), held_out.sample()]
    assert len(parts[0]) + len(parts[1]) == 90
    joined = torch.cat([part.theta for part in parts]).sort(dim=0).values
    assert torch.equal(joined, everything.theta)
    for part, own in zip(parts, (rest, held_out), strict=True):
        assert {*(part.row_numbers // 16).tolist()} == {*own.chunks}
    assert len(passed) == store.num_chunks


def test_chunks_can_be_held_out(store):
    held_out = numbers(Stream(store, [5, 6]).batches(1, order()))
    rest = numbers(Stream(store, range(5)).batches(1, order()))
    assert sorted(held_out + rest) == [number for number in range(100) if number % 10]
    assert min(held_out) > max(rest)


def test_it_stands_for_the_pairs_in_memory(store):
    stream, pairs = Stream(store), store.pairs()
    assert (len(stream), stream.dim, stream.x_shape) == (len(pairs), pairs.dim, pairs.x_shape)
    assert stream.num_invalid == pairs.num_invalid == 10
    assert torch.equal(stream.pool, pairs.pool)
    assert stream.digest() == pairs.digest()
    assert torch.equal(stream.sample().theta, pairs.theta)
    assert numbers(stream.parts()) == pairs.theta.flatten().tolist()
    assert Stream(store, stop=37).digest() == store.pairs(37).digest() != pairs.digest()
    assert len(Stream(store, stop=37)) == len(store.pairs(37))


def test_splits_and_folds_are_disjoint_and_complete(store):
    stream = Stream(store)
    everything = numbers(stream.parts())
    parts = stream.split(0.2, seed=0)
    assert [len(part.chunks) for part in parts] == [6, 1]
    assert sorted(numbers(parts[0].parts()) + numbers(parts[1].parts())) == everything
    assert stream.split(0.2, seed=0)[1].chunks == parts[1].chunks
    fold = stream.folds(3, seed=0)
    seen = []
    for index in range(3):
        training, validation = stream.held_out(fold, index)
        assert sorted(numbers(training.parts()) + numbers(validation.parts())) == everything
        pairs = torch.tensor(everything)[stream.fold_of_pairs(fold) == index].tolist()
        assert numbers(validation.parts()) == pairs
        seen += pairs
    assert sorted(seen) == everything
    with pytest.raises(InputError, match="cannot cut 7 chunks into 8 folds"):
        stream.folds(8, seed=0)
    with pytest.raises(InputError, match="cannot split a stream of 1 chunk"):
        Stream(store, [0]).split(0.2, seed=0)


def test_a_sample_is_small_and_from_everywhere(store, monkeypatch):
    monkeypatch.setattr("prudent.datasets.streaming.SAMPLE_BYTES", 30 * 12)
    assert numbers([Stream(store).sample()]) == [n for n in range(0, 100, 4) if n % 10]
    monkeypatch.setattr("prudent.datasets.streaming.MOST_THETA", 20)
    pool = Stream(store).pool.flatten().tolist()
    assert len(pool) <= 28
    assert any(number % 10 == 0 for number in pool), "theta of failed simulations is missing"


def test_what_cannot_be_streamed_is_refused(store):
    with pytest.raises(InputError, match="a batch of 91 needs more than the 90 valid pairs"):
        next(Stream(store).batches(91, order()))
    with pytest.raises(InputError, match="a batch of 0"):
        next(Stream(store).batches(0))
    with pytest.raises(InputError, match="must be at least 1"):
        Stream(store, buffer_chunks=0)
    stream = Stream(store)
    assert len(stream) == 90
    data = bytearray((store.path / "x" / "c.3.0").read_bytes())
    data[5] ^= 1
    (store.path / "x" / "c.3.0").write_bytes(data)
    with pytest.raises(StoreError, match="chunk 3 does not match its checksum"):
        list(stream.batches(9, order()))


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
    stream = Stream(store, buffer_chunks=4)
    next(stream.batches(128, order()))  # what is loaded once is not counted
    before, highest, count = resident(), 0, 0
    for _ in stream.batches(128, order()):
        highest, count = max(highest, resident()), count + 1
    assert count == len(stream) // 128 == 128
    print(f"RSS grew by {(highest - before) / 2**20:.1f} MB")
    assert highest - before < 20 * 2**20


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
