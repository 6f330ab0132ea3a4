"""Stream-set objects: each partition's rows come back, and nobody else's."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_bucket.errors import ObjectCorruptError
from liftpy_bucket.objects.read import ObjectReader
from liftpy_bucket.objects.record_hash import setsum_of
from liftpy_bucket.objects.write_stream_set import SetWriter
from liftpy_bucket.store.counting import CountingStore
from liftpy_bucket.store.memory import MemoryStore
from support.examples import examples
from support.tier_rows import Record, histories, plain_records, records_of, rows_from

KEY = "sets/a/objects/x.parquet"


def put(members, **options):
    """(store, reader, members) of an object with these: (uuid, partition, base, end, rows)."""
    sink = io.BytesIO()
    writer = SetWriter(sink, node="a", nonce="n", **options)
    for uuid, partition, base, end, rows in members:
        writer.begin(uuid, partition, 3, base, end)
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
    _, reader, members = put(given_members, row_group_bytes=row_group_bytes)
    position = 0
    for (uuid, partition, base, end, rows), member, records in zip(given_members, members, all_records, strict=True):
        assert (member.uuid, member.partition, member.base, member.end) == (uuid, partition, base, end)
        assert (member.tier_epoch, member.records, member.setsum) == (3, len(records), setsum_of(rows))
        assert member.row_groups[0] == position
        position += member.row_groups[1]
        assert (member.epochs[0][0], member.epochs[-1][0]) == (records[0].epoch, records[-1].epoch)
        assert (member.first_timestamp, member.last_timestamp) == (records[0].timestamp, records[-1].timestamp)
        reader.check_member(member)
        found = reader.rows(base, end, among=member.row_groups)
        assert [record for piece in found for record in records_of(piece)] == records
    assert position == len(reader.row_groups)


def test_reading_one_of_many_reads_its_row_groups_only():
    members = [(f"{number:032x}", 0, 0, 50, rows_from(plain_records(50))) for number in range(30)]
    store, reader, found = put(members)
    member = found[17]
    rows = list(reader.rows(0, 50, among=member.row_groups))
    assert sum(piece.num_rows for piece in rows) == 50
    assert store.counts["get_range"] == 2
    assert {group.stream for group in reader.row_groups} == {member.uuid for member in found}


def test_a_member_without_records_has_no_row_groups():
    members = [
        ("0" * 32, 0, 5, 9, rows_from(plain_records(1)).slice(0, 0)),
        ("1" * 32, 0, 0, 1, rows_from(plain_records(1))),
    ]
    _, reader, found = put(members)
    assert [(member.base, member.end, member.records, member.row_groups) for member in found] == [
        (5, 9, 0, (0, 0)),
        (0, 1, 1, (0, 1)),
    ]
    reader.check_member(found[0])


def test_what_a_member_says_is_checked():
    members = [(f"{number:032x}", 0, 0, 5, rows_from(plain_records(5))) for number in range(3)]
    _, reader, (first, second, _) = put(members)
    for wrong, says in (
        (replace(first, row_groups=second.row_groups), "are not those of"),
        (replace(first, partition=1), "are not those of"),
        (replace(first, row_groups=(2, 4)), "are not those of"),
        (replace(first, records=6), "5 records of .* must hold 6"),
    ):
        with pytest.raises(ObjectCorruptError, match=says):
            reader.check_member(wrong)


def test_partitions_come_in_order_and_rows_in_their_range():
    writer = SetWriter(io.BytesIO(), node="a", nonce="n")
    writer.begin("b" * 32, 1, 1, 10, 20)
    for record in (Record(9, 1, b"s"), Record(20, 1, b"s")):
        with pytest.raises(ValueError, match="outside of the range"):
            writer.write(rows_from([record]))
    for uuid, partition in (("b" * 32, 1), ("b" * 32, 0), ("a" * 32, 7)):
        other = SetWriter(io.BytesIO(), node="a", nonce="n")
        other.begin("b" * 32, 1, 1, 10, 20)
        with pytest.raises(ValueError, match="out of order"):
            other.begin(uuid, partition, 1, 0, 1)
