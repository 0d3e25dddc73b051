"""Shuffled batches from a store that is larger than memory.

The order of the chunks is shuffled, a few of them at a time are read and their rows mixed. The
chunks of a store are independent draws from the same distribution, so mixing within a few is as
good as mixing all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from prudent._randomness import generator
from prudent.datasets.pairs import Pairs
from prudent.datasets.store import Store
from prudent.errors import InputError

__all__ = ["Stream"]


class Stream:
    """Epochs of batches of the valid pairs in a store.

    Args:
        store: The simulations; every chunk is compared with its checksum when it is read.
        batch_size: Pairs per batch; the last partial batch of an epoch is dropped.
        seed: The order depends on it and on the number of the epoch alone.
        chunks: Use these only, to hold out others for validation; all by default.
        buffer_chunks: How many chunks are in memory and mixed at a time.
    """

    def __init__(
        self,
        store: Store,
        batch_size: int,
        seed: int = 0,
        chunks: Sequence[int] | None = None,
        buffer_chunks: int = 4,
    ) -> None:
        if batch_size < 1 or buffer_chunks < 1:
            raise InputError(
                f"`batch_size` is {batch_size} and `buffer_chunks` is {buffer_chunks}; "
                "both must be at least 1."
            )
        self.store, self.batch_size, self.seed = store, batch_size, seed
        self.chunks = list(range(store.num_chunks) if chunks is None else chunks)
        self.buffer_chunks = buffer_chunks
        reasons = (store.chunk(index, "reason")["reason"] for index in self.chunks)
        self.num_pairs = sum(int((reason == 0).sum()) for reason in reasons)
        if self.num_pairs < batch_size:
            raise InputError(
                f"a batch of {batch_size:,} needs more than the {self.num_pairs:,} valid pairs in "
                f"{store.path}; use a smaller batch."
            )

    def __len__(self) -> int:
        return self.num_pairs // self.batch_size

    def __repr__(self) -> str:
        return f"<Stream: {len(self):,} batches of {self.batch_size:,} from {self.store.path}>"

    def epoch(self, number: int) -> Iterator[Pairs]:
        """The batches of one epoch; every valid pair at most once."""
        order = generator(self.seed, "stream", number)
        shuffled = torch.randperm(len(self.chunks), generator=order).tolist()
        rest: list[Pairs] = []
        for first in range(0, len(shuffled), self.buffer_chunks):
            group = [self.chunks[place] for place in shuffled[first : first + self.buffer_chunks]]
            buffer = _joined(rest + [self._valid(index) for index in group])
            index = torch.randperm(len(buffer), generator=order)
            end = len(buffer) - len(buffer) % self.batch_size
            for start in range(0, end, self.batch_size):
                yield buffer[index[start : start + self.batch_size]]
            rest = [buffer[index[end:]]]
            del buffer  # before the next chunks are read

    def _valid(self, index: int) -> Pairs:
        chunk = self.store.chunk(index)
        theta, x = torch.from_numpy(chunk["theta"]), torch.from_numpy(chunk["x"])
        valid = torch.from_numpy(chunk["reason"] == 0)
        return Pairs(theta, x) if bool(valid.all()) else Pairs(theta[valid], x[valid])


def _joined(parts: list[Pairs]) -> Pairs:
    theta = torch.cat([part.theta for part in parts])
    return Pairs(theta, torch.cat([part.x for part in parts]))
