"""Simulations from files of other programs: which array is which, and their rows.

How each kind of file is opened, so that nothing in it can run, is in ``_formats.py``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Union

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prudent._arrays import as_tensor, finite_rows
from prudent.datasets import _formats as formats
from prudent.datasets import _layout
from prudent.datasets._layout import CHUNK_BYTES, row_bytes
from prudent.datasets.pairs import Pairs, check_shapes
from prudent.datasets.store import Store
from prudent.datasets.streaming import Data, Stream
from prudent.errors import DataError, InputError, printable

NUM_CHUNKS = 64
#: Data of more bytes than this, as float32, are streamed.
STREAM_BYTES = 2 * 2**30
PICKLES = {".pt", ".pth", ".pkl", ".pickle", ".joblib", ".ckpt"}
#: The names under which other programs keep parameters and observations, in any capitals.
NAMES = {
    "theta": ("theta", "thetas", "parameters", "parameter", "params", "pars"),
    "x": ("x", "xs", "data", "observations", "observation", "obs", "simulations"),
}
MOST_LISTED = 10

Source = Union[str, os.PathLike[str], Store, "FileRows"]


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
        source: A ``.npz``, ``.safetensors``, ``.h5``, ``.hdf5``, ``.nc`` (netCDF 4), ``.csv``,
            ``.txt`` or ``.dat`` file, a Zarr group, a directory with ``.npy`` or text files, or a
            store or its directory.
        theta: The name of the parameters in a file, or several names between commas, which are
            put side by side; guessed if it is plain.
        x: The name or names of the observations in a file; guessed if it is plain.
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
    by_rows = isinstance(rows, Store) or formats.kind(rows.path) in formats.BY_ROWS
    if (large if stream is None else stream) and by_rows:
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
    parameters: Sequence[str] = (),
) -> Store | FileRows:
    """A store or the rows of a file; arguments as of `read`.

    The names of the ``parameters`` help to find the columns of a table.
    """
    if isinstance(source, Store | FileRows):
        return source
    path = Path(source)
    if path.is_dir() and _layout.is_ours(path):
        return Store.open(path)
    suffix = formats.kind(path)
    if suffix in PICKLES:
        raise InputError(
            f"`{path.name}` is a pickle and could run code. Convert it where you trust it: "
            'safetensors.torch.save_file({"theta": t, "x": x}, '
            f'"{path.stem}.safetensors")'
        )
    if suffix == ".npy" and path.is_file():
        raise InputError(
            f"{path} holds one array, and pairs are two. Name the directory of theta.npy and "
            "x.npy, and with --theta NAME --x NAME those of other names."
        )
    return FileRows(path, theta, x, dtype, parameters)


class FileRows:
    """The pairs in a file; the names of the two arrays are guessed by default.

    Formats that can only be read as a whole are opened once, here; others are read by rows.
    """

    def __init__(
        self,
        path: Path,
        theta: str | None = None,
        x: str | None = None,
        dtype: torch.dtype = torch.float32,
        parameters: Sequence[str] = (),
    ) -> None:
        self.path, self.dtype = path, dtype
        self._whole: tuple[Tensor, Tensor] | None = None
        with formats.opened(path) as arrays:
            self.names = _choose(path, arrays, {"theta": theta, "x": x}, parameters)
            found = self._chosen(arrays)
            check_shapes(found["theta"].shape, found["x"].shape)
            if formats.kind(path) not in formats.BY_ROWS:
                self._whole = self._tensors(found, slice(None))
        self.num_rows, self.dim = found["theta"].shape
        self.x_shape = found["x"].shape[1:]
        rows = CHUNK_BYTES // row_bytes(self.dim, self.x_shape)
        self.chunk_size = max(1, min(rows, -(-self.num_rows // NUM_CHUNKS)))

    def __len__(self) -> int:
        return self.num_rows

    def read(self, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of ``theta`` and ``x``, and 1 where x is not finite."""
        if self._whole is not None:
            theta, x = (values[start:stop] for values in self._whole)
        else:
            with formats.opened(self.path) as arrays:
                theta, x = self._tensors(self._chosen(arrays), slice(start, stop))
        return theta, x, ~finite_rows(x)

    def _chosen(self, arrays: formats.Arrays) -> dict[str, _SideBySide]:
        return {
            role: _SideBySide([formats.array(self.path, arrays, name) for name in names])
            for role, names in self.names.items()
        }

    def _tensors(self, arrays: dict[str, _SideBySide], rows: slice) -> tuple[Tensor, Tensor]:
        with np.errstate(over="ignore"):
            theta = as_tensor("theta", arrays["theta"][rows], self.dtype)
            return theta, as_tensor("x", arrays["x"][rows])


class _SideBySide:
    """Arrays of as many rows each as one array; numbers one to a row are a column."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts
        # Of a slice of a safetensors file the shape is a method.
        shapes = [tuple(p.shape if hasattr(p, "shape") else p.get_shape()) for p in parts]
        shapes = [(*shape, 1) if len(shape) == 1 else shape for shape in shapes]
        self.shape: tuple[int, ...] = shapes[0]
        if len(parts) > 1:
            if len({shape[0] for shape in shapes}) > 1 or any(len(one) != 2 for one in shapes):
                listed = " ".join(map(str, shapes))
                raise DataError(f"expected columns of one length, got shapes {listed}.")
            self.shape = (shapes[0][0], sum(shape[1] for shape in shapes))

    def __getitem__(self, rows: slice) -> Any:
        cut = [part[rows] for part in self.parts]
        if len(cut) == 1:
            return cut[0] if cut[0].ndim > 1 else cut[0].reshape(-1, 1)
        return np.column_stack([np.asarray(part) for part in cut])


def _choose(
    path: Path, arrays: formats.Arrays, given: dict[str, str | None], parameters: Sequence[str]
) -> dict[str, list[str]]:
    """The names of the arrays that play each role: those that were given, or plain ones."""
    found = {role: _named(path, arrays, role, name) for role, name in given.items()}
    left = [name for name in arrays if name and name not in (*found["theta"], *found["x"])]
    columns = [name for name in parameters if name in left]
    if not found["theta"] and parameters and len(columns) == len(parameters):
        found["theta"] = columns
        left = [name for name in left if name not in columns]
    if "" in arrays and found["theta"] and not found["x"]:
        # What is no parameter in a row of a table is the observation; numbered ones come twice.
        with contextlib.suppress(DataError):
            single = [name for name in left if formats.array(path, arrays, name).ndim == 1]
            theta = {name for name in arrays if any(_within(name, t) for t in found["theta"])}
            found["x"] = [name for name in single if name not in theta]
    lacking = [role for role in found if not found[role]]
    if len(lacking) == 1 and len(left) == 1:
        found[lacking[0]] = left
    elif lacking:
        if [*arrays] == [""]:
            raise DataError(
                f"{path} has no line of names above its numbers; add one, such as theta_1,x_1,x_2."
            )
        role = lacking[0]
        wrong = f"no `{role}`" if not _usual(arrays, role) else f"several could be `{role}`"
        raise DataError(
            f"{wrong} in {path}; expected `theta` and `x`, found: {_listed(arrays)}. Say which is "
            f"which with {role}=NAME (--{role} NAME)."
        )
    return found


def names_in(
    source: str | os.PathLike[str], known: Mapping[str, str], given: Mapping[str, str | None]
) -> dict[str, str | None]:
    """The names of arrays that were given, or else those of the training, if a file has them."""
    found = dict(given)
    if None not in given.values() or not known:
        return found
    with formats.opened(Path(source)) as arrays:
        for role, name in known.items():
            there = name in arrays or {*name.split(",")} <= {*arrays}
            if there and found.get(role, "") is None:
                found[role] = name
    return found


def _within(name: str, group: str) -> bool:
    """Whether a column is one of the numbered ones that are also an array of their own."""
    return name.startswith(group) and name[len(group) :].strip("_[]").isdigit()


def _named(path: Path, arrays: formats.Arrays, role: str, name: str | None) -> list[str]:
    """The names of the arrays that play a role, or none where nothing is plain."""
    if name is None:
        usual = _usual(arrays, role)
        return usual if len(usual) == 1 else []
    wanted = [name] if name in arrays else [part.strip() for part in name.split(",")]
    if missing := [one for one in wanted if not one or one not in arrays]:
        raise DataError(
            f"no `{missing[0]}` in {path}, found: {_listed(arrays)}. Say which with --{role} NAME."
        )
    return wanted


def _usual(arrays: formats.Arrays, role: str) -> list[str]:
    """The arrays with a usual name, in any group; one that is called as the role wins."""
    found = [name for name in arrays if name.rpartition("/")[2].lower() in NAMES[role]]
    return [name for name in found if name.lower() == role] or found


def _listed(arrays: formats.Arrays) -> str:
    names = sorted(printable(name) for name in arrays if name)
    more = f" and {len(names) - MOST_LISTED:,} more" if len(names) > MOST_LISTED else ""
    return (" ".join(names[:MOST_LISTED]) or "nothing with a name") + more


def read_array(
    source: str | os.PathLike[str], role: str = "x", name: str | None = None
) -> NDArray[np.float64]:
    """One array of a file, such as an observation.

    Args:
        source: A ``.npy``, ``.npz``, ``.h5``, ``.nc``, ``.safetensors``, ``.csv``, ``.txt`` or
            ``.dat`` file, or a Zarr group.
        role: The role that the array plays, ``x`` or ``theta``, by whose usual names it is found.
        name: The name of the array, or several between commas; not needed if there is only one.
    """
    path = Path(source)
    with formats.opened(path) as arrays, np.errstate(over="ignore"):
        chosen = _named(path, arrays, role, name)
        if not name and "" in arrays:
            # One column called x is hardly the whole observation of a table.
            several = chosen and formats.array(path, arrays, chosen[0]).ndim > 1
            chosen = chosen if several else [""]
        chosen = chosen or ([*arrays] if len(arrays) == 1 else [])
        if not chosen:
            listed = _listed(arrays)
            raise DataError(
                f"several arrays in {path}, found: {listed}. Say which with --{role} NAME."
            )
        parts = [formats.array(path, arrays, one) for one in chosen]
        value = parts[0][:] if len(parts) == 1 else _SideBySide(parts)[:]
        return as_tensor(chosen[0] or role, value, torch.float64).numpy()
