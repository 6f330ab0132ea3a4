"""From record batches as they crossed the wire to Arrow tables and messages."""

from __future__ import annotations

from collections import deque
from functools import cache
from itertools import repeat
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from liftpy_client.message import Message
from liftpy_envelope.batch import HEADER_SIZE, check_body, decode_records, read_header
from liftpy_envelope.columns import Column

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from liftpy_client.consumer.filtering import SubjectFilter
    from liftpy_envelope.batch import BatchHeader

__all__ = [
    "EXTRA_COLUMNS",
    "RECORDS_SCHEMA",
    "MessageRun",
    "WireBatch",
    "iterate_messages",
    "records_schema",
    "split_body",
    "to_records",
]

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
"""Schema of the record batches that `consume_batches` yields, unless more columns are asked for."""

_EXTRA: Final = {
    "message_id": pa.field("message_id", pa.binary()),
    "leader_epoch": pa.field("leader_epoch", pa.int32(), nullable=False),
}
EXTRA_COLUMNS: Final = tuple(_EXTRA)
"""Columns that record batches have only if they are asked for."""


@cache
def records_schema(extra: tuple[str, ...]) -> pa.Schema:
    """`RECORDS_SCHEMA`, and behind it some of `EXTRA_COLUMNS`."""
    return pa.schema([*RECORDS_SCHEMA, *(_EXTRA[name] for name in extra)])


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
        deltas = decode_records(header, body).column("offset_delta").cast(pa.int64())
        first = pc.less(deltas, offset - header.base_offset).true_count
        last = len(deltas) if stop is None else pc.less(deltas, stop - header.base_offset).true_count
    else:
        first = max(0, offset - header.base_offset)
        last = header.record_count if stop is None else min(header.record_count, stop - header.base_offset)
    return WireBatch(header, body, first, max(first, last))


def _times(batch: WireBatch, records: pa.RecordBatch) -> Any:
    if batch.header.columns & Column.TIMESTAMP:
        return records.column("timestamp").to_pylist()
    return repeat(batch.header.base_timestamp)


def _offsets(batch: WireBatch, records: pa.RecordBatch) -> pa.Array:
    base = batch.header.base_offset
    if batch.header.columns & Column.OFFSET_DELTA:
        return pc.add(records.column("offset_delta").cast(pa.int64()), base)
    return pa.arange(base + batch.first, base + batch.last)


def _decode(batch: WireBatch, subjects: SubjectFilter | None) -> tuple[pa.RecordBatch, pa.Array | None]:
    """The wanted records of a batch, and their offsets unless those follow one another from its first one on."""
    records = decode_records(batch.header, batch.body).slice(batch.first, batch.last - batch.first)
    has_holes = batch.header.columns & Column.OFFSET_DELTA
    if subjects is None:
        return records, _offsets(batch, records) if has_holes else None
    offsets = _offsets(batch, records)
    mask = subjects.mask(records.column("subject"))
    if mask.true_count == records.num_rows:
        return records, offsets
    return records.filter(mask), offsets.filter(mask)


def _subjects(records: pa.RecordBatch) -> Any:
    encoded = records.column("subject").dictionary_encode()
    names = [name.decode("utf-8", "replace") for name in encoded.dictionary.to_pylist()]
    if len(names) == 1:
        return repeat(names[0])
    return map(names.__getitem__, encoded.indices.to_pylist())


class MessageRun(NamedTuple):
    """The wanted messages of a batch, and how far they have been taken.

    Nothing is noted per message, since that would cost as much as making one: where somebody is follows from what is
    left in `rest`, and whoever empties it lets no further message be made.

    Attributes:
        messages: Made one by one, as they are taken.
        offsets: Offsets of all of the messages.
        rest: An iterator over the offsets of those that have not been taken.
    """

    messages: Iterator[Message]
    offsets: Sequence[int]
    rest: Iterator[int]

    @property
    def taken(self) -> int:
        """How many messages have been taken."""
        return len(self.offsets) - length_hint(self.rest)

    def stop(self) -> None:
        """Let no further message be made."""
        deque(self.rest, maxlen=0)


def iterate_messages(
    stream: str, partition: int, batch: WireBatch, subjects: SubjectFilter | None = None
) -> MessageRun:
    """The wanted messages of a batch."""
    records, picked = _decode(batch, subjects)
    if not records.num_rows:
        return MessageRun(iter(()), (), iter(()))
    columns = batch.header.columns
    base = batch.header.base_offset
    offsets: Sequence[int] = range(base + batch.first, base + batch.last) if picked is None else picked.to_pylist()
    rest = iter(offsets)
    messages = map(
        Message,
        repeat(stream),
        repeat(partition),
        rest,
        _times(batch, records),
        _subjects(records),
        records.column("key").to_pylist() if columns & Column.KEY else repeat(None),
        records.column("headers").to_pylist() if columns & Column.HEADERS else repeat(None),
        records.column("value").to_pylist() if columns & Column.VALUE else repeat(None),
    )
    return MessageRun(messages, offsets, rest)


def to_records(
    partition: int, batch: WireBatch, subjects: SubjectFilter | None = None, extra: tuple[str, ...] = ()
) -> pa.RecordBatch:
    """The wanted records of a batch, with the columns of `records_schema(extra)`."""
    header = batch.header
    records, offsets = _decode(batch, subjects)
    count = records.num_rows
    if offsets is None:
        offsets = _offsets(batch, records)
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

    arrays = [
        offsets,
        times.cast(RECORDS_SCHEMA.field("timestamp").type),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        _subject_strings(records),
        column(Column.KEY, "key"),
        column(Column.HEADERS, "headers"),
        column(Column.VALUE, "value"),
    ]
    for name in extra:
        if name == "leader_epoch":
            arrays.append(pa.repeat(pa.scalar(header.leader_epoch, pa.int32()), count))
        else:
            arrays.append(column(Column.MESSAGE_ID, name))
    return pa.RecordBatch.from_arrays(arrays, schema=records_schema(extra))


def _subject_strings(records: pa.RecordBatch) -> pa.StringArray:
    column = records.column("subject")
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:  # NATS does not insist on UTF-8
        return pa.array([name.decode("utf-8", "replace") for name in column.to_pylist()], pa.string())
