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
_VERSIONS: Final = frozenset({3, 4})  # V4 and V5 lay out binary columns alike
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

    def field(self, table: int, slot: int) -> int | None:
        """Position of a table's field, or None where it is absent."""
        vtable = table - self.number(_I32, table)
        entry = 4 + 2 * slot
        if entry + 2 > self.number(_U16, vtable):
            return None
        offset = self.number(_U16, vtable + entry)
        return table + offset if offset else None

    def pairs(self, position: int | None, count: int, what: str) -> list[tuple[int, int]]:
        """A vector of `count` structs of two int64."""
        if position is None:
            raise EnvelopeError(f"the Arrow message has no {what}")
        vector = self.follow(position)
        found = self.number(_U32, vector)
        if found != count:
            raise EnvelopeError(f"the Arrow message has {found} {what} instead of {count}")
        if vector + 4 + _PAIR.size * count > len(self.data):
            raise EnvelopeError("the Arrow message's metadata points outside itself")
        return [_PAIR.unpack_from(self.data, vector + 4 + _PAIR.size * index) for index in range(count)]


def read_binary_columns(message: bytes | memoryview, column_count: int, record_count: int) -> list[pa.BinaryArray]:
    """Open one encapsulated Arrow IPC record batch message of nullable binary columns.

    Args:
        message: the message, beginning with its continuation marker.
        column_count: how many columns it must have.
        record_count: how many records it must have.

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
    arrays = []
    for column in range(column_count):
        buffers = [_slice(body, *place) for place in places[3 * column : 3 * column + 3]]
        arrays.append(_build(buffers, nodes[column], record_count))
    return arrays


def _read_metadata(
    metadata: memoryview, column_count: int, record_count: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    flat = _Flatbuffer(metadata)
    root = flat.follow(0)
    version, kind, header = (flat.field(root, slot) for slot in (0, 1, 2))
    if version is None or flat.number(_U16, version) not in _VERSIONS:
        raise EnvelopeError("the Arrow message is of a version that liftpy does not read")
    if kind is None or header is None or flat.number(struct.Struct("<B"), kind) != _HEADER_TYPE_RECORD_BATCH:
        raise EnvelopeError("the Arrow message is not a record batch")
    batch = flat.follow(header)
    length, nodes, buffers, compression, variadic = (flat.field(batch, slot) for slot in range(5))
    if compression is not None or variadic is not None:
        raise EnvelopeError("the Arrow record batch must be uncompressed, with plain binary columns")
    found = 0 if length is None else flat.number(_I64, length)
    if found != record_count:
        raise EnvelopeError(f"the Arrow record batch has {found} records; the envelope announced {record_count}")
    return flat.pairs(nodes, column_count, "columns"), flat.pairs(buffers, 3 * column_count, "buffers")


def _slice(body: pa.Buffer, offset: int, length: int) -> pa.Buffer:
    if offset < 0 or length < 0 or offset + length > body.size:
        raise EnvelopeError("a buffer of the Arrow record batch lies outside its body")
    return body.slice(offset, length)


def _build(buffers: list[pa.Buffer], node: tuple[int, int], record_count: int) -> pa.BinaryArray:
    length, null_count = node
    validity, offsets, data = buffers
    if length != record_count or not 0 <= null_count <= record_count:
        raise EnvelopeError("a column of the Arrow record batch has another length than the batch")
    if offsets.size < 4 * (record_count + 1):
        raise EnvelopeError("a column of the Arrow record batch has too few offsets")
    if null_count and validity.size < (record_count + 7) // 8:
        raise EnvelopeError("a column of the Arrow record batch has too small a validity bitmap")
    column = pa.BinaryArray.from_buffers(
        pa.binary(), record_count, [validity if null_count else None, offsets, data], -1 if null_count else 0
    )
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise EnvelopeError(f"a column of the Arrow record batch is not valid: {error}") from error
    first, last = _I32.unpack_from(offsets, 0)[0], _I32.unpack_from(offsets, 4 * record_count)[0]
    if first == 0 and last == data.size:
        return column
    return pa.concat_arrays([column, column.slice(0, 0)])  # drops bytes that belong to no record
