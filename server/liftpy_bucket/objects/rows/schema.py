"""Rows: records as they stand in the objects of the bucket, in columns that any reader of Parquet understands.

    offset int64 | timestamp timestamp(us, UTC) | timestamp_ns int64 | subject string | key binary | headers binary
    | value binary | message_id binary | [reply binary, only where it is asked for] | leader_epoch int32
    | producer_id binary(16) | producer_sequence int64

`timestamp` is `timestamp_ns` rounded down to microseconds: Spark refuses nanoseconds. Subjects of NATS are bytes, a
subject here is text: one that is not UTF-8 stands as U+FFFD and the hexadecimal digits of its bytes, and so does one
that begins with U+FFFD itself; so every subject has its own text, and gets its bytes back.

Producer and sequence are those of the batch that the record came in; null where it had none. In rows of a batch that
key compaction wrote, whose producers nobody knows any more, the producer is null and the sequence -1.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

__all__ = [
    "BINARY_COLUMNS",
    "MERGED_SEQUENCE",
    "batch_names",
    "conform",
    "cuts_by_size",
    "row_names",
    "row_schema",
    "row_sizes",
    "subject_bytes",
    "subject_texts",
]

BINARY_COLUMNS: Final = ("key", "headers", "value", "message_id", "reply")
_MARK: Final = "\ufffd"
_MARK_BYTES: Final = _MARK.encode()
_FIXED_BYTES: Final = 28  # of a row in columns of fixed width
_OFFSET_BYTES: Final = 4  # of a value in a column of bytes, besides its bytes
_BINARY: Final = pa.binary()
MERGED_SEQUENCE: Final = -1  # of a row whose batch was merged of others by key compaction
_PRODUCER: Final = ("producer_id", "producer_sequence")
_MAY_LACK: Final = ("reply", *_PRODUCER)  # rows without these have none
_STRING: Final = pa.string()


@cache
def row_schema(*, keeps_replies: bool) -> pa.Schema:
    """The schema of rows, with or without the column `reply`."""
    fields = [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("timestamp_ns", pa.int64(), nullable=False),
        pa.field("subject", _STRING, nullable=False),
        *(pa.field(name, _BINARY) for name in BINARY_COLUMNS if keeps_replies or name != "reply"),
        pa.field("leader_epoch", pa.int32(), nullable=False),
        pa.field("producer_id", pa.binary(16)),
        pa.field("producer_sequence", pa.int64()),
    ]
    return pa.schema(fields)


def row_names(*, keeps_replies: bool) -> list[str]:
    """The columns of rows, in their order."""
    return list(row_schema(keeps_replies=keeps_replies).names)


def batch_names(*, keeps_replies: bool) -> list[str]:
    """The columns of rows that record batches are made of.

    A time to the microsecond says nothing more, and batches that are cut anew are not those of a producer.
    """
    return [name for name in row_names(keeps_replies=keeps_replies) if name not in ("timestamp", *_PRODUCER)]


def conform(rows: pa.RecordBatch, *, keeps_replies: bool) -> pa.RecordBatch:
    """The same rows with exactly the columns of `row_schema`.

    Raises:
        ValueError: there are replies, and they have no place.
    """
    schema = row_schema(keeps_replies=keeps_replies)
    if rows.schema.equals(schema):
        return rows
    if not keeps_replies and "reply" in rows.schema.names and rows.column("reply").null_count < rows.num_rows:
        raise ValueError("there are replies in the rows of a stream that does not keep them")
    there = set(rows.schema.names)
    columns = [
        pa.nulls(rows.num_rows, field.type)
        if field.name in _MAY_LACK and field.name not in there
        else rows.column(field.name)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def row_sizes(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """About how many bytes each row takes uncompressed."""
    sizes = np.full(rows.num_rows, _FIXED_BYTES, np.int64)
    for name in ("subject", *BINARY_COLUMNS):
        if name in rows.schema.names:
            column = rows.column(name)
            sizes += _OFFSET_BYTES
            if column.null_count < len(column):
                sizes += lengths_of(column)
    return sizes


def lengths_of(column: pa.Array) -> npt.NDArray[np.int64]:
    """How many bytes each value of a column of bytes or text has; of null, none."""
    ends = np.frombuffer(column.buffers()[1], "<i4", len(column) + 1, 4 * column.offset).astype(np.int64)
    lengths: npt.NDArray[np.int64] = np.diff(ends)
    if column.null_count:
        lengths[np.asarray(column.is_null())] = 0
    return lengths


def cuts_by_size(rows: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Slices of rows of about `bytes_max` each; a larger one only where a single row is larger."""
    ends = np.cumsum(row_sizes(rows))
    start = 0
    while start < rows.num_rows:
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + bytes_max, "right")))
        yield rows.slice(start, stop - start)
        start = stop


def subject_texts(subjects: pa.BinaryArray) -> pa.StringArray:
    """Subjects as they stand in rows."""
    try:
        texts = subjects.cast(_STRING)
    except pa.ArrowInvalid:
        return _by_value(subjects, _text_of, _STRING)
    return _by_value(subjects, _text_of, _STRING) if _has_mark(texts) else texts


def subject_bytes(texts: pa.StringArray) -> pa.BinaryArray:
    """The subjects that `subject_texts` was given.

    Raises:
        ValueError: it did not write these.
    """
    return _by_value(texts, _bytes_of, _BINARY) if _has_mark(texts) else texts.cast(_BINARY)


def _has_mark(texts: pa.StringArray) -> bool:
    return bool(pc.any(pc.starts_with(texts, _MARK)).as_py())


def _by_value(
    values: pa.Array, convert: Callable[[bytes], bytes] | Callable[[bytes], str], to_type: pa.DataType
) -> pa.Array:
    """Every distinct value converted once."""
    encoded = values.cast(_BINARY).dictionary_encode()
    return pa.array([convert(value) for value in encoded.dictionary.to_pylist()], to_type).take(encoded.indices)


def _text_of(subject: bytes) -> str:
    try:
        text = subject.decode()
    except UnicodeDecodeError:
        return _MARK + subject.hex()
    return _MARK + subject.hex() if text.startswith(_MARK) else text


def _bytes_of(text: bytes) -> bytes:
    if text.startswith(_MARK_BYTES):
        return bytes.fromhex(text[len(_MARK_BYTES) :].decode())
    return text
