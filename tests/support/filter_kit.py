"""Batches of every shape in files of memory, and what a naive reader takes of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

from liftpy_envelope.batch import (
    HEADER_SIZE,
    check_body,
    compress_body,
    decode_records,
    encode_body,
    encode_header,
    read_header,
)
from liftpy_envelope.columns import Column
from liftpy_envelope.ipc import fixed_column, nullable_column, values_column
from liftpy_envelope.subject import matches
from liftpy_log.reader import Slice
from liftpy_server.pull.filtering import Filtering


class Record(NamedTuple):
    offset: int
    epoch: int
    time: int
    subject: bytes
    key: bytes | None
    value: bytes | None


class MemoryFile:
    """What a test put there, as a file."""

    def __init__(self, data):
        self.data = data
        self.largest_read = 0

    def read(self, position, size):
        self.largest_read = max(self.largest_read, size)
        return self.data[position : position + size]


class Shape(NamedTuple):
    """A batch to be: its subjects, and the holes before each of them and behind the last."""

    subjects: tuple[bytes, ...]
    holes: tuple[int, ...] = ()
    hole_behind: int = 0
    has_times: bool = False
    has_keys: bool = False
    compression: str | None = None
    epoch_step: int = 0
    value_size: int = 10


def encode(shape, base_offset, epoch, time):
    """(data, records, next offset) of a batch."""
    holes = [*shape.holes, *[0] * len(shape.subjects)]
    records, offset = [], base_offset
    for number, subject in enumerate(shape.subjects):
        offset += holes[number]
        at = time + number if shape.has_times else time
        key = b"k%d" % offset if shape.has_keys and offset % 3 else None
        value = None if shape.has_keys and offset % 5 == 0 else b"%d." % offset + bytes(shape.value_size)
        records.append(Record(offset, epoch, at, subject, key, value))
        offset += 1
    next_offset = offset + shape.hole_behind
    if not records:
        next_offset = max(next_offset, base_offset + 1)
    bitmap, columns = Column.SUBJECT | Column.VALUE, []
    if shape.has_times:
        bitmap |= Column.TIMESTAMP
        columns.append(fixed_column([record.time for record in records], "q"))
    if next_offset - base_offset != len(records):
        bitmap |= Column.OFFSET_DELTA
        columns.append(fixed_column([record.offset - base_offset for record in records], "i"))
    columns.append(values_column([record.subject for record in records]))
    if shape.has_keys:
        bitmap |= Column.KEY
        columns.append(nullable_column([record.key for record in records]))
    columns.append(nullable_column([record.value for record in records]))
    body = encode_body(len(records), bitmap, columns)
    if shape.compression:
        body = compress_body(body, shape.compression)
    header = encode_header(
        body,
        base_offset=base_offset,
        leader_epoch=epoch,
        base_timestamp=time,
        max_timestamp=records[-1].time if records else time,
        last_offset_delta=next_offset - base_offset - 1,
    )
    return header + b"".join(map(bytes, body.parts)), records, next_offset


class Stored:
    """Batches that follow on one another, spread over some files.

    Attributes:
        records: all of them.
        places: (file, slice) of every batch.
    """

    def __init__(self, shapes, file_batches=1_000, base_offset=100):
        self.records, self.places = [], []
        self.start = offset = base_offset
        epoch, time, data, slices = 3, 1_000, b"", []
        for number, shape in enumerate(shapes):
            if number % file_batches == 0:
                self._seal(data, slices)
                data, slices = b"", []
                segment = SimpleNamespace(path=f"segment {number}")
            epoch += shape.epoch_step
            time += 100
            batch, records, offset = encode(shape, offset, epoch, time)
            slices.append(Slice(segment, len(data), len(batch), offset))
            data += batch
            self.records += records
        self._seal(data, slices)
        self.end = offset

    def _seal(self, data, slices):
        file = MemoryFile(data)
        self.places += [(file, piece) for piece in slices]

    @property
    def size(self):
        return sum(piece.length for _, piece in self.places)

    def pinned(self, offset, batches):
        """Up to so many batches from an offset on, as a log cuts them: one slice a file."""
        joined = []
        for file, piece in [place for place in self.places if place[1].next_offset > offset][:batches]:
            if joined and joined[-1][0] is file:
                before = joined.pop()[1]
                joined.append(
                    (file, before._replace(length=before.length + piece.length, next_offset=piece.next_offset))
                )
            else:
                joined.append((file, piece))
        return joined


def naive(records, patterns):
    return [
        record for record in records if any(matches(pattern, record.subject.decode("latin-1")) for pattern in patterns)
    ]


def sent(filtering):
    """The bytes of a filtering's pieces."""
    data = b"".join(
        piece if isinstance(piece, bytes) else piece[0].data[piece[1].position : piece[1].position + piece[1].length]
        for piece in filtering.pieces
    )
    assert len(data) == filtering.body_bytes
    return data


def batches_in(data):
    """(header, records) of batches that follow on one another, checked."""
    position = 0
    while position < len(data):
        header = read_header(data, position)
        body = data[position + HEADER_SIZE : position + header.length]
        check_body(header, body)
        records = decode_records(header, body)
        records.validate(full=True)
        yield header, records
        position += header.length


def records_in(data):
    """The records of batches that follow on one another."""
    found, end = [], 0
    for header, records in batches_in(data):
        count = header.record_count
        columns = {name: records.column(name).to_pylist() for name in records.schema.names}
        deltas = columns.get("offset_delta", range(count))
        times = columns.get("timestamp", [header.base_timestamp] * count)
        missing = [None] * count
        rows = zip(
            deltas, times, columns["subject"], columns.get("key", missing), columns.get("value", missing), strict=True
        )
        batch = [Record(header.base_offset + delta, header.leader_epoch, *rest) for delta, *rest in rows]
        assert header.base_offset >= end, "batches do not overlap"
        end = header.next_offset
        assert all(header.base_offset <= record.offset < end for record in batch)
        if batch:
            assert (batch[0].time, batch[-1].time) == (header.base_timestamp, header.max_timestamp)
        found += batch
    return found


def filter_once(matcher, pinned, bytes_max=1 << 20, cost_max=1 << 30):
    filtering = Filtering(matcher, pinned, bytes_max, cost_max)
    steps = 0
    while not filtering.is_done:
        filtering.step()
        steps += 1
        assert steps < 10_000
    return filtering
