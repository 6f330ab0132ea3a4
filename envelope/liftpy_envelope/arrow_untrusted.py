"""Arrow IPC record batches from outside, opened without giving a hostile one a chance.

A general reader believes the offsets in a message, and bad ones crash the process later; a compressed message of
33 kB can expand to a GiB. So the flatbuffer is read here, with every position checked against its bounds, and the
arrays are built from buffers whose sizes were checked first, then validated in full before anyone looks inside.
Only plain binary columns, uncompressed, are accepted.
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa

from liftpy_envelope.errors import EnvelopeError

__all__ = ["read_binary_columns"]

_HEADER_TYPE_RECORD_BATCH: Final = 3
_BINARY: Final = pa.binary()
_VERSIONS: Final = frozenset({3, 4})  # V4 and V5 lay out binary columns alike
_U8: Final = struct.Struct("<B")
_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
_I64: Final = struct.Struct("<q")
_PAIR: Final = struct.Struct("<qq")


class _Flatbuffer:
    """Reads of little-endian numbers that can not leave the metadata."""

    def __init__(self, data: memoryview) -> None:
        self.data = data

    def number(self, layout: struct.Struct, position: int) -> int:
        if position < 0 or position + layout.size > len(self.data):
            raise EnvelopeError("the Arrow message's metadata points outside itself")
        return int(layout.unpack_from(self.data, position)[0])

    def follow(self, position: int) -> int:
        """The position that the unsigned offset at `position` points to."""
        return position + self.number(_U32, position)

    def fields(self, table: int, count: int) -> list[int | None]:
        """Positions of a table's first `count` fields, None where one is absent."""
        vtable = table - self.number(_I32, table)
        present = (self.number(_U16, vtable) - 4) // 2
        offsets = [self.number(_U16, vtable + 4 + 2 * slot) if slot < present else 0 for slot in range(count)]
        return [table + offset if offset else None for offset in offsets]

    def pairs(self, position: int | None, count: int, what: str) -> list[tuple[int, int]]:
        """A vector of `count` structs of two int64."""
        if position is None:
            raise EnvelopeError(f"the Arrow message has no {what}")
        vector = self.follow(position)
        found = self.number(_U32, vector)
        if found != count:
            raise EnvelopeError(f"the Arrow message has {found} {what} instead of {count}")
        start = vector + 4
        end = start + _PAIR.size * count
        if end > len(self.data):
            raise EnvelopeError("the Arrow message's metadata points outside itself")
        return list(_PAIR.iter_unpack(self.data[start:end]))


def read_binary_columns(message: bytes | memoryview, column_count: int, record_count: int) -> list[pa.BinaryArray]:
    """Open one encapsulated Arrow IPC record batch message of nullable binary columns.

    Args:
        message: The message, beginning with its continuation marker.
        column_count: How many columns it must have.
        record_count: How many records it must have.

    Returns:
        The columns, validated in full; they share memory with `message`.

    Raises:
        EnvelopeError: anything about it is not as it must be.
    """
    if len(message) < 8 or _U32.unpack_from(message, 0)[0] != 0xFFFFFFFF:
        raise EnvelopeError("the body is not an encapsulated Arrow IPC message")
    metadata_length = _I32.unpack_from(message, 4)[0]
    if not 8 <= metadata_length <= len(message) - 8:
        raise EnvelopeError("the Arrow message ends before its metadata does")
    view = memoryview(message)
    nodes, places = _read_metadata(view[8 : 8 + metadata_length], column_count, record_count)
    body = pa.py_buffer(message).slice(8 + metadata_length)
    return [
        _build(body, places[3 * column : 3 * column + 3], nodes[column], record_count) for column in range(column_count)
    ]


def _read_metadata(
    metadata: memoryview, column_count: int, record_count: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    flat = _Flatbuffer(metadata)
    root = flat.follow(0)
    version, kind, header = flat.fields(root, 3)
    if version is None or flat.number(_U16, version) not in _VERSIONS:
        raise EnvelopeError("the Arrow message is of a version that liftpy does not read")
    if kind is None or header is None or flat.number(_U8, kind) != _HEADER_TYPE_RECORD_BATCH:
        raise EnvelopeError("the Arrow message is not a record batch")
    batch = flat.follow(header)
    length, nodes, buffers, compression, variadic = flat.fields(batch, 5)
    if compression is not None or variadic is not None:
        raise EnvelopeError("the Arrow record batch must be uncompressed, with plain binary columns")
    found = 0 if length is None else flat.number(_I64, length)
    if found != record_count:
        raise EnvelopeError(f"the Arrow record batch has {found} records; the envelope announced {record_count}")
    return flat.pairs(nodes, column_count, "columns"), flat.pairs(buffers, 3 * column_count, "buffers")


def _cut(body: pa.Buffer, place: tuple[int, int], size: int, what: str) -> pa.Buffer:
    """The first `size` bytes of a buffer.

    Buffers may overlap, so the rest, which belongs to no record, could make a small message a large one once stored.
    """
    offset, length = place
    if offset < 0 or length < 0 or offset + length > body.size:
        raise EnvelopeError("a buffer of the Arrow record batch lies outside its body")
    if length < size:
        raise EnvelopeError(f"a column of the Arrow record batch has {what}")
    return body.slice(offset, size)


def _build(body: pa.Buffer, places: list[tuple[int, int]], node: tuple[int, int], record_count: int) -> pa.BinaryArray:
    length, null_count = node
    if length != record_count or not 0 <= null_count <= record_count:
        raise EnvelopeError("a column of the Arrow record batch has another length than the batch")
    bitmap_size = (record_count + 7) // 8 if null_count else 0
    bitmap = _cut(body, places[0], bitmap_size, "too small a validity bitmap")
    offsets = _cut(body, places[1], 4 * (record_count + 1), "too few offsets")
    first, last = _I32.unpack_from(offsets, 0)[0], _I32.unpack_from(offsets, 4 * record_count)[0]
    data = _cut(body, places[2], max(last, 0), "offsets that point beyond its data")
    try:
        column = pa.BinaryArray.from_buffers(
            _BINARY, record_count, [bitmap if null_count else None, offsets, data], -1 if null_count else 0
        )
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise EnvelopeError(f"a column of the Arrow record batch is not valid: {error}") from error
    if first:
        return pa.concat_arrays([column, column.slice(0, 0)])  # drops the bytes before the first record
    return column
