"""What lies before a log is read from the bucket as if it were in the log, once, and without anybody waiting for it."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.pull import FetchPartition, FetchRequest, PartitionKey
from liftpy_log.partition_log import LogConfig
from liftpy_server.partition.cold_side import ColdSide
from liftpy_server.pull.session import FetchSession
from liftpy_server.tier.errors import TierWorkError
from liftpy_server.tier.reads import failures, fetches, limits, reads
from liftpy_server.tier.reads.metrics import cold_metrics
from liftpy_server.tier.reads.reads import is_cold
from support.batches import records_of
from support.cold_kit import Bucket, cold_reads, settle
from support.examples import examples
from support.nats_frames import msg
from support.server_kit import UUID, Kit

MUCH = 1 << 20
SMALL = LogConfig(segment_bytes=1_500)
AWAY = TierWorkError("unavailable", "nobody answers at the address", retriable=True)


class Cold:
    """A kit with a bucket, and a session that reads it."""

    def __init__(self, kit, directory, group=3, **limits):
        self.kit = kit
        self.bucket = Bucket(group)
        self.reads = cold_reads(kit, self.bucket, directory, **limits)
        self.session = self.new_session()

    def new_session(self):
        return FetchSession(
            lambda key: self.kit.partitions.get(key.partition, ErrorCode.UNKNOWN_STREAM), None, self.reads
        )

    def store(self, count, number=0, size=100):
        multiple = len(self.kit.partitions) > 1
        subject = b"lift.%d.orders.a" % number if multiple else b"orders.a"
        for _ in range(count):
            self.kit.receive(msg(subject, bytes(size), number + 1))
        self.kit.sync()

    def tier(self, number=0, *, keep=0):
        """Everything to the bucket, and as much as can go from the log but the newest `keep` records."""
        partition = self.kit.partitions[number]
        self.bucket.tier(partition)
        partition.purge(partition.high_watermark - keep)
        return partition

    def want(self, *offsets, session=None):
        wanted = tuple(FetchPartition(key(n), offset) for n, offset in enumerate(offsets) if offset is not None)
        (session or self.session).apply(FetchRequest(MUCH, 0, wanted))

    def look(self, bytes_max=MUCH, session=None):
        """(partition, offset) of what comes at once; errors as (partition, code)."""
        told = []
        for found in (session or self.session).collect(bytes_max):
            number = found.result.key.partition
            if found.result.error is not ErrorCode.NONE:
                told.append((number, found.result.error))
                continue
            told += [(number, offset) for offset in offsets_of(found)]
        return told

    async def read(self, count, bytes_max=MUCH, session=None):
        """So many records, however long they take to come."""
        told = []
        async with asyncio.timeout(10):
            while len(told) < count:
                told += self.look(bytes_max, session)
                await settle()
        return told


def key(number=0):
    return PartitionKey(UUID, number)


def offsets_of(found):
    data = b"".join(
        piece.segment.path.read_bytes()[piece.position : piece.position + piece.length] for piece in found.slices
    )
    assert len(data) == found.result.body_bytes
    return [record.offset for record in records_of(data)]


def chunks(cold):
    return sorted((path for path in cold.reads.cache.directory.iterdir()), key=lambda path: path.name)


@pytest.fixture
async def make_cold(make_kit, tmp_path):
    made = []

    def make(group=3, limits=None, **settings):
        made.append(Cold(make_kit(**settings), tmp_path, group, **(limits or {})))
        return made[-1]

    yield make
    for each in made:
        await each.reads.close()
        assert chunks(each) == []


@pytest.fixture
async def cold(make_cold):
    """A hundred records, of which the log has the last ten."""
    made = make_cold(log=SMALL)
    made.store(100)
    made.tier(keep=10)
    return made


async def test_it_is_said_whose_shared_objects_hold_an_offset(cold):
    cold.kit.partition.cold.holders, cold.kit.partition.cold.root_end = frozenset({"n2", "n1"}), 60
    cold.want(0)
    await cold.read(100)
    said = {arguments["offset"]: list(arguments["nodes"]) for job, arguments in cold.bucket.calls if job == "fetch"}
    assert len(said) > 2
    assert said == {offset: ["n1", "n2"] if offset >= 60 else [] for offset in said}


async def test_a_reader_does_not_notice_where_the_log_ends(cold):
    cold.want(0)
    assert cold.look() == [], "nothing waits for the bucket"
    assert not cold.session.has_ready
    told = await cold.read(100)
    assert told == [(0, offset) for offset in range(100)]
    cold.store(1)
    assert cold.look() == [(0, 100)]


async def test_a_reader_begins_in_the_midst_of_a_batch_or_chunk(make_cold):
    cold = make_cold()
    for _ in range(10):
        cold.kit.receive(*(msg(b"orders.a", b"v", 1) for _ in range(5)))
    cold.kit.sync()
    cold.tier()
    cold.want(22)
    told = await cold.read(28)
    assert [offset for _, offset in told if offset >= 22] == list(range(22, 50))


async def test_what_a_result_says(cold):
    cold.kit.partition.cold.delete_horizon = 7
    cold.want(20)
    cold.look()
    await settle()
    (found,) = cold.session.collect(300)
    assert (found.result.log_start, found.result.high_watermark, found.result.delete_horizon) == (0, 100, 7)
    cold.want(95)
    (found,) = cold.session.collect(300)
    assert (found.result.log_start, found.result.delete_horizon) == (0, 0), (
        "who reads the log alone misses no tombstone"
    )


async def test_below_the_start_there_is_nothing(cold):
    cold.kit.partition.cold.raise_start(50)
    cold.want(49)
    (found,) = cold.session.collect(MUCH)
    assert (found.result.error, found.result.log_start) == (ErrorCode.OFFSET_OUT_OF_RANGE, 50)
    assert "50" in found.result.message
    assert cold.bucket.calls == []


async def test_a_bucket_that_does_not_reach_the_log_is_of_no_use(cold):
    cold.kit.partition.cold = ColdSide(0, 80)
    cold.want(5)
    (found,) = cold.session.collect(MUCH)
    assert (found.result.error, found.result.log_start) == (ErrorCode.OFFSET_OUT_OF_RANGE, 90)


async def test_a_leader_that_does_not_know_the_bucket_yet_says_so(cold):
    side, cold.kit.partition.cold = cold.kit.partition.cold, None
    cold.want(5)
    assert cold.look() == [(0, ErrorCode.NOT_AVAILABLE)]
    cold.kit.partition.is_leading = False
    cold.want(5)
    assert cold.look() == [(0, ErrorCode.OFFSET_OUT_OF_RANGE)], "a follower never knows: the leader is to be asked"
    cold.kit.partition.is_leading, cold.kit.partition.cold = True, side
    cold.want(5)
    assert cold.look() == []


async def test_many_readers_of_the_same_place_cost_one_fetch(cold):
    sessions = [cold.new_session() for _ in range(5)]
    for session in sessions:
        cold.want(0, session=session)
        assert cold.look(session=session) == []
    await settle()
    assert [len(cold.look(session=session)) > 0 for session in sessions] == [True] * 5
    assert cold.bucket.fetched.count(0) == 1


async def test_a_partition_that_waits_does_not_block_the_others(make_cold):
    cold = make_cold(partitions=3, spread="mapping")
    for number in range(3):
        cold.store(10, number)
    cold.tier(1)
    cold.bucket.is_open.clear()
    cold.want(0, 0, 0)
    assert cold.look() == [(number, offset) for number in (0, 2) for offset in range(10)]
    cold.session.news.clear()
    await settle()
    cold.store(1, 2)
    assert cold.look() == [(2, 10)]
    cold.bucket.is_open.set()
    await settle()
    assert cold.session.news.is_set()
    assert await cold.read(10) == [(1, offset) for offset in range(10)]


async def test_who_seeks_once_does_not_wait_for_a_hundred_seeks_of_another(make_cold):
    cold = make_cold(group=1, partitions=2, spread="mapping")
    for number in range(2):
        for _ in range(100):
            cold.store(1, number)
    busy, quiet = cold.tier(0), cold.tier(1)
    cold.bucket.is_open.clear()
    fetches, wakers = cold.reads.fetches, {}

    def seek(partition, offset):
        wakers[partition.number, offset] = wake = lambda: again(partition, offset)
        fetches.ask(partition, offset, wake)

    def again(partition, offset):  # as a reader that was woken
        if cold.reads.cache.find(partition.key, offset) is None:
            fetches.ask(partition, offset, wakers[partition.number, offset])

    for offset in range(100):
        seek(busy, offset)
    await settle()
    seek(quiet, 50)
    cold.bucket.is_open.set()
    async with asyncio.timeout(10):
        while fetches.waiting:
            await settle()
    asked = [arguments["partition"] for job, arguments in cold.bucket.calls if job == "fetch"]
    assert len(asked) == 101
    assert asked.index(1) <= limits.FETCHES_MAX, "as soon as one of those that run is done"


async def test_what_was_read_once_is_read_again_without_the_bucket(cold):
    cold.want(0)
    await cold.read(100)
    asked = len(cold.bucket.calls)
    cold.want(0)
    assert len(await cold.read(100)) == 100
    assert len(cold.bucket.calls) == asked


async def test_of_a_compacted_stream_what_was_fetched_is_not_read_for_long(make_cold):
    """Somebody else may compact its history in the bucket, and tells no node."""
    cold = make_cold(log=SMALL, compact=True)
    cold.store(100)
    cold.tier(keep=10)
    cold.want(0)
    await cold.read(100)
    asked = len(cold.bucket.calls)
    cold.want(0)
    await cold.read(100)
    assert len(cold.bucket.calls) == asked
    for chunk in cold.reads.cache._by_use:
        chunk.landed_s -= limits.COMPACTED_S
    cold.want(0)
    assert len(await cold.read(100)) == 100
    assert len(cold.bucket.calls) > asked


async def test_reading_on_fetches_ahead_and_more_each_time(make_cold):
    cold = make_cold(group=1)
    for _ in range(3):
        cold.store(100, size=4_000)
    cold.tier()
    cold.want(0)
    with patch.object(fetches, "SEEK_BYTES", 1_000):
        await cold.read(1, bytes_max=1)
    sizes = [arguments["bytes_max"] for _, arguments in cold.bucket.calls]
    assert sizes[:1] == [1_000]
    await cold.read(299)
    sizes = [arguments["bytes_max"] for _, arguments in cold.bucket.calls]
    assert sizes[-1] > limits.SEEK_BYTES
    assert sizes == sorted(sizes)


@pytest.mark.parametrize(("foreseen", "at_once"), [(4, 2), (1, 2), (0, 1)])
async def test_who_reads_on_is_fetched_ahead_for_in_several_pieces_at_once(make_cold, foreseen, at_once):
    cold = make_cold(group=10)
    cold.bucket.foreseen = foreseen
    cold.store(100)
    cold.tier()
    cold.want(0)
    cold.look()
    await settle()
    cold.bucket.is_open.clear()
    assert cold.look() == [(0, offset) for offset in range(10)]
    await settle()
    assert cold.bucket.fetched == [0, 10, 20][: 1 + at_once]
    assert cold.look() == []
    await settle()
    assert len(cold.bucket.fetched) == 1 + at_once, "who comes there waits for what is on its way"
    cold.bucket.is_open.set()
    assert await cold.read(90) == [(0, offset) for offset in range(10, 100)]
    assert sorted(cold.bucket.fetched) == list(range(0, 100, 10)), "each once"


async def test_no_further_ahead_is_fetched_than_there_is_room_for(make_cold):
    with patch.object(fetches, "SEEK_BYTES", 4_000):
        cold = make_cold(group=4, limits={"cache_bytes": 60_000})
        cold.store(100, size=1_000)
        cold.tier()
        assert cold.reads.fetches.ahead_bytes < 2 * 4_000
        cold.want(0)
        await cold.read(1)
        await settle()
        assert cold.bucket.fetched == [0, 4, 8]
        assert cold.reads.cache.used_bytes > cold.reads.fetches.ahead_bytes


async def test_one_look_does_not_fetch_ahead(make_cold):
    cold = make_cold(group=10)
    cold.store(100, size=2_000)
    cold.tier()
    cold.want(20)
    assert await cold.read(1, bytes_max=1) == [(0, 20)]
    await settle()
    assert cold.bucket.fetched == [20]


async def test_the_cache_is_bounded_and_less_is_fetched_ahead_when_it_is_too_small(make_cold):
    with patch.object(fetches, "SEEK_BYTES", 4_000):
        cold = make_cold(group=2, limits={"cache_bytes": 60_000})
        cold.store(400, size=1_000)
        cold.tier()
        at_first = cold.reads.fetches.ahead_bytes
        assert at_first == 60_000 // limits.CACHE_SHARE
        sessions = {start: cold.new_session() for start in range(0, 400, 50)}
        told = {start: [] for start in sessions}
        smallest = at_first
        for start, session in sessions.items():
            cold.want(start, session=session)
        async with asyncio.timeout(20):
            while any(len(each) < 50 for each in told.values()):
                for start, session in sessions.items():
                    told[start] += [offset for _, offset in cold.look(1, session)]
                    await settle(2)
                    assert cold.reads.cache.used_bytes <= 60_000
                smallest = min(smallest, cold.reads.fetches.ahead_bytes)
        assert all(each[:50] == list(range(start, start + 50)) for start, each in told.items())
        assert smallest < at_first
        held = sum(path.stat().st_size for path in chunks(cold))
        assert held == cold.reads.cache.used_bytes
        await cold.reads.close()


async def test_a_chunk_that_goes_while_it_is_sent_is_sent_to_its_end(cold):
    cold.want(0)
    cold.look()
    await settle()
    (found,) = cold.session.collect(MUCH)
    piece = found.slices[0]
    file = cold.kit.files.pin(piece.segment)
    cold.reads.cache.clear()
    assert not piece.segment.path.exists()
    assert len(file.read(piece.position, piece.length)) == piece.length
    cold.kit.files.unpin(piece.segment, file)


async def test_what_nobody_reads_goes_after_a_while(cold):
    cold.want(0)
    await cold.read(100)
    assert chunks(cold)
    with patch.object(fetches, "IDLE_S", 0.0):
        cold.reads.fetches._drop_idle()
    assert chunks(cold) == []
    assert cold.reads.fetches._sweep is None, "an idle node holds nothing, not even a timer"


async def test_a_bucket_that_is_away_is_told_to_those_who_need_it(make_cold):
    cold = make_cold(partitions=2, spread="mapping")
    cold.store(10, 0)
    cold.store(10, 1)
    cold.tier(1)
    cold.bucket.error = AWAY
    cold.want(0, 0)
    assert cold.look() == [(0, offset) for offset in range(10)]
    await settle()
    (found,) = [each for each in cold.session.collect(MUCH) if each.result.key.partition == 1]
    assert found.result.error is ErrorCode.NOT_AVAILABLE
    assert "bucket is away: nobody answers" in found.result.message
    cold.want(None, 0)
    assert cold.look() == [(1, ErrorCode.NOT_AVAILABLE)]
    assert len(cold.bucket.calls) == 1, "it is not asked again at once"
    cold.bucket.error = None
    cold.reads.fetches.failures.succeeded(key(1), 0, 10)
    cold.want(None, 0)
    assert await cold.read(10) == [(1, offset) for offset in range(10)]


@pytest.fixture
def quick_looks():
    with patch.object(fetches, "LOOK_AGAIN_S", (0, 0)), patch.object(reads, "LOOK_AGAIN_S", (0, 0)):
        yield


@pytest.fixture
def long_holes():
    """What is missing is remembered until `pass_by`, however slow the machine is."""
    with patch.object(failures, "HOLE_S", 600.0):
        yield


def pass_by(cold):
    """So much time passes that a missing object is looked for again."""
    now_s, noted = asyncio.get_running_loop().time(), cold.reads.fetches.failures
    noted._holes = {at: hole._replace(until_s=now_s) for at, hole in noted._holes.items()}


HOLE = {"start": 30, "end": 60, "code": "missing", "message": "there is no object x/y"}


async def refusal(cold, offset):
    cold.want(offset)
    async with asyncio.timeout(10):
        while not (news := cold.session.collect(MUCH)):
            await settle()
    return news[0].result


@pytest.mark.usefixtures("quick_looks")
async def test_an_object_that_is_damaged_concerns_its_partition_alone(make_cold):
    cold = make_cold(partitions=2, spread="mapping")
    for number in range(2):
        cold.store(10, number)
        cold.tier(number)
    cold.bucket.error = TierWorkError("corrupt", "object x is damaged")
    told = await refusal(cold, 0)
    assert told.error is ErrorCode.BATCH_CORRUPT
    assert "object x is damaged" in told.message
    cold.bucket.error = None
    cold.want(None, 0)
    assert await cold.read(10) == [(1, offset) for offset in range(10)]


@pytest.mark.usefixtures("quick_looks", "long_holes")
async def test_an_object_that_is_missing_is_named_and_what_follows_is_read(make_cold):
    cold = make_cold(group=1, log=SMALL)
    cold.store(100)
    cold.tier(keep=10)
    cold.bucket.hole = HOLE
    told = await refusal(cold, 40)
    assert told.error is ErrorCode.BATCH_CORRUPT
    assert not told.error.retriable
    assert told.message == (
        "stream orders partition 0: what is at offsets 30 to 59 can not be read from the bucket: there is no object "
        "x/y; look what else is wrong with `liftpy tier scrub orders`, restore the object, or read from offset 60 on"
    )
    assert cold.bucket.fetched == [40] * 3, "looked at again, and not for ever"
    assert (await refusal(cold, 59)).error is ErrorCode.BATCH_CORRUPT
    assert cold.bucket.fetched == [40] * 3, "known for a while"
    cold.want(60)
    assert await cold.read(40) == [(0, offset) for offset in range(60, 100)]
    cold.want(0)
    assert await cold.read(31) == [*((0, offset) for offset in range(30)), (0, ErrorCode.BATCH_CORRUPT)]


@pytest.mark.usefixtures("quick_looks", "long_holes")
async def test_an_object_that_comes_back_is_read(cold):
    cold.bucket.hole = HOLE
    assert (await refusal(cold, 40)).error is ErrorCode.BATCH_CORRUPT
    cold.bucket.hole = None
    pass_by(cold)
    cold.want(40)
    assert (0, 99) in await cold.read(60)


@pytest.mark.usefixtures("quick_looks", "long_holes")
async def test_an_object_that_stays_missing_is_looked_for_once_at_a_time(cold):
    cold.bucket.hole = HOLE
    for looks in (3, 4, 5):
        for _ in range(2):
            assert (await refusal(cold, 40)).error is ErrorCode.BATCH_CORRUPT
            assert cold.bucket.fetched == [40] * looks
        pass_by(cold)
    cold.bucket.hole = None
    cold.want(40)
    assert (0, 99) in await cold.read(60)
    cold.reads.cache.clear()
    cold.bucket.hole = HOLE
    cold.bucket.calls.clear()
    assert (await refusal(cold, 40)).error is ErrorCode.BATCH_CORRUPT
    assert cold.bucket.fetched == [40] * 3, "it was there in between: what is the matter now is new"


async def test_another_look_that_finds_the_object_is_all_that_it_takes(cold):
    cold.bucket.hole = HOLE
    with patch.object(fetches, "LOOK_AGAIN_S", (0.05,)):
        cold.want(40)
        assert cold.look() == []
        await settle()
        cold.bucket.hole = None
        assert (0, 40) in await cold.read(1)
    assert cold.bucket.fetched[:2] == [40, 40]


@pytest.mark.usefixtures("quick_looks")
async def test_a_time_in_a_damaged_object_is_refused(cold):
    cold.bucket.error = TierWorkError("corrupt", "object x is damaged")
    with pytest.raises(reads.HistoryLostError, match=r"stream orders partition 0: .*object x is damaged.*tier scrub"):
        await cold.reads.offset_at_time(cold.kit.partition, 5)
    assert len(cold.bucket.calls) == 3


async def test_who_waits_too_long_is_told(cold):
    cold.bucket.is_open.clear()
    with patch.object(fetches, "SLOW_S", 0.01):
        cold.want(0)
        assert cold.look() == []
        async with asyncio.timeout(10):
            await cold.session.news.wait()
        assert cold.look() == [(0, ErrorCode.NOT_AVAILABLE)]
        cold.want(0)
        assert cold.look() == [(0, ErrorCode.NOT_AVAILABLE)], "and at once when it asks again"
    cold.bucket.is_open.set()
    await settle()
    cold.want(0)
    assert await cold.read(100) == [(0, offset) for offset in range(100)]
    assert cold.bucket.fetched.count(0) == 1


@pytest.mark.parametrize("damage", [lambda data: data[:-8], lambda data: b"x" * len(data), lambda data: b""])
async def test_what_comes_damaged_is_not_taken(cold, damage):
    cold.bucket.damage = damage
    cold.want(0)
    cold.look()
    await settle()
    assert cold.look() == [(0, ErrorCode.NOT_AVAILABLE)]
    assert chunks(cold) == []
    assert cold.kit.log.failure is None


async def test_what_is_damaged_in_the_cache_is_fetched_again(cold):
    cold.want(0)
    cold.look()
    await settle()
    (found,) = cold.session.collect(MUCH)
    told = cold.session.unreadable(found, OSError("told to fail"))
    assert told.result.error is ErrorCode.NOT_AVAILABLE
    assert cold.kit.log.failure is None
    cold.want(0)
    assert await cold.read(100) == [(0, offset) for offset in range(100)]
    assert cold.bucket.fetched.count(0) == 2


async def test_a_chunk_whose_file_is_gone_is_fetched_again(cold):
    cold.want(0)
    await cold.read(100)
    for path in chunks(cold):
        path.unlink()
    for chunk in list(cold.reads.cache._by_use):
        cold.kit.files.forget(chunk)
    cold.want(0)
    assert cold.look() == [(0, ErrorCode.NOT_AVAILABLE)]
    cold.want(0)
    assert (0, 0) in await cold.read(1)


async def test_only_a_few_fetches_run_at_once_and_those_of_readers_who_left_do_not(make_cold):
    cold = make_cold(group=1)
    cold.store(50)
    cold.tier()
    cold.bucket.is_open.clear()
    sessions = [cold.new_session() for _ in range(10)]
    for number, session in enumerate(sessions):
        cold.want(5 * number, session=session)
        cold.look(session=session)
    await settle()
    assert len(cold.bucket.calls) == limits.FETCHES_MAX
    for session in sessions:
        session.close()
    cold.bucket.is_open.set()
    await settle()
    assert len(cold.bucket.calls) == limits.FETCHES_MAX
    assert not cold.reads.fetches._waiters


async def test_more_than_can_wait_are_told_to_come_again(cold):
    cold.bucket.is_open.clear()
    with patch.object(fetches, "QUEUED_MAX", 2):
        told = []
        for offset in range(0, 80, 10):
            session = cold.new_session()
            cold.want(offset, session=session)
            told += cold.look(session=session)
            await settle()
    assert told == [(0, ErrorCode.NOT_AVAILABLE)] * 2


async def test_reading_at_once_waits(cold):
    slices = await cold.reads.read_now(cold.kit.partition, 5, MUCH)
    assert slices[0].next_offset > 5
    assert not cold.reads.fetches._waiters
    cold.reads.cache.clear()
    cold.bucket.error = AWAY
    with pytest.raises(fetches.ColdUnavailableError, match="nobody answers"):
        await cold.reads.read_now(cold.kit.partition, 5, MUCH)
    assert await cold.reads.read_now(cold.kit.partition, 95, MUCH) == [], "that is in the log"


async def test_what_an_earlier_process_left_is_deleted(make_cold, tmp_path):
    (tmp_path / "cold").mkdir()
    (tmp_path / "cold" / "old.log").write_bytes(b"x")
    assert chunks(make_cold()) == []


async def test_nothing_is_shown_that_the_leader_does_not_know_to_be_committed(make_cold):
    cold = make_cold(group=100)
    cold.store(20)
    partition = cold.tier(keep=10)
    partition.high_watermark = 12
    cold.want(0)
    told = await cold.read(12)
    assert told == [(0, offset) for offset in range(12)]
    cold.want(0)
    partition.commit(20)
    assert len(await cold.read(20)) == 20


steps = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.integers(1, 8)),
        st.tuples(st.just("tier"), st.integers(0, 100)),
        st.tuples(st.just("drop"), st.integers(0, 100)),
        st.tuples(st.just("purge"), st.integers(0, 100)),
        st.tuples(st.just("retain"), st.integers(0, 100)),
        st.tuples(st.just("evict"), st.just(0)),
        st.tuples(st.just("read"), st.sampled_from([1, 500, 1_500, MUCH])),
        st.tuples(st.just("go on"), st.integers(1, 6)),
    ),
    max_size=60,
)


def share(low, high, percent):
    return low + (high - low) * percent // 100


@given(steps, st.integers(1, 5), st.sampled_from([20_000, 1 << 20]))
@examples(60)
def test_every_record_comes_once_and_in_order_whatever_moves(tmp_path_factory, given_steps, group, cache_bytes):
    directory = tmp_path_factory.mktemp("cold")
    asyncio.run(_read_while_everything_moves(directory, given_steps, group, cache_bytes))


async def _read_while_everything_moves(directory, given_steps, group, cache_bytes):
    kit = Kit(directory, log=SMALL)
    cold = Cold(kit, directory, group, cache_bytes=cache_bytes)
    partition, expected = kit.partition, 0
    cold.want(0)
    seeking = patch.object(fetches, "SEEK_BYTES", 700)
    with seeking:
        for step, amount in [("store", 30), ("tier", 100), *given_steps, *[("read", MUCH), ("go on", 9)] * 60]:
            side = partition.cold
            if step == "store":
                cold.store(amount)
            elif step == "tier":
                cold.bucket.tier(partition, share(side.end if side else 0, partition.high_watermark, amount))
            elif step in {"drop", "purge"} and side:
                offset = share(partition.log.log_start, max(side.end, partition.log.log_start), amount)
                (partition.drop_before if step == "drop" else partition.purge)(offset)
            elif step == "retain" and side:
                side.raise_start(share(side.start, min(expected, side.end), amount))
            elif step == "evict":
                cold.reads.cache.clear()
            elif step == "read":
                for number, offset in cold.look(amount):
                    assert offset == expected, f"{offset} came where {expected} is next"
                    expected += 1
                    assert number == 0
            elif step == "go on":
                await settle(amount)
    assert expected == partition.high_watermark
    assert partition.log.log_start == 0 or not is_cold(partition, partition.log.log_start)
    await cold.reads.close()
    assert chunks(cold) == []
    kit.close()


async def test_the_cache_gives_way_when_the_disk_gets_short(cold):
    cold.want(0)
    await cold.read(100)
    cache = cold.reads.cache
    before, used = cache.bytes_max, cache.used_bytes
    assert 0 < used <= before
    for chunk in cache._by_use:
        chunk.is_wanted = False  # nobody waits for any of it by now
    cache.fit(free_bytes=before, reserve_bytes=1_000)
    assert (cache.bytes_max, cache.used_bytes) == (before, used)
    cache.fit(free_bytes=1_500, reserve_bytes=1_000)
    assert cache.bytes_max == used - 500
    assert cache.used_bytes <= used - 500
    cache.fit(free_bytes=0, reserve_bytes=1 << 30)
    assert (cache.bytes_max, cache.used_bytes, chunks(cold)) == (0, 0, [])
    session = cold.new_session()
    cold.want(0, session=session)
    assert await cold.read(100, session=session) == [(0, offset) for offset in range(100)], "slower, and all the same"
    cache.fit(free_bytes=1 << 40, reserve_bytes=1_000)
    assert cache.bytes_max == before


async def test_what_is_read_is_counted(cold):
    def values():
        return {
            sample.name: sample.value
            for metric in cold_metrics(cold.reads.status)
            for sample in metric.samples
            if not sample.labels
        }

    assert set(values().values()) == {0.0, values()["liftpy_cold_cache_bytes_max"]}
    cold.bucket.is_open.clear()
    cold.want(0)
    cold.look()
    await settle()
    assert values()["liftpy_cold_waiting"] == 1
    cold.bucket.is_open.set()
    await cold.read(100)
    told = values()
    assert told["liftpy_cold_waiting"] == 0
    assert told["liftpy_cold_fetches_total"] == sum(job == "fetch" for job, _ in cold.bucket.calls)
    assert told["liftpy_cold_fetched_bytes_total"] >= told["liftpy_cold_cache_bytes"] > 0
    hits = told["liftpy_cold_hits_total"]
    session = cold.new_session()
    cold.want(0, session=session)
    await cold.read(100, session=session)
    assert values()["liftpy_cold_hits_total"] > hits
    assert values()["liftpy_cold_fetches_total"] == told["liftpy_cold_fetches_total"]
    cold.reads.cache.clear()
    cold.bucket.error = AWAY
    cold.want(0)
    cold.look()
    await settle()
    failures = [metric for metric in cold_metrics(cold.reads.status) if metric.name == "liftpy_cold_failures"]
    assert [(sample.labels, sample.value) for sample in failures[0].samples] == [({"code": "unavailable"}, 1.0)]


@pytest.mark.parametrize("error", [None, AWAY])
async def test_the_worker_is_there_before_somebody_reads(make_cold, monkeypatch, caplog, error):
    monkeypatch.setattr(reads, "WARM_UP_AFTER_S", 0.0)
    cold = make_cold()
    cold.bucket.error = error
    async with asyncio.timeout(10):
        while not cold.bucket.starts:
            await settle()
    await cold.reads.close()
    assert cold.bucket.starts == 1
    assert ("can not be read yet" in caplog.text) == (error is not None)


async def test_a_node_that_ends_at_once_starts_no_worker(make_cold):
    cold = make_cold()
    await settle()
    await cold.reads.close()
    assert cold.bucket.starts == 0
