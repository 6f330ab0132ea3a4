"""Replicas compact each by itself, and follow one another all the same: they agree on the last value of every key."""

from __future__ import annotations

import pytest

from liftpy_envelope.batch import HEADER_SIZE, decode_records, read_header
from liftpy_envelope.columns import Column
from liftpy_log.compaction.compact import CompactionConfig, compact, plan_compaction
from liftpy_log.partition_log import LogConfig
from liftpy_server.replication.core import effects as fx
from support.nats_frames import header_block, msg
from support.replica_kit import ReplicaKit

SEGMENT_BYTES = 3_000
NO_PAUSE = {"seed": bytes(32), "pause": lambda _: None}


@pytest.fixture
def kit(tmp_path):
    made = ReplicaKit(tmp_path, "abc", log=LogConfig(segment_bytes=SEGMENT_BYTES), compact=True, dedupe_window_s=0.0)
    yield made
    made.close()


def put(side, key, value):
    """Publish a record; a value of None is a tombstone."""
    headers = {"Lift-Key": key} | ({"Lift-Tombstone": "true"} if value is None else {})
    side.kit.receive(msg(b"orders.x", value or b"", headers=header_block(**headers)))
    side.kit.clock.advance(1)


def overwrite(kit, count, keys=7, first=0, nodes=None, leader="a"):
    """Overwrite some keys, one batch each, and let the replicas go on after every few."""
    for number in range(first, first + count):
        put(kit[leader], f"k{number % keys}", b"value %d" % number)
        if number % 5 == 4:
            kit.run(nodes)
    kit.run(nodes)


def compacted(side, delete_retention_s=86_400.0):
    """Run a pass over what is committed."""
    config = CompactionConfig(
        dedupe_window_ns=0,
        min_dirty_ratio=0.0,
        segment_bytes=SEGMENT_BYTES * 10,
        delete_retention_ns=int(delete_retention_s * 1e9),
    )
    log = side.partition.log
    plan = plan_compaction(log.compaction, side.partition.high_watermark, log.last_timestamp, config)
    assert plan is not None
    report = compact(side.kit.disk, plan, config, log.compaction, **NO_PAUSE)
    assert report.is_complete
    return report


def records(side):
    """Offset, key and value of all records that are there."""
    found = []
    log = side.partition.log
    for piece in log.read(log.log_start, log.log_end, 2**30):
        data = piece.segment.path.read_bytes()[piece.position : piece.position + piece.length]
        position = 0
        while position < len(data):
            header = read_header(data, position)
            batch = decode_records(header, data[position + HEADER_SIZE : position + header.length])
            deltas = batch.column("offset_delta").to_pylist() if header.columns & Column.OFFSET_DELTA else None
            nothing = [None] * header.record_count
            keys = batch.column("key").to_pylist() if header.columns & Column.KEY else nothing
            values = batch.column("value").to_pylist() if header.columns & Column.VALUE else nothing
            offsets = [header.base_offset + delta for delta in deltas or range(header.record_count)]
            found += zip(offsets, keys, values, strict=True)
            position += header.length
    assert [each[0] for each in found] == sorted({each[0] for each in found})
    return found


def last_values(side):
    """The value of every key; a key that is deleted has none."""
    last = {key: (offset, value) for offset, key, value in records(side)}
    return {key: (offset, value) for key, (offset, value) in last.items() if value is not None}


def test_replicas_compact_each_by_itself_and_agree(kit):
    kit.lead("a", 1)
    overwrite(kit, 60)
    before = last_values(kit["a"])
    compacted(kit["b"])
    overwrite(kit, 40, first=60)
    compacted(kit["a"])
    overwrite(kit, 20, first=100)
    compacted(kit["c"])
    found = [last_values(side) for side in kit.sides.values()]
    assert found[0] == found[1] == found[2] != before
    assert len({len(records(side)) for side in kit.sides.values()}) > 1, "they are not the same bytes"
    assert [side.partition.log.log_end for side in kit.sides.values()] == [120] * 3
    kit.lead("b", 2)
    kit.run()
    overwrite(kit, 20, first=120, leader="b")
    found = [last_values(side) for side in kit.sides.values()]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("behind", [3, 17, 18, 31])
def test_a_follower_whose_end_is_inside_of_a_merged_batch_gets_the_rest_of_it(kit, behind):
    kit.lead("a", 1)
    overwrite(kit, behind)
    kit.lead("a", 1, isr="ab")
    overwrite(kit, 80, first=behind, nodes="ab")
    assert kit["c"].partition.log.log_end == behind
    compacted(kit["a"])
    first = read_header(kit["a"].partition.log.segments[0].path.read_bytes())
    assert first.base_offset < behind < first.next_offset
    kit.tick(1.0)
    kit.run()
    assert kit["c"].partition.log.log_end == behind + 80
    assert last_values(kit["c"]) == last_values(kit["a"])
    assert kit["c"].warnings == []
    compacted(kit["c"])
    assert last_values(kit["c"]) == last_values(kit["a"])


def test_a_follower_that_is_empty_copies_a_compacted_log(kit):
    kit.lead("a", 1, isr="ab", told="ab")
    overwrite(kit, 80, nodes="ab")
    compacted(kit["a"])
    kit.lead("a", 1, isr="ab")
    kit.tick(1.0)
    kit.run()
    assert records(kit["c"]) == records(kit["a"])


def test_a_follower_that_missed_tombstones_begins_anew_rather_than_keep_what_they_deleted(kit):
    kit.lead("a", 1)
    overwrite(kit, 20)
    kit.lead("a", 1, isr="ab")
    for number in range(3):
        put(kit["a"], f"k{number}", None)
        kit.run("ab")
    overwrite(kit, 60, keys=3, first=3 * 100 + 3, nodes="ab")
    for number in range(2):
        put(kit["a"], f"k{number}", None)
        kit.run("ab")
    for number in range(30):
        put(kit["a"], f"other{number}", b"x" * 200)
        kit.run("ab")
    compacted(kit["a"], delete_retention_s=0)
    assert kit["a"].partition.log.compaction.delete_horizon > 80
    assert {b"k0", b"k1"} <= set(last_values(kit["c"]))
    kit.tick(1.0)
    kit.run()
    assert last_values(kit["c"]) == last_values(kit["a"])
    assert not {b"k0", b"k1"} & set(last_values(kit["c"]))
    assert kit["c"].partition.log.compaction.delete_horizon == kit["a"].partition.log.compaction.delete_horizon
    assert kit["c"].partition.stream.counters.committed_lost == 0, "nothing was lost"
    assert kit["c"].partition.high_watermark == kit["a"].partition.high_watermark


def test_a_follower_in_sync_never_begins_anew(kit):
    kit.lead("a", 1)
    carried_out = []
    replica = kit["c"].replica
    carry_out = replica._carry_out
    replica._carry_out = lambda effect: (carried_out.append(type(effect)), carry_out(effect))
    for round_number in range(5):
        overwrite(kit, 30, first=30 * round_number)
        put(kit["a"], "k0", None)
        kit.run()
        compacted(kit["a"], delete_retention_s=0)
    assert fx.Append in carried_out
    assert fx.Rebuild not in carried_out


def test_what_was_committed_is_set_aside_whole_after_an_unclean_election(kit, caplog):
    """The new leader lacks records that were committed, and compacted, here: not a byte of them is dropped."""
    kit.lead("a", 1)
    overwrite(kit, 40)
    compacted(kit["a"])
    middle = read_header(kit["a"].partition.log.segments[0].path.read_bytes()).next_offset - 3
    before = kit["a"].bytes()
    kit["b"].partition.log.truncate(middle)
    kit["b"].replica.reset_role()
    kit.lead("b", 2, isr="b", unclean_epoch=2)
    told = f"leads by an unclean election and goes on at offset {middle}: acknowledged records may be lost"
    assert f"stream orders partition 0: this node {told}" in caplog.text
    overwrite(kit, 20, first=40, leader="b")
    kit.tick(1.0)
    kit.run()
    assert "goes to quarantine as it is" in str(kit["a"].partition.log.failure)
    assert kit["a"].partition.stream.counters.committed_lost == 1
    assert kit["a"].bytes() == before


def test_what_was_committed_is_kept_where_no_unclean_election_explains_that_the_leader_lacks_it(kit):
    kit.lead("a", 1)
    overwrite(kit, 40)
    before = kit["a"].bytes()
    kit["b"].partition.log.truncate(kit["b"].partition.log.log_end - 1)
    kit["b"].replica.reset_role()
    kit.lead("b", 2, isr="b")
    kit.tick(1.0)
    kit.run()
    assert kit["a"].bytes() == before
    assert any("lacks records that were committed" in warning for warning in kit["a"].warnings)
