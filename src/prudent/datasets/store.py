"""Simulations on disk: a Zarr group whose every chunk is either whole or refused.

Zarr alone reads a chunk that was never written as fill values, without a word. Here a chunk counts
as done once ``done/<index>.json`` exists, written after the chunk, with the SHA-256 of what the
chunk holds. Reading compares. Any Zarr v3 reader can open the arrays.
"""

from __future__ import annotations

import contextlib
import logging
import os
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prudent._files import sha256, to_json, write_atomic
from prudent._randomness import generator
from prudent.datasets import _layout as layout
from prudent.datasets._layout import ARRAYS, REASONS, import_zarr
from prudent.datasets.pairs import Pairs
from prudent.errors import DataError, InputError, StoreError
from prudent.problems.problem import Problem

OURS = {".lock", ".claim", "done", *ARRAYS}
Chunk = dict[str, np.ndarray[Any, Any]]
logger = logging.getLogger("prudent")


class Store:
    """Simulations of one problem in a directory.

    Args:
        path: The directory.
        attributes: The attributes of its Zarr group, checked.
    """

    def __init__(self, path: Path, attributes: dict[str, Any]) -> None:
        self.path, self.attributes = path, attributes
        self.problem: str = attributes["problem"]
        self.seed: int = attributes["seed"]
        self.chunk_size: int = attributes["chunk_size"]
        self.block: int = attributes.get("block", self.chunk_size)
        self.num_chunks = -(-len(self) // self.chunk_size)
        self.dim = len(attributes["parameter_names"])
        self.x_shape: tuple[int, ...] = tuple(attributes["x_shape"])

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        problem: Problem,
        num_simulations: int,
        seed: int,
        chunk_size: int,
    ) -> Store:
        """Make an empty store; the directory must be new, empty, or left by a killed attempt."""
        path = Path(path)
        import_zarr()
        attributes = layout.attributes(problem, num_simulations, seed, chunk_size)
        check_free(path)
        for name in ("done", *ARRAYS):
            make_directory(path / name)
        for name, document in layout.documents(attributes).items():
            write_atomic(path / name, to_json(document))
        return cls(path, attributes)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Store:
        """Open an existing store; nothing is written."""
        import_zarr()
        return cls(Path(path), layout.load(Path(path)))

    def __len__(self) -> int:
        num_simulations: int = self.attributes["num_simulations"]
        return num_simulations

    def __repr__(self) -> str:
        done = sum((self.path / self._record_name(i)).exists() for i in range(self.num_chunks))
        return (
            f"<Store {self.path}: {len(self):,} of `{self.problem}`, seed {self.seed}, "
            f"{done:,} of {self.num_chunks:,} chunks done>"
        )

    def bounds(self, index: int) -> tuple[int, int]:
        """The first row of a chunk and the row after its last."""
        if not 0 <= index < self.num_chunks:
            raise InputError(f"no chunk {index}; {self.path} has {self.num_chunks:,} of them.")
        return index * self.chunk_size, min((index + 1) * self.chunk_size, len(self))

    def missing(self, stop: int | None = None) -> list[int]:
        """The chunks before a row that are not there, or not as they were written."""
        indices = range(self._num_chunks(stop))
        return [index for index in indices if isinstance(self._load(index, tuple(ARRAYS)), str)]

    def _num_chunks(self, stop: int | None) -> int:
        return self.num_chunks if stop is None else -(-stop // self.chunk_size)

    def verify(self) -> None:
        """Read everything; raise for the first chunk that is missing or damaged."""
        for index in range(self.num_chunks):
            self.chunk(index)

    def write(self, index: int, theta: Any, x: Any, reason: Any) -> None:
        """Write one chunk, then the record that makes it count."""
        start, stop = self.bounds(index)
        chunk = {
            name: np.ascontiguousarray(np.asarray(value), dtype=ARRAYS[name])
            for name, value in (("theta", theta), ("x", x), ("reason", reason))
        }
        for name, value in chunk.items():
            expected = (stop - start, *layout.row_shape(self.attributes, name))
            if value.shape != expected:
                raise DataError(f"expected `{name}` of shape {expected}, got {value.shape}.")
        arrays, files = layout.in_memory(self.attributes)
        for name, value in chunk.items():
            arrays[name][start:stop] = value
            file = layout.chunk_name(self.attributes, name, index)
            self._put(file, files[file].to_bytes())
        self._put(self._record_name(index), to_json(self._record(index, chunk)))

    def chunk(self, index: int, *names: str) -> Chunk:
        """Some arrays of one chunk, all by default, after comparison with its record."""
        chunk = self._load(index, names or tuple(ARRAYS))
        if isinstance(chunk, str):
            raise StoreError(
                f"{self.path}: chunk {index} {chunk}; run the same simulate command to redo it."
            )
        return chunk

    def read(self, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rows from ``start`` to before ``stop``: ``theta``, ``x`` and ``reason``."""
        if not 0 <= start < stop <= len(self):
            raise InputError(f"rows {start} to {stop} do not exist; there are {len(self):,}.")
        return self._rows(torch.arange(start, stop))

    def pairs(self, budget: int | None = None, seed: int | None = None) -> Pairs:
        """The valid pairs among ``budget`` simulations, in memory.

        Args:
            budget: The number of simulations, failed ones included; all by default.
            seed: The seed of a random subset; the first simulations by default.
        """
        theta, x, reason = self._rows(subset(len(self), budget or len(self), seed))
        if not bool((reason == 0).any()):
            raise DataError(f"none of {len(theta):,} simulations in {self.path} is valid.")
        return Pairs.among(theta, x, reason == 0)

    def num_invalid(self) -> dict[str, int]:
        """The number of simulations that cannot be used, by reason."""
        return {name: count for name, count in self.counts().items() if name != REASONS[0]}

    def counts(self, stop: int | None = None) -> dict[str, int]:
        """The number of simulations by reason, valid ones included, in the chunks before a row."""
        counts = np.zeros(len(REASONS), dtype=int)
        for index in range(self._num_chunks(stop)):
            counts += np.bincount(self.chunk(index, "reason")["reason"], minlength=len(REASONS))
        return dict(zip(REASONS, counts.tolist(), strict=True))

    def _rows(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The arrays at sorted rows, of which every chunk is read once."""
        theta, x, reason = (
            torch.empty(len(rows), *layout.row_shape(self.attributes, name), dtype=kind)
            for name, kind in (("theta", None), ("x", None), ("reason", torch.uint8))
        )
        chunks, lengths = torch.unique_consecutive(rows // self.chunk_size, return_counts=True)
        end = 0
        for index, length in zip(chunks.tolist(), lengths.tolist(), strict=True):
            place, end = slice(end, end + length), end + length
            inside = (rows[place] - index * self.chunk_size).numpy()
            part = self.chunk(index)
            for name, values in (("theta", theta), ("x", x), ("reason", reason)):
                values[place] = torch.from_numpy(part[name][inside])
        return theta, x, reason

    @cached_property
    def _arrays(self) -> dict[str, Any]:
        zarr = import_zarr()
        return {name: zarr.open_array(self.path / name, mode="r") for name in ARRAYS}

    def _put(self, file: str, data: bytes) -> None:
        target = self.path / file
        if target.is_symlink():  # it would lead the write out of the store
            target.unlink()
        write_atomic(target, data)

    def _record_name(self, index: int) -> str:
        return f"done/{index}.json"

    def _record(self, index: int, chunk: Chunk) -> dict[str, Any]:
        """What the record says about these arrays of a chunk."""
        record: dict[str, Any] = {"store": self.attributes["sha256"], "chunk": index}
        record |= {f"sha256_{name}": sha256(value.tobytes()) for name, value in chunk.items()}
        if "reason" in chunk:
            counts = np.bincount(chunk["reason"], minlength=len(REASONS)).tolist()
            record["counts"] = dict(zip(REASONS, counts, strict=True))
        return record

    def _load(self, index: int, names: tuple[str, ...]) -> Chunk | str:
        """Arrays of a chunk, or what is wrong with it."""
        start, stop = self.bounds(index)
        files = [layout.chunk_name(self.attributes, name, index) for name in names]
        files.append(self._record_name(index))
        if not all((self.path / file).is_file() for file in files):
            return "is missing"
        if any((self.path / file).is_symlink() for file in files):
            return "is a link to another place"
        try:
            record = layout.read_json(self.path, self._record_name(index))
            chunk = {name: self._arrays[name][start:stop] for name in names}
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        except (StoreError, ValueError, RuntimeError):
            return "does not match its checksum"
        if int(chunk.get("reason", np.zeros(1)).max()) >= len(REASONS):
            return "does not match its checksum"
        expected = self._record(index, chunk)
        whole = set(names) == set(ARRAYS)
        found = record if whole else {key: record.get(key) for key in expected}
        return chunk if found == expected else "does not match its checksum"


def check_free(path: Path, but: str = "") -> None:
    """Refuse a path that holds something else than the beginnings of a store, but for a name."""
    try:
        names = {entry.name for entry in path.iterdir()} if path.exists() else set()
    except OSError as error:
        raise InputError(
            f"{path} is not a directory that can be used: {error.strerror}."
        ) from error
    foreign = {name for name in names - OURS - {but} if not name.endswith(".tmp")}
    if foreign:
        raise InputError(
            f"{path} exists and holds `{min(foreign)}`; nothing was changed. "
            "Give the path of a new directory."
        )


def make_directory(path: Path) -> None:
    """Make a directory and its parents, unless it exists."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"could not make {path}: {error.strerror}.") from error


def subset(num_available: int, budget: int, seed: int | None) -> Tensor:
    """A random subset without replacement: sorted row numbers (budget,).

    It depends on the three numbers alone. Without a seed it is the first rows.

    >>> subset(10, 3, seed=0).tolist() == subset(10, 3, seed=0).tolist()
    True
    >>> subset(3, 3, seed=1).tolist()
    [0, 1, 2]
    """
    if not 0 < budget <= num_available:
        raise InputError(
            f"cannot take {budget:,} of {num_available:,} simulations; "
            f"choose a budget from 1 to {num_available:,}."
        )
    if seed is None:
        return torch.arange(budget)
    order = torch.randperm(num_available, generator=generator(seed, "subset", num_available))
    return order[:budget].sort().values


def remove_partial(path: Path) -> None:
    """Remove what a killed writer left half written; for the writer that holds the store."""
    folders = [path, *(path / name for name in ("done", *ARRAYS))]
    files = [file for folder in folders if folder.is_dir() for file in folder.iterdir()]
    partial = [file for file in files if file.is_file() and _is_partial(file.name)]
    for file in partial:
        with contextlib.suppress(OSError):
            file.unlink()
    if partial:
        logger.info("removed %d unfinished files of a killed run from %s.", len(partial), path)


def _is_partial(name: str) -> bool:
    return name.endswith(".partial") or (name.startswith(".") and name.endswith(".tmp"))
