"""Record batches: the one format on disk, between replicas, and to consumers.

A fixed header, padded to a multiple of 8, followed by one Arrow IPC record batch message. Little-endian.

      0  magic u32            4  length u32 (header and body)   8  header_crc32c u32   12  body_crc32c u32
     16  version u8          17  attributes u8                 18  columns u16
     20  base_offset i64     28  last_offset_delta i32         32  record_count i32
     36  leader_epoch i32    40  producer_epoch i32            44  base_timestamp i64 (ns)
     52  max_timestamp i64   60  producer_id 16 bytes          76  producer_sequence i64 (-1: none)   84  4 pad
     88  body: one Arrow IPC record batch message

The producer's epoch is above 0 if it is an ordered one, of which a partition stores ascending (epoch, sequence) only.

The header's checksum is taken over the 88 bytes with the checksum itself as zero; it covers `length`, so a lying
length is known before it is used. There are no control batches: every offset is a record, or was one until key
compaction dropped it. A batch that covers dropped records says with the column `offset_delta` which are left, which
may be none; the offsets of all others are contiguous.
Key compaction marks every batch that it writes, with attribute 2: made of several others, it does not name their
producers, so who looks for a producer's batch does not find it there, though it was stored.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import google_crc32c
import pyarrow as pa

from liftpy_envelope.columns import ALL_COLUMNS, Column, columns_in, schema_of
from liftpy_envelope.errors import BatchCorruptError, BatchTruncatedError, BatchVersionError
from liftpy_envelope.ipc import BufferLike, ColumnBuffers, encode_message, encode_pair, values_column
from liftpy_envelope.limits import BATCH_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "ATTRIBUTE_COMPACTED",
    "ATTRIBUTE_COMPRESSED",
    "HEADER_SIZE",
    "MAGIC",
    "NO_PRODUCER",
    "VERSION",
    "BatchBody",
    "BatchHeader",
    "check_body",
    "compress_body",
    "decode_records",
    "encode_body",
    "encode_header",
    "encode_plain_body",
    "read_header",
]

MAGIC: Final = 0x4254464C  # "LFTB"
VERSION: Final = 1
ATTRIBUTE_COMPRESSED: Final = 1
ATTRIBUTE_COMPACTED: Final = 2
_ATTRIBUTES: Final = ATTRIBUTE_COMPRESSED | ATTRIBUTE_COMPACTED
NO_PRODUCER: Final = bytes(16)

_HEADER: Final = struct.Struct("<IIIIBBHqiiiiqq16sq4x")
HEADER_SIZE: Final = _HEADER.size
_CRC_AT: Final = 8
_NO_CRC: Final = bytes(4)
_PLAIN: Final = Column.SUBJECT | Column.VALUE
_JOIN_BYTES_MAX: Final = 8_192  # below this one copy is cheaper than a checksum and a `writev` entry per buffer


class BatchHeader(NamedTuple):
    """What a record batch says of itself. Times are nanoseconds since the epoch."""

    length: int
    body_crc: int
    attributes: int
    columns: int
    base_offset: int
    last_offset_delta: int
    record_count: int
    leader_epoch: int
    base_timestamp: int
    max_timestamp: int
    producer_id: bytes
    producer_sequence: int
    producer_epoch: int = 0

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_compressed(self) -> bool:
        """Whether its buffers are."""
        return bool(self.attributes & ATTRIBUTE_COMPRESSED)

    @property
    def is_compacted(self) -> bool:
        """Whether key compaction wrote it: records may be missing, and it says nothing of the batches that it is of."""
        return bool(self.attributes & ATTRIBUTE_COMPACTED)


class BatchBody(NamedTuple):
    """An encoded body that waits for its header: everything but what the log stamps on it."""

    parts: list[BufferLike]
    length: int
    crc: int
    attributes: int
    columns: int
    record_count: int


def encode_body(count: int, bitmap: int, columns: Sequence[ColumnBuffers]) -> BatchBody:
    """Encode the records of one batch.

    Args:
        count: Number of records, at least one unless there is a column `offset_delta`.
        bitmap: Which columns are present.
        columns: Buffers of the columns, in the order of their bits.

    Returns:
        The body, whose parts go to disk as they are.
    """
    assert count > 0 or bitmap & Column.OFFSET_DELTA
    assert len(columns) == len(columns_in(bitmap))
    return _body_of(encode_message(count, columns), 0, bitmap, count)


def encode_plain_body(subjects: Sequence[bytes], values: Sequence[bytes]) -> BatchBody:
    """The body of a batch of records with nothing but subject and value; the same bytes as from `encode_body`."""
    if len(values) > 1 and sum(map(len, values)) > _JOIN_BYTES_MAX:
        return encode_body(len(values), _PLAIN, [values_column(subjects), values_column(values)])
    message = encode_pair(subjects, values)
    return BatchBody([message], len(message), google_crc32c.value(message), 0, _PLAIN, len(values))


def compress_body(body: BatchBody, codec: str) -> BatchBody:
    """The same records with Arrow IPC compressed buffers; the body itself where that does not make it smaller.

    Args:
        body: An uncompressed body.
        codec: `lz4` or `zstd`.
    """
    records = pa.ipc.read_record_batch(pa.py_buffer(b"".join(body.parts)), schema_of(body.columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, records.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(records)
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    messages.read_next_message()  # the schema, which is a function of the bitmap
    smaller = messages.read_next_message().serialize()
    padded: list[BufferLike] = [smaller]
    if smaller.size & 7:
        padded.append(bytes(-smaller.size & 7))
    compressed = _body_of(padded, ATTRIBUTE_COMPRESSED, body.columns, body.record_count)
    return compressed if compressed.length < body.length else body


def _body_of(parts: list[BufferLike], attributes: int, bitmap: int, count: int) -> BatchBody:
    length = sum(map(len, parts))
    if length <= _JOIN_BYTES_MAX:
        whole = b"".join(parts)
        return BatchBody([whole], length, google_crc32c.value(whole), attributes, bitmap, count)
    crc = 0
    for part in parts:
        crc = google_crc32c.extend(crc, part)
    return BatchBody(parts, length, crc, attributes, bitmap, count)


def encode_header(
    body: BatchBody,
    *,
    base_offset: int,
    leader_epoch: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: bytes = NO_PRODUCER,
    producer_sequence: int = -1,
    producer_epoch: int = 0,
    last_offset_delta: int | None = None,
) -> bytes:
    """The header that makes `body` a record batch with offsets from `base_offset` on.

    They are contiguous unless there is a column `offset_delta`; then `last_offset_delta` says what the batch covers.
    """
    _, length, body_crc, attributes, columns, count = body
    # fmt: off
    header = _HEADER.pack(
        MAGIC, HEADER_SIZE + length, 0, body_crc, VERSION, attributes, columns,
        base_offset, count - 1 if last_offset_delta is None else last_offset_delta, count, leader_epoch,
        producer_epoch, base_timestamp, max_timestamp, producer_id, producer_sequence,
    )
    # fmt: on
    crc: int = google_crc32c.value(header)
    return header[:_CRC_AT] + crc.to_bytes(4, "little") + header[_CRC_AT + 4 :]


def read_header(data: bytes | memoryview, position: int = 0) -> BatchHeader:
    """Read and check the header at `position`; the body is not looked at.

    Raises:
        BatchTruncatedError: fewer than `HEADER_SIZE` bytes are there.
        BatchVersionError: a newer version wrote it.
        BatchCorruptError: it is not a header of ours.
    """
    end = position + HEADER_SIZE
    if len(data) < end:
        raise BatchTruncatedError(f"{len(data) - position} bytes are too few for a batch header of {HEADER_SIZE}")
    (magic, length, header_crc, body_crc, version, attributes, columns, *rest) = _HEADER.unpack_from(data, position)
    if magic != MAGIC:
        raise BatchCorruptError(f"no batch begins here: magic {magic:#010x} instead of {MAGIC:#010x}")
    crc_at = position + _CRC_AT
    covered = bytes(data[position:crc_at]) + _NO_CRC + bytes(data[crc_at + 4 : end])
    if google_crc32c.value(covered) != header_crc:
        raise BatchCorruptError("the batch header's checksum does not match")
    if version != VERSION:
        raise BatchVersionError(f"the batch has version {version}; this liftpy reads version {VERSION}")
    (base, last_delta, count, epoch, producer_epoch, *times_and_producer) = rest
    start = length, body_crc, attributes, columns, base, last_delta, count, epoch
    header = BatchHeader._make((*start, *times_and_producer, producer_epoch))
    _check_header(header)
    return header


def _check_header(header: BatchHeader) -> None:
    sane = (
        HEADER_SIZE < header.length <= BATCH_BYTES_MAX
        and header.length % 8 == 0
        and (0 if header.columns & Column.OFFSET_DELTA else 1) <= header.record_count
        and header.record_count <= header.last_offset_delta + 1
        and header.base_offset >= 0
        and header.leader_epoch >= 0
        and header.producer_epoch >= 0
        and not header.columns & ~ALL_COLUMNS
        and not header.attributes & ~_ATTRIBUTES
    )
    if not sane:
        raise BatchCorruptError(f"the batch header contradicts itself: {header}")


def check_body(header: BatchHeader, body: BufferLike) -> None:
    """Check a body against its header's length and checksum.

    Raises:
        BatchTruncatedError: the body is shorter than the header says.
        BatchCorruptError: the checksum does not match.
    """
    expected = header.length - HEADER_SIZE
    if len(body) < expected:
        raise BatchTruncatedError(f"{len(body)} of the body's {expected} bytes are there")
    assert len(body) == expected
    if google_crc32c.value(body) != header.body_crc:
        raise BatchCorruptError(f"the body's checksum does not match in the batch at offset {header.base_offset}")


def decode_records(header: BatchHeader, body: BufferLike) -> pa.RecordBatch:
    """The records of a checked body, without a copy when it is not compressed.

    Raises:
        BatchCorruptError: the body is not the Arrow message that its header announces, or its compressed buffers
            announce more than the memory there is.
    """
    try:
        records = pa.ipc.read_record_batch(pa.py_buffer(body), schema_of(header.columns))
    except (pa.ArrowInvalid, pa.ArrowMemoryError, OSError, EOFError) as error:
        raise BatchCorruptError(f"the body of the batch at offset {header.base_offset}: {error}") from error
    if records.num_rows != header.record_count:
        found = records.num_rows
        raise BatchCorruptError(
            f"the batch at offset {header.base_offset} has {found} records, not {header.record_count}"
        )
    return records
