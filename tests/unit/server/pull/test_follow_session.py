"""A follower's session tells what is new since a fetch, once, and gives up what can not be read."""

from __future__ import annotations

import asyncio
import errno
from unittest.mock import patch

import pytest

from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.follow import FollowFetch, FollowRefusal, FollowRequest, FollowResult
from liftpy_log.partition_log import LogConfig, PartitionLog
from liftpy_log.storage.disk import OsDisk
from liftpy_log.storage.files import FileCache
from liftpy_server.pull.follow_session import FOLLOW_HW_DELAY_S, FollowSession
from support.follow_kit import EPOCH, Replica, key_of

KEY = key_of()
MUCH = 8_000_000


class Bench:
    """A session with replicas whose logs are real."""

    def __init__(self, directory):
        self.files = FileCache(OsDisk(), 16)
        self.directory = directory
        self.replicas = {}
        self.news = asyncio.Event()
        self.session = FollowSession(lambda key: self.replicas.get(key, ErrorCode.UNKNOWN_STREAM), self.news.set)
        self.now_s = 100.0
        self.rounds = 0

    def add(self, number=0, records=0):
        log = PartitionLog.open(OsDisk(), self.files, self.directory / str(number), LogConfig(segment_bytes=1_000))
        replica = self.replicas[key_of(number)] = Replica(log)
        for _ in range(records):
            replica.append(b"x" * 300)
        return replica

    def fetch(self, number=0, offset=0, seen=0, high_watermark=0):
        row = FollowFetch(key_of(number), 3, EPOCH, offset, -1, offset, high_watermark, seen)
        assert self.session.apply(FollowRequest("follower", MUCH, 0, (row,))) == []

    def collect(self, bytes_max=MUCH):
        self.rounds += 1
        self.news.clear()
        return self.session.collect(bytes_max, self.rounds, self.now_s)

    def told(self, bytes_max=MUCH):
        """(partition, refusal, end of what was sent) of a round."""
        return [
            (found.result.key.partition, found.result.refusal, found.slices[-1].next_offset if found.slices else None)
            for found in self.collect(bytes_max)
        ]


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    bench.files.close()


async def test_an_answer_takes_a_partition_out_of_the_line(bench):
    replica = bench.add(records=1)
    bench.fetch()
    assert bench.told() == [(0, FollowRefusal.NONE, 1)]
    replica.append(b"y")
    assert bench.told() == []
    assert not bench.news.is_set()
    bench.fetch(offset=1, seen=1)
    assert bench.told() == [(0, FollowRefusal.NONE, 2)]


async def test_a_log_that_begins_anew_waits_until_its_leader_knows_of_ordered_producers(bench):
    """A leader that was brought back from the bucket looks there first."""
    replica = bench.add(records=1)
    replica.awaits_producers, replica.told = True, b"told"
    row = FollowFetch(KEY, 3, EPOCH, 0, -1, 0, 0, 0)._replace(knows=0)
    bench.session.apply(FollowRequest("follower", MUCH, 0, (row,)))
    assert bench.collect() == []
    replica.awaits_producers = False
    replica.wake(is_urgent=True)
    assert bench.news.is_set()
    (found,) = bench.collect()
    assert found.producers == b"told"


async def test_records_under_way_are_sent_again_only_to_who_has_seen_them(bench):
    replica = bench.add(records=1)
    bench.fetch()
    assert bench.told() == [(0, FollowRefusal.NONE, 1)]
    bench.fetch(seen=0)
    assert bench.told() == []
    assert len(replica.fetches) == 2
    bench.fetch(seen=1)
    assert bench.told() == [(0, FollowRefusal.NONE, 1)]


async def test_a_partition_that_does_not_fit_keeps_its_place(bench):
    for number in range(3):
        bench.add(number, records=1)
        bench.fetch(number)
    assert bench.told(1) == [(0, FollowRefusal.NONE, 1)]
    bench.fetch(0, offset=1, seen=1)
    bench.replicas[KEY].append(b"y")
    assert bench.told(1) == [(1, FollowRefusal.NONE, 1)]
    assert bench.told(1) == [(2, FollowRefusal.NONE, 1)]
    assert bench.told(1) == [(0, FollowRefusal.NONE, 2)]


async def test_high_watermarks_are_due_a_while_after_the_first_has_moved(bench):
    replicas = [bench.add(number) for number in range(2)]
    bench.fetch(0)
    bench.fetch(1)
    assert bench.told() == []
    assert bench.session.due_s == float("inf")
    replicas[0].commit(1)
    assert bench.news.is_set()
    assert bench.told() == []
    due_s = bench.session.due_s
    assert due_s == pytest.approx(bench.now_s + FOLLOW_HW_DELAY_S)
    bench.now_s += FOLLOW_HW_DELAY_S / 2
    replicas[1].commit(1)
    assert bench.told() == []
    assert bench.session.due_s == due_s
    bench.now_s = due_s
    assert [found.result.high_watermark for found in bench.collect()] == [1, 1]
    assert bench.session.due_s == float("inf")
    assert not any(replica.wakes for replica in replicas)


async def test_a_partition_that_waits_for_its_high_watermark_to_be_told_still_calls(bench):
    replica = bench.add()
    bench.fetch()
    bench.told()
    for high_watermark in (1, 2):
        replica.commit(high_watermark)
        assert bench.told() == []
    bench.news.clear()
    replica.append(b"x")
    assert bench.news.is_set()
    assert bench.told() == [(0, FollowRefusal.NONE, 1)]
    bench.now_s += 1
    assert bench.told() == []


async def test_a_partition_that_was_opened_anew_is_another(bench):
    old = bench.add()
    bench.fetch()
    bench.told()
    assert old.wakes
    bench.add(1, records=1)
    bench.replicas[KEY] = bench.replicas[key_of(1)]
    bench.fetch()
    assert not old.wakes
    assert bench.told() == [(0, FollowRefusal.NONE, 1)]


async def test_retention_may_be_faster_than_a_fetch(bench):
    replica = bench.add(records=6)
    bench.fetch()
    replica.log.drop_before(3)
    assert replica.log.log_start > 0
    marks = (EPOCH, 0, 0, 0)  # it has not heard of it yet
    answer = FollowResult(key_of(), FollowRefusal.NONE, 3, *marks)
    with patch.object(replica, "follower_news", return_value=answer):
        (found,) = bench.collect()
    assert found.result.refusal is FollowRefusal.BELOW_START
    assert found.result.log_start == replica.log.log_start


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
async def test_a_file_that_can_not_be_opened_is_damage_only_where_it_is(bench, number):
    replica = bench.add(records=1)
    bench.fetch()
    with patch.object(replica.log, "read", side_effect=OSError(number, "told to fail")):
        assert bench.told() == [(0, FollowRefusal.NOT_LEADER, None)]
    assert (replica.stopped is not None) == (number == errno.EIO)
    bench.fetch()
    assert bench.told() == [
        (0, FollowRefusal.NONE, 1) if number == errno.EMFILE else (0, FollowRefusal.NOT_LEADER, None)
    ]


async def test_a_session_that_ends_leaves_nobody_waiting(bench):
    replicas = [bench.add(number) for number in range(3)]
    for number in range(3):
        bench.fetch(number)
    bench.told()
    assert all(replica.wakes for replica in replicas)
    bench.session.close()
    assert not any(replica.wakes for replica in replicas)


def test_segments_that_went_while_an_answer_waited_are_no_damage(bench):
    replica = bench.add(records=20)
    bench.fetch()
    (found,) = bench.collect()
    replica.log.drop_before(10)
    assert found.slices[0].segment not in replica.log.segments
    told = bench.session.unreadable(found, FileNotFoundError(errno.ENOENT, "gone"))
    assert (told.result.refusal, told.result.body_bytes) == (FollowRefusal.NOT_LEADER, 0)
    assert replica.stopped is None
    bench.fetch(offset=10)
    (found,) = bench.collect()
    bench.session.unreadable(found, FileNotFoundError(errno.ENOENT, "gone"))
    assert replica.stopped is not None, "that file should be there"


def whole(bench, asked_s):
    """What a response says of what is whole: the time, and ends by number; None where it says nothing."""
    told = bench.session.whole(asked_s)
    return told and (told[0], {key.partition: end for key, end in told[1]})


def test_ends_of_what_is_whole_are_told_once_and_when_they_change(bench):
    for number in range(3):
        bench.add(number, records=number + 1).is_whole = number != 1
        bench.fetch(number)
    assert whole(bench, 5.0) == (5.0, {0: 1, 2: 3})
    assert whole(bench, 5.0) is None, "no question was answered since"
    assert whole(bench, 6.0) == (6.0, {})
    bench.replicas[key_of(0)].append(b"x")
    bench.replicas[key_of(1)].is_whole = True
    assert whole(bench, 7.0) == (7.0, {0: 2, 1: 2})


def test_what_is_not_certain_any_more_is_taken_back(bench):
    for number in range(3):
        bench.add(number, records=1).is_whole = True
        bench.fetch(number)
    assert whole(bench, 5.0) == (5.0, {0: 1, 1: 1, 2: 1})
    bench.replicas[key_of(0)].is_whole = False
    bench.session.apply(FollowRequest("follower", MUCH, 0, (), (), (key_of(1),)))
    assert whole(bench, 6.0) == (6.0, {0: -1, 1: -1})
    bench.replicas[key_of(0)].is_whole = True
    assert whole(bench, 7.0) == (7.0, {0: 1})


def test_more_ends_than_a_response_holds_are_told_before_the_time_goes_on(bench, monkeypatch):
    monkeypatch.setattr("liftpy_server.pull.follow_session.FETCH_PARTITIONS_MAX", 2)
    for number in range(3):
        bench.add(number, records=1).is_whole = True
        bench.fetch(number)
    assert whole(bench, 5.0) == (float("-inf"), {0: 1, 1: 1})
    assert whole(bench, 5.0) == (5.0, {2: 1})
