"""Fragments give back what was written, read no more than is asked for, and say when they are damaged."""

from __future__ import annotations

import gc
import io
import json
import random
import threading
from hashlib import sha256

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_bucket.errors import BucketVersionError, ObjectCorruptError, ObjectMissingError
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.objects.pointers import Extent
from liftpy_bucket.objects.read import ObjectReader, fragment_key
from liftpy_bucket.objects.record_hash import RecordHash, setsum_of
from liftpy_bucket.objects.rows.schema import row_schema, row_sizes
from liftpy_bucket.objects.setsum import NO_RECORDS
from liftpy_bucket.objects.write import FORMATS, ObjectWriter
from liftpy_bucket.store.counting import CountingStore
from liftpy_bucket.store.memory import MemoryStore
from support.examples import examples
from support.tier_rows import UUID, Record, histories, plain_records, records_of, rows_from, table_of, written

PATH = PartitionPath(UUID, 0)
KEY = "streams/x.parquet"


def stored(body, result, key=KEY):
    store = CountingStore(MemoryStore())
    store.create(key, body, "n")
    return store, ObjectReader(store, key, result.extent)


@pytest.fixture(scope="module")
def large():
    """A fragment with some row groups: (rows, bytes, what was written)."""
    rows = rows_from(plain_records(3_000, size=300, base=1_000, key=lambda place: b"k%d" % place))
    return rows, *written([rows], row_group_bytes=128 * 1024)


@examples(60)
@given(histories(), st.integers(1, 3_000), st.integers(1, 15), st.booleans())
def test_any_records_come_back(records, row_group_bytes, step, keeps_replies):
    rows = rows_from(records, keeps_replies=keeps_replies)
    pieces = [rows.slice(start, step) for start in range(0, rows.num_rows, step)]
    body, result = written(pieces, keeps_replies=keeps_replies, row_group_bytes=row_group_bytes)
    store, reader = stored(body, result)
    found = table_of(reader.read(group.index) for group in reader.row_groups)
    assert found == table_of([rows])
    assert found.schema.equals(row_schema(keeps_replies=keeps_replies))
    assert store.counts["get_range"] == 1 + len(reader.row_groups)
    assert (result.base, result.end) == (records[0].offset, records[-1].offset + 1)
    assert result.records == len(records)
    assert result.setsum == setsum_of(rows, RecordHash.BLAKE2B)
    assert (result.first_timestamp, result.last_timestamp) == (records[0].timestamp, records[-1].timestamp)
    starts = {}
    for record in records:
        starts.setdefault(record.epoch, record.offset)
    assert result.epochs == tuple(starts.items())
    assert result.tombstones == sum(record.key is not None and record.value is None for record in records)
    reader.check_fragment(PATH, result.pointer("x"))


def test_row_groups_are_as_large_as_asked_for_and_lie_one_after_the_other(large):
    _rows, body, result = large
    _, reader = stored(body, result)
    groups = reader.row_groups
    assert len(groups) > 5
    position = 4
    for group in groups:
        assert group.start == position
        position += group.length
        assert sha256(body[group.start : position]).hexdigest() == group.digest
        size = row_sizes(reader.read(group.index)).sum()
        assert size <= 128 * 1024
        assert size > 100 * 1024 or group is groups[-1]
    assert position == result.extent.footer - 8
    assert [group.first for group in groups[1:]] == [group.last + 1 for group in groups[:-1]]
    assert (groups[0].first, groups[-1].last) == (result.base, result.end - 1)
    assert groups[0].first_timestamp == result.first_timestamp
    assert groups[-1].last_timestamp == result.last_timestamp


def test_a_seek_reads_the_footer_and_one_row_group(large):
    rows, body, result = large
    store, reader = stored(body, result)
    indexes = reader.covering(2_000, 2_001)
    assert len(indexes) == 1
    found = list(reader.rows(2_000, 2_001))
    assert [record for piece in found for record in records_of(piece)] == records_of(rows.slice(1_000, 1))
    assert store.counts["get_range"] == 2
    group = reader.row_groups[indexes[0]]
    assert store.bytes_in == group.length + result.extent.size - result.extent.footer + 8
    assert reader.covering(0, 1_000) == reader.covering(4_000, 9_000) == []


def test_neighbours_come_in_one_request(large):
    _rows, body, result = large
    store, reader = stored(body, result)
    count = len(reader.row_groups)
    found = reader.read_many([0, 1, 2, count - 1])
    assert store.counts["get_range"] == 3
    assert table_of(found[:3]) == table_of(reader.rows(0, reader.row_groups[2].last + 1))
    assert found[3].equals(reader.read(count - 1))


def test_single_columns_fetch_less(large):
    _rows, body, result = large
    store, reader = stored(body, result)
    group = reader.row_groups[3]
    before = store.bytes_in
    keys = reader.read(3, ["offset", "key"])
    start, end = reader.metadata.extent(3, ["offset", "key"])
    assert store.bytes_in - before == end - start < group.length
    assert keys.schema.names == ["offset", "key"]
    assert keys.equals(reader.read(3).select(["offset", "key"]))


def test_of_fetched_row_groups_single_columns_can_be_had(large):
    _rows, body, result = large
    store, reader = stored(body, result)
    fetched = reader.fetch([1, 2, 3])
    for index in (3, 1, 2):
        found = reader.decode(fetched, index, ["value", "offset"])
        assert found.equals(reader.read(index).select(["value", "offset"]))
    assert store.counts["get_range"] == 2 + 3
    with pytest.raises(ObjectCorruptError, match="outside of what was fetched"):
        reader.decode(fetched, 4, ["value"])


def test_damage_to_a_fetched_row_group_is_noticed_in_columns_that_nobody_wants():
    rows = rows_from(plain_records(600, size=120, key=lambda place: b"k%d" % place))
    body, result = written([rows])
    _, good = stored(body, result)
    start, end = good.metadata.extent(0, ["timestamp"])
    for position in range(start, end, 11):
        damaged = bytearray(body)
        damaged[position] ^= 1
        _, reader = stored(bytes(damaged), result)
        with pytest.raises(ObjectCorruptError, match="not those that were put"):
            reader.decode(reader.fetch([0]), 0, ["offset", "key"])


def test_an_empty_fragment_is_an_object_too():
    body, result = written([])
    _, reader = stored(body, result)
    assert reader.row_groups == ()
    assert list(reader.rows(0, 2**60)) == []
    assert (result.records, result.setsum, result.epochs) == (0, NO_RECORDS, ())
    reader.check_fragment(PATH, result.pointer("x", base=5, end=9))


def test_many_threads_share_a_reader(large):
    rows, body, result = large
    store, reader = stored(body, result)
    found, failed = {}, []

    def read(number):
        try:
            for index in range(len(reader.row_groups)):
                found[number, index] = reader.read((index + number) % len(reader.row_groups))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert store.counts["get_range"] == 1 + 4 * len(reader.row_groups)
    ordered = [found[0, index] for index in range(len(reader.row_groups))]
    assert table_of(ordered) == table_of([rows])


def writer_to(sink, **options):
    about = {"uuid": UUID, "partition": 0, "nonce": "n", "keeps_replies": False, "record_hash": RecordHash.BLAKE2B}
    return ObjectWriter(sink, **about, **options)


def test_rows_that_do_not_follow_are_refused():
    rows = rows_from(plain_records(10, base=100))
    for wrong in (rows, rows.slice(0, 1), rows_from(plain_records(3, base=50))):
        writer = writer_to(io.BytesIO())
        writer.write(rows)
        with pytest.raises(ValueError, match="do not ascend"):
            writer.write(wrong)
    older = rows_from([Record(200, 1, b"s", epoch=4), Record(201, 1, b"s", epoch=5)])
    writer = writer_to(io.BytesIO())
    writer.write(older)
    with pytest.raises(ValueError, match="epochs fall"):
        writer.write(rows_from([Record(202, 1, b"s", epoch=4)]))


def test_a_writer_that_is_given_up_writes_no_more():
    sink = io.BytesIO()
    writer = writer_to(sink, row_group_bytes=1_000)
    writer.write(rows_from(plain_records(100)))
    before = sink.getvalue()
    assert len(before) > 100
    del writer
    gc.collect()
    assert sink.getvalue() == before


def test_a_sink_that_is_full_is_an_error_and_nothing_else():
    class Full(io.BytesIO):
        def write(self, data):
            if self.tell() > 10_000:
                raise OSError(28, "no space left on device")
            return super().write(data)

    writer = writer_to(Full(), row_group_bytes=4_000)
    with pytest.raises(OSError, match="no space left"):
        writer.write(rows_from(plain_records(5_000)))
    del writer
    gc.collect()


def test_flights_as_json_take_a_quarter_of_their_bytes_at_most():
    rng = random.Random(7)
    carriers, airports = ["UA", "AA", "B6", "DL", "EV", "MQ", "US"], ["IAH", "MIA", "ATL", "ORD", "FLL", "IAD", "SJU"]
    records, payload = [], 0
    for place in range(20_000):
        carrier, dest, minutes = rng.choice(carriers), rng.choice(airports), rng.randrange(300, 1_440)
        flight = {
            "year": 2013,
            "month": 1 + place // 2_000,
            "day": 1 + place // 70 % 28,
            "dep_time": minutes // 60 * 100 + minutes % 60,
            "dep_delay": rng.randrange(-10, 60),
            "arr_delay": rng.randrange(-30, 90),
            "carrier": carrier,
            "flight": rng.randrange(1, 6_000),
            "tailnum": f"N{rng.randrange(10_000, 99_999)}",
            "origin": "EWR",
            "dest": dest,
            "air_time": rng.randrange(40, 400),
            "distance": rng.randrange(200, 2_500),
            "time_hour": f"2013-01-01T{minutes // 60:02d}:00:00Z",
        }
        value, number = json.dumps(flight).encode(), b"%d" % place
        payload += len(value)
        headers = b"NATS/1.0\r\nNats-Msg-Id: " + number + b"\r\n\r\n"
        time = 1_790_000_000_000_000_000 + place * 12_345 + rng.randrange(10_000)
        subject = f"flights.{carrier}.EWR.{dest}".encode()
        records.append(Record(place, time, subject, headers=headers, value=value, message_id=number))
    body, _ = written([rows_from(records)])
    assert len(body) < 0.25 * payload


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "x"}, None),
        ({"setsum": setsum_of(rows_from([Record(1, 2, b"s")]), RecordHash.BLAKE2B)}, "liftpy.setsum"),
        ({"records": 7}, "3000 records, and must hold 7"),
        ({"home": f"{'f' * 32}/0"}, "liftpy.uuid"),
        ({"home": f"{UUID}/3"}, "liftpy.partition"),
    ],
)
def test_a_fragment_is_the_one_that_the_pointer_means(large, change, says):
    _rows, body, result = large
    _store, reader = stored(body, result)
    fields = {name: getattr(result.pointer("x"), name) for name in result.pointer("x").__slots__}
    pointer = type(result.pointer("x"))(**{**fields, **change})
    if says is None:
        reader.check_fragment(PATH, pointer)
        return
    with pytest.raises(ObjectCorruptError, match=says) as caught:
        reader.check_fragment(PATH, pointer)
    assert KEY in str(caught.value)
    assert fragment_key(PATH, pointer).startswith(f"streams/{change.get('home', f'{UUID}/0')}/fragments/")


def read_everything(reader):
    pieces = [reader.read(group.index) for group in reader.row_groups]
    for group in reader.row_groups:
        reader.read(group.index, ["offset", "key"])
    return pieces


def test_any_flipped_byte_is_noticed():
    rows = rows_from(plain_records(600, size=120, key=lambda place: b"k%d" % place))
    body, result = written([rows], row_group_bytes=16 * 1024)
    offsets = [*range(0, len(body), 97), *range(result.extent.footer - 8, len(body), 7)]
    for position in offsets:
        damaged = bytearray(body)
        damaged[position] ^= 1 << (position % 8)
        _, reader = stored(bytes(damaged), result)
        if position < 4:  # the magic in front says nothing that a reader by ranges needs
            read_everything(reader)
            continue
        with pytest.raises(ObjectCorruptError, match=KEY):
            read_everything(reader)


def test_flipped_bytes_in_single_columns_are_refused_or_do_not_matter():
    """There the checksums of pages are all there is: they do not cover the headers of the pages."""
    rows = rows_from(plain_records(600, size=120, key=lambda place: b"k%d" % place))
    body, result = written([rows])
    _, good = stored(body, result)
    expected = good.read(0, ["offset", "key"])
    start, end = good.metadata.extent(0, ["offset", "key"])
    refused = 0
    for position in range(start, end, 3):
        damaged = bytearray(body)
        damaged[position] ^= 1 << (position % 8)
        _, reader = stored(bytes(damaged), result)
        try:
            assert reader.read(0, ["offset", "key"]).equals(expected)
        except ObjectCorruptError:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize("cut", [0, 3, 1_000, -9, -1])
def test_a_truncated_object_is_damaged(large, cut):
    _rows, body, result = large
    _, reader = stored(body[:cut], result)
    with pytest.raises(ObjectCorruptError, match="ends at byte"):
        read_everything(reader)


@pytest.mark.parametrize(("size", "footer"), [(0, 0), (10, 3), (10, 40), (100, 8)])
def test_a_pointer_that_lies_about_the_footer_is_an_error_that_names_the_object(large, size, footer):
    _, body, _ = large
    store = MemoryStore()
    store.create(KEY, body, "n")
    with pytest.raises(ObjectCorruptError, match=KEY):
        _ = ObjectReader(store, KEY, Extent(size, footer, "")).metadata


def test_an_object_that_is_gone_is_said_to_be_missing():
    with pytest.raises(ObjectMissingError):
        _ = ObjectReader(MemoryStore(), KEY, Extent(100, 50, "")).row_groups


def test_an_object_of_a_newer_version_is_refused(large, monkeypatch):
    with monkeypatch.context() as newer:
        newer.setitem(FORMATS, RecordHash.BLAKE2B, 4)
        body, result = written([rows_from(plain_records(3))])
    _, reader = stored(body, result)
    with pytest.raises(BucketVersionError, match=f"{KEY}.*format 4"):
        _ = reader.metadata


def test_parquet_of_others_is_not_ours(large):
    sink = io.BytesIO()
    pq.write_table(pa.table({"offset": [1, 2]}), sink)
    body = sink.getvalue()
    length = int.from_bytes(body[-8:-4], "little")
    store = MemoryStore()
    store.create(KEY, body, "n")
    with pytest.raises(ObjectCorruptError, match="checksum"):
        _ = ObjectReader(store, KEY, Extent(len(body), len(body) - 8 - length, "")).metadata
