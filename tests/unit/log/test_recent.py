"""The newest batches in memory are those of the log, in order and without a gap, and never more than there may be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_log.errors import StorageFullError
from liftpy_log.partition_log import LogConfig
from liftpy_log.recent import RecentBatches
from support.examples import examples
from support.log_model import T0, OpenLog, numbered_body
from support.simdisk import SimDisk


def batch(number, size=100):
    return bytes([number % 256]) * size


def filled(tail, count, size=100):
    for number in range(count):
        tail.add(10 * number, 10 * number + 10, batch(number, size))


@pytest.fixture
def tail():
    tail = RecentBatches(1_000, 500).tail()
    filled(tail, 4)
    return tail


def test_what_is_kept_is_found_by_where_a_batch_begins(tail):
    assert tail.read(0, 10_000) == [batch(0), batch(1), batch(2), batch(3)]
    assert tail.read(30, 10_000) == [batch(3)]
    for offset in (5, 31, 40, 50):
        assert tail.read(offset, 10_000) == []


def test_a_read_is_as_large_as_it_may_be_and_one_batch_at_least(tail):
    assert tail.read(10, 200) == [batch(1), batch(2)]
    assert tail.read(10, 1) == [batch(1)]


def test_a_log_keeps_its_newest_batches(tail):
    tail.add(40, 50, batch(4))
    assert tail.read(0, 10_000) != []
    tail.add(50, 60, batch(5))
    assert tail.read(0, 10_000) == []
    assert tail.read(10, 100) == [batch(1)]
    assert tail.size_bytes == 500


def test_what_nobody_asks_for_goes(tail):
    tail.drop_before(19)
    assert tail.read(10, 100) == [batch(1)]
    tail.drop_before(20)
    assert tail.read(10, 100) == []
    tail.drop_before(40)
    assert tail.size_bytes == 0
    tail.add(40, 50, batch(4))
    assert tail.read(40, 100) == [batch(4)]


def test_behind_a_gap_it_begins_anew(tail):
    tail.add(70, 80, batch(7))
    assert tail.read(30, 10_000) == []
    assert tail.read(70, 10_000) == [batch(7)]


def test_logs_share_the_memory_and_the_one_that_grew_longest_ago_gives_way():
    shared = RecentBatches(1_000, 500)
    tails = [shared.tail() for _ in range(3)]
    for tail in tails[:2]:
        filled(tail, 5)
    tails[0].add(50, 60, batch(5))
    tails[2].add(0, 10, batch(0))
    assert [tail.size_bytes for tail in tails] == [500, 0, 100]
    assert shared.size_bytes == 600
    tails[0].clear()
    assert shared.size_bytes == 100


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 400), st.integers(0, 60))))
@examples(200)
def test_the_bounds_hold_whatever_happens(steps):
    shared = RecentBatches(1_000, 500)
    tails = [shared.tail() for _ in range(4)]
    ends = [0] * 4
    for number, size, drop in steps:
        tail = tails[number]
        tail.add(ends[number], ends[number] + 1, batch(ends[number], size))
        ends[number] += 1
        assert tail.read(ends[number] - 1, 1) == [batch(ends[number] - 1, size)]
        tail.drop_before(ends[number] - drop)
        assert all(each.size_bytes <= 500 for each in tails)
        assert shared.size_bytes == sum(each.size_bytes for each in tails) <= 1_000


def stored(opened):
    """The bytes of a log's files."""
    files = opened.files
    return b"".join(files.get(segment).read(0, segment.size) for segment in opened.log.segments)


def test_a_log_hands_over_what_it_appends_byte_for_byte():
    opened = OpenLog(SimDisk(), LogConfig(segment_bytes=1_000))
    opened.append()
    before = len(stored(opened))
    opened.log.recent = RecentBatches().tail()
    for number in range(1, 9):
        opened.append(records=number, size=4_000 * (number % 3))
    assert len(opened.log.segments) > 1
    assert b"".join(opened.log.recent.read(1, 10**9)) == stored(opened)[before:]
    assert len(opened.log.recent.read(1, 10**9)) == 8
    assert opened.log.recent.read(0, 10**9) == []


def test_what_the_disk_refused_is_not_kept():
    disk = SimDisk()
    opened = OpenLog(disk)
    opened.log.recent = RecentBatches().tail()
    opened.append()
    disk.capacity = len(disk.content(opened.path))
    with pytest.raises(StorageFullError):
        opened.log.append(numbered_body(9, 1, 40), leader_epoch=0, timestamp=T0)
    assert len(opened.log.recent.read(0, 10**9)) == 1
    disk.heal()
    opened.append()
    assert b"".join(opened.log.recent.read(0, 10**9)) == stored(opened)


def test_a_batch_that_is_too_large_to_keep_is_not():
    opened = OpenLog(SimDisk())
    opened.log.recent = RecentBatches(3_000, 2_000).tail()
    opened.append()
    opened.append(size=3_000)
    assert opened.log.recent.read(1, 10**9) == []
    opened.append()
    assert opened.log.recent.read(0, 10**9) == []
    assert len(opened.log.recent.read(2, 10**9)) == 1
