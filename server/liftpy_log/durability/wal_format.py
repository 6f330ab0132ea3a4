"""The bytes of a write-ahead log file.

    wal/<sequence:020d>.wal   rounds, one after the other
      round   magic u32 | version u32 | sequence u64 | position u64 (of this round) | length u64 (of its entries)
              | previous_sequence u64 | previous_end u64 | head_crc32c u32 | 4 pad | entries
      entry   magic u32 | kind u16 | path_length u16 | data_length u32 | data_crc32c u32 | position u64
              | header_crc32c u32 | 4 pad | path, padded to 8 | data

A round is written only after the sync of the one before it has returned. So a good head of a later round proves that
everything before it was durable, and what is not well there is damage; while the last round of all may be torn in any
way, since it was perhaps never synced. `previous_sequence` and `previous_end` say the same of the file before this
one. A head names its own place, so that records that hold a copy of one are not mistaken for it. Little-endian.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import google_crc32c

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from liftpy_envelope.ipc import BufferLike
    from liftpy_log.storage.disk import Disk

__all__ = [
    "DATA",
    "ROUND_HEAD_SIZE",
    "VOID",
    "NotWellError",
    "RoundHead",
    "WalEntry",
    "decode_head",
    "decode_round",
    "encode_entry",
    "encode_head",
    "find_later_head",
    "is_other_version",
    "list_files",
    "path_of",
]

DATA: Final = 1
VOID: Final = 2

_ROUND_MAGIC: Final = 0x4C41574C
_ENTRY_MAGIC: Final = 0x4557414C
_VERSION: Final = 2
_ROUND_HEAD: Final = struct.Struct("<IIQQQQQI4x")
_ENTRY_HEAD: Final = struct.Struct("<IHHIIQI4x")
_ROUND_CRC_AT: Final = 48
_ENTRY_CRC_AT: Final = 24
ROUND_HEAD_SIZE: Final = _ROUND_HEAD.size
_NAME: Final = re.compile(r"[0-9]{20}\.wal")


class RoundHead(NamedTuple):
    """What a round says of itself, and of the file before its own."""

    sequence: int
    position: int
    length: int
    previous_sequence: int
    previous_end: int


class WalEntry(NamedTuple):
    """Bytes of a segment, or (kind `VOID`) a directory whose earlier entries do not count."""

    kind: int
    path: str
    position: int
    data: bytes


class NotWellError(Exception):
    """A round is torn or damaged.

    Attributes:
        position: Where in the file the head or entry begins that is not well.
    """

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


def path_of(directory: Path, sequence: int) -> Path:
    """The file with this number."""
    return directory / f"{sequence:020d}.wal"


def list_files(disk: Disk, directory: Path) -> list[tuple[int, Path]]:
    """(sequence, path) of the files, oldest first; other people's files are passed over."""
    return [(int(name[:20]), directory / name) for name in disk.names(directory) if _NAME.fullmatch(name)]


def encode_head(head: RoundHead) -> bytes:
    """The bytes in front of a round's entries."""
    bare = _ROUND_HEAD.pack(_ROUND_MAGIC, _VERSION, *head, 0)
    return _with_crc(bare, _ROUND_CRC_AT, google_crc32c.value(bare))


def encode_entry(kind: int, path: str, position: int, data: Sequence[BufferLike]) -> list[BufferLike]:
    """The bytes of an entry, in parts."""
    name = path.encode()
    crc = length = 0
    for part in data:
        crc = google_crc32c.extend(crc, part)
        length += len(part)
    head = _ENTRY_HEAD.pack(_ENTRY_MAGIC, kind, len(name), length, crc, position, 0)
    sealed = _with_crc(head, _ENTRY_CRC_AT, google_crc32c.extend(google_crc32c.value(head), name))
    return [sealed + name + bytes(-len(name) % 8), *data]


def _with_crc(head: bytes, at: int, crc: int) -> bytes:
    return head[:at] + crc.to_bytes(4, "little") + head[at + 4 :]


def is_other_version(content: bytes) -> bool:
    """Whether a file was written by another version of liftpy."""
    if len(content) < 8:
        return False
    magic, version = struct.unpack_from("<II", content)
    return bool(magic == _ROUND_MAGIC and version != _VERSION)


def decode_head(content: bytes, position: int, sequence: int) -> RoundHead | None:
    """The head of a round of file `sequence` at `position`; None when there is no good one."""
    bare = content[position : position + ROUND_HEAD_SIZE]
    if len(bare) < ROUND_HEAD_SIZE:
        return None
    magic, version, *fields, crc = _ROUND_HEAD.unpack(bare)
    head = RoundHead(*fields)
    if (magic, version, head.sequence, head.position) != (_ROUND_MAGIC, _VERSION, sequence, position):
        return None
    return head if google_crc32c.value(_with_crc(bare, _ROUND_CRC_AT, 0)) == crc else None


def find_later_head(content: bytes, position: int, sequence: int) -> int | None:
    """Position of the first good head behind `position`."""
    magic = _ROUND_MAGIC.to_bytes(4, "little")
    found = content.find(magic, position + 1)
    while found >= 0:
        if decode_head(content, found, sequence) is not None:
            return found
        found = content.find(magic, found + 1)
    return None


def decode_round(content: bytes, position: int, sequence: int) -> tuple[list[WalEntry], int]:
    """The entries of the round at `position`, and where the next round begins.

    Raises:
        NotWellError: it is not whole or not well.
    """
    head = decode_head(content, position, sequence)
    if head is None:
        raise NotWellError(position)
    at, end = position + ROUND_HEAD_SIZE, position + ROUND_HEAD_SIZE + head.length
    entries = []
    while at < end:
        entry, at = _decode_entry(content, at)
        entries.append(entry)
    return entries, end


def _decode_entry(content: bytes, position: int) -> tuple[WalEntry, int]:
    path_at = position + _ENTRY_HEAD.size
    head = content[position:path_at]
    if len(head) < _ENTRY_HEAD.size:
        raise NotWellError(position)
    magic, kind, path_length, data_length, data_crc, at, header_crc = _ENTRY_HEAD.unpack(head)
    path = content[path_at : path_at + path_length]
    bare = _with_crc(head, _ENTRY_CRC_AT, 0)
    if magic != _ENTRY_MAGIC or google_crc32c.extend(google_crc32c.value(bare), path) != header_crc:
        raise NotWellError(position)
    data_at = path_at + path_length + -path_length % 8
    data = content[data_at : data_at + data_length]
    if len(data) < data_length or google_crc32c.value(data) != data_crc:
        raise NotWellError(position)
    return WalEntry(kind, path.decode(), at, data), data_at + data_length
