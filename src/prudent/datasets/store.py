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
from prudent.datasets import _layout as layout
from prudent.datasets._layout import ARRAYS, REASONS, count_reasons
from prudent.datasets.pairs import Pairs
from prudent.errors import DataError, InputError, StoreError
from prudent.problems.problem import Problem

FOLDERS = ("done", *ARRAYS)
Chunk = dict[str, np.ndarray[Any, Any]]
logger = logging.getLogger("prudent")


class Store:
    """Simulations of one problem in a directory, which :meth:`open` checks and opens."""

    def __init__(self, path: Path, attributes: dict[str, Any]) -> None:
        self.path, self.attributes = path, attributes
        self.problem: str = attributes["problem"]
        self.seed: int = attributes["seed"]
        self.num_rows: int = attributes["num_simulations"]
        self.chunk_size: int = attributes["chunk_size"]
        self.block: int = attributes["block"]
        self.num_chunks = -(-self.num_rows // self.chunk_size)
        self.shapes, self.types = layout.row_shapes(attributes), layout.types(attributes)
        self.dim, self.x_shape = self.shapes["theta"][0], self.shapes["x"]

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
        attributes = layout.attributes(problem, num_simulations, seed, chunk_size)
        documents = layout.documents(attributes)
        check_free(path)
        try:
            for name in FOLDERS:
                (path / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"could not make {path / name}: {error.strerror}.") from error
        for name, document in documents.items():
            write_atomic(path / name, to_json(document))
        return cls(path, attributes)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Store:
        """Open an existing store; nothing is written."""
        return cls(Path(path), layout.load(Path(path)))

    def __len__(self) -> int:
        return self.num_rows

    def __repr__(self) -> str:
        done = sum((self.path / f"done/{i}.json").exists() for i in range(self.num_chunks))
        return (
            f"<Store {self.path}: {len(self):,} of `{self.problem}`, seed {self.seed}, "
            f"{done:,} of {self.num_chunks:,} chunks done>"
        )

    def bounds(self, index: int) -> tuple[int, int]:
        """The first row of a chunk and the row after its last."""
        if not 0 <= index < self.num_chunks:
            raise InputError(f"no chunk {index}; {self.path} has {self.num_chunks:,} of them.")
        return index * self.chunk_size, min((index + 1) * self.chunk_size, len(self))

    def chunks(self, stop: int | None = None) -> range:
        """The chunks that hold the rows before ``stop``; all by default."""
        return range(self.num_chunks if stop is None else -(-stop // self.chunk_size))

    def missing(self, stop: int | None = None) -> list[int]:
        """The chunks before a row that are not there, or not as they were written."""
        return [index for index in self.chunks(stop) if isinstance(self._load(index), str)]

    def verify(self) -> None:
        """Read everything; raise for the first chunk that is missing or damaged."""
        for index in self.chunks():
            self.chunk(index)

    def write(self, index: int, theta: Any, x: Any, reason: Any) -> None:
        """Write one chunk, then the record that makes it count."""
        start, stop = self.bounds(index)
        chunk: Chunk = {}
        for name, values in (("theta", theta), ("x", x), ("reason", reason)):
            chunk[name] = np.ascontiguousarray(values, dtype=self.types[name])
            expected = (stop - start, *self.shapes[name])
            if chunk[name].shape != expected:
                raise DataError(f"expected `{name}` of shape {expected}, got {chunk[name].shape}.")
        arrays, encoded = layout.in_memory(self.attributes)
        files = {}
        for name, values in chunk.items():
            arrays[name][start:stop] = values
            file = self._file(name, index)
            files[file] = encoded[file].to_bytes()
        files[f"done/{index}.json"] = to_json(self._record(index, chunk))
        for file, data in files.items():
            if (self.path / file).is_symlink():  # it would lead the write out of the store
                (self.path / file).unlink()
            write_atomic(self.path / file, data)

    def chunk(self, index: int, names: tuple[str, ...] = tuple(ARRAYS)) -> Chunk:
        """Some arrays of one chunk, all by default, after comparison with its record."""
        chunk = self._load(index, names)
        if isinstance(chunk, str):
            raise StoreError(
                f"{self.path}: chunk {index} {chunk}; run the same simulate command to redo it."
            )
        return chunk

    def read(self, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rows from ``start`` to before ``stop``: ``theta``, ``x`` and ``reason``."""
        if not 0 <= start < stop <= len(self):
            raise InputError(f"rows {start} to {stop} do not exist; there are {len(self):,}.")
        found = {
            name: torch.empty(stop - start, *self.shapes[name], dtype=getattr(torch, kind))
            for name, kind in self.types.items()
        }
        for index in range(start // self.chunk_size, self.chunks(stop).stop):
            first, end = self.bounds(index)
            begin, end = max(first, start), min(end, stop)
            for name, values in self.chunk(index).items():
                part = torch.from_numpy(values[begin - first : end - first])
                found[name][begin - start : end - start] = part
        return found["theta"], found["x"], found["reason"]

    def pairs(self, budget: int | None = None) -> Pairs:
        """The valid pairs among the first ``budget`` simulations, failed ones included."""
        theta, x, reason = self.read(0, len(self) if budget is None else budget)
        return Pairs.among(theta, x, reason == 0)

    def num_invalid(self) -> dict[str, int]:
        """The number of simulations that cannot be used, by reason."""
        return {name: count for name, count in self.counts().items() if name != REASONS[0]}

    def counts(self, stop: int | None = None) -> dict[str, int]:
        """The number of simulations by reason, valid ones included, in the chunks before a row."""
        found = [count_reasons(self.chunk(i, ("reason",))["reason"]) for i in self.chunks(stop)]
        return {name: sum(counts[name] for counts in found) for name in REASONS}

    @cached_property
    def _arrays(self) -> dict[str, Any]:
        zarr = layout.import_zarr()
        return {name: zarr.open_array(self.path / name, mode="r") for name in ARRAYS}

    def _file(self, name: str, index: int) -> str:
        """The file of one chunk of an array, relative to the store."""
        return ".".join([f"{name}/c.{index}", *"0" * len(self.shapes[name])])

    def _record(self, index: int, chunk: Chunk) -> dict[str, Any]:
        """The record of these arrays of a chunk."""
        record: dict[str, Any] = {"store": self.attributes["sha256"], "chunk": index}
        record |= {f"sha256_{name}": sha256(value.tobytes()) for name, value in chunk.items()}
        if "reason" in chunk:
            record["counts"] = count_reasons(chunk["reason"])
        return record

    def _load(self, index: int, names: tuple[str, ...] = tuple(ARRAYS)) -> Chunk | str:
        """Arrays of a chunk, or what is wrong with it."""
        start, stop = self.bounds(index)
        record = f"done/{index}.json"
        files = [self.path / file for file in (record, *(self._file(n, index) for n in names))]
        if not all(file.is_file() for file in files):
            return "is missing"
        if any(file.is_symlink() for file in files):
            return "is a link to another place"
        try:
            found = layout.read_json(self.path, record)
            chunk = {name: self._arrays[name][start:stop] for name in names}
            expected = self._record(index, chunk)
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        except (StoreError, ValueError, RuntimeError):
            return "does not match its checksum"
        if len(names) < len(ARRAYS):
            found = {key: found.get(key) for key in expected}
        return chunk if found == expected else "does not match its checksum"


def check_free(path: Path, but: str = "") -> None:
    """Refuse a path that holds something else than the beginnings of a store, but for a name."""
    try:
        names = {entry.name for entry in path.iterdir()} if path.exists() else set()
    except OSError as error:
        raise InputError(
            f"{path} is not a directory that can be used: {error.strerror}."
        ) from error
    ours = {".lock", ".claim", *FOLDERS, but}
    if foreign := {name for name in names - ours if not name.endswith(".tmp")}:
        raise InputError(
            f"{path} exists and holds `{min(foreign)}`; nothing was changed. "
            "Give the path of a new directory."
        )


def remove_partial(path: Path) -> None:
    """Remove what a killed writer left half written; for the writer that holds the store."""
    partial: list[Path] = []
    for folder in (path, *(path / name for name in FOLDERS)):
        partial += [*folder.glob(".*.tmp"), *folder.glob("*.partial")]
    for file in partial:
        with contextlib.suppress(OSError):
            file.unlink()
    if partial:
        logger.info("removed %d unfinished files of a killed run from %s.", len(partial), path)
