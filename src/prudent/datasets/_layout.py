"""The layout of a store of simulations on disk.

Zarr itself writes the metadata and the chunks, into memory, so that the bytes reach the disk in
the one way that is safe. The metadata follow from the group's attributes: opening a store compares
every document with what it has to be, so that an edited shape, type or codec is refused, not
guessed around. The checksum guards against damage, not against forgery.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prudent._extras import require
from prudent._files import canonical_json, sha256
from prudent._settings import whole
from prudent.errors import InputError, StoreError
from prudent.priors.checks import dtype_of
from prudent.problems.problem import Problem
from prudent.version import __version__

FORMAT = 1
KIND = "prudent simulations"
ARRAYS = {"theta": "float32", "x": "float32", "reason": "uint8"}
#: What the numbers in ``reason`` mean.
REASONS = ("valid", "nan", "infinite", "raised", "malformed")
MISSING = 255
#: The rows that are drawn together; see :mod:`prudent.datasets.simulate`.
BLOCK = 256
#: The usual size of a chunk, as float32.
CHUNK_BYTES = 4 * 2**20
MAX_DOCUMENT = 1_000_000
MAX_CHUNK = 2**31
ZSTD_LEVEL = 1

Json = dict[str, Any]


def import_zarr() -> Any:
    """The zarr package, or how to get it."""
    return require("zarr", "zarr", "simulation stores")


def row_bytes(dim: int, x_shape: tuple[int, ...]) -> int:
    """The bytes of one pair, as float32."""
    return 4 * (dim + math.prod(x_shape))


def count_reasons(reason: Any) -> dict[str, int]:
    """The number of rows by reason, valid ones included."""
    return dict(zip(REASONS, np.bincount(reason, minlength=len(REASONS)).tolist(), strict=True))


def attributes(problem: Problem, num_simulations: int, seed: int, chunk_size: int) -> Json:
    """The attributes of the group, with a checksum over all of them."""
    whole("num_simulations", num_simulations, 1)
    whole("seed", seed, 0)
    whole("chunk_size", chunk_size, 1)
    if chunk_size * 4 * math.prod(problem.x_shape) > MAX_CHUNK:
        raise InputError(f"a chunk of {chunk_size:,} simulations exceeds 2 GiB; use smaller ones.")
    values: Json = {
        "kind": KIND,
        "format": FORMAT,
        "prudent": __version__,
        "problem": problem.name,
        "parameter_names": list(problem.parameter_names),
        "x_shape": list(problem.x_shape),
        "seed": seed,
        "num_simulations": num_simulations,
        "chunk_size": chunk_size,
        "block": BLOCK if chunk_size % BLOCK == 0 else chunk_size,
    }
    if dtype_of(problem.prior) == torch.float64:
        values["theta_dtype"] = "float64"
    return {**values, "sha256": sha256(canonical_json(values))}


def types(attributes: Json) -> dict[str, str]:
    """The type of each array; theta has that of the prior."""
    return ARRAYS | {"theta": attributes.get("theta_dtype", "float32")}


def row_shapes(attributes: Json) -> dict[str, tuple[int, ...]]:
    """The shape of one row of each array."""
    theta, x = (len(attributes["parameter_names"]),), tuple(attributes["x_shape"])
    return {"theta": theta, "x": x, "reason": ()}


def in_memory(attributes: Json) -> tuple[dict[str, Any], dict[str, Any]]:
    """The empty arrays of a Zarr group with these attributes, and the files that Zarr makes."""
    zarr = import_zarr()
    files: dict[str, Any] = {}
    group = zarr.create_group(zarr.storage.MemoryStore(files), attributes=attributes)
    arrays = {}
    for name, shape in row_shapes(attributes).items():
        inner = ("parameter",) if name == "theta" else tuple(f"x_{i}" for i in range(len(shape)))
        number = name != "reason"
        arrays[name] = group.create_array(
            name,
            shape=(attributes["num_simulations"], *shape),
            chunks=(attributes["chunk_size"], *shape),
            dtype=types(attributes)[name],
            fill_value=np.nan if number else MISSING,
            filters=(),
            serializer=zarr.codecs.BytesCodec(endian="little" if number else None),
            # The checksum comes last, so that damage is noticed before anything is unpacked.
            compressors=(zarr.codecs.ZstdCodec(level=ZSTD_LEVEL), zarr.codecs.Crc32cCodec()),
            chunk_key_encoding={"name": "default", "separator": "."},
            dimension_names=("simulation", *inner),
            config={"write_empty_chunks": True},
        )
    return arrays, files


def documents(attributes: Json) -> dict[str, Json]:
    """The ``zarr.json`` of every array, and of the group last: a store exists once it has that."""
    _, files = in_memory(attributes)
    names = [*(f"{name}/zarr.json" for name in ARRAYS), "zarr.json"]
    found: dict[str, Json] = {name: json.loads(files[name].to_bytes()) for name in names}
    # Consolidated: other readers then look at the arrays alone, and not at our records.
    found["zarr.json"]["consolidated_metadata"] = {
        "kind": "inline",
        "must_understand": False,
        "metadata": {name: found[f"{name}/zarr.json"] for name in ARRAYS},
    }
    return found


def is_ours(path: Path) -> bool:
    """Whether a directory claims to be a store of simulations by prudent, sound or not."""
    if not (path / "zarr.json").is_file():
        return False
    try:
        found = read_json(path, "zarr.json").get("attributes")
    except StoreError:
        return True  # damaged, which opening it will tell
    return isinstance(found, dict) and found.get("kind") == KIND


def load(path: Path) -> Json:
    """The attributes of the store at a path, after all documents were checked."""
    if not (path / "zarr.json").is_file():
        what = "is not a store of simulations" if path.exists() else "does not exist"
        raise StoreError(f"{path} {what}. Make one with: prudent simulate PROBLEM -n N -o {path}")
    found = read_json(path, "zarr.json").get("attributes")
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise StoreError(f"{path} is a Zarr group, but not one of simulations by prudent.")
    if found.get("format") != FORMAT:
        raise StoreError(
            f"{path} has format {found.get('format')}, written by prudent {found.get('prudent')}; "
            f"this version reads format {FORMAT}. Use the version that wrote it."
        )
    if not _is_sound(found):
        raise _damaged(path, "zarr.json", "was edited or cut")
    for name in ("done", *ARRAYS):
        if (path / name).is_symlink():
            raise StoreError(f"{path / name} is a link to another place; move the data here.")
    for name, expected in documents(found).items():
        if read_json(path, name) != expected:
            raise _damaged(path, name, "was edited or cut")
    return found


def read_json(path: Path, name: str) -> Json:
    """A small JSON object inside a store."""
    file = path / name
    try:
        value = json.loads(file.read_bytes()) if file.stat().st_size <= MAX_DOCUMENT else None
    except FileNotFoundError as error:
        raise _damaged(path, name, "is missing") from error
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise _damaged(path, name, "was edited or cut") from error
    if not isinstance(value, dict):
        raise _damaged(path, name, "was edited or cut")
    return value


def _damaged(path: Path, name: str, what: str) -> StoreError:
    redo = "Restore it, or move the store away and simulate again."
    return StoreError(f"{path} is damaged: {name} {what}. {redo}")


def _is_sound(found: Json) -> bool:
    """Whether attributes match their checksum and hold numbers that a store can have."""
    try:
        values = {key: value for key, value in found.items() if key != "sha256"}
        chunk, block = found["chunk_size"], found["block"]
        names, shape = found["parameter_names"], found["x_shape"]
        numbers = [found["num_simulations"], chunk, block, len(names), *shape]
        return (
            found["sha256"] == sha256(canonical_json(values))
            and all(type(number) is int and number > 0 for number in numbers)
            and chunk % block == 0
            and 4 * chunk * math.prod(shape) <= MAX_CHUNK
            and isinstance(found["problem"], str)
            and type(found["seed"]) is int
            and types(found)["theta"] in ("float32", "float64")
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return False
