"""Simulations on disk: a Zarr group whose every chunk is either whole or refused.

Zarr alone reads a chunk that was never written as fill values, without a word. Here a chunk counts
as done once ``done/<index>.json`` exists, written after the chunk, with the SHA-256 of what the
chunk holds. Reading compares. Any Zarr v3 reader can open the arrays.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prudent._files import sha256, to_json, write_atomic
from prudent.datasets import layout
from prudent.datasets.encoding import encode, import_zarr
from prudent.datasets.layout import ARRAYS, REASONS
from prudent.datasets.pairs import Pairs
from prudent.datasets.splits import subset
from prudent.errors import DataError, InputError, StoreError
from prudent.problems.problem import Problem

__all__ = ["Selection", "Store"]

OURS = {".lock", ".claim", "done", *ARRAYS}
Chunk = dict[str, np.ndarray[Any, Any]]
logger = logging.getLogger("prudent")


@dataclass(frozen=True, repr=False)
class Selection(Pairs):
    """The valid pairs among some simulations, and the parameters of all of those.

    Leaving out failed simulations changes the distribution of theta. A classifier needs its
    marginal from ``theta_all`` (budget, D), which holds the parameters of invalid rows as well.
    """

    theta_all: Tensor = field(kw_only=True)


class Store:
    """Simulations of one problem in a directory.

    Args:
        path: The directory.
        attributes: What :func:`prudent.datasets.layout.load` found there.
    """

    def __init__(self, path: Path, attributes: dict[str, Any]) -> None:
        self.path, self.attributes = path, attributes
        self.problem: str = attributes["problem"]
        self.seed: int = attributes["seed"]
        self.chunk_size: int = attributes["chunk_size"]
        self.num_chunks = -(-len(self) // self.chunk_size)

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

    def missing(self) -> list[int]:
        """The chunks that are not there, or not as they were written."""
        return [index for index in range(self.num_chunks) if self._fault(index) is not None]

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
        for name, value in chunk.items():
            file = layout.chunk_name(self.attributes, name, index)
            self._put(file, encode(value, self.chunk_size))
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
        parts = list(self._parts(torch.arange(start, stop)))
        theta, x, reason = (
            torch.cat([torch.from_numpy(part[name]) for _, part in parts]) for name in ARRAYS
        )
        return theta, x, reason

    def pairs(self, budget: int | None = None, seed: int | None = None) -> Selection:
        """The valid pairs among ``budget`` simulations, in memory.

        To train a ratio on a store with failed simulations, give ``theta`` and ``x`` of
        :meth:`read` to ``prudent.fit(..., invalid="exclude")``, which needs the failed theta too.

        Args:
            budget: How many simulations, failed ones included; all by default.
            seed: A random subset that depends on it; the first ones by default.
        """
        budget = len(self) if budget is None else budget
        rows = subset(len(self), budget, seed)
        theta = torch.empty(budget, *layout.row_shape(self.attributes, "theta"))
        x = torch.empty(budget, *layout.row_shape(self.attributes, "x"))
        valid = torch.empty(budget, dtype=torch.bool)
        for place, part in self._parts(rows):
            theta[place] = torch.from_numpy(part["theta"])
            x[place] = torch.from_numpy(part["x"])
            valid[place] = torch.from_numpy(part["reason"] == 0)
        if not bool(valid.any()):
            raise DataError(f"none of {budget:,} simulations in {self.path} is valid.")
        checked = Pairs.of(theta, x) if bool(valid.all()) else Pairs.of(theta[valid], x[valid])
        return Selection(checked.theta, checked.x, theta_all=theta)

    def num_invalid(self) -> dict[str, int]:
        """How many simulations cannot be used, by reason."""
        counts = np.zeros(len(REASONS), dtype=int)
        for index in range(self.num_chunks):
            counts += np.bincount(self.chunk(index, "reason")["reason"], minlength=len(REASONS))
        return dict(zip(REASONS[1:], counts[1:].tolist(), strict=True))

    def _parts(self, rows: Tensor) -> Iterator[tuple[slice, Chunk]]:
        """Sorted rows chunk by chunk: their places among all that are asked for, and the rows."""
        chunks, lengths = torch.unique_consecutive(rows // self.chunk_size, return_counts=True)
        end = 0
        for index, length in zip(chunks.tolist(), lengths.tolist(), strict=True):
            place, end = slice(end, end + length), end + length
            inside = (rows[place] - index * self.chunk_size).numpy()
            yield place, {name: value[inside] for name, value in self.chunk(index).items()}

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

    def _fault(self, index: int) -> str | None:
        found = self._load(index, tuple(ARRAYS))
        return found if isinstance(found, str) else None

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
