"""The only place that writes files, and those of ours that notice damage.

Tensors with settings go to one safetensors file, settings alone to JSON. Both carry a SHA-256 over
all that they hold; safetensors itself refuses a truncated file, but not a flipped bit. A checksum
guards against damage, not against forgery. Reading never runs code from a file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prudent.errors import InputError, StoreError, one_line, shortened

if TYPE_CHECKING:
    from torch import Tensor

ZEROS = "0" * 64
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_atomic(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file so that readers, and a machine that loses power, see all of it or nothing.

    The bytes go to a temporary file beside the target, reach the disk, and take the target's name
    in one step. A symbolic link stays a link; its target is replaced.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(6)}.tmp")
    try:
        # The mode is 0666 less the umask, as for any file a user makes.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        sync_directory(target.parent)
    except OSError as error:
        text = f"could not write {path}: {error.strerror or error}"
        if error.errno not in DISK_FULL:
            raise StoreError(f"{text}. Check the directory.") from error
        free = shutil.disk_usage(target.parent).free
        raise StoreError(
            f"{text}; needed {len(data):,} bytes, {free:,} are free. Finished work is safe; free "
            "some space and run the same command again."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def check_file(path: Path) -> None:
    """Refuse what is neither a file nor a directory: a pipe or a device may have no end."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"no file {path}.") from error
    except (OSError, ValueError) as error:  # a name that is too long, or with a NUL
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {shortened(repr(str(path)))}: {reason}.") from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InputError(f"{path} is a pipe or a device; copy what it holds into a file.")


def sync_directory(directory: Path) -> None:
    """Make a rename inside a directory survive a power cut, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sha256(data: bytes) -> str:
    """The hexadecimal SHA-256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def to_json(value: Any) -> bytes:
    """Readable JSON with sorted keys; NaN and infinity, which JSON does not have, are refused."""
    return (json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def canonical_json(value: Any) -> bytes:
    """JSON in one spelling, for hashing."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def dump_json(values: Mapping[str, Any]) -> bytes:
    """JSON that carries its own checksum, taken with zeros in its place."""
    text = to_json({**values, "sha256": ZEROS})
    return text.replace(ZEROS.encode(), sha256(text).encode())


def load_json(path: Path, remedy: str, checksum: str | None = None) -> dict[str, Any]:
    """The JSON object in a file that matches a checksum, by default the one that it carries."""
    data = read_whole(path, remedy, checksum)
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"cannot read {path}: {error}.") from error
    if not isinstance(values, dict):
        raise StoreError(f"{path} does not hold a JSON object.")
    if checksum is None:
        own = str(values.pop("sha256", ""))
        if len(own) != len(ZEROS) or sha256(data.replace(own.encode(), ZEROS.encode())) != own:
            raise _damaged(path, remedy)
    return values


def read_whole(path: Path, remedy: str, checksum: str | None) -> bytes:
    """The bytes of a file, which must match a checksum unless it is None."""
    try:
        check_file(path)
        data = path.read_bytes()
    except InputError as error:
        raise StoreError(f"{error}") from error
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}.") from error
    if checksum is not None and sha256(data) != checksum:
        raise _damaged(path, remedy)
    return data


def dump_tensors(settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors and settings as one file; settings must be plain JSON and hold a ``format``."""
    import safetensors.torch

    # Copies, because safetensors refuses tensors that share memory, as tied weights do.
    state = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
    header = canonical_json({"settings": settings, "sha256": _digest(settings, state)})
    # One entry: safetensors writes several in random order, and a file must repeat bit for bit.
    return bytes(safetensors.torch.save(state, {"prudent": header.decode()}))


def load_tensors(
    path: str | os.PathLike[str], version: int, remedy: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The settings and tensors of a file that is whole and has ``version`` as its format."""
    import safetensors

    if not Path(path).is_file():
        raise StoreError(f"no file {path}.")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {key: file.get_tensor(key) for key in file.keys()}
    except Exception as error:  # for odd tensors the library raises many kinds
        reason = one_line(error).rstrip(".")
        raise StoreError(f"{path} is not a whole safetensors file: {reason}. {remedy}") from error
    try:
        header = json.loads(metadata["prudent"])
        settings, found = header["settings"], header["settings"]["format"]
        digest = _digest(settings, state)
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        text = f"{path} was not written by prudent: it has no header, or tensors of odd types."
        raise StoreError(text) from error
    if found != version:
        raise StoreError(
            f"{path} has format {shortened(found)}, this version reads format {version}. "
            "Upgrade prudent."
        )
    if header.get("sha256") != digest:
        raise _damaged(path, remedy)
    return settings, state


def _digest(settings: Mapping[str, Any], state: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(canonical_json(settings))
    for key, tensor in sorted(state.items()):
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def _damaged(path: object, remedy: str) -> StoreError:
    return StoreError(f"{path} does not match its checksum (damaged or edited). {remedy}")
