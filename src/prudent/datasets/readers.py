"""Simulations from files of other programs.

A file may come from anywhere. No reader here runs code from it, follows it to other files, or
reserves memory that the file's own size does not justify.
"""

from __future__ import annotations

import contextlib
import math
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import IO, Any, Union

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prudent._arrays import as_tensor, finite_rows
from prudent._extras import require
from prudent.datasets._layout import CHUNK_BYTES, row_bytes
from prudent.datasets.pairs import Pairs, check_shapes
from prudent.datasets.store import Store
from prudent.datasets.streaming import Data, Stream
from prudent.errors import DataError, InputError, StoreError, one_line

MAX_BYTES = 4 * 2**30
MAX_RATIO = 1000
NUM_CHUNKS = 64
#: Data of more bytes than this, as float32, are streamed.
STREAM_BYTES = 2 * 2**30
PICKLES = {".pt", ".pth", ".pkl", ".pickle", ".joblib", ".ckpt", ".npy"}
#: The names under which other programs keep parameters and observations.
NAMES = {
    "theta": ("theta", "thetas", "parameters", "params"),
    "x": ("x", "xs", "data", "observations", "simulations"),
}
#: Filters that are part of HDF5 or h5py: deflate, shuffle, fletcher32, szip, nbit, scaleoffset,
#: lzf. Any other would load a plugin, which is code.
HDF5_FILTERS = {1, 2, 3, 4, 5, 6, 32000}

Source = Union[str, os.PathLike[str], Store, "FileRows"]
# The arrays of a file by name, each opened when it is called.
Arrays = dict[str, Callable[[], Any]]


def read(
    source: Source,
    *,
    theta: str | None = None,
    x: str | None = None,
    budget: int | None = None,
    invalid: str | None = None,
    stream: bool | None = None,
    dtype: torch.dtype = torch.float32,
) -> Data:
    """Pairs from a file or from a store of simulations.

    Args:
        source: A ``.npz``, ``.safetensors``, ``.h5`` or ``.hdf5`` file, or a store or its
            directory.
        theta: The name of the parameters in a file; guessed if it is plain.
        x: The name of the observations in a file; guessed if it is plain.
        budget: The number of rows to use, from the first on; all by default.
        invalid: ``exclude`` failed simulations, of which the pairs keep the theta in their pool,
            or ``refuse`` them; by default those of a store are excluded, those of files refused.
        stream: Whether to leave the data on disk; by default if they exceed 2 GiB.
        dtype: The type of theta from a file, which should be that of the prior.

    Returns:
        :class:`Pairs` in memory, or a :class:`Stream`.
    """
    rows = open_rows(source, theta, x, dtype)
    number = len(rows) if budget is None else budget
    if not 0 < number <= len(rows):
        raise InputError(f"`budget` is {budget}, but {rows.path} holds {len(rows):,} simulations.")
    large = number * row_bytes(rows.dim, rows.x_shape) > STREAM_BYTES
    if (large if stream is None else stream) and rows.path.suffix.lower() != ".npz":
        data: Data = Stream(rows, stop=number)
    elif isinstance(rows, Store):
        data = rows.pairs(number)
    else:
        return Pairs.of(*rows.read(0, number)[:2], invalid or "refuse", rows.dtype)
    if data.num_invalid and invalid == "refuse":
        raise DataError(
            f"{data.num_invalid:,} of {number:,} simulations in {rows.path} failed. Pass "
            'invalid="exclude" to train on the others.'
        )
    return data


def open_rows(
    source: Source,
    theta: str | None = None,
    x: str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Store | FileRows:
    """A store, or the rows of a file, from which nothing is read yet; arguments as of `read`."""
    if isinstance(source, Store | FileRows):
        return source
    path = Path(source)
    if path.is_dir():
        return Store.open(path)
    suffix = path.suffix.lower()
    if suffix in PICKLES:
        what = "may be a pickle" if suffix == ".npy" else "is a pickle"
        raise InputError(
            f"`{path.name}` {what} and could run code. Convert it where you trust it: "
            'safetensors.torch.save_file({"theta": t, "x": x}, '
            f'"{path.stem}.safetensors")'
        )
    if suffix not in FORMATS:
        raise InputError(
            f"cannot read `{path.name}`; known are {' '.join(sorted(FORMATS))} with `theta` and "
            "`x`, and directories that `prudent simulate` made."
        )
    if not path.is_file():
        raise InputError(f"no file {path}.")
    return FileRows(path, theta, x, dtype)


class FileRows:
    """The pairs in a file, read by rows; the names of the two arrays are guessed by default."""

    def __init__(
        self,
        path: Path,
        theta: str | None = None,
        x: str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.path, self.names, self.dtype = path, {"theta": theta, "x": x}, dtype
        with self._open() as arrays:
            # Of a slice of a safetensors file the shape is a method.
            shapes: list[tuple[int, ...]] = [
                tuple(array.shape if hasattr(array, "shape") else array.get_shape())
                for array in arrays.values()
            ]
        check_shapes(*shapes)
        self.num_rows, self.dim = shapes[0]
        self.x_shape = shapes[1][1:]
        rows = CHUNK_BYTES // row_bytes(self.dim, self.x_shape)
        self.chunk_size = max(1, min(rows, -(-self.num_rows // NUM_CHUNKS)))

    def __len__(self) -> int:
        return self.num_rows

    def read(self, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of ``theta`` and ``x``, and 1 where x is not finite."""
        with self._open() as arrays, np.errstate(over="ignore"):
            theta = as_tensor("theta", arrays["theta"][start:stop], self.dtype)
            x = as_tensor("x", arrays["x"][start:stop])
        return theta, x, ~finite_rows(x)

    @contextlib.contextmanager
    def _open(self) -> Iterator[dict[str, Any]]:
        """The two arrays, checked."""
        with _opened(self.path) as arrays:
            yield {role: self._find(role, arrays) for role in self.names}

    def _find(self, role: str, arrays: Arrays) -> Any:
        """The array that plays a role, by the name that was given or by the usual ones."""
        usual = [known for known in NAMES[role] if known in arrays]
        name = self.names[role] or (usual[0] if len(usual) == 1 else role)
        if name not in arrays:
            listed = " ".join(sorted(arrays)[:10]) or "nothing"
            raise DataError(
                f"no `{name}` in {self.path}; expected `theta` and `x`, found: {listed}. Say "
                f"which is which with {role}=NAME (--{role} NAME)."
            )
        return _get(self.path, arrays, name)


def read_array(
    source: str | os.PathLike[str], role: str = "x", name: str | None = None
) -> NDArray[np.float64]:
    """One array of a file, such as an observation.

    Args:
        source: A ``.npy``, ``.csv``, ``.npz``, ``.h5`` or ``.safetensors`` file.
        role: The role that the array plays, ``x`` or ``theta``, by whose usual names it is found.
        name: The name of the array; not needed if there is only one.
    """
    path = Path(source)
    if path.suffix.lower() not in FORMATS | LONE:
        known = " ".join(sorted(FORMATS | LONE))
        raise InputError(f"cannot read `{path.name}`; known are {known}.")
    if not path.is_file():
        raise InputError(f"no file {path}.")
    with _opened(path) as arrays, np.errstate(over="ignore"):
        usual = [known for known in NAMES[role] if known in arrays] or list(arrays)
        chosen = name or (usual[0] if len(usual) == 1 else "")
        if chosen not in arrays:
            listed = " ".join(sorted(arrays)[:10]) or "nothing"
            wrong = f"no `{name}`" if name else "several arrays"
            raise DataError(f"{wrong} in {path}, found: {listed}. Say which with --{role} NAME.")
        return as_tensor(chosen, _get(path, arrays, chosen)[:], torch.float64).numpy()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Arrays]:
    """The arrays of a file; whatever the libraries raise becomes one line."""
    suffix = path.suffix.lower()
    try:
        with (FORMATS | LONE)[suffix](path) as arrays:
            yield arrays
    except (InputError, StoreError):
        raise
    except OSError as error:
        reason = error.strerror or one_line(error)
        raise StoreError(f"{path} cannot be read: {reason}.") from error
    except Exception as error:  # the libraries raise many kinds for a damaged file
        reason = one_line(error).rstrip(".")
        raise StoreError(f"{path} is damaged or not {suffix}: {reason}.") from error


def _get(path: Path, arrays: Arrays, name: str) -> Any:
    try:
        return arrays[name]()
    except _Refused as reason:
        raise DataError(f"`{name}` in {path} {reason}") from reason


class _Refused(Exception):
    """What is wrong with an array, without its name."""


def _check(path: Path, dtype: Any, declared: int, stored: int) -> None:
    """Refuse what is no number, and more bytes than those in the file justify."""
    if dtype.hasobject or dtype.kind not in "fiub":
        raise _Refused(f"holds {dtype}; expected real numbers.")
    stored = min(stored, path.stat().st_size)
    if declared > MAX_RATIO * max(stored, 1) or (path.suffix == ".npz" and declared > MAX_BYTES):
        raise _Refused(
            f"declares {declared:,} bytes in {stored:,} stored ones; at most {MAX_RATIO:,} times "
            "as many are read, and 4 GiB from .npz. Use `prudent simulate` for large data."
        )


@contextlib.contextmanager
def _npz(path: Path) -> Iterator[Arrays]:
    with zipfile.ZipFile(path) as archive:
        infos = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if len(infos) != len(archive.infolist()):
            raise DataError(f"{path} holds two members of one name; save it again.")
        yield {name: partial(_member, path, archive, info) for name, info in infos.items()}


@contextlib.contextmanager
def _npy(path: Path) -> Iterator[Arrays]:
    size = path.stat().st_size
    with path.open("rb") as file:
        yield {path.stem: partial(_array, path, file, size, size)}


@contextlib.contextmanager
def _csv(path: Path) -> Iterator[Arrays]:
    """Numbers between commas, perhaps below a line of names."""
    lines = [line for line in path.read_text("utf-8-sig").splitlines() if line.strip()]
    with contextlib.suppress(ValueError, IndexError):
        np.loadtxt(lines[:1], delimiter=",")
        lines.insert(0, "")
    yield {path.stem: partial(_numbers, lines[1:])}


def _numbers(lines: list[str]) -> NDArray[np.float64]:
    try:
        return np.loadtxt(lines, delimiter=",", ndmin=2)
    except ValueError as error:
        raise _Refused(f"is no table of numbers: {one_line(error)}") from error


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Any:
    with archive.open(info) as file:
        return _array(path, file, info.file_size, info.compress_size)


def _array(path: Path, file: IO[bytes], declared: int, stored: int) -> Any:
    """An array in the format of numpy, never a pickle."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise _Refused(f"has npy version {version}; expected 1.0 or 2.0.")
    header = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
    shape, fortran, dtype = header(file)
    _check(path, dtype, declared, stored)
    data = file.read()  # to the end, which checks the CRC of an archive
    if any(side < 0 for side in shape) or math.prod(shape) * dtype.itemsize != len(data):
        raise _Refused(f"declares shape {shape}, but does not hold what its shape asks for.")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


@contextlib.contextmanager
def _safetensors(path: Path) -> Iterator[Arrays]:
    import safetensors

    with safetensors.safe_open(path, framework="pt") as file:
        yield {name: partial(file.get_slice, name) for name in file.keys()}


@contextlib.contextmanager
def _hdf5(path: Path) -> Iterator[Arrays]:
    h5py = require("h5py", "hdf5", "HDF5 files")
    with h5py.File(path, "r") as file:
        yield {name: partial(_dataset, path, file, name, h5py) for name in file.keys()}


def _dataset(path: Path, file: Any, name: str, h5py: Any) -> Any:
    # `name in file` would follow a link to another file; this does not.
    if file.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
        raise _Refused("is a link to another place; copy the data instead.")
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset):
        raise _Refused(f"is a {type(dataset).__name__}; expected a dataset.")
    if dataset.is_virtual or dataset.external:
        raise _Refused("keeps its data in other files; copy them instead.")
    plist = dataset.id.get_create_plist()
    filters = {plist.get_filter(index)[0] for index in range(plist.get_nfilters())}
    if plugins := filters - HDF5_FILTERS:
        raise _Refused(
            f"needs HDF5 filter {min(plugins)}, which is a plugin; save it with gzip or without "
            "compression."
        )
    if dataset.shape is None:
        raise _Refused("is empty.")
    declared = math.prod(dataset.shape) * dataset.dtype.itemsize
    _check(path, dataset.dtype, declared, dataset.id.get_storage_size())
    return dataset


FORMATS: dict[str, Callable[[Path], AbstractContextManager[Arrays]]] = {
    ".npz": _npz,
    ".safetensors": _safetensors,
    ".h5": _hdf5,
    ".hdf5": _hdf5,
}
# What can hold one array, and not pairs.
LONE: dict[str, Callable[[Path], AbstractContextManager[Arrays]]] = {".npy": _npy, ".csv": _csv}
