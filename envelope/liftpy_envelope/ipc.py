"""Arrow IPC record batch messages with a fixed layout, packed in one call.

A record batch's body is one encapsulated Arrow IPC message that any Arrow library reads, but building it through a
general library costs microseconds per batch, and a node that serves a thousand interleaved streams cuts hundreds of
thousands of small batches a second. Since the schema is a function of a bitmap, the flatbuffer in front of the
buffers always has the same shape, and only its numbers change:

    continuation 0xFFFFFFFF u32 | metadata_length i32
      0  root offset u32 (16)
      4  vtable of Message: 12 bytes
     16  Message: vtable offset i32, header offset u32, body_length i64, version i16, header_type u8, 5 pad
     40  vtable of RecordBatch: 10 bytes, 2 pad
     52  RecordBatch: vtable offset i32, length i64, nodes offset u32, buffers offset u32, 4 pad
     76  node count u32    | per column: length i64, null_count i64
         4 pad, buffer count u32 | per buffer: offset i64, length i64
    body: the buffers, each padded to 8 bytes

Nothing here touches pyarrow: buffers go in, a list of buffers for one `writev` comes out.
"""

from __future__ import annotations

import struct
from array import array
from functools import cache, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BufferLike",
    "ColumnBuffers",
    "column_buffers",
    "encode_message",
    "encode_pair",
    "fixed_column",
    "nullable_column",
    "repeated_column",
    "values_column",
]

BufferLike: TypeAlias = "bytes | pa.Buffer"
"""Read-only memory that `len`, `os.writev`, `bytes.join` and the checksum accept without a copy."""

_METADATA_VERSION_V5: Final = 4
_HEADER_TYPE_RECORD_BATCH: Final = 3
_CONTINUATION: Final = 0xFFFFFFFF
_MESSAGE_VTABLE: Final = struct.pack("<6H", 12, 24, 16, 18, 4, 8)
_RECORD_BATCH_VTABLE: Final = struct.pack("<5H", 10, 20, 4, 12, 16)
_OFFSET: Final = struct.Struct("<i")
_TWO_OFFSETS: Final = struct.Struct("<2i")
_MANY: Final = 256  # of which Arrow makes numbers quicker than Python does
_KEPT_COUNT_MAX: Final = 1 << 16  # so that what is kept is 4 MiB at most
_KEPT_SIZE_MAX: Final = 1_024
_PADDING: Final = tuple(b"\0" * size for size in range(8))


class ColumnBuffers(NamedTuple):
    """The physical buffers of one column.

    Attributes:
        null_count: How many values are null; when it is zero there is no validity buffer.
        buffers: (validity, values) for a fixed-width column, (validity, int32 offsets, data) for a binary one.
    """

    null_count: int
    buffers: tuple[BufferLike, ...]


def values_column(values: Sequence[bytes]) -> ColumnBuffers:
    """A binary column without nulls."""
    if len(values) == 1:
        value = values[0]
        return ColumnBuffers(0, (b"", _TWO_OFFSETS.pack(0, len(value)), value))
    return ColumnBuffers(0, (b"", _edges_of(values), b"".join(values)))


def nullable_column(values: Sequence[bytes | None]) -> ColumnBuffers:
    """A binary column that may hold nulls."""
    return _buffers_of(pa.array(values, pa.binary()))


def repeated_column(value: bytes, count: int) -> ColumnBuffers:
    """A binary column of `count` times the same value."""
    size = len(value)
    if count > _MANY and size:
        if size <= _KEPT_SIZE_MAX and count < _KEPT_COUNT_MAX:
            edges = _kept_edges(size, 1 << count.bit_length())[: 4 * count + 4]
        else:
            edges = _edges(size, count)
        return ColumnBuffers(0, (b"", edges, value * count))
    offsets = array("i", range(0, size * count + 1, size) if size else bytes(4 * (count + 1)))
    return ColumnBuffers(0, (b"", offsets.tobytes(), value * count))


def _edges(size: int, count: int) -> pa.Buffer:
    """The offsets of `count` values of one size."""
    return pa.arange(0, size * count + 1, size).cast(pa.int32()).buffers()[1]


_kept_edges = lru_cache(maxsize=16)(_edges)  # of a stream, batches have one subject, or a few, and similar counts


def fixed_column(values: Sequence[int], typecode: str) -> ColumnBuffers:
    """An integer column; `typecode` is that of `array`: `q` for int64, `i` for int32."""
    return ColumnBuffers(0, (b"", array(typecode, values).tobytes()))


def column_buffers(column: pa.BinaryArray) -> ColumnBuffers:
    """The buffers of a binary Arrow array of any length but zero, without bytes that belong to none of its values.

    Only an array that begins amid its buffers is copied; one that ends before they do is cut.
    """
    offsets_size = 4 * len(column) + 4
    found = _buffers_of(column)
    (first,) = _OFFSET.unpack_from(found.buffers[1], 0)
    if column.offset or first:
        # One array alone would be handed back as it is.
        found = _buffers_of(pa.concat_arrays([column.slice(0, 0), column]))
    null_count, (validity, offsets, data) = found
    (last,) = _OFFSET.unpack_from(offsets, offsets_size - 4)
    if len(data) == last and len(offsets) == offsets_size:
        return found
    return ColumnBuffers(null_count, (validity[: (len(column) + 7) // 8], offsets[:offsets_size], data[:last]))


def _buffers_of(column: pa.BinaryArray) -> ColumnBuffers:
    validity, offsets, data = column.buffers()
    null_count = column.null_count
    return ColumnBuffers(null_count, (validity if null_count else b"", offsets, b"" if data is None else data))


@cache
def _metadata_struct(column_count: int, buffer_count: int) -> struct.Struct:
    return struct.Struct(f"<Ii I12siIqhB5x 10s2xiqII 4xI{2 * column_count}q4xI{2 * buffer_count}q")


def encode_message(count: int, columns: Sequence[ColumnBuffers]) -> list[BufferLike]:
    """One encapsulated Arrow IPC record batch message.

    Args:
        count: Number of records, at least one.
        columns: The buffers of every column, in the order of the schema.

    Returns:
        The parts of the message in order; their lengths add up to a multiple of 8.
    """
    nodes: list[int] = []
    places: list[int] = []
    parts: list[BufferLike] = [b""]
    position = 0
    for null_count, buffers in columns:
        nodes += (count, null_count)
        for buffer in buffers:
            size = len(buffer)
            places += (position, size)
            if size:
                parts.append(buffer)
                if size & 7:
                    parts.append(_PADDING[-size & 7])
                    size += -size & 7
                position += size
    parts[0] = _encode_metadata(count, nodes, places, position)
    return parts


def encode_pair(firsts: Sequence[bytes], seconds: Sequence[bytes]) -> bytes:
    """The message of a few records with two binary columns: what `encode_message` gives, in one step and one piece.

    Batches of few messages are what latency is made of.
    """
    count = len(firsts)
    if count == 1:
        first, second = firsts[0], seconds[0]
        first_edges, second_edges = _TWO_OFFSETS.pack(0, len(first)), _TWO_OFFSETS.pack(0, len(second))
    else:
        first, second = b"".join(firsts), b"".join(seconds)
        first_edges, second_edges = _edges_of(firsts), _edges_of(seconds)
    edges_size, first_size, second_size = len(first_edges), len(first), len(second)
    edges_end = edges_size + -edges_size % 8
    first_end = edges_end + first_size + -first_size % 8
    second_at = first_end + edges_end
    second_end = second_at + second_size + -second_size % 8
    metadata = _encode_metadata(
        count,
        [count, 0, count, 0],
        [0, 0, 0, edges_size, edges_end, first_size, first_end, 0, first_end, edges_size, second_at, second_size],
        second_end,
    )
    edges_padding = _PADDING[-edges_size % 8]
    return b"".join(
        (
            *(metadata, first_edges, edges_padding, first, _PADDING[-first_size % 8]),
            *(second_edges, edges_padding, second, _PADDING[-second_size % 8]),
        )
    )


def _edges_of(values: Sequence[bytes]) -> bytes:
    return array("i", accumulate(map(len, values), initial=0)).tobytes()


def _encode_metadata(count: int, nodes: list[int], places: list[int], body_length: int) -> bytes:
    column_count, buffer_count = len(nodes) // 2, len(places) // 2
    layout = _metadata_struct(column_count, buffer_count)
    buffers_at = 80 + 16 * column_count + 4
    # fmt: off
    return layout.pack(
        _CONTINUATION, layout.size - 8, 16, _MESSAGE_VTABLE, 12, 32,
        body_length, _METADATA_VERSION_V5, _HEADER_TYPE_RECORD_BATCH,
        _RECORD_BATCH_VTABLE, 12, count, 76 - 64, buffers_at - 68,
        column_count, *nodes, buffer_count, *places,
    )
    # fmt: on
