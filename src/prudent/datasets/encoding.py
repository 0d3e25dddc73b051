"""Zarr, which is an extra, and the bytes in which it stores a chunk."""

from __future__ import annotations

from typing import Any

import numpy as np

from prudent._extras import require
from prudent.datasets.layout import MISSING, ZSTD_LEVEL

__all__ = ["encode", "import_zarr"]


def import_zarr() -> Any:
    """The zarr package, or how to get it."""
    return require("zarr", "zarr", "simulation stores")


def encode(value: np.ndarray[Any, Any], chunk_size: int) -> bytes:
    """One chunk as Zarr stores it; the last one is filled up.

    Zarr writes into memory here, so that the bytes reach the disk in the one way that is safe.
    Writing a part of a chunk in place would also read what is there, which may be damaged.
    """
    zarr = import_zarr()
    shape = (chunk_size, *value.shape[1:])
    fill = MISSING if value.dtype == np.uint8 else np.nan
    full = np.full(shape, fill, dtype=value.dtype)
    full[: len(value)] = value
    files: dict[str, Any] = {}
    array = zarr.create_array(
        zarr.storage.MemoryStore(files),
        shape=shape,
        chunks=shape,
        dtype=value.dtype,
        fill_value=fill,
        filters=(),
        serializer=zarr.codecs.BytesCodec(endian="little"),
        compressors=(zarr.codecs.ZstdCodec(level=ZSTD_LEVEL), zarr.codecs.Crc32cCodec()),
        config={"write_empty_chunks": True},
    )
    array[...] = full
    data: bytes = files["c/" + "/".join(["0"] * len(shape))].to_bytes()
    return data
