"""The only place that writes files."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prudent.errors import StoreError

ZEROS = 64 * "0"


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
        raise StoreError(_reason(path, target.parent, len(data), error)) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _reason(path: object, directory: Path, needed: int, error: OSError) -> str:
    """What came, and what to do: the space for a full disk, the directory for the rest."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        free = shutil.disk_usage(directory).free
        return (
            f"could not write {path}: {error.strerror}; needed {needed:,} bytes, {free:,} are "
            "free. Finished work is safe; free some space and run the same command again."
        )
    return f"could not write {path}: {error.strerror or error}. Check the directory."


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
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True
    ).encode()


def checked_json(value: Mapping[str, Any]) -> bytes:
    """Readable JSON whose ``sha256`` is that of itself with zeros in that place."""
    text = to_json({**value, "sha256": ZEROS})
    return text.replace(ZEROS.encode(), sha256(text).encode())


def is_checked(data: bytes, checksum: object) -> bool:
    """Whether what :func:`checked_json` wrote is as it was, given the ``sha256`` in it."""
    if not isinstance(checksum, str) or len(checksum) != len(ZEROS):
        return False
    return sha256(data.replace(checksum.encode(), ZEROS.encode())) == checksum
