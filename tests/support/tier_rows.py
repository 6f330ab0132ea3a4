"""Records of any kind, as plain values, as record batches and as rows of the bucket."""

from __future__ import annotations

import io
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from liftpy_bucket.objects.record_hash import RecordHash
from liftpy_bucket.objects.rows.convert import rows_of_many
from liftpy_bucket.objects.write import ObjectWriter
from liftpy_envelope.batch import HEADER_SIZE, check_body, compress_body, encode_body, encode_header, read_header
from liftpy_envelope.columns import Column, columns_in
from liftpy_envelope.ipc import fixed_column, nullable_column, values_column

UUID = "0123456789abcdef0123456789abcdef"


class Record(NamedTuple):
    """One record with all that is kept of it."""

    offset: int
    timestamp: int
    subject: bytes
    key: bytes | None = None
    headers: bytes | None = None
    value: bytes | None = None
    message_id: bytes | None = None
    reply: bytes | None = None
    epoch: int = 0


_FIELDS = {
    Column.KEY: "key",
    Column.HEADERS: "headers",
    Column.VALUE: "value",
    Column.MESSAGE_ID: "message_id",
    Column.REPLY: "reply",
}
SUBJECTS = st.sampled_from([b"orders.eu", b"", b"\xff\xfe", "\ufffdab".encode(), b"\xef\xbf", "größe.ü".encode()])
BYTES = st.none() | st.binary(max_size=12) | st.sampled_from([b"", b"\0", b"NATS/1.0\r\nA: b\r\n\r\n" * 40])


@st.composite
def histories(draw, records_max=40):
    """Records with ascending offsets, holes among them, and with epochs that never fall."""
    count = draw(st.integers(1, records_max))
    offset, epoch, records = draw(st.integers(0, 2**40)), 0, []
    has = {name: draw(st.booleans()) for name in _FIELDS.values()}
    one_time = draw(st.booleans())
    timestamp = draw(st.integers(-(2**62), 2**62))
    has_holes = draw(st.booleans())
    for _ in range(count):
        fields = {name: draw(BYTES) for name, is_there in has.items() if is_there}
        records.append(Record(offset, timestamp, draw(SUBJECTS), epoch=epoch, **fields))
        offset += draw(st.sampled_from([1, 1, 2, 1_000, 2**31 + 5])) if has_holes else 1
        epoch += draw(st.sampled_from([0, 0, 0, 1, 7]))
        timestamp += 0 if one_time else draw(st.integers(0, 10**7))
    return records


def batch_of(records, *, columns=None, codec="none", end=None):
    """One record batch, (header, body), of records of one epoch; `columns` are there though they may hold nothing."""
    first = records[0]
    bitmap = Column.SUBJECT | (columns or 0)
    for bit, name in _FIELDS.items():
        if any(getattr(record, name) is not None for record in records):
            bitmap |= bit
    if any(record.timestamp != first.timestamp for record in records):
        bitmap |= Column.TIMESTAMP
    end = records[-1].offset + 1 if end is None else end
    if end - first.offset != len(records):
        bitmap |= Column.OFFSET_DELTA
    buffers = []
    for bit in columns_in(bitmap):
        if bit == Column.TIMESTAMP:
            buffers.append(fixed_column([record.timestamp for record in records], "q"))
        elif bit == Column.OFFSET_DELTA:
            buffers.append(fixed_column([record.offset - first.offset for record in records], "i"))
        elif bit == Column.SUBJECT:
            buffers.append(values_column([record.subject for record in records]))
        else:
            buffers.append(nullable_column([getattr(record, _FIELDS[bit]) for record in records]))
    body = encode_body(len(records), bitmap, buffers)
    if codec != "none":
        body = compress_body(body, codec)
    header = encode_header(
        body,
        base_offset=first.offset,
        leader_epoch=first.epoch,
        base_timestamp=first.timestamp,
        max_timestamp=records[-1].timestamp,
        last_offset_delta=end - first.offset - 1,
    )
    return taken_apart(header + b"".join(bytes(part) for part in body.parts))


def taken_apart(whole):
    """(header, body) of the bytes of a record batch, checked."""
    header = read_header(whole)
    body = whole[HEADER_SIZE:]
    assert len(whole) == header.length
    check_body(header, body)
    return header, body


def cut(records, lengths):
    """Records in runs of these lengths, over and over, cut where the epoch changes or offsets leap too far."""
    runs, run, number = [], [], 0
    for record in records:
        if run and (
            len(run) >= lengths[number % len(lengths)]
            or record.epoch != run[-1].epoch
            or record.offset - run[0].offset >= 2**31
        ):
            runs.append(run)
            run, number = [], number + 1
        run.append(record)
    return [*runs, run] if run else runs


def rows_from(records, *, keeps_replies=False):
    """The rows of records, all in one."""
    batches = [batch_of(run) for run in cut(records, [1_000_000])]
    (rows,) = rows_of_many(batches, keeps_replies=keeps_replies, piece_bytes=2**40)
    return rows


def records_of(rows):
    """The records in rows."""
    columns = rows.to_pydict()
    missing = [None] * rows.num_rows
    found = []
    for place in range(rows.num_rows):
        text = columns["subject"][place]
        subject = bytes.fromhex(text[1:]) if text.startswith("\ufffd") else text.encode()
        fields = {name: columns.get(name, missing)[place] for name in _FIELDS.values()}
        found.append(
            Record(
                columns["offset"][place],
                columns["timestamp_ns"][place],
                subject,
                epoch=columns["leader_epoch"][place],
                **fields,
            )
        )
    return found


def plain_records(count, *, size=100, base=0, key=None, seed=1):
    """Records that are like those of a stream in use: few subjects, a time for each, values of `size` bytes."""
    rng = np.random.default_rng(seed)
    times = 1_790_000_000_000_000_000 + np.cumsum(rng.integers(1, 100_000, count))
    noise = rng.bytes(count + size)
    return [
        Record(
            base + place,
            int(times[place]),
            b"orders.%d" % (place % 7),
            key=None if key is None else key(place),
            value=noise[place : place + size],
        )
        for place in range(count)
    ]


def written(pieces, *, uuid=UUID, partition=0, nonce="n", **options):
    """The bytes of a fragment of these rows, and what the writer says of it."""
    sink = io.BytesIO()
    result = write_rows(sink, pieces, uuid=uuid, partition=partition, nonce=nonce, **options)
    return sink.getvalue(), result


def write_rows(sink, pieces, *, uuid=UUID, partition=0, nonce="n", **options):
    """Write a fragment of these rows; what the writer says of it."""
    options.setdefault("keeps_replies", False)
    options.setdefault("record_hash", RecordHash.BLAKE2B)
    writer = ObjectWriter(sink, uuid=uuid, partition=partition, nonce=nonce, **options)
    for rows in pieces:
        writer.write(rows)
    return writer.finish()


def table_of(pieces):
    """Rows in pieces, as one table."""
    return pa.Table.from_batches(list(pieces)).combine_chunks()
