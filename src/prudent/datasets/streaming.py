"""Pairs that stay on disk, for data larger than memory.

A stream has what training uses of :class:`~prudent.datasets.Pairs`. Its unit is a chunk of rows:
chunks are held out for validation, their order is shuffled, a few of them at a time are read and
their rows mixed. The chunks of a store are independent draws from the same distribution, so mixing
within a few is as good as mixing all; the rows of a file must be in no particular order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from prudent._randomness import generator
from prudent.datasets._layout import row_bytes
from prudent.datasets.pairs import Pairs, digest, fold_numbers, num_batches
from prudent.errors import DataError, InputError

# Statistics of this many bytes of pairs are accurate enough; so are draws from so many theta.
SAMPLE_BYTES = 32 * 2**20
MOST_THETA = 2**18
# Folds are remembered pair by pair up to here.
MOST_FOLDED = 2**24


class OnDisk(Protocol):
    """The rows of a store or a file, which can be read in parts."""

    path: Path
    chunk_size: int
    dim: int
    x_shape: tuple[int, ...]

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        """Theta, x, and a number that is 0 for valid rows."""
        ...


class _Survey(NamedTuple):
    """The result of one pass over all rows."""

    counts: dict[int, int]  # of valid rows, by chunk
    digest: str
    theta: Tensor  # a sample of all theta, those of failed simulations included
    sample: Pairs  # valid pairs, evenly from all chunks


class Stream:
    """The valid pairs of a store or file, read when they are needed.

    Args:
        rows: The simulations; every chunk of a store is compared with its checksum.
        chunks: The chunks to use; all by default.
        stop: The number of rows to use, from the first on; all by default.
        buffer_chunks: The number of chunks that are in memory and mixed at a time.
    """

    def __init__(
        self,
        rows: OnDisk,
        chunks: Sequence[int] | None = None,
        *,
        stop: int | None = None,
        buffer_chunks: int = 4,
    ) -> None:
        if buffer_chunks < 1:
            raise InputError(f"`buffer_chunks` is {buffer_chunks}; it must be at least 1.")
        self.rows, self.buffer_chunks = rows, buffer_chunks
        self.stop = len(rows) if stop is None else stop
        number = -(-self.stop // rows.chunk_size)
        self.chunks = list(range(number) if chunks is None else chunks)
        self.dim, self.x_shape = rows.dim, rows.x_shape
        #: The number of simulations, failed ones included.
        self.num_rows = sum(end - start for start, end in map(self._bounds, self.chunks))

    def __len__(self) -> int:
        return sum(self._survey.counts[index] for index in self.chunks)

    def __repr__(self) -> str:
        return f"<Stream: {len(self):,} pairs in {self.rows.path}>"

    @property
    def num_invalid(self) -> int:
        """The number of simulations that failed and are left out."""
        return self.num_rows - len(self)

    @property
    def pool(self) -> Tensor | None:
        """Theta of all simulations, (M, D), where some failed; a sample of it if they are many."""
        return self._survey.theta if self.num_invalid else None

    def parts(self) -> Iterator[Pairs]:
        """All pairs, chunk by chunk."""
        return filter(len, map(self._part, self.chunks))

    def sample(self) -> Pairs:
        """Pairs to take statistics from, of at most 32 MiB, evenly from all chunks."""
        found = self._survey.sample
        chunks = found.row_numbers // self.rows.chunk_size
        return found[torch.isin(chunks, torch.tensor(self.chunks))]

    def digest(self) -> str:
        """A SHA-256 of all numbers, that of the same pairs in memory."""
        return self._survey.digest

    def split(self, fraction: float, seed: int) -> tuple[Stream, Stream]:
        """Two disjoint parts, the second with about that fraction of the chunks."""
        number = len(self.chunks)
        if number < 2:
            raise InputError(f"cannot split a stream of {number} chunk; use smaller chunks.")
        order = torch.randperm(number, generator=generator(seed, "split", number))
        fold = torch.zeros(number)
        fold[order[: min(max(1, round(fraction * number)), number - 1)]] = 1
        return self.held_out(fold, 1)

    def folds(self, number: int, seed: int) -> Tensor:
        """A fold for each chunk, from 0 to number - 1, of nearly equal sizes."""
        return fold_numbers(len(self.chunks), "chunks", number, seed)

    def held_out(self, fold: Tensor, index: int) -> tuple[Stream, Stream]:
        """The chunks outside and inside one of the :meth:`folds`."""
        chunks = torch.tensor(self.chunks)
        parts = [
            Stream(self.rows, chosen.tolist(), stop=self.stop, buffer_chunks=self.buffer_chunks)
            for chosen in (chunks[fold != index], chunks[fold == index])
        ]
        for part in parts:
            part._survey = self._survey  # nothing is looked at twice
        return parts[0], parts[1]

    def fold_of_pairs(self, fold: Tensor) -> Tensor | None:
        """The fold of each pair, (N,), or None of a stream with too many to remember."""
        if len(self) > MOST_FOLDED:
            return None
        return fold.repeat_interleave(torch.tensor([self._survey.counts[i] for i in self.chunks]))

    def batches(self, batch_size: int, order: torch.Generator | None = None) -> Iterator[Pairs]:
        """All pairs in batches: of :func:`num_batches` and shuffled if given an order."""
        if batch_size < 1 or (order is not None and batch_size > len(self)):
            raise InputError(
                f"a batch of {batch_size:,} needs more than the {len(self):,} valid pairs in "
                f"{self.rows.path}; use a smaller batch."
            )
        chunks, size, larger = self.chunks, batch_size, 0
        if order is not None:
            size, larger = divmod(len(self), num_batches(len(self), batch_size))
            chunks = [chunks[i] for i in torch.randperm(len(chunks), generator=order).tolist()]
        rest: list[Pairs] = []
        for first in range(0, len(chunks), self.buffer_chunks):
            group = chunks[first : first + self.buffer_chunks]
            buffer = _joined(rest + [self._part(index) for index in group])
            index = torch.arange(len(buffer))
            if order is not None:
                index = torch.randperm(len(buffer), generator=order)
            start = 0
            while (end := start + size + (larger > 0)) <= len(buffer):
                yield buffer[index[start:end]]
                start, larger = end, larger - 1
            rest = [buffer[index[start:]]]
            del buffer  # before the next chunks are read
        if order is None and rest and len(rest[0]):
            yield rest[0]

    def _bounds(self, index: int) -> tuple[int, int]:
        start = index * self.rows.chunk_size
        return start, min(start + self.rows.chunk_size, self.stop)

    def _part(self, index: int) -> Pairs:
        start, stop = self._bounds(index)
        theta, x, reason = self.rows.read(start, stop)
        valid = (reason == 0).nonzero()[:, 0]
        return Pairs(theta[valid], x[valid], valid + start)

    @cached_property
    def _survey(self) -> _Survey:
        counts, kept, sample = {}, [], []
        every = -(-self.num_rows // MOST_THETA)
        step = -(-self.stop * row_bytes(self.dim, self.x_shape) // SAMPLE_BYTES)

        def pieces() -> Iterator[tuple[Tensor, Tensor]]:
            for index in self.chunks:
                start, stop = self._bounds(index)
                theta, x, reason = self.rows.read(start, stop)
                if not bool(theta.isfinite().all()):
                    path = self.rows.path
                    raise DataError(f"theta in {path} holds NaN or infinity; draw it anew.")
                counts[index] = int((reason == 0).sum())
                kept.append(theta[::every].clone())
                rows = torch.arange(start, stop)
                looked = (reason == 0) & (rows % step == 0)
                sample.append(Pairs(theta[looked], x[looked], rows[looked]))
                yield theta, x[reason == 0]

        found = digest(pieces())
        if not any(counts.values()):
            raise DataError(f"none of {self.num_rows:,} simulations in {self.rows.path} is valid.")
        return _Survey(counts, found, torch.cat(kept), _joined(sample))


Data = Pairs | Stream


def _joined(parts: list[Pairs]) -> Pairs:
    theta, x = torch.cat([part.theta for part in parts]), torch.cat([part.x for part in parts])
    return Pairs(theta, x, torch.cat([part.row_numbers for part in parts]))
