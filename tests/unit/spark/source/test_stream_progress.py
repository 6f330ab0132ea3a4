"""Where a batch of a streaming query ends, and what it reads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from liftpy_spark.heads import PartitionHead, StreamHeads
from liftpy_spark.options.offsets import QueryCheckpoint
from liftpy_spark.reading.planning import Range
from liftpy_spark.source.rate_limits import Backlog
from liftpy_spark.source.stream_progress import capped, compare, ends_of, ranges_between

A, B = "a" * 32, "b" * 32


def heads(stream="orders", uuid=A, **partitions):
    return StreamHeads(stream, uuid, {int(name[1:]): PartitionHead(*head) for name, head in partitions.items()})


def at(stream="orders", uuid=A, **partitions):
    return QueryCheckpoint({stream: {int(name[1:]): offset for name, offset in partitions.items()}}, {stream: uuid})


def test_what_waits_in_each_partition():
    found = compare(at(p0=5, p1=7), [heads(p0=(0, 9), p1=(2, 7))])
    assert found.backlogs == {("orders", 0): Backlog(5, 9), ("orders", 1): Backlog(7, 7)}
    assert (found.found, found.losses, found.behind) == ({}, [], [])
    assert found.reached({("orders", 0): 8, ("orders", 1): 7}) == at(p0=8, p1=7)


def test_a_new_partition_is_written_down_where_it_begins_and_read_afterwards():
    start, now = at(p0=5), [heads(p0=(0, 9), p1=(3, 8))]
    found = compare(start, now)
    assert found.losses == []
    end = found.reached({("orders", 0): 9})
    assert end == at(p0=9, p1=3)
    assert ranges_between(start, end) == [Range("orders", A, 0, 5, 9)]
    assert compare(end, now).backlogs["orders", 1] == Backlog(3, 8)


def test_a_new_stream_is_written_down_where_it_begins_and_read_afterwards():
    start = at(p0=5)
    found = compare(start, [heads(p0=(0, 5)), heads("payments", B, p0=(2, 4))])
    end = found.reached({("orders", 0): 5})
    assert end == QueryCheckpoint({"orders": {0: 5}, "payments": {0: 2}}, {"orders": A, "payments": B})
    assert ranges_between(start, end) == []


def test_a_stream_that_was_created_again_begins_anew():
    start = at(p0=5)
    found = compare(start, [heads(uuid=B, p0=(1, 9))])
    (loss,) = found.losses
    assert "orders was deleted and created again" in loss
    end = found.reached({})
    assert end == at(uuid=B, p0=1)
    assert ranges_between(start, end) == []


def test_a_stream_that_is_gone():
    found = compare(at(p0=5), [])
    assert (found.gone, found.losses) == (["orders"], [])
    assert found.reached({}) == QueryCheckpoint({}, {})


def test_retention_was_quicker():
    found = compare(at(p0=5), [heads(p0=(8, 9))])
    assert "offsets 5 to 7 are not there any more" in found.losses[0]
    assert found.backlogs["orders", 0] == Backlog(8, 9)


def test_a_partition_that_ends_before_what_was_read():
    found = compare(at(p0=5, p1=0), [heads(p0=(0, 4), p1=(0, 1))])
    assert found.losses == []
    assert found.behind == ["stream orders partition 0 ends at offset 4, but the query has read up to 5"]
    assert found.backlogs["orders", 0] == Backlog(4, 4)


def test_a_partition_that_nobody_leads_stays_where_it_is():
    found = compare(at(p0=5, p1=5), [heads(p1=(0, 6))])
    assert (found.losses, found.behind) == ([], [])
    assert found.reached({place: backlog.end for place, backlog in found.backlogs.items()}) == at(p0=5, p1=6)


def test_what_came_after_the_target_is_not_there():
    target = ends_of([heads(p0=(0, 9), p1=(0, 5))])
    assert capped([heads(p0=(1, 20), p1=(0, 5), p2=(0, 3))], target, at(p0=5, p1=2)) == [heads(p0=(1, 9), p1=(0, 5))]
    assert capped([heads(p0=(1, 20), p1=(0, 5))], target, at(p0=12, p1=2)) == [heads(p0=(1, 12), p1=(0, 5))]


def test_what_is_not_in_the_target_stays_where_it_is_or_unknown():
    target = ends_of([heads(p0=(0, 9))])
    start = QueryCheckpoint({"orders": {0: 9, 1: 4}, "payments": {0: 3}}, {"orders": A, "payments": B})
    now = [heads(p0=(0, 12), p1=(0, 9)), heads("payments", B, p0=(0, 9)), heads("returns", A, p0=(0, 1))]
    found = compare(start, capped(now, target, start))
    assert (found.losses, found.found) == ([], {})
    assert found.reached({place: backlog.end for place, backlog in found.backlogs.items()}) == start


def test_the_first_batch_run_again_reads_nothing():
    assert ranges_between(at(p0=140, p1=0), at(p0=100, p1=0)) == []


@given(st.data())
def test_batches_follow_on_each_other_and_read_every_offset_once(data):
    numbers = st.dictionaries(
        st.sampled_from(["orders", "payments"]), st.dictionaries(st.integers(0, 3), st.integers(0, 9), min_size=1)
    )
    ends, position = {}, QueryCheckpoint({}, {})
    read = {}
    for _ in range(data.draw(st.integers(1, 6))):
        for stream, grown in data.draw(numbers).items():
            for partition, more in grown.items():
                of = ends.setdefault(stream, {})
                of[partition] = of.get(partition, 0) + more
        now = [
            StreamHeads(stream, A, {number: PartitionHead(0, end) for number, end in of.items()})
            for stream, of in ends.items()
        ]
        found = compare(position, now)
        assert not found.losses
        reached = {
            place: data.draw(st.integers(backlog.start, backlog.end)) for place, backlog in found.backlogs.items()
        }
        end = found.reached(reached)
        for each in ranges_between(position, end):
            assert read.get((each.stream, each.partition), 0) == each.start
            read[each.stream, each.partition] = each.end
        position = end
    for stream, of in position.offsets.items():
        assert all(read.get((stream, partition), 0) == offset for partition, offset in of.items())
