"""Proves that the log's records of groups keep their bytes, and that a table of offsets is what the log says."""

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.batch import check_body, decode_records, encode_header, read_header
from liftpy_envelope.errors import BatchVersionError
from liftpy_envelope.group_offsets import METADATA_BYTES_MAX
from liftpy_envelope.pull import PartitionKey
from liftpy_server.groups.core.member import GroupImage, Member
from liftpy_server.groups.core.offset_table import CommitToken, OffsetTable
from liftpy_server.groups.core.records import (
    CommittedOffset,
    GroupRecord,
    decode_offset,
    encode_offset,
    encode_records,
    group_key,
    member_key,
    offset_key,
    offset_suffix,
    split_member_key,
)
from liftpy_server.groups.core.replay import GroupsReplay
from support.examples import examples

UUID = bytes(range(16))
KEY = PartitionKey(UUID, 3)
COMMITTED = CommittedOffset(42, 7, 1_000, 5, 6, "orders", b"mine")
MEMBER = Member(
    member_id="5-6e", nonce=b"n" * 16, revision=1, instance_id="i", client_id="c", rack="r",
    session_timeout_ms=6_000, rebalance_timeout_ms=9_000, subscriptions=("orders",), generation=7,
    target=frozenset({KEY}), held={KEY: 5, PartitionKey(UUID, 4): 6}, revoking={PartitionKey(UUID, 4): 7},
    fenced=(b"o" * 16,),
)  # fmt: skip


def offset_record(group, key, committed):
    return GroupRecord(offset_key(group.encode(), offset_suffix(key)), encode_offset(committed))


def deleted(group, key):
    return GroupRecord(offset_key(group.encode(), offset_suffix(key)), None)


def test_an_offset_keeps_its_bytes():
    key, value = offset_record("gü", KEY, COMMITTED)
    assert key == b"\x01" + UUID + b"\0\0\0\3" + "gü".encode()
    assert value == struct.pack("<BBHiqqqq", 1, 6, 0, 7, 42, 1_000, 5, 6) + b"orders" + b"mine"
    assert decode_offset(value) == COMMITTED


def test_keys_of_groups_and_members_keep_their_bytes():
    assert group_key("g") == b"\x02g"
    assert member_key("gü", "5-6e") == b"\x03\x03" + "gü5-6e".encode()
    assert split_member_key(member_key("gü", "5-6e")) == ("gü", "5-6e")
    longest = "x" * 255
    assert split_member_key(member_key(longest, "m")) == (longest, "m")


def test_members_and_groups_come_back_as_they_were():
    again = Member.from_value("5-6e", MEMBER.to_value())
    assert {name: getattr(again, name) for name in Member.__slots__} == {
        name: getattr(MEMBER, name) for name in Member.__slots__
    }
    image = GroupImage(7, 3, 99)
    assert GroupImage.from_value(image.to_value()) == image


OFFSETS = st.builds(
    CommittedOffset,
    st.integers(0, 2**63 - 1), st.integers(-1, 2**31 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1), st.sampled_from(["a", "x" * 128]), st.binary(max_size=METADATA_BYTES_MAX),
)  # fmt: skip


@examples(200)
@given(OFFSETS)
def test_offsets_round_trip(committed):
    assert decode_offset(encode_offset(committed)) == committed


RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["g", "h", "gg"]),
        st.builds(PartitionKey, st.sampled_from([UUID, b"u" * 16]), st.integers(0, 2)),
        st.one_of(st.none(), OFFSETS),
    ),
    max_size=30,
)


@examples(300)
@given(RECORDS)
def test_the_newest_of_every_key_counts(rows):
    table, model = OffsetTable(), {}
    for group, key, committed in rows:
        table.apply(*(deleted(group, key) if committed is None else offset_record(group, key, committed)))
        model[group, key] = committed
    model = {place: committed for place, committed in model.items() if committed is not None}
    assert len(table) == len(model)
    assert set(table.groups) == {group for group, _ in model}
    for group in ("g", "h", "gg"):
        mine = {key: committed for (name, key), committed in model.items() if name == group}
        assert dict(table.of_group(group)) == mine
        assert table.newest_ns(group) == max((found.commit_time_ns for found in mine.values()), default=None)
        for key, committed in mine.items():
            assert table.find(group.encode(), key) == committed
            token = CommitToken(committed.generation, committed.sequence)
            assert table.token(group.encode(), offset_suffix(key)) == token
        table.apply_many(table.tombstones(group))
    assert len(table) == 0


def test_nothing_is_found_where_nothing_was_committed():
    table = OffsetTable()
    assert table.find(b"g", KEY) is None
    assert table.token(b"g", offset_suffix(KEY)) is None
    table.apply(*deleted("g", KEY))
    assert table.groups == []


def test_offsets_of_a_deleted_stream_go():
    table = OffsetTable()
    other = PartitionKey(b"u" * 16, 0)
    table.apply_many([offset_record(group, key, COMMITTED) for group in "gh" for key in (KEY, other)])
    assert table.streams_of("g") == {UUID, other.uuid}
    for group in "gh":
        table.apply_many(table.tombstones_of_streams(group, {UUID}))
    assert [list(table.of_group(group)) for group in "gh"] == [[(other, COMMITTED)]] * 2


@pytest.mark.parametrize(
    "record",
    [
        offset_record("g", KEY, COMMITTED)._replace(value=b"\x02" + encode_offset(COMMITTED)[1:]),
        GroupRecord(group_key("g"), b"\x94\x02\x01\x02\x03"),
        GroupRecord(member_key("g", "m"), b"\x92\x02\x01"),
        GroupRecord(b"\x04g", b""),
    ],
)
def test_what_a_newer_version_wrote_is_not_guessed_at(record):
    with pytest.raises(BatchVersionError, match="upgrade"):
        GroupsReplay().apply([record.key], [record.value])


def test_a_version_is_checked_when_it_is_read_too():
    with pytest.raises(BatchVersionError, match="upgrade"):
        decode_offset(b"\x09" + encode_offset(COMMITTED)[1:])


def through_the_log(records):
    """The records as they are read from a batch of the log."""
    body = encode_records(records)
    header = encode_header(body, base_offset=9, leader_epoch=1, base_timestamp=1, max_timestamp=1)
    data = b"".join([header, *body.parts])
    found = read_header(data)
    check_body(found, data[len(header) :])
    return decode_records(found, pa.py_buffer(data[len(header) :]))


def test_records_go_through_a_batch_of_the_log():
    written = [
        GroupRecord(group_key("g"), GroupImage(7, 3, 0).to_value()),
        GroupRecord(member_key("g", "gone"), None),
        GroupRecord(member_key("g", MEMBER.member_id), MEMBER.to_value()),
        offset_record("g", KEY, COMMITTED),
        offset_record("h", KEY, COMMITTED),
    ]
    replay = GroupsReplay()
    replay.apply_batch(through_the_log(written))
    replay.apply_batch(through_the_log([offset_record("g", KEY, COMMITTED._replace(offset=43))]))
    replay.apply_batch(through_the_log([deleted("h", KEY)]))
    assert replay.groups == ["g"]
    coordinator = replay.coordinator("g")
    assert coordinator.generation == 7
    assert coordinator.members[MEMBER.member_id].held == MEMBER.held
    assert replay.table.find(b"g", KEY).offset == 43
    replay.apply_batch(through_the_log([GroupRecord(group_key("k"), GroupImage().to_value())]))
    replay.apply_batch(through_the_log([GroupRecord(group_key("k"), None), GroupRecord(member_key("k", "m"), None)]))
    assert replay.groups == ["g"]
