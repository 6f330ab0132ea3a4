"""From record batches as they crossed the wire to Arrow tables and messages."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from liftpy_client.message import Message
from liftpy_envelope.batch import HEADER_SIZE, check_body, decode_records, read_header
from liftpy_envelope.columns import Column

if TYPE_CHECKING:
    from collections.abc import Iterator

    from liftpy_envelope.batch import BatchHeader

__all__ = ["RECORDS_SCHEMA", "WireBatch", "iterate_messages", "split_body", "to_records"]

RECORDS_SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ns", "UTC"), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("subject", pa.string(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("headers", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)
"""Schema of the record batches that `consume_batches` yields."""


class WireBatch(NamedTuple):
    """One checked record batch; records from `first` up to `last` of it are wanted."""

    header: BatchHeader
    body: pa.Buffer
    first: int
    last: int


def split_body(body: pa.Buffer, position: int, size: int) -> Iterator[tuple[BatchHeader, pa.Buffer]]:
    """Cut a part of a response's body into batches, and check them.

    Raises:
        BatchCorruptError, BatchTruncatedError, BatchVersionError: one of them is not well.
    """
    view = memoryview(body)
    end = position + size
    while position < end:
        header = read_header(view, position)
        content = body.slice(position + HEADER_SIZE, min(header.length - HEADER_SIZE, end - position - HEADER_SIZE))
        check_body(header, content)
        yield header, content
        position += header.length


def trim(header: BatchHeader, body: pa.Buffer, offset: int, stop: int | None) -> WireBatch:
    """Which records of a batch are wanted, given the next offset and the one to stop at.

    Key compaction leaves holes; then records are counted, not offsets.
    """
    if header.columns & Column.OFFSET_DELTA:
        deltas = decode_records(header, body).column("offset_delta").to_pylist()
        first = sum(header.base_offset + delta < offset for delta in deltas)
        last = len(deltas) if stop is None else sum(header.base_offset + delta < stop for delta in deltas)
    else:
        first = max(0, offset - header.base_offset)
        last = header.record_count if stop is None else min(header.record_count, stop - header.base_offset)
    return WireBatch(header, body, first, max(first, last))


def _times(batch: WireBatch, records: pa.RecordBatch) -> Any:
    if batch.header.columns & Column.TIMESTAMP:
        return records.column("timestamp").to_pylist()
    return repeat(batch.header.base_timestamp)


def _offsets(batch: WireBatch, records: pa.RecordBatch) -> Any:
    base = batch.header.base_offset
    if batch.header.columns & Column.OFFSET_DELTA:
        return [base + delta for delta in records.column("offset_delta").to_pylist()]
    return range(base + batch.first, base + batch.last)


def _subjects(records: pa.RecordBatch) -> Any:
    encoded = records.column("subject").dictionary_encode()
    names = [name.decode("utf-8", "replace") for name in encoded.dictionary.to_pylist()]
    if len(names) == 1:
        return repeat(names[0])
    return map(names.__getitem__, encoded.indices.to_pylist())


def iterate_messages(stream: str, partition: int, batch: WireBatch) -> Iterator[Message]:
    """The wanted messages of a batch; made one by one, as they are taken."""
    records = decode_records(batch.header, batch.body).slice(batch.first, batch.last - batch.first)
    columns = batch.header.columns
    return map(
        Message,
        repeat(stream),
        repeat(partition),
        _offsets(batch, records),
        _times(batch, records),
        _subjects(records),
        records.column("key").to_pylist() if columns & Column.KEY else repeat(None),
        records.column("headers").to_pylist() if columns & Column.HEADERS else repeat(None),
        records.column("value").to_pylist() if columns & Column.VALUE else repeat(None),
    )


def to_records(partition: int, batch: WireBatch) -> pa.RecordBatch:
    """The wanted records of a batch, with the columns of `RECORDS_SCHEMA`."""
    header = batch.header
    records = decode_records(header, batch.body).slice(batch.first, batch.last - batch.first)
    count = records.num_rows
    if header.columns & Column.OFFSET_DELTA:
        offsets = pa.array(_offsets(batch, records), pa.int64())
    else:
        offsets = pa.arange(header.base_offset + batch.first, header.base_offset + batch.last)
    if header.columns & Column.TIMESTAMP:
        times = records.column("timestamp")
    else:
        times = pa.repeat(pa.scalar(header.base_timestamp, pa.int64()), count)
    nulls = None

    def column(bit: int, name: str) -> pa.Array:
        nonlocal nulls
        if header.columns & bit:
            return records.column(name)
        if nulls is None:
            nulls = pa.nulls(count, pa.binary())
        return nulls

    return pa.RecordBatch.from_arrays(
        [
            offsets,
            times.cast(RECORDS_SCHEMA.field("timestamp").type),
            pa.repeat(pa.scalar(partition, pa.int32()), count),
            _subject_strings(records),
            column(Column.KEY, "key"),
            column(Column.HEADERS, "headers"),
            column(Column.VALUE, "value"),
        ],
        schema=RECORDS_SCHEMA,
    )


def _subject_strings(records: pa.RecordBatch) -> pa.StringArray:
    column = records.column("subject")
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:  # NATS does not insist on UTF-8
        return pa.array([name.decode("utf-8", "replace") for name in column.to_pylist()], pa.string())
