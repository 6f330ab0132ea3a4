"""What commits cost, and how long a new coordinator takes to know them. Limits are far above what is measured."""

import time

import pytest

from liftpy_envelope.batch import decode_records, encode_header, read_header
from liftpy_envelope.bodies import pack_body, unpack_body
from liftpy_envelope.group_offsets import CommitOffset, CommitRequest, CommitStream
from liftpy_server.groups.core.assignment import StreamShape
from liftpy_server.groups.core.inputs import Now, StreamsChanged
from liftpy_server.groups.core.records import CommittedOffset, GroupRecord, encode_offset, encode_records, offset_key
from liftpy_server.groups.core.replay import GroupsReplay

UUID = b"s" * 16


@pytest.mark.parametrize("per_request", [10, 100])
def test_fifty_thousand_offsets_a_second(group, per_request):
    group.step(StreamsChanged(2, {"s": StreamShape(UUID, 100)}))
    joined = group.join("a")
    bodies = []
    for sequence in range(20_000 // per_request):
        rows = tuple(CommitOffset(number, sequence, 1, b"") for number in range(per_request))
        streams = (CommitStream(UUID, "s", rows),)
        request = CommitRequest("g", joined.member_id, "", joined.generation, sequence, streams)
        bodies.append(pack_body(request))
    began_s = time.process_time()
    for body in bodies:
        effects = group.coordinator.step(unpack_body(CommitRequest, body), Now(100.0, 1))
        encoded = encode_records(effects.records)
        encode_header(encoded, base_offset=0, leader_epoch=1, base_timestamp=1, max_timestamp=1)
        pack_body(effects.answer)
    spent_s = time.process_time() - began_s
    print(f"{20_000 / spent_s:,.0f} offsets per second of processor time, {per_request} per request")
    assert spent_s < 0.4


def batches(count, size):
    """Record batches of the log with that many offsets, all of different partitions."""
    for start in range(0, count, size):
        records = []
        for number in range(start, start + size):
            committed = CommittedOffset(number, 1, number, 1, number, "orders", b"")
            key = offset_key(b"group-%d" % (number // 10_000), UUID + number.to_bytes(4, "big"))
            records.append(GroupRecord(key, encode_offset(committed)))
        body = encode_records(records)
        header = encode_header(body, base_offset=start, leader_epoch=1, base_timestamp=1, max_timestamp=1)
        yield read_header(header), b"".join(body.parts)


@pytest.mark.parametrize("size", [10, 1_000])
def test_a_million_records_are_known_within_seconds(size):
    count = 100_000
    written = list(batches(count, size))
    replay = GroupsReplay()
    began_s = time.process_time()
    for header, body in written:
        replay.apply_batch(decode_records(header, body))
    spent_s = time.process_time() - began_s
    print(f"{count / spent_s:,.0f} records per second of processor time, {size} per batch")
    assert len(replay.table) == count
    assert spent_s * 10 < 15
