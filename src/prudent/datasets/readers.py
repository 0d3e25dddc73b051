"""Simulations from files of other programs.

A file may come from anywhere. No reader here runs code from it, follows it to other files, or
reserves memory that the file's own size does not justify.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from prudent._extras import require
from prudent.datasets.pairs import Pairs
from prudent.datasets.store import Store
from prudent.errors import DataError, InputError, StoreError, one_line

__all__ = ["SUFFIXES", "read"]

MAX_BYTES = 4 * 2**30
MAX_RATIO = 1000
NUMBERS = "fiub"
PICKLES = {".pt", ".pth", ".pkl", ".pickle", ".joblib", ".ckpt", ".npy"}
#: Filters that are part of HDF5 or h5py: deflate, shuffle, fletcher32, szip, nbit, scaleoffset,
#: lzf. Any other would load a plugin, which is code.
HDF5_FILTERS = {1, 2, 3, 4, 5, 6, 32000}


def read(path: str | os.PathLike[str]) -> Pairs:
    """Pairs from a file with ``theta`` and ``x``, or the valid pairs of a store of simulations.

    Args:
        path: ``.npz``, ``.safetensors``, ``.h5`` or ``.hdf5``, or the directory of a store.
    """
    path = Path(path)
    if path.is_dir():
        return Store.open(path).pairs()
    suffix = path.suffix.lower()
    if suffix in PICKLES:
        what = "may be a pickle" if suffix == ".npy" else "is a pickle"
        raise InputError(
            f"`{path.name}` {what} and could run code. Convert it where you trust it: "
            'safetensors.torch.save_file({"theta": t, "x": x}, '
            f'"{path.stem}.safetensors")'
        )
    if suffix not in SUFFIXES:
        raise InputError(
            f"cannot read `{path.name}`; known are {' '.join(sorted(SUFFIXES))} with `theta` and "
            "`x`, and directories that `prudent simulate` made."
        )
    if not path.is_file():
        raise InputError(f"no file {path}.")
    try:
        theta, x = SUFFIXES[suffix](path)
    except (InputError, StoreError):
        raise
    except OSError as error:
        reason = error.strerror or one_line(error)
        raise StoreError(f"{path} cannot be read: {reason}.") from error
    except Exception as error:  # the libraries raise many kinds for a damaged file
        reason = one_line(error).rstrip(".")
        raise StoreError(f"{path} is damaged or not {suffix}: {reason}.") from error
    return Pairs.of(theta, x)


def _check_size(path: Path, name: str, declared: int, stored: int) -> None:
    stored = min(stored, path.stat().st_size)
    if declared > MAX_BYTES or declared > MAX_RATIO * max(stored, 1):
        raise DataError(
            f"`{name}` in {path} declares {declared:,} bytes in {stored:,} stored ones; at most "
            f"4 GiB and {MAX_RATIO:,} times are read. Use `prudent simulate` for large data."
        )


def _check_dtype(path: Path, name: str, dtype: Any) -> None:
    if dtype.hasobject or dtype.kind not in NUMBERS:
        raise DataError(f"`{name}` in {path} holds {dtype}; expected real numbers.")


def _float32(value: Any) -> Any:
    with np.errstate(over="ignore"):  # infinities are refused, with their count, by Pairs.of
        return np.ascontiguousarray(value, dtype=np.float32)


def _no_array(path: Path, name: str, names: Any) -> DataError:
    listed = " ".join(sorted(map(str, names))[:10]) or "nothing"
    return DataError(f"no `{name}` in {path}; expected `theta` and `x`, found: {listed}.")


def _read_npz(path: Path) -> tuple[Any, Any]:
    with zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
        members = {info.filename: info for info in infos}
        if len(members) != len(infos):
            raise DataError(f"{path} holds two members of one name; save it again.")
        found = []
        for name in ("theta", "x"):
            info = members.get(f"{name}.npy")
            if info is None:
                raise _no_array(path, name, members)
            _check_size(path, name, info.file_size, info.compress_size)
            with archive.open(info) as file:
                found.append(_read_npy(path, name, file, info.file_size))
    return found[0], found[1]


def _read_npy(path: Path, name: str, file: IO[bytes], size: int) -> Any:
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise DataError(f"`{name}` in {path} has npy version {version}; expected 1.0 or 2.0.")
    header = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, fortran, dtype = header(file)
    _check_dtype(path, name, dtype)
    length = math.prod(shape) * dtype.itemsize
    if any(side < 0 for side in shape) or length > size:
        raise DataError(f"`{name}` in {path} declares shape {shape}, which its data do not fill.")
    data = file.read(length)
    if len(data) != length or file.read(1):  # reading to the end checks the archive's CRC
        raise DataError(f"`{name}` in {path} does not hold what its shape {shape} asks for.")
    return _float32(np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C"))


def _read_safetensors(path: Path) -> tuple[Any, Any]:
    import safetensors

    with safetensors.safe_open(path, framework="pt") as file:
        names = list(file.keys())
        for name in ("theta", "x"):
            if name not in names:
                raise _no_array(path, name, names)
        return file.get_tensor("theta"), file.get_tensor("x")


def _read_hdf5(path: Path) -> tuple[Any, Any]:
    h5py = require("h5py", "hdf5", "HDF5 files")
    with h5py.File(path, "r") as file:
        found = [_read_dataset(path, file, name, h5py) for name in ("theta", "x")]
    return found[0], found[1]


def _read_dataset(path: Path, file: Any, name: str, h5py: Any) -> Any:
    # `name in file` would follow a link to another file; this does not.
    links, key = file.id.links, name.encode()
    if not links.exists(key):
        raise _no_array(path, name, file.keys())
    if links.get_info(key).type != h5py.h5l.TYPE_HARD:
        raise DataError(f"`{name}` in {path} is a link to another place; copy the data instead.")
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset):
        raise DataError(f"`{name}` in {path} is a {type(dataset).__name__}; expected a dataset.")
    if dataset.is_virtual or dataset.external:
        raise DataError(f"`{name}` in {path} keeps its data in other files; copy them instead.")
    plist = dataset.id.get_create_plist()
    filters = {plist.get_filter(index)[0] for index in range(plist.get_nfilters())}
    if filters - HDF5_FILTERS:
        raise DataError(
            f"`{name}` in {path} needs HDF5 filter {min(filters - HDF5_FILTERS)}, which is a "
            "plugin; save it with gzip or without compression."
        )
    if dataset.shape is None:
        raise DataError(f"`{name}` in {path} is empty.")
    _check_dtype(path, name, dataset.dtype)
    declared = math.prod(dataset.shape) * dataset.dtype.itemsize
    _check_size(path, name, declared, dataset.id.get_storage_size())
    return _float32(dataset[...])


SUFFIXES: dict[str, Callable[[Path], tuple[Any, Any]]] = {
    ".npz": _read_npz,
    ".safetensors": _read_safetensors,
    ".h5": _read_hdf5,
    ".hdf5": _read_hdf5,
}
