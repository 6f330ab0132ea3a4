"""The records of many record batches as one Arrow batch, whatever the size of each.

Decoding a batch costs microseconds, whether it holds one record or thousands, and a quiet stream has batches of one.
So bodies with the layout that our own encoder gives them (see `liftpy_envelope.ipc`) are taken apart all at once: the
words in front of their buffers are read as one matrix, everything that they promise is checked, and only the copy of
each buffer is a step of its own. All others go through Arrow's own reader.
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from liftpy_envelope.batch import decode_records
from liftpy_envelope.columns import columns_in, is_binary, schema_of
from liftpy_envelope.errors import BatchCorruptError
from liftpy_envelope.ipc import ColumnBuffers, encode_message

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from liftpy_envelope.batch import BatchHeader
    from liftpy_envelope.ipc import BufferLike

__all__ = ["decode_many"]

_FEW: Final = 4  # Arrow's own reader is as fast for these
_LARGE_BYTES: Final = 64 * 1024  # and for batches of this size, of which it copies nothing twice
_WORD: Final = 8
_BODY_LENGTH_AT: Final = 4  # in words, as all that follow
_COUNT_AT: Final = 8
_NODES_AT: Final = 11


class _Unlike(Exception):  # noqa: N818 (it is an answer)
    """A body has not the layout that our encoder gives it."""


class _Bodies(NamedTuple):
    """Bodies of one bitmap, one after the other; positions and lengths in bytes.

    Attributes:
        data: Bytes of the bodies.
        starts: Where the buffers of each begin, behind its metadata.
        sizes: How many bytes of buffers each has.
        counts: How many records.
        nulls: Per body and column, how many values are null.
        places: Per body and buffer, (position from `starts`, length).
    """

    data: bytes
    starts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    nulls: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]


def decode_many(batches: Sequence[tuple[BatchHeader, BufferLike]]) -> pa.RecordBatch:
    """The records of checked batches that have the same columns, in their order.

    Raises:
        BatchCorruptError: a body is not the Arrow message that its header announces.
    """
    if len(batches) > _FEW and sum(len(body) for _, body in batches) < _LARGE_BYTES * len(batches):
        try:
            return _decode_ours(batches)
        except _Unlike:
            pass  # compressed, or written by another library: as good, only slower
    return _decode_by_arrow(batches)


def _decode_by_arrow(batches: Sequence[tuple[BatchHeader, BufferLike]]) -> pa.RecordBatch:
    pieces = [decode_records(header, body) for header, body in batches]
    if len(pieces) == 1:
        return pieces[0]
    try:
        for piece in pieces:
            piece.validate(full=True)  # joining arrays trusts what they say of themselves
        schema = pieces[0].schema
        columns = [pa.concat_arrays([piece.column(place) for piece in pieces]) for place in range(len(schema))]
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    except pa.ArrowException as error:
        first, last = batches[0][0].base_offset, batches[-1][0].next_offset - 1
        raise BatchCorruptError(f"a body of the batches at the offsets {first} to {last}: {error}") from error


def _decode_ours(batches: Sequence[tuple[BatchHeader, BufferLike]]) -> pa.RecordBatch:
    bitmap = batches[0][0].columns
    schema = schema_of(bitmap)
    bodies = _take_apart(batches, bitmap)
    total = int(bodies.counts.sum())
    columns, buffer = [], 0
    for place, bit in enumerate(columns_in(bitmap)):
        if is_binary(bit):
            column = _binary_column(bodies, place, buffer, total)
            buffer += 3
        else:
            column = _fixed_column(bodies, place, buffer, schema.field(place).type, total)
            buffer += 2
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@cache
def _template(bitmap: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_], int, int]:
    """The metadata of a body, in words; which of them never change; how many columns and buffers there are."""
    bits = columns_in(bitmap)
    columns = [ColumnBuffers(0, (b"", bytes(4), b"") if is_binary(bit) else (b"", b"")) for bit in bits]
    words = np.frombuffer(encode_message(0, columns)[0], "<i8").copy()
    buffers = sum(len(column.buffers) for column in columns)
    is_fixed = np.ones(len(words), np.bool_)
    is_fixed[[_BODY_LENGTH_AT, _COUNT_AT]] = False
    is_fixed[_NODES_AT : _NODES_AT + 2 * len(bits)] = False
    is_fixed[_NODES_AT + 2 * len(bits) + 1 :] = False
    assert len(words) == _NODES_AT + 2 * len(bits) + 1 + 2 * buffers
    return words, is_fixed, len(bits), buffers


def _take_apart(batches: Sequence[tuple[BatchHeader, BufferLike]], bitmap: int) -> _Bodies:
    template, is_fixed, columns, buffers = _template(bitmap)
    lengths = [len(body) for _, body in batches]
    if min(lengths) < _WORD * len(template) or any(length % _WORD for length in lengths):
        raise _Unlike
    data = b"".join([body for _, body in batches])
    places = np.array(list(accumulate(lengths, initial=0)), np.int64)
    words = np.frombuffer(data, "<i8")[places[:-1, None] // _WORD + np.arange(len(template))]
    counts = words[:, _COUNT_AT]
    sizes = np.array(lengths, np.int64) - _WORD * len(template)
    nodes = words[:, _NODES_AT : _NODES_AT + 2 * columns].reshape(-1, columns, 2)
    buffer_places = words[:, _NODES_AT + 2 * columns + 1 :].reshape(-1, buffers, 2)
    is_ours = (
        bool((words[:, is_fixed] == template[is_fixed]).all())
        and bool((counts == [header.record_count for header, _ in batches]).all())
        and bool((words[:, _BODY_LENGTH_AT] == sizes).all())
        and bool((nodes[:, :, 0] == counts[:, None]).all())
        and bool((buffer_places >= 0).all())
        and bool((buffer_places.sum(axis=2) <= sizes[:, None]).all())
    )
    if not is_ours:
        raise _Unlike
    return _Bodies(data, places[:-1] + _WORD * len(template), sizes, counts, nodes[:, :, 1], buffer_places)


def _fixed_column(bodies: _Bodies, place: int, buffer: int, of_type: pa.DataType, total: int) -> pa.Array:
    width = of_type.bit_width // 8
    if bodies.nulls[:, place].any() or (bodies.places[:, buffer + 1, 1] != width * bodies.counts).any():
        raise _Unlike
    content = _joined(bodies, buffer + 1, width * bodies.counts)
    return pa.Array.from_buffers(of_type, total, [None, pa.py_buffer(content)])


def _binary_column(bodies: _Bodies, place: int, buffer: int, total: int) -> pa.BinaryArray:
    counts = bodies.counts
    if (bodies.places[:, buffer + 1, 1] < 4 * (counts + 1)).any() or (bodies.places[:, buffer + 1, 0] % 4).any():
        raise _Unlike
    firsts = (bodies.starts + bodies.places[:, buffer + 1, 0]) // 4
    numbers = np.frombuffer(bodies.data, "<i4")
    row_at = np.arange(total) + np.repeat(firsts - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
    lengths = numbers[row_at + 1].astype(np.int64) - numbers[row_at]
    used = numbers[firsts + counts].astype(np.int64)
    if numbers[firsts].any() or (lengths < 0).any() or (used > bodies.places[:, buffer + 2, 1]).any():
        raise _Unlike
    if int(used.sum()) >= 2**31:
        raise _Unlike
    ends = np.zeros(total + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    validity = _validity(bodies, place, buffer, total)
    content = pa.py_buffer(_joined(bodies, buffer + 2, used))
    return pa.Array.from_buffers(pa.binary(), total, [validity, pa.py_buffer(ends.tobytes()), content])


def _validity(bodies: _Bodies, place: int, buffer: int, total: int) -> pa.Buffer | None:
    has_nulls = bodies.nulls[:, place] > 0
    if not has_nulls.any():
        return None
    counts = bodies.counts
    if (bodies.places[has_nulls, buffer, 1] < (counts[has_nulls] + 7) // 8).any():
        raise _Unlike
    is_read = np.repeat(has_nulls, counts)
    row = np.arange(total) - np.repeat(np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
    at = np.repeat(bodies.starts + bodies.places[:, buffer, 0], counts)[is_read] + row[is_read] // 8
    is_valid = np.ones(total, np.bool_)
    is_valid[is_read] = np.frombuffer(bodies.data, np.uint8)[at] >> (row[is_read] % 8).astype(np.uint8) & 1
    return pa.py_buffer(np.packbits(is_valid, bitorder="little").tobytes())


def _joined(bodies: _Bodies, buffer: int, lengths: npt.NDArray[np.int64]) -> bytes:
    """What the first `lengths` bytes of one buffer of every body are together."""
    data = bodies.data
    starts = bodies.starts + bodies.places[:, buffer, 0]
    ends = starts + lengths
    return b"".join([data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)])
