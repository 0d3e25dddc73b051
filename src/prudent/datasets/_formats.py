"""The arrays of a file by name, opened so that nothing in it can run or escape.

A file may come from anywhere. No format here runs code from it, follows it to other files, or
reserves memory that the file's own size does not justify.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache, partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from prudent._extras import require
from prudent._files import check_file
from prudent.datasets import _layout
from prudent.errors import DataError, InputError, StoreError, one_line, printable

MAX_BYTES = 4 * 2**30
# Of a table in text, which takes many times its size to read.
MAX_TEXT = 2**30
MAX_RATIO = 1000
MAX_FILES = 2**20
#: Filters that are part of HDF5 or h5py: deflate, shuffle, fletcher32, szip, nbit, scaleoffset,
#: lzf. Any other would load a plugin, which is code.
HDF5_FILTERS = {1, 2, 3, 4, 5, 6, 32000}
#: Codecs of Zarr that turn bytes into numbers and nothing else; `pickle` is not among them.
ZARR_CODECS = {
    *("bytes", "transpose", "sharding_indexed", "crc32c", "zstd", "gzip", "blosc"),
    *("zlib", "bz2", "lzma", "lz4", "shuffle", "delta", "crc32", "adler32", "fletcher32"),
}

#: Tables of numbers in plain text.
TABLES = (".csv", ".txt", ".dat")

# The arrays of a file by name, each opened when it is called; the name of a whole table is empty.
Arrays = dict[str, Callable[[], Any]]


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Arrays]:
    """The arrays of a file or directory; whatever the libraries raise becomes one line."""
    suffix = kind(path)
    if suffix not in FORMATS:
        known = " ".join(sorted(FORMATS))
        raise InputError(f"cannot read `{path.name}`; known are {known}.")
    check_file(path)
    try:
        with FORMATS[suffix](path) as arrays:
            yield arrays
    except (InputError, StoreError):
        raise
    except OSError as error:
        reason = error.strerror or one_line(error)
        raise DataError(f"{path} cannot be read: {reason}.") from error
    except Exception as error:  # the libraries raise many kinds for a damaged file
        reason = one_line(error).rstrip(".")
        raise DataError(f"{path} is damaged or not {suffix}: {reason}.") from error


def kind(path: Path) -> str:
    """The format of a file by its ending, of a directory by what it holds; the key in FORMATS."""
    if not path.is_dir():
        return path.suffix.lower()
    marks = ("zarr.json", ".zgroup")
    return ".zarr" if any((path / mark).is_file() for mark in marks) else "directory"


def array(path: Path, arrays: Arrays, name: str) -> Any:
    """One of the arrays of an open file; what it is refused for becomes one line."""
    try:
        return arrays[name]()
    except _Refused as reason:
        called = f"`{printable(name)}` in " if name else ""
        raise DataError(f"{called}{path} {reason}") from reason


class _Refused(Exception):
    """An array is refused; the message goes on after its name."""


def _check(path: Path, dtype: Any, declared: int, stored: int) -> None:
    """Refuse what is no number, and more bytes than those in the file justify."""
    if dtype.names:
        raise _Refused(
            f"is a table of columns {' '.join(dtype.names)}; save each as an array of its own, or "
            "all of them as .csv."
        )
    if dtype.hasobject or dtype.kind not in "fiub":
        raise _Refused(f"holds {dtype}; expected real numbers.")
    if path.is_file():
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
def _table(path: Path) -> Iterator[Arrays]:
    """A table of numbers between commas, semicolons, tabs or spaces, and its columns by name.

    The names stand in the first line, which may begin with ``#``. Columns that are numbered, such
    as ``x_1`` and ``x_2``, are an array ``x`` as well. A first column without a name is the index
    that pandas and R write, and is left out.
    """
    with path.open("rb") as file:
        data = file.read(MAX_TEXT + 1)
    if len(data) > MAX_TEXT:
        raise DataError(
            f"{path} has more than {MAX_TEXT:,} bytes of text; save it as .npz or .h5."
        )
    lines = [line for line in data.decode("utf-8-sig").splitlines() if line.strip()]
    separator = next((one for one in ";,\t" if lines and one in lines[-1]), None)
    names = _column_names(lines, separator)
    if len(set(names)) < len(names):
        raise DataError(f"{path} has two columns of one name; give each its own.")
    table = cache(partial(_numbers, lines, names, separator))
    names = names[1:] if names and not names[0] else names
    numbered = [re.fullmatch(r"(.*[^\d_\[])[_\[]?\d+\]?", name) for name in names]
    groups: dict[str, list[int]] = {}
    for place, found in enumerate(numbered):
        if found:
            groups.setdefault(found[1], []).append(place)
    columns: dict[str, Any] = {**groups, **{name: place for place, name in enumerate(names)}}
    yield {
        **{name: partial(_columns, table, places) for name, places in columns.items()},
        "": table,
    }


def _column_names(lines: list[str], separator: str | None) -> list[str]:
    """The names of the columns, taken out of the lines with all comments before the numbers."""
    comments = []
    while lines and lines[0].lstrip().startswith("#"):
        comments.append(lines.pop(0).lstrip("# \t"))
    first = _cells(lines[0], separator) if lines else []
    # The columns of a frame of pandas that nobody named are numbers, beside an index.
    if first and first == ["", *map(str, range(len(first) - 1))]:
        return _cells(lines.pop(0), separator)
    try:
        _parsed(lines[:1], separator)
    except ValueError:
        return _cells(lines.pop(0), separator)
    # A comment names the columns if it has a word for each of them.
    named = _cells(comments[-1], separator) if comments else []
    return named if len(named) == len(first) else []


def _cells(line: str, separator: str | None) -> list[str]:
    return [cell.strip().strip("\"'") for cell in line.split(separator)]


def _columns(table: Callable[[], NDArray[np.float64]], places: Any) -> NDArray[np.float64]:
    return table()[:, places]


def _numbers(lines: list[str], names: list[str], separator: str | None) -> NDArray[np.float64]:
    if not lines:
        raise _Refused("holds no numbers.")
    try:
        width = len(_cells(lines[0], separator))
        indexed = bool(names) and not names[0]
        found = _parsed(lines, separator, range(1, width) if indexed else None)
    except ValueError as error:
        told = str(error).partition(";")[0]  # without advice on arguments of numpy
        raise _Refused(f"is no table of numbers: {told}.") from error
    if names and found.shape[1] != len(names) - indexed:
        raise _Refused(f"has {found.shape[1]} columns below {len(names) - indexed} names.")
    return found


def _parsed(lines: list[str], separator: str | None, columns: Any = None) -> NDArray[np.float64]:
    """The numbers of a table; an empty cell is NaN, and Fortran's ``1.0D+00`` is a number."""
    if not lines:
        return np.empty((0, 0))
    read = partial(np.loadtxt, delimiter=separator, ndmin=2, quotechar='"', usecols=columns)
    try:
        found: NDArray[np.float64] = read(lines)
    except ValueError:
        plain = [re.sub(r"(?<=[\d.])[dD](?=[-+]?\d)", "e", line) for line in lines]
        if separator is not None:
            rows = (line.split(separator) for line in plain)
            plain = [separator.join(cell.strip() or "nan" for cell in row) for row in rows]
        found = read(plain)
    return found


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[Arrays]:
    """The ``.npy`` and text files of a directory, each of which is an array."""
    known = (".npy", *TABLES)
    files = [one for one in sorted(path.iterdir()) if one.suffix.lower() in known]
    if not files:
        raise DataError(
            f"{path} is a directory without {' '.join(known)} files, and not a store of "
            "simulations either. Name a file, or make one: prudent simulate PROBLEM -o NEW.zarr"
        )
    if len({one.stem for one in files}) < len(files):
        raise DataError(f"{path} holds two arrays of one name; move one of the files away.")
    yield {one.stem: partial(_lone, one) for one in files}


def _lone(path: Path) -> Any:
    with opened(path) as arrays:
        return array(path, arrays, "" if "" in arrays else path.stem)


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
        yield {name: partial(_tensor, file, name) for name in file.keys()}


def _tensor(file: Any, name: str) -> Any:
    found = file.get_slice(name)
    if not re.fullmatch(r"B?F(16|32|64)|[IU]\d+|BOOL", found.get_dtype()):
        raise _Refused(f"holds {found.get_dtype()}; expected real numbers.")
    return found


@contextlib.contextmanager
def _hdf5(path: Path) -> Iterator[Arrays]:
    h5py = require("h5py", "hdf5", "HDF5 files")
    if not h5py.is_hdf5(path):
        raise DataError(
            f"{path} is no HDF5 file; netCDF files must be of version 4: nccopy -k nc4 OLD NEW."
        )
    with h5py.File(path, "r") as file:
        links = file.id.links
        linked = [n for n in file if links.get_info(n.encode()).type != h5py.h5l.TYPE_HARD]
        names = [*_members(file, h5py), *linked]
        yield {name: partial(_dataset, path, file, name, h5py) for name in names}


def _members(file: Any, h5py: Any) -> Iterator[str]:
    """The paths of all datasets; it follows no link, and enters no group twice."""
    groups, seen = [("", file)], set()
    while groups:
        place, group = groups.pop(0)
        if (own := h5py.h5o.get_info(group.id).addr) in seen:
            continue
        seen.add(own)
        for name in group.keys():
            if group.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
                continue
            child = group[name]
            if isinstance(child, h5py.Group):
                groups.append((f"{place}{name}/", child))
            elif isinstance(child, h5py.Dataset):
                yield place + name


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


@contextlib.contextmanager
def _zarr(path: Path) -> Iterator[Arrays]:
    """The arrays of a Zarr group that another program wrote."""
    zarr = _layout.import_zarr()
    _refuse_links(path)
    group = zarr.open_group(zarr.storage.LocalStore(path, read_only=True), mode="r")
    members = dict(group.members(max_depth=None))
    found = {name: one for name, one in members.items() if isinstance(one, zarr.Array)}
    yield {name: partial(_chunked, path, name, one) for name, one in found.items()}


def _refuse_links(path: Path) -> None:
    for number, (place, folders, files) in enumerate(os.walk(path)):
        links = [name for name in (*folders, *files) if Path(place, name).is_symlink()]
        if links:
            raise DataError(f"{Path(place, links[0])} is a link to another place; copy the data.")
        if number + len(files) > MAX_FILES:
            raise DataError(f"{path} holds more than {MAX_FILES:,} files.")


def _chunked(path: Path, name: str, found: Any) -> Any:
    if unknown := _codecs(found.metadata) - ZARR_CODECS:
        raise _Refused(f"needs the codec {min(unknown)}; expected {' '.join(sorted(ZARR_CODECS))}")
    sizes = [one.stat().st_size for one in (path / name).rglob("*") if one.is_file()]
    _check(path, found.dtype, math.prod(found.shape) * found.dtype.itemsize, sum(sizes))
    # Zarr reads a chunk that was never written as fill values, without a word.
    if missing := found.nchunks - found.nchunks_initialized:
        raise _Refused(f"lacks {missing:,} of {found.nchunks:,} chunks; write it again.")
    return found


def _codecs(metadata: Any) -> set[str]:
    """The names of the codecs of an array, of version 2 or 3, and of those inside shards."""
    if metadata.zarr_format == 2:
        used = (*(metadata.filters or ()), metadata.compressor)
        return {one.codec_id for one in used if one is not None}
    queue = [one.to_dict() for one in metadata.codecs]
    names = set()
    while queue:
        one = queue.pop()
        names.add(one["name"])
        inner = one.get("configuration", {})
        queue += [*inner.get("codecs", ()), *inner.get("index_codecs", ())]
    return names


FORMATS: dict[str, Callable[[Path], AbstractContextManager[Arrays]]] = {
    ".npz": _npz,
    ".npy": _npy,
    **dict.fromkeys(TABLES, _table),
    ".safetensors": _safetensors,
    ".h5": _hdf5,
    ".hdf5": _hdf5,
    ".nc": _hdf5,
    ".zarr": _zarr,
    "directory": _folder,
}
# What can be read by rows, and need not fit into memory.
BY_ROWS = {".safetensors", ".h5", ".hdf5", ".nc", ".zarr"}
