"""Record batches as they cross the wire become messages and Arrow records."""

from __future__ import annotations

from itertools import islice

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_client.consumer.decode import (
    EXTRA_COLUMNS,
    RECORDS_SCHEMA,
    iterate_messages,
    records_schema,
    split_body,
    to_records,
    trim,
)
from liftpy_client.consumer.filtering import SubjectFilter
from liftpy_envelope.batch import encode_body, encode_header
from liftpy_envelope.columns import Column
from liftpy_envelope.errors import BatchCorruptError, BatchTruncatedError
from liftpy_envelope.ipc import column_buffers, fixed_column
from support.batches import stamped
from support.examples import examples

BITMAP = Column.SUBJECT | Column.KEY | Column.VALUE


def wire(count, base=0, subject=b"s.x"):
    """A batch of `count` records: every second without a key, every third a tombstone."""
    columns = (
        [subject] * count,
        [None if row % 2 else b"k%d" % row for row in range(count)],
        [None if row % 3 == 2 else b"v%d" % row for row in range(count)],
    )
    arrays = [pa.array(column, pa.binary()) for column in columns]
    return stamped(encode_body(count, BITMAP, [column_buffers(array) for array in arrays]), base, 5)


def taken(data, offset=0, stop=None):
    """The wanted part of each batch."""
    buffer = pa.py_buffer(data)
    return [trim(header, body, offset, stop) for header, body in split_body(buffer, 0, len(data))]


@examples(40)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.integers(0, 40),
    st.one_of(st.none(), st.integers(0, 40)),
)
def test_messages_and_records_agree_and_are_trimmed(counts, offset, stop):
    base, data = 3, b""
    for count in counts:
        data += wire(count, base)
        base += count
    wanted = [place for place in range(3, base) if place >= offset and (stop is None or place < stop)]
    batches = [batch for batch in taken(data, offset, stop) if batch.last > batch.first]
    messages = [message for batch in batches for message in iterate_messages("s", 2, batch).messages]
    assert [message.offset for message in messages] == wanted
    records = pa.Table.from_batches([to_records(2, batch) for batch in batches], RECORDS_SCHEMA)
    assert records.column("offset").to_pylist() == wanted
    for name in ("key", "value", "subject", "partition"):
        assert records.column(name).to_pylist() == [getattr(message, name) for message in messages]
    assert {message.timestamp_ns for message in messages} <= {5}


@pytest.mark.parametrize("ids", [None, [b"one", None, b"three"]])
def test_more_columns_where_they_are_asked_for(ids):
    columns = {Column.SUBJECT: [b"s.1", b"s.2", b"s.1"]} | ({} if ids is None else {Column.MESSAGE_ID: ids})
    arrays = [column_buffers(pa.array(column, pa.binary())) for column in columns.values()]
    (batch,) = taken(stamped(encode_body(3, sum(columns), arrays), 7, 5))
    records = to_records(2, batch, SubjectFilter(("s.1",)), EXTRA_COLUMNS)
    assert records.schema == records_schema(EXTRA_COLUMNS)
    assert records.column("offset").to_pylist() == [7, 9]
    assert records.column("message_id").to_pylist() == ([None, None] if ids is None else [b"one", b"three"])
    assert records.column("leader_epoch").to_pylist() == [batch.header.leader_epoch] * 2


def test_a_subject_that_is_no_utf8_is_shown_and_not_fatal():
    (batch,) = taken(wire(2, subject=b"s.\xff"))
    assert [message.subject for message in iterate_messages("s", 0, batch).messages] == ["s.\ufffd"] * 2
    assert to_records(0, batch).column("subject").to_pylist() == ["s.\ufffd"] * 2


@examples(60)
@given(
    st.sets(st.integers(0, 20), min_size=1),
    st.integers(0, 40),
    st.one_of(st.none(), st.integers(0, 40)),
    st.sampled_from([None, ("s.0",), ("s.*",), ("s.1", "t.>")]),
)
def test_batches_with_holes_filtered_or_not(kept, offset, stop, patterns):
    """After key compaction records are counted, not offsets."""
    deltas = sorted(kept)
    subjects = [b"s.%d" % (delta % 3) for delta in deltas]
    arrays = [pa.array(subjects, pa.binary())] * 2
    bitmap = Column.OFFSET_DELTA | Column.SUBJECT | Column.VALUE
    body = encode_body(len(deltas), bitmap, [fixed_column(deltas, "i"), *map(column_buffers, arrays)])
    header = encode_header(
        body, base_offset=10, leader_epoch=1, base_timestamp=5, max_timestamp=5, last_offset_delta=25
    )
    wanted = SubjectFilter(patterns) if patterns else None
    expected = [
        10 + delta
        for delta, subject in zip(deltas, subjects, strict=True)
        if 10 + delta >= offset and (stop is None or 10 + delta < stop) and (wanted is None or wanted.matches(subject))
    ]
    (batch,) = taken(header + b"".join(map(bytes, body.parts)), offset, stop)
    run = iterate_messages("s", 0, batch, wanted)
    assert [message.offset for message in run.messages] == list(run.offsets) == expected
    assert run.taken == len(expected)
    assert to_records(0, batch, wanted).column("offset").to_pylist() == expected
    run = iterate_messages("s", 0, batch, wanted)
    assert [message.offset for message in islice(run.messages, 2)] == expected[:2]
    run.stop()
    assert next(run.messages, None) is None


@pytest.mark.parametrize("place", [0, 4, 20, 90, -1])
def test_damage_is_noticed(place):
    data = bytearray(wire(3))
    data[place] ^= 1
    with pytest.raises((BatchCorruptError, BatchTruncatedError)):
        taken(bytes(data))


def test_what_is_cut_off_is_noticed():
    data = wire(3) + wire(2, 3)
    for size in range(1, len(data)):
        if size != len(wire(3)):
            with pytest.raises((BatchCorruptError, BatchTruncatedError)):
                taken(data[:size])
