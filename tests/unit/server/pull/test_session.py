"""A session tells every reader what is committed and new, in whole batches, in turn, and nothing else."""

from __future__ import annotations

import errno
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.pull import FetchPartition, FetchRequest, PartitionKey
from liftpy_log.partition_log import LogConfig
from liftpy_log.storage.files import FileCache
from liftpy_server.pull.session import FetchSession
from support.batches import records_of
from support.examples import examples
from support.nats_frames import msg
from support.server_kit import UUID, Kit

MUCH = 1_000_000


def key(number=0):
    return PartitionKey(UUID, number)


class Reader:
    """A session with the partitions of a kit, and what it was told."""

    def __init__(self, kit):
        self.kit = kit
        self.lookups = {}
        self.session = FetchSession(self._lookup)

    def _lookup(self, wanted):
        if wanted in self.lookups:
            return self.lookups[wanted]
        return self.kit.partitions.get(wanted.partition, ErrorCode.UNKNOWN_STREAM)

    def want(self, *offsets, forget=()):
        """Enter partitions 0, 1, ... at these offsets; None leaves one out."""
        wanted = tuple(FetchPartition(key(n), offset) for n, offset in enumerate(offsets) if offset is not None)
        self.session.apply(FetchRequest(MUCH, 0, wanted, tuple(key(number) for number in forget)))

    def collect(self, bytes_max=MUCH):
        return self.session.collect(bytes_max)

    def records(self, bytes_max=MUCH):
        """(partition, offset) of all records that a round brings."""
        return [
            (found.result.key.partition, offset) for found in self.collect(bytes_max) for offset in offsets_of(found)
        ]


def offsets_of(found):
    data = b"".join(
        piece.segment.path.read_bytes()[piece.position : piece.position + piece.length] for piece in found.slices
    )
    assert len(data) == found.result.body_bytes
    return [record.offset for record in records_of(data)]


def codes(found):
    return [(news.result.key.partition, news.result.error) for news in found]


@pytest.fixture
def reader(kit):
    return Reader(kit)


@pytest.fixture
def many(make_kit):
    """A reader of three partitions."""
    return Reader(make_kit(partitions=3, spread="mapping"))


def store(kit, count=1, number=0, size=10, *, sync=True):
    """Batches of one record each."""
    multiple = len(kit.partitions) > 1
    subject = b"lift.%d.orders.a" % number if multiple else b"orders.a"
    for _ in range(count):
        kit.receive(msg(subject, bytes(size), number + 1))
    if sync:
        kit.sync()


def test_first_round_tells_where_an_empty_partition_is(reader):
    reader.want(0)
    (found,) = reader.collect()
    assert (key(), ErrorCode.NONE, "", 7, 0, 0, 0, -1, 0) == found.result
    assert (found.slices, reader.collect()) == ([], [])


def test_records_are_told_once(reader):
    store(reader.kit, 5)
    reader.want(0)
    assert [(0, offset) for offset in range(5)] == reader.records()
    assert reader.collect() == []
    store(reader.kit, 2)
    assert reader.records() == [(0, 5), (0, 6)]


def test_result_says_how_far_the_partition_is(reader):
    store(reader.kit, 5)
    reader.kit.log.purge(2)
    reader.want(2)
    (found,) = reader.collect()
    assert (found.result.epoch, found.result.high_watermark, found.result.log_start) == (7, 5, 2)
    assert found.partition is reader.kit.partition


def test_partition_without_news_calls_when_it_has_some(reader):
    reader.want(0)
    reader.collect()
    reader.collect()
    assert not reader.session.news.is_set()
    store(reader.kit, 1, sync=False)
    assert not reader.session.news.is_set()
    reader.kit.sync()
    assert reader.session.news.is_set()
    assert reader.records() == [(0, 0)]
    assert not reader.session.news.is_set()


def test_nothing_above_the_high_watermark_is_shown(reader):
    store(reader.kit, 3)
    store(reader.kit, 3, sync=False)
    reader.want(0)
    assert reader.records() == [(0, 0), (0, 1), (0, 2)]
    assert reader.records() == []


def test_reader_between_high_watermark_and_log_end_waits(reader):
    store(reader.kit, 2)
    store(reader.kit, 3, sync=False)
    reader.want(4)
    assert reader.collect() == []
    reader.kit.sync()
    assert reader.records() == [(0, 4)]


def test_reader_at_the_log_end_waits(reader):
    store(reader.kit, 2)
    reader.want(2)
    assert [(key(), 0)] == [(found.result.key, found.result.body_bytes) for found in reader.collect()]
    assert reader.collect() == []


@pytest.mark.parametrize("offset", [0, 1, 6, 100])
def test_offset_out_of_range(reader, offset):
    store(reader.kit, 5)
    reader.kit.log.purge(2)
    reader.want(offset)
    (found,) = reader.collect()
    assert (
        found.result.error,
        found.result.high_watermark,
        found.result.log_start,
        found.result.body_bytes,
    ) == (ErrorCode.OFFSET_OUT_OF_RANGE, 5, 2, 0)
    assert reader.collect() == [], "and the partition has left the session"


def test_partition_that_went_out_may_enter_again(reader):
    store(reader.kit, 5)
    reader.want(100)
    reader.collect()
    reader.want(3)
    assert reader.records() == [(0, 3), (0, 4)]


def test_reader_whom_a_purge_overtook(reader):
    store(reader.kit, 5)
    reader.want(0)
    reader.records()
    store(reader.kit, 5)
    reader.kit.log.purge(8)
    assert codes(reader.collect()) == [(0, ErrorCode.OFFSET_OUT_OF_RANGE)]


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_STREAM, ErrorCode.NOT_LEADER])
def test_partition_that_is_not_here(reader, code):
    reader.lookups[key(0)] = code
    reader.want(0)
    (found,) = reader.collect()
    assert (key(0), code, -1, None) == (found.result.key, found.result.error, found.result.epoch, found.partition)
    assert reader.collect() == []


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_STREAM, ErrorCode.NOT_LEADER, ErrorCode.NOT_AVAILABLE])
def test_partition_that_goes_while_a_reader_waits(reader, code):
    reader.want(0)
    reader.collect()
    reader.collect()
    reader.kit.partition.close(code)
    assert reader.session.news.is_set()
    assert [(0, code)] == codes(reader.collect())


def test_partition_that_goes_offline_while_a_reader_waits(reader):
    reader.want(0)
    reader.collect()
    reader.collect()
    reader.kit.partition.fail("the disk is gone")
    assert reader.session.news.is_set()
    (found,) = reader.collect()
    assert (found.result.error, found.result.message) == (ErrorCode.PARTITION_OFFLINE, "the disk is gone")


def test_damage_on_the_way_takes_the_partition_offline(make_kit):
    reader = Reader(make_kit(log=LogConfig(segment_bytes=100_000)))
    store(reader.kit, 200, size=300)
    segment = reader.kit.log.active
    data = bytearray(segment.path.read_bytes())
    data[:80] = bytes(80)
    segment.path.write_bytes(data)
    reader.want(1)
    assert codes(reader.collect()) == [(0, ErrorCode.PARTITION_OFFLINE)]
    assert reader.kit.log.failure is not None


def test_forgotten_partition_is_left_alone(many):
    many.want(0, 0, 0)
    many.collect()
    many.want(forget=[1])
    for number in range(3):
        store(many.kit, 1, number)
    assert {(0, 0), (2, 0)} == set(many.records())


def test_partition_that_enters_again_moves(many):
    store(many.kit, 5)
    many.want(0)
    many.records()
    many.want(3)
    assert many.records() == [(0, 3), (0, 4)]


def test_partition_that_enters_again_is_answered_even_without_news(reader):
    reader.want(0)
    reader.collect()
    reader.want(0)
    assert len(reader.collect()) == 1


def test_closed_session_waits_for_nothing(many):
    many.want(0, 0, 0)
    many.collect()
    many.collect()
    many.session.close()
    store(many.kit, 1)
    assert not many.session.news.is_set()
    assert all(not partition._waiters for partition in many.kit.partitions.values())


def test_only_about_so_many_bytes_but_at_least_one_batch(reader):
    store(reader.kit, 5, size=1_000)
    batch_bytes = reader.kit.log.size_bytes // 5
    reader.want(0)
    assert reader.records(1) == [(0, 0)]
    assert reader.records(2 * batch_bytes) == [(0, 1), (0, 2)]
    assert reader.records() == [(0, 3), (0, 4)]


def test_busy_partition_does_not_starve_the_others(many):
    for number in range(3):
        store(many.kit, 10, number, size=1_000)
    many.want(0, 0, 0)
    order = [many.records(1)[0] for _ in range(9)]
    assert [(number, offset) for offset in range(3) for number in range(3)] == order


def test_partition_with_news_comes_behind_those_that_waited_longer(many):
    many.want(0, 0, 0)
    for _ in range(3):
        many.collect()
    for number in (2, 0, 1):
        store(many.kit, 1, number)
    assert [found.result.key.partition for found in many.collect()] == [2, 0, 1]


def test_budget_is_shared_by_the_partitions_of_a_round(many):
    for number in range(3):
        store(many.kit, 3, number, size=1_000)
    batch_bytes = many.kit.log.size_bytes // 3
    many.want(0, 0, 0)
    assert many.records(4 * batch_bytes) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert many.records(3 * batch_bytes) == [(2, 0), (2, 1), (2, 2)]


def test_many_segments_are_read_through(make_kit):
    reader = Reader(make_kit(log=LogConfig(segment_bytes=3_000)))
    store(reader.kit, 30, size=500)
    reader.want(7)
    assert [(0, offset) for offset in range(7, 30)] == reader.records()


@pytest.mark.parametrize(
    ("number", "code", "is_offline"),
    [(errno.EMFILE, ErrorCode.NOT_AVAILABLE, False), (errno.ENOENT, ErrorCode.PARTITION_OFFLINE, True)],
)
@pytest.mark.parametrize("later", [False, True])
def test_segment_that_can_not_be_opened(reader, number, code, is_offline, later):
    """A lack of descriptors passes; a file that is gone does not. Either way the reader must ask again."""
    store(reader.kit, 2)
    reader.want(0)
    error = OSError(number, "told to fail")
    if later:
        found = [reader.session.unreadable(news, error) for news in reader.collect()]
    else:
        with patch.object(FileCache, "get", side_effect=error):
            found = reader.collect()
    assert [(0, code)] == codes(found)
    assert "told to fail" in found[0].result.message
    assert (is_offline, []) == (reader.kit.log.failure is not None, reader.collect())
    if not is_offline:
        reader.want(0)
        assert reader.records() == [(0, 0), (0, 1)]


def test_readers_do_not_disturb_each_other(kit):
    readers = [Reader(kit), Reader(kit)]
    for each in readers:
        each.want(0)
        each.collect()
        each.collect()
    store(kit, 2)
    assert [each.records() for each in readers] == [[(0, 0), (0, 1)]] * 2


actions = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.integers(0, 2), st.integers(1, 4)),
        st.tuples(st.just("sync"), st.just(0), st.just(0)),
        st.tuples(st.just("collect"), st.just(0), st.sampled_from([1, 700, MUCH])),
    ),
    max_size=25,
)


@given(actions)
@examples(30)
def test_every_committed_record_is_told_once_and_in_order(tmp_path_factory, given_actions):
    kit = Kit(tmp_path_factory.mktemp("logs"), partitions=3, spread="mapping", log=LogConfig(segment_bytes=1_500))
    reader = Reader(kit)
    reader.want(0, 0, 0)
    told = {number: [] for number in range(3)}
    for action, number, amount in [*given_actions, ("sync", 0, 0), *[("collect", 0, MUCH)] * 3]:
        if action == "store":
            store(kit, amount, number, size=100, sync=False)
        elif action == "sync":
            kit.sync()
        else:
            for partition, offset in reader.records(amount):
                assert offset < kit.partitions[partition].high_watermark
                told[partition].append(offset)
    assert {number: list(range(kit.partitions[number].log.log_end)) for number in range(3)} == told
    kit.close()
