"""What a store of simulations looks like on disk, as pure functions.

The Zarr metadata follow from the group's attributes, so that opening a store can compare every
document with what it has to be: an edited shape, type or codec is refused, not guessed around.
The checksum guards against damage, not against forgery.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from prudent._files import canonical_json, sha256
from prudent.errors import InputError, StoreError
from prudent.problems.problem import Problem
from prudent.version import __version__

__all__ = ["ARRAYS", "FORMAT", "MISSING", "REASONS", "attributes", "documents", "load"]

FORMAT = 1
KIND = "prudent simulations"
ARRAYS = {"theta": "float32", "x": "float32", "reason": "uint8"}
#: What the numbers in ``reason`` mean.
REASONS = ("valid", "nan", "infinite", "raised", "malformed")
MISSING = 255
MAX_DOCUMENT = 1_000_000
MAX_CHUNK = 2**31
ZSTD_LEVEL = 1

Json = dict[str, Any]


def attributes(problem: Problem, num_simulations: int, seed: int, chunk_size: int) -> Json:
    """The attributes of the group, with a checksum over all of them."""
    for name, value, least in (
        ("num_simulations", num_simulations, 1),
        ("seed", seed, 0),
        ("chunk_size", chunk_size, 1),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(f"`{name}` is {value!r}; expected a whole number from {least} on.")
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
    }
    if chunk_size * 4 * math.prod(problem.x_shape) > MAX_CHUNK:
        raise InputError(f"a chunk of {chunk_size:,} simulations exceeds 2 GiB; use smaller ones.")
    return {**values, "sha256": sha256(canonical_json(values))}


def row_shape(attributes: Json, name: str) -> tuple[int, ...]:
    """The shape of one row of an array."""
    shapes = {
        "theta": (len(attributes["parameter_names"]),),
        "x": tuple(attributes["x_shape"]),
        "reason": (),
    }
    return shapes[name]


def chunk_name(attributes: Json, name: str, index: int) -> str:
    """The file that holds one chunk of an array, relative to the store."""
    return f"{name}/c." + ".".join(map(str, [index] + [0] * len(row_shape(attributes, name))))


def documents(attributes: Json) -> dict[str, Json]:
    """The ``zarr.json`` of every array, and of the group last: a store exists once it has that."""
    arrays = {f"{name}/zarr.json": _array(attributes, name) for name in ARRAYS}
    group = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    return {**arrays, "zarr.json": group}


def load(path: Path) -> Json:
    """The attributes of the store at a path, after all documents were checked."""
    if not (path / "zarr.json").is_file():
        what = "is not a store of simulations" if path.exists() else "does not exist"
        raise StoreError(f"{path} {what}. Make one with: prudent simulate PROBLEM -n N -o {path}")
    group = read_json(path, "zarr.json")
    found = group.get("attributes")
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise StoreError(f"{path} is a Zarr group, but not one of simulations by prudent.")
    if found.get("format") != FORMAT:
        raise StoreError(
            f"{path} has format {found.get('format')}, written by prudent {found.get('prudent')}; "
            f"this version reads format {FORMAT}. Upgrade prudent."
        )
    if not _sound(found):
        raise _edited(path, "zarr.json")
    for name in ("done", *ARRAYS):
        if (path / name).is_symlink():
            raise StoreError(f"{path / name} is a link to another place; move the data here.")
    for name, expected in documents(found).items():
        if read_json(path, name) != expected:
            raise _edited(path, name)
    return found


def read_json(path: Path, name: str) -> Json:
    """A small JSON object inside a store."""
    file = path / name
    try:
        if file.stat().st_size > MAX_DOCUMENT:
            raise ValueError("too long")
        value = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise StoreError(f"{path} is damaged: {name} is missing. Restore it, or {REDO}") from error
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise _edited(path, name) from error
    if not isinstance(value, dict):
        raise _edited(path, name)
    return value


REDO = "move the store away and simulate again."


def _edited(path: Path, name: str) -> StoreError:
    return StoreError(f"{path} is damaged: {name} was edited or cut. Restore it, or {REDO}")


def _sound(found: Json) -> bool:
    values = {key: value for key, value in found.items() if key != "sha256"}
    try:
        if found.get("sha256") != sha256(canonical_json(values)):
            return False
        names, shape = found["parameter_names"], found["x_shape"]
        whole = [found["num_simulations"], found["chunk_size"], len(names), *shape]
        return (
            all(type(number) is int and number > 0 for number in whole)
            and 4 * found["chunk_size"] * math.prod(shape) <= MAX_CHUNK
            and isinstance(found["problem"], str)
            and type(found["seed"]) is int
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def _array(attributes: Json, name: str) -> Json:
    kind, shape = ARRAYS[name], list(row_shape(attributes, name))
    little = {"configuration": {"endian": "little"}} if kind == "float32" else {}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [attributes["num_simulations"], *shape],
        "data_type": kind,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [attributes["chunk_size"], *shape]},
        },
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": "NaN" if kind == "float32" else MISSING,
        # The checksum comes last, so that damage is noticed before anything is unpacked.
        "codecs": [
            {"name": "bytes", **little},
            {"name": "zstd", "configuration": {"level": ZSTD_LEVEL, "checksum": False}},
            {"name": "crc32c"},
        ],
        "attributes": {},
        "storage_transformers": [],
    }
