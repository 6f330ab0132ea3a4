"""Records come through rows unchanged, from batches of any kind and back into batches."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_bucket.objects.rows import decoding as rows_decoding
from liftpy_bucket.objects.rows.convert import batches_of, row_schema, rows_of, rows_of_many
from liftpy_bucket.objects.rows.schema import conform, cuts_by_size, row_sizes, subject_bytes, subject_texts
from liftpy_envelope.batch import ATTRIBUTE_COMPACTED, HEADER_SIZE, BatchHeader, check_body, read_header
from liftpy_envelope.columns import Column
from liftpy_envelope.errors import BatchCorruptError
from support.compacted import KeyedLog
from support.examples import examples
from support.simdisk import SimDisk
from support.tier_rows import Record, batch_of, cut, histories, plain_records, records_of, rows_from, taken_apart

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=4)
CODECS = st.sampled_from(["none", "lz4", "zstd"])


def whole(batches):
    """(header, all bytes) of each."""
    joined = [b"".join(parts) for parts in batches]
    return [(read_header(data), data) for data in joined]


def without_replies(records):
    return [record._replace(reply=None) for record in records]


@examples(100)
@given(histories(), LENGTHS, CODECS, st.integers(0, 2_000), st.booleans())
def test_any_records_come_through_rows_and_back(records, lengths, codec, piece_bytes, keeps_replies):
    batches = [batch_of(run, codec=codec) for run in cut(records, lengths)]
    pieces = list(rows_of_many(batches, keeps_replies=keeps_replies, piece_bytes=piece_bytes))
    expected = records if keeps_replies else without_replies(records)
    assert [record for rows in pieces for record in records_of(rows)] == expected
    for rows in pieces:
        assert rows.schema.equals(row_schema(keeps_replies=keeps_replies))
        rows.validate(full=True)


@examples(80)
@given(histories(), CODECS, st.integers(0, 400), st.integers(0, 3), st.integers(0, 2**33))
def test_batches_of_rows_cover_every_offset_and_give_the_same_rows(records, codec, bytes_max, before, behind):
    rows = rows_from(records, keeps_replies=True)
    start = max(0, records[0].offset - before)
    end = records[-1].offset + 1 + behind
    batches = whole(batches_of(rows, codec, bytes_max, start=start, end=end))
    position = start
    for header, data in batches:
        assert taken_apart(data)[0] == header
        assert header.base_offset == position
        position = header.next_offset
    assert position == end
    again = [rows_of(header, data[HEADER_SIZE:], keeps_replies=True) for header, data in batches]
    assert [record for piece in again for record in records_of(piece)] == records
    for piece in again:
        assert len(set(piece.column("leader_epoch").to_pylist())) <= 1


@examples(60)
@given(histories(), st.data(), st.integers(0, 400))
def test_rows_that_lie_amid_others_give_batches_of_their_own(records, data, bytes_max):
    first = data.draw(st.integers(0, len(records) - 1))
    last = data.draw(st.integers(first + 1, len(records)))
    rows = rows_from(records, keeps_replies=True).slice(first, last - first)
    batches = whole(batches_of(rows, "none", bytes_max))
    again = [rows_of(header, body[HEADER_SIZE:], keeps_replies=True) for header, body in batches]
    assert [record for piece in again for record in records_of(piece)] == records[first:last]
    for header, body in batches:
        check_body(header, body[HEADER_SIZE:])


def test_values_are_not_copied():
    rows = rows_from(plain_records(100, size=1_000))
    batches = list(batches_of(rows, "none", 20_000))
    memory = rows.column("value").buffers()[2]
    addresses = range(memory.address, memory.address + memory.size)
    for parts in batches:
        assert any(isinstance(part, pa.Buffer) and part.size and part.address in addresses for part in parts)


def test_rows_without_a_batch_still_cover_offsets():
    nothing = rows_from(plain_records(1)).slice(0, 0)
    ((header, data),) = whole(batches_of(nothing, "zstd", 100, start=5, end=9, leader_epoch=3))
    assert (header.base_offset, header.next_offset, header.record_count, header.leader_epoch) == (5, 9, 0, 3)
    assert rows_of(header, data[HEADER_SIZE:]).num_rows == 0
    assert list(batches_of(nothing, "zstd", 100)) == []


def test_batches_are_as_large_as_asked_for():
    rows = rows_from(plain_records(2_000, size=100))
    lengths = [header.length for header, _ in whole(batches_of(rows, "none", 16_000))]
    assert max(lengths) < 17_000
    assert min(lengths[:-1]) > 13_000


@examples(100)
@given(st.lists(st.binary(max_size=8) | st.sampled_from([b"a.b", "\ufffd".encode(), "\ufffd61".encode()]), max_size=9))
def test_every_subject_has_its_own_text(subjects):
    texts = subject_texts(pa.array(subjects, pa.binary()))
    assert subject_bytes(texts).to_pylist() == subjects
    assert len(set(texts.to_pylist())) == len(set(subjects))


def test_times_are_rounded_down_to_microseconds_and_kept_to_the_nanosecond():
    times = [-1_001, -1, 0, 999, 1_790_000_000_123_456_789]
    rows = rows_from([Record(place, time, b"s") for place, time in enumerate(times)])
    assert rows.column("timestamp").cast(pa.int64()).to_pylist() == [-2, -1, 0, 0, 1_790_000_000_123_456]
    assert rows.column("timestamp_ns").to_pylist() == times


@pytest.mark.parametrize("damage", range(40))
def test_a_body_that_lies_is_refused_or_read_by_arrow(damage):
    """Whatever stands in the words in front of the buffers: no crash, and no other records than Arrow would read."""
    records = [Record(place, 7, b"orders", value=b"v%d" % place) for place in range(12)]
    batches = [batch_of([record]) for record in records]
    header, body = batches[5]
    words = np.frombuffer(body, "<i8").copy()
    words[damage % len(words)] ^= 1 << (damage % 40)
    batches[5] = (header, words.tobytes())
    try:
        found = [record for rows in rows_of_many(batches) for record in records_of(rows)]
    except BatchCorruptError:
        return
    assert [record.offset for record in found] == [record.offset for record in records]


def test_bodies_of_our_encoder_are_taken_apart_at_once(monkeypatch):
    monkeypatch.setattr(rows_decoding, "decode_records", lambda *_: pytest.fail("Arrow's reader was asked"))
    records = [
        record._replace(key=None if record.offset % 3 else b"k", value=record.value if record.offset % 5 else None)
        for record in plain_records(500, size=9)
    ]
    batches = [batch_of(run, columns=Column.KEY | Column.VALUE) for run in cut(records, [1, 3, 9])]
    assert [record for rows in rows_of_many(batches) for record in records_of(rows)] == records


def test_small_and_large_batches_with_and_without_compression_come_mixed():
    records = plain_records(3_000, size=60)
    batches = [
        batch_of(run, codec="zstd" if len(run) > 100 else "none") for run in cut(records, [1, 1, 1, 400, 1, 9, 900])
    ]
    assert {header.attributes for header, _ in batches} == {0, 1}
    assert [record for rows in rows_of_many(batches) for record in records_of(rows)] == records


def test_rows_conform_to_a_schema_with_or_without_replies():
    with_reply = rows_from([Record(1, 2, b"s", reply=b"r")], keeps_replies=True)
    without = rows_from([Record(1, 2, b"s")], keeps_replies=True)
    assert conform(without, keeps_replies=False).schema.names == row_schema(keeps_replies=False).names
    assert conform(conform(without, keeps_replies=False), keeps_replies=True).equals(without)
    with pytest.raises(ValueError, match="does not keep them"):
        conform(with_reply, keeps_replies=False)


@examples(60)
@given(histories(), st.integers(1, 500))
def test_cuts_by_size_lose_nothing(records, bytes_max):
    rows = rows_from(records)
    pieces = list(cuts_by_size(rows, bytes_max))
    assert pa.Table.from_batches(pieces).combine_chunks() == pa.Table.from_batches([rows])
    assert all(piece.num_rows == 1 or row_sizes(piece).sum() <= bytes_max for piece in pieces)


def test_a_header_that_counts_other_records_than_its_body_is_refused():
    header, body = batch_of(plain_records(3))
    wrong = BatchHeader(**{**header._asdict(), "record_count": 4})
    with pytest.raises(BatchCorruptError, match="3 records, not 4"):
        rows_of(wrong, body)


def test_a_row_has_producer_and_sequence_of_its_batch():
    batches = [batch_of(run) for run in cut(plain_records(9), [2, 3, 4])]
    for place, sequence in ((0, 5), (2, 2**40)):
        header, body = batches[place]
        batches[place] = header._replace(producer_id=bytes([place + 1]) * 16, producer_sequence=sequence), body
    (rows,) = rows_of_many(batches)
    assert rows.column("producer_id").to_pylist() == [b"\1" * 16] * 2 + [None] * 3 + [b"\3" * 16] * 4
    assert rows.column("producer_sequence").to_pylist() == [5] * 2 + [None] * 3 + [2**40] * 4


@pytest.mark.parametrize("has_producers", [False, True])
def test_a_row_of_a_batch_that_compaction_wrote_says_so(has_producers):
    batches = [batch_of(run) for run in cut(plain_records(9), [2, 3, 4])]
    header, body = batches[1]
    batches[1] = header._replace(attributes=header.attributes | ATTRIBUTE_COMPACTED), body
    if has_producers:
        batches[0] = batches[0][0]._replace(producer_id=b"p" * 16, producer_sequence=5), batches[0][1]
    (rows,) = rows_of_many(batches)
    id_, sequence = (b"p" * 16, 5) if has_producers else (None, None)
    assert rows.column("producer_id").to_pylist() == [id_] * 2 + [None] * 7
    assert rows.column("producer_sequence").to_pylist() == [sequence] * 2 + [-1] * 3 + [None] * 4


def test_rows_of_a_compacted_log_are_told_from_those_of_publishers_without_a_producer():
    log = KeyedLog(SimDisk(), 10**6)
    log.fill(20, keys=3)
    log.log.roll()
    log.append((b"newest", b"v"))
    log.compact()
    data, batches = log.data(), []
    while data:
        length = read_header(data).length
        batches.append(taken_apart(data[:length]))
        data = data[length:]
    merged, newest = rows_of_many(batches, piece_bytes=1)
    assert merged.column("producer_sequence").to_pylist() == [-1] * merged.num_rows
    assert newest.column("producer_sequence").to_pylist() == [None]
