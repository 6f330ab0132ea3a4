"""The bytes of an object of an object log. Pure.

     0  magic u32          "LFOL"
     4  version u16        1
     6  writer_bytes u16
     8  nonce_bytes u16
    10  reserved u16
    12  records u32        how many, at least 1
    16  number u64         of the object: that of its key
    24  first u64          sequence of its first record
    32  index_at u64       where the index begins
    40  names_crc32c u32   of writer and nonce
    44  crc32c u32         of the 44 bytes before
    48  writer, nonce      UTF-8
        records            each: length u32, crc32c u32 of sequence u64 and data, data
    index_at  index        position u64 of each record
              crc32c u32   of the index
              magic u32    "LFOE"

Little-endian. A record can be checked by itself; nothing behind the index is allowed.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from google_crc32c import value as crc32c

from liftpy_bucket.errors import BucketVersionError, ObjectCorruptError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "HEAD_BYTES",
    "NAME_BYTES_MAX",
    "RECORDS_BYTES_MAX",
    "RECORDS_MAX",
    "LogObject",
    "ObjectHead",
    "decode_head",
    "decode_object",
    "encode_object",
]

_MAGIC: Final = 0x4C4F464C
_END_MAGIC: Final = 0x454F464C
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<IHHHHIQQQI")
_CRC: Final = struct.Struct("<I")
_RECORD: Final = struct.Struct("<II")
_SEQUENCE: Final = struct.Struct("<Q")
_END: Final = struct.Struct("<II")
HEAD_BYTES: Final = _HEAD.size + _CRC.size
NAME_BYTES_MAX: Final = 200
RECORDS_BYTES_MAX: Final = 64 << 20  # of an object, together
RECORDS_MAX: Final = 1 << 20  # of an object
_POSITION_BYTES: Final = 8


class ObjectHead(NamedTuple):
    """What stands at the beginning, but for the names.

    Attributes:
        number: Number of the object.
        first: Sequence of its first record.
        records: How many it has.
        index_at: Where the index begins, bytes.
        writer_bytes: Length of the writer's name.
        nonce_bytes: Length of the nonce.
        names_crc: CRC-32C of both.
    """

    number: int
    first: int
    records: int
    index_at: int
    writer_bytes: int
    nonce_bytes: int
    names_crc: int

    @property
    def end(self) -> int:
        """Sequence behind its last record."""
        return self.first + self.records

    @property
    def size(self) -> int:
        """Of the whole object, bytes."""
        return self.index_at + _POSITION_BYTES * self.records + _END.size


class LogObject(NamedTuple):
    """An object as a whole, checked."""

    head: ObjectHead
    writer: str
    nonce: str
    records: tuple[bytes, ...]


def encode_object(number: int, first: int, records: Sequence[bytes], writer: str, nonce: str) -> bytes:
    """The bytes of an object."""
    assert records, "an object has at least one record"
    names = (writer.encode(), nonce.encode())
    assert all(len(name) <= NAME_BYTES_MAX for name in names), "names are short"
    parts: list[bytes] = []
    positions: list[int] = []
    at = HEAD_BYTES + len(names[0]) + len(names[1])
    for sequence, data in enumerate(records, first):
        positions.append(at)
        parts += (_RECORD.pack(len(data), _record_crc(sequence, data)), data)
        at += _RECORD.size + len(data)
    lengths = (len(names[0]), len(names[1]))
    names_crc = int(crc32c(names[0] + names[1]))
    head = _HEAD.pack(_MAGIC, _VERSION, *lengths, 0, len(records), number, first, at, names_crc)
    index = struct.pack(f"<{len(positions)}Q", *positions)
    return b"".join((head, _CRC.pack(crc32c(head)), *names, *parts, index, _END.pack(crc32c(index), _END_MAGIC)))


def decode_head(data: bytes, key: str) -> ObjectHead:
    """What stands at the beginning of an object, from its first HEAD_BYTES or more.

    Raises:
        ObjectCorruptError: it is not one of ours, or broken off.
        BucketVersionError: a newer liftpy wrote it.
    """
    if len(data) < HEAD_BYTES:
        raise ObjectCorruptError(key, f"it ends after {len(data)} bytes")
    magic, version, writer_bytes, nonce_bytes, _, count, number, first, index_at, names_crc = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise ObjectCorruptError(key, "it is no object of an object log")
    if version > _VERSION:
        raise BucketVersionError(f"object {key} has format {version}, and this liftpy knows {_VERSION}: update it")
    if _CRC.unpack_from(data, _HEAD.size)[0] != crc32c(data[: _HEAD.size]):
        raise ObjectCorruptError(key, "its head does not have its sum")
    front = HEAD_BYTES + writer_bytes + nonce_bytes + _RECORD.size * count
    if not (1 <= count <= RECORDS_MAX and front <= index_at <= front + RECORDS_BYTES_MAX):
        raise ObjectCorruptError(key, f"its head says that it has {count} records in {index_at} bytes")
    return ObjectHead(number, first, count, index_at, writer_bytes, nonce_bytes, names_crc)


def decode_object(data: bytes, key: str, number: int) -> LogObject:
    """A whole object, with every sum checked.

    Args:
        data: All of it.
        key: Key for messages.
        number: Number that its key says.

    Raises:
        ObjectCorruptError: a byte is not as it was written, or the object is another one.
        BucketVersionError: a newer liftpy wrote it.
    """
    head = decode_head(data, key)
    names_end = HEAD_BYTES + head.writer_bytes + head.nonce_bytes
    index_end = head.size - _END.size
    if len(data) != head.size:
        raise ObjectCorruptError(key, f"it has {len(data)} bytes, and should have {head.size}")
    names = data[HEAD_BYTES:names_end]
    if head.names_crc != crc32c(names):
        raise ObjectCorruptError(key, "the names in it do not have their sum")
    if head.number != number:
        raise ObjectCorruptError(key, f"it is object {head.number}")
    index = data[head.index_at : index_end]
    if _END.unpack_from(data, index_end) != (crc32c(index), _END_MAGIC):
        raise ObjectCorruptError(key, "its index does not have its sum")
    records = tuple(
        _record(data, position, sequence, key)
        for sequence, position in enumerate(struct.unpack(f"<{head.records}Q", index), head.first)
    )
    writer, nonce = names[: head.writer_bytes].decode(), names[head.writer_bytes :].decode()
    return LogObject(head, writer, nonce, records)


def _record(data: bytes, position: int, sequence: int, key: str) -> bytes:
    length, crc = _RECORD.unpack_from(data, position)
    at = position + _RECORD.size
    record = data[at : at + length]
    if len(record) != length or crc != _record_crc(sequence, record):
        raise ObjectCorruptError(key, f"record {sequence} does not have its sum")
    return record


def _record_crc(sequence: int, data: bytes) -> int:
    return int(crc32c(_SEQUENCE.pack(sequence) + data))
