"""Small JSON files with a checksum, and what becomes of a small file that is damaged.

    {...,"checksum":"<64 hexadecimal digits>"}
    `- SHA-256 of these -'

The checksum is the last field, and of bytes, not of values: it is checked before the JSON is read. So it is with the
manifests in the bucket.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from liftpy_log.errors import FileDamagedError
from liftpy_log.storage.disk import read_whole, write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from liftpy_log.storage.disk import Disk

__all__ = [
    "CHECKSUM",
    "decode_json",
    "encode_json",
    "find_checksum",
    "load_json",
    "save_json",
    "set_aside",
    "with_checksum",
]

CHECKSUM: Final = "checksum"
"""The name of the field."""

_DIGITS: Final = 64
_END: Final = re.compile(rb',"checksum":"([0-9a-f]{%d})"\}' % _DIGITS)
_END_BYTES: Final = len(b',"checksum":""}') + _DIGITS


def with_checksum(body: bytes) -> bytes:
    """JSON with its checksum.

    Args:
        body: A JSON object with a field at least, and no space behind it.
    """
    assert body.endswith(b"}"), "only an object can have a checksum"
    return b'%b,"checksum":"%b"}' % (body[:-1], sha256(body[:-1]).hexdigest().encode())


def find_checksum(body: bytes) -> bool | None:
    """Whether the checksum at the end is that of the bytes before it; None when there is none."""
    end = _END.fullmatch(body, max(0, len(body) - _END_BYTES))
    if end is None:
        return None
    return sha256(memoryview(body)[: end.start()]).hexdigest().encode() == end[1]


def encode_json(plain: Mapping[str, Any]) -> bytes:
    """The bytes of a file with these fields, one at least."""
    return with_checksum(json.dumps(plain, separators=(",", ":")).encode()) + b"\n"


def decode_json(body: bytes) -> dict[str, Any] | None:
    """What `encode_json` wrote, without the checksum; None when it did not write this."""
    body = body.removesuffix(b"\n")
    if not find_checksum(body):
        return None
    try:
        plain: dict[str, Any] = json.loads(body)
        del plain[CHECKSUM]
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    return plain


def save_json(disk: Disk, path: Path, plain: Mapping[str, Any]) -> None:
    """Write a file, durably and as a whole."""
    write_atomically(disk, path, encode_json(plain))


def load_json(disk: Disk, path: Path) -> dict[str, Any]:
    """Read a file that `save_json` wrote.

    Raises:
        FileNotFoundError: there is none.
        FileDamagedError: it is not what was written.
    """
    plain = decode_json(read_whole(disk, path))
    if plain is None:
        raise FileDamagedError(path)
    return plain


def set_aside(disk: Disk, path: Path, quarantine: Path) -> Path:
    """Move a small file that is damaged into quarantine, durably, under a name that is free. Returns where it is."""
    disk.make_directory(quarantine)
    known = set(disk.names(quarantine))
    name = next(name for number in range(len(known) + 1) if (name := f"{path.name}.{number}") not in known)
    write_atomically(disk, quarantine / name, read_whole(disk, path))
    disk.remove(path)
    disk.sync_directory(path.parent)
    return quarantine / name
