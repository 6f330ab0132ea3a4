"""Stream-set objects: each partition's rows come back, and nobody else's."""

from __future__ import annotations

import io
import random
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_bucket.errors import ObjectCorruptError
from liftpy_bucket.layout import slot_of
from liftpy_bucket.objects.read import ObjectReader, trimmed
from liftpy_bucket.objects.record_hash import RecordHash, setsum_of
from liftpy_bucket.objects.write import FORMATS
from liftpy_bucket.objects.write_stream_set import SetWriter
from liftpy_bucket.store.counting import CountingStore
from liftpy_bucket.store.memory import MemoryStore
from support.examples import examples
from support.tier_rows import Record, histories, plain_records, records_of, rows_from

KEY = "sets/a/objects/x.parquet"


def in_order(members):
    """(uuid, partition, ...) as they stand in an object."""
    return sorted(members, key=lambda member: (slot_of(member[0], member[1]), *member[:2]))


def put(members, **options):
    """(store, reader, members) of an object with these in their order: (uuid, partition, base, end, rows)."""
    sink = io.BytesIO()
    writer = SetWriter(sink, node="a", nonce="n", **options)
    for uuid, partition, base, end, rows in in_order(members):
        writer.begin(uuid, partition, 3, base, end, record_hash=RecordHash.BLAKE2B)
        for start in range(0, rows.num_rows, 7):
            writer.write(rows.slice(start, 7))
    extent, found = writer.finish()
    assert extent.size == len(sink.getvalue())
    store = CountingStore(MemoryStore())
    store.create(KEY, sink.getvalue(), "n")
    return store, ObjectReader(store, KEY, extent), found


@examples(40)
@given(st.lists(histories(records_max=12), min_size=1, max_size=4), st.integers(50, 2_000))
def test_members_come_back(all_records, row_group_bytes):
    given_members = [
        (
            f"{number:032x}",
            number % 2,
            records[0].offset,
            records[-1].offset + 3,
            rows_from(records, keeps_replies=True),
        )
        for number, records in enumerate(all_records)
    ]
    store, reader, members = put(given_members, row_group_bytes=row_group_bytes)
    position = 0
    records_by_uuid = dict(zip([each[0] for each in given_members], all_records, strict=True))
    for (uuid, partition, base, end, rows), member in zip(in_order(given_members), members, strict=True):
        records = records_by_uuid[uuid]
        assert (member.uuid, member.partition, member.base, member.end) == (uuid, partition, base, end)
        assert (member.tier_epoch, member.records, member.setsum) == (
            3,
            len(records),
            setsum_of(rows, RecordHash.BLAKE2B),
        )
        assert member.extent.start == position
        position += member.extent.size
        assert (member.epochs[0][0], member.epochs[-1][0]) == (records[0].epoch, records[-1].epoch)
        assert (member.first_timestamp, member.last_timestamp) == (records[0].timestamp, records[-1].timestamp)
        own = ObjectReader(store, KEY, member.extent)
        own.check_member(member)
        for each in (own, _OfStream(reader, uuid)):
            assert [record for piece in each.rows(base, end) for record in records_of(piece)] == records
    assert sum(group.records for group in reader.row_groups) == sum(map(len, all_records))


class _OfStream(NamedTuple):
    """The rows of a stream as who takes the object for one Parquet file finds them."""

    reader: ObjectReader
    uuid: str

    def rows(self, start, end):
        for group in self.reader.row_groups:
            if group.stream == self.uuid:
                yield trimmed(self.reader.read(group.index), start, end)


def test_any_reader_of_parquet_takes_the_object_for_one_file():
    members = [(f"{number:032x}", number, 0, 50, rows_from(plain_records(50))) for number in range(40)]
    store, reader, found = put(members)
    table = pq.read_table(pa.BufferReader(store.get(KEY).body))
    assert table.num_rows == 40 * 50
    assert table.column("stream").unique().to_pylist() == [member.uuid for member in found]
    assert table.column("partition").unique().to_pylist() == [member.partition for member in found]
    assert sorted(member.partition for member in found) == list(range(40))
    about = reader.metadata.about
    assert about["liftpy.node"] == "a"
    assert "liftpy.uuid" not in about
    assert [group.index for group in reader.row_groups] == list(range(40))


def test_a_member_is_read_with_one_request_and_nothing_else():
    members = [(f"{number:032x}", 0, 0, 50, rows_from(plain_records(50))) for number in range(1_000)]
    store, _, found = put(members)
    member = found[517]
    rows = list(ObjectReader(store, KEY, member.extent).rows(0, 50))
    assert sum(piece.num_rows for piece in rows) == 50
    assert store.counts["get_range"] == 1
    assert store.bytes_in == member.extent.size < 10_000


def test_a_large_member_is_read_by_row_groups():
    records = [each._replace(value=random.Random(each.offset).randbytes(1_000)) for each in plain_records(500)]
    members = [("0" * 32, 0, 0, 500, rows_from(records))]
    store, _, (member,) = put(members, row_group_bytes=50_000)
    reader = ObjectReader(store, KEY, member.extent)
    assert len(reader.row_groups) > 5
    assert sum(rows.num_rows for rows in reader.rows(100, 101)) == 1
    assert store.counts["get_range"] == 2
    assert store.bytes_in < member.extent.size / 3


def test_a_member_without_records_has_no_row_groups():
    members = [
        ("0" * 32, 0, 5, 9, rows_from(plain_records(1)).slice(0, 0)),
        ("1" * 32, 0, 0, 1, rows_from(plain_records(1))),
    ]
    store, reader, found = put(members)
    assert sorted((member.base, member.end, member.records) for member in found) == [(0, 1, 1), (5, 9, 0)]
    found = sorted(found, key=lambda member: member.records)
    empty = ObjectReader(store, KEY, found[0].extent)
    empty.check_member(found[0])
    assert empty.row_groups == ()
    assert len(reader.row_groups) == 1


def test_what_a_member_says_is_checked():
    members = [(f"{number:032x}", 0, 0, 5, rows_from(plain_records(5))) for number in range(3)]
    store, _, (first, second, _) = put(members)
    for wrong, says in (
        (replace(first, extent=second.extent), "liftpy.uuid is"),
        (replace(first, partition=1), "liftpy.partition is"),
        (replace(first, extent=first.extent._replace(digest=second.extent.digest)), "SHA-256"),
        (replace(first, records=6), "5 records, and must hold 6"),
    ):
        with pytest.raises(ObjectCorruptError, match=says):
            ObjectReader(store, KEY, wrong.extent).check_member(wrong)


def test_members_of_several_leaderships_stand_side_by_side():
    sink = io.BytesIO()
    writer = SetWriter(sink, node="a", nonce="n")
    ranges = [(3, 0, 5), (3, 5, 9), (4, 2, 6)]  # what a deposed leader wrote beyond 2 does not count, and stays
    for tier_epoch, base, end in ranges:
        writer.begin("a" * 32, 0, tier_epoch, base, end, record_hash=RecordHash.BLAKE2B)
        writer.write(rows_from(plain_records(end - base, base=base)))
    _, found = writer.finish()
    assert [(member.tier_epoch, member.base, member.end) for member in found] == ranges
    store = MemoryStore()
    store.create(KEY, sink.getvalue(), "n")
    for member in found:
        reader = ObjectReader(store, KEY, member.extent)
        reader.check_member(member)
        assert sum(rows.num_rows for rows in reader.rows(member.base, member.end)) == member.records


def test_partitions_come_in_order_and_rows_in_their_range():
    writer = SetWriter(io.BytesIO(), node="a", nonce="n")
    writer.begin("b" * 32, 1, 1, 10, 20, record_hash=RecordHash.BLAKE2B)
    for record in (Record(9, 1, b"s"), Record(20, 1, b"s")):
        with pytest.raises(ValueError, match="outside of the range"):
            writer.write(rows_from([record]))
    for uuid, partition in (("b" * 32, 1), ("b" * 32, 0), ("a" * 32, 7)):
        other = SetWriter(io.BytesIO(), node="a", nonce="n")
        other.begin("b" * 32, 1, 1, 10, 20, record_hash=RecordHash.BLAKE2B)
        with pytest.raises(ValueError, match="out of order"):
            other.begin(uuid, partition, 1, 0, 1, record_hash=RecordHash.BLAKE2B)


def test_a_member_has_the_hash_of_its_partition():
    sink, rows = io.BytesIO(), rows_from(plain_records(20), keeps_replies=True)
    writer = SetWriter(sink, node="a", nonce="n")
    hashes = {0: RecordHash.BLAKE2B, 1: RecordHash.XXH3, 2: RecordHash.XXH3}
    for uuid, partition in in_order([("a" * 32, partition) for partition in hashes]):
        writer.begin(uuid, partition, 3, 0, 20, record_hash=hashes[partition])
        writer.write(rows)
    extent, members = writer.finish()
    store = MemoryStore()
    store.create(KEY, sink.getvalue(), "n")
    for member in members:
        reader, record_hash = ObjectReader(store, KEY, member.extent), hashes[member.partition]
        reader.check_member(member)
        assert (reader.record_hash, reader.setsum) == (record_hash, setsum_of(rows, record_hash))
        assert reader.metadata.about["liftpy.format"] == str(FORMATS[record_hash])
    about = ObjectReader(store, KEY, extent).metadata.about
    assert "liftpy.hash" not in about
    assert about["liftpy.format"] == str(FORMATS[RecordHash.XXH3])
