"""From a log through the jobs that upload it and those that read it back to the pull port, with nothing faked between.

The bucket is in memory, and the jobs run in this process.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from typing import NamedTuple

import pytest

from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.reading.version import open_version
from liftpy_bucket.store.memory import MemoryStore
from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.pull import (
    EARLIEST,
    LATEST,
    Api,
    EpochEndQuery,
    EpochEndRequest,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    OffsetQuery,
    OffsetsRequest,
    PartitionKey,
)
from liftpy_log.partition_log import LogConfig
from liftpy_server.groups.core.records import CommittedOffset, GroupRecord, encode_offset, encode_records, offset_key
from liftpy_server.groups.host.replaying import read_groups
from liftpy_server.metadata.state import LEVEL
from liftpy_server.partition.cold_side import ColdSide
from liftpy_server.pull import connection
from liftpy_server.pull.queries import epoch_ends, offsets
from liftpy_server.pull.requests import PullBackend
from liftpy_server.pull.server import PullServer
from liftpy_server.pull.session import FetchSession
from liftpy_server.settings.config import PullConfig
from liftpy_server.tier.errors import TierWorkError, plain_error
from liftpy_server.tier.host.tiered_partition import claim_job, upload_job
from liftpy_server.tier.jobs.parts.context import Context
from liftpy_server.tier.reads import reads
from liftpy_server.tier.reads.reads import ColdReads, ColdUnavailableError
from liftpy_server.tier.requests import SetMemberUpload, UploadSetJob
from liftpy_server.workers.requests import to_plain
from support.filter_kit import records_in
from support.nats_frames import msg
from support.plain_worker import PlainWorker, do_plain
from support.plain_worker import told as request_of
from support.raw_pull import RawPull
from support.server_kit import NOW_NS, UUID, Kit
from support.tier_history import new_id

MUCH = 1 << 20
SECOND = 10**9
KEY = PartitionKey(UUID, 0)


class Jobs(PlainWorker):
    """A worker whose jobs run here."""

    def __init__(self, store):
        self.context = Context(
            store, new_id=new_id, now_ns=count(10**18).__next__, memory_bytes_max=1 << 30, object_bytes=1 << 20
        )
        self.is_away = False

    async def answer(self, job, /, **arguments):
        await asyncio.sleep(0)
        if self.is_away:
            raise TierWorkError("unavailable", "told to be away", retriable=True)
        try:
            return do_plain(self.context, job, arguments)
        except Exception as error:
            raise TierWorkError(**plain_error(error)) from error

    async def close(self):
        self.is_away = True


class Told(NamedTuple):
    result: FetchResult
    records: list

    @property
    def offsets(self):
        return [record.offset for record in self.records]


class Across:
    """A kit whose partition is partly in a bucket, and a pull server before both."""

    def __init__(self, kit, directory, executor):
        self.kit = kit
        self.partition = kit.partition
        self.store = MemoryStore()
        self.jobs = Jobs(self.store)
        self.executor = executor
        limits = {"cache_bytes": 64 << 20, "read_ahead_bytes": 4 << 20}
        self.cold = ColdReads(self.jobs, kit.disk, kit.files, executor, directory / "cold", **limits)
        self.cold.start()
        self.claimed = None

    def publish(self, number, subject=b"orders.eu"):
        for _ in range(number):
            self.kit.receive(msg(subject, bytes(100), 1))
            self.kit.clock.advance(1)
        self.kit.sync()

    async def tier(self, *, shared=False):
        """Upload all that is committed, as a fragment or as a member of a stream set."""
        partition = self.partition
        if self.claimed != partition.epoch:
            self.claimed = partition.epoch
            answer = await self.jobs.call(replace(claim_job(partition, "n1", "", LEVEL), create=True, cluster_id=None))
            partition.cold = partition.cold or ColdSide(
                *(answer.start, answer.end, answer.epochs), record_hash=answer.record_hash
            )
        side = partition.cold
        while side.end < partition.high_watermark:
            wanted = upload_job(partition, side.end, MUCH)
            if shared:
                member = to_plain(wanted) | {"tier_epoch": wanted.epoch, "record_hash": side.record_hash}
                member = request_of(SetMemberUpload, member)
                await self.jobs.call(UploadSetJob(node="n1", incarnation=1, members=(member,)))
            else:
                await self.jobs.call(wanted)
            side.advance(wanted.end, wanted.epochs)

    def drop(self, keep):
        self.partition.purge(self.partition.high_watermark - keep)

    async def ask_times(self, *times):
        wanted = OffsetsRequest(tuple(OffsetQuery(KEY, time) for time in times))
        found = await offsets(wanted, lambda _: self.partition, self.cold)
        return [[result.error, result.offset] for result in found.results]

    async def fetch(self, raw, *offsets, wait_ms=5_000, bytes_max=MUCH, **options):
        wanted = tuple(FetchPartition(PartitionKey(UUID, number), offset) for number, offset in enumerate(offsets))
        answer = await raw.request(Api.FETCH, FetchRequest(bytes_max, wait_ms, wanted, **options))
        told, at = [], 0
        for result in answer.decoded(FetchResponse).results:
            told.append(Told(result, records_in(answer.body[at : at + result.body_bytes])))
            at += result.body_bytes
        return told

    async def read(self, raw, start, end, **options):
        """Offsets of all records that come until one says that `end` is reached."""
        found, at, wanted = [], start, [start]
        while at < end:
            for told in await self.fetch(raw, *wanted, **options):
                assert told.result.error is ErrorCode.NONE, told.result
                found += told.offsets
                at = max(at, told.result.next_offset, *[offset + 1 for offset in told.offsets])
            wanted = []
        return found


@pytest.fixture
def executor():
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture
async def across(make_kit, tmp_path, executor):
    """Offsets 0 to 39 in a fragment, 40 to 69 in a stream set, 60 to 99 in the log; one record a second."""
    made = Across(make_kit(log=LogConfig(segment_bytes=1_500)), tmp_path, executor)
    made.publish(40)
    await made.tier()
    made.publish(30)
    await made.tier(shared=True)
    made.drop(keep=10)
    made.publish(30)
    yield made
    await made.cold.close()


@pytest.fixture
async def raw(across, monkeypatch):
    """A connection to a pull server that reads the bucket."""
    monkeypatch.setattr(connection, "FetchSession", lambda *given: FetchSession(*given[:2], across.cold))
    server = PullServer(PullConfig(port=0), 10)
    await server.start(
        PullBackend(
            node_id="n1",
            incarnation=1,
            token="t",
            follow_token="f",
            lookup=lambda key: across.kit.partitions.get(key.partition, ErrorCode.UNKNOWN_STREAM),
            metadata=lambda: None,
            files=across.kit.files,
            executor=across.executor,
            config=PullConfig(port=0),
        )
    )
    async with await RawPull.open(server.port) as opened:
        await opened.hello("t")
        yield opened
    await server.stop()


async def test_a_consumer_reads_from_the_bucket_into_the_log(across, raw):
    assert await across.read(raw, 0, 100) == list(range(100))
    assert await across.fetch(raw, wait_ms=1) == []
    across.publish(1)
    (told,) = await across.fetch(raw)
    assert (told.offsets, told.result.log_start, told.result.high_watermark) == ([100], 0, 101)


@pytest.mark.parametrize("start", [1, 39, 40, 59, 60, 69, 70])
async def test_it_may_begin_anywhere(across, raw, start):
    found = await across.read(raw, start, 100)
    assert [offset for offset in found if offset >= start] == list(range(start, 100))
    assert len(found) == len(set(found))


async def test_a_small_budget_is_kept(across, raw):
    for _ in range(200):
        (told,) = await across.fetch(raw, *([0] if _ == 0 else []), bytes_max=1)
        assert len(told.records) >= 1
        if told.offsets[-1] == 99:
            break
    else:
        pytest.fail("the end was not reached")


async def test_subjects_are_filtered_in_the_bucket_too(across, raw):
    across.publish(5, b"orders.us")
    await across.tier()
    across.drop(keep=0)
    across.publish(3)
    across.publish(2, b"orders.us")
    assert await across.read(raw, 0, 110, subjects=("orders.us",)) == [*range(100, 105), 108, 109]


async def test_what_is_damaged_in_the_cache_is_found_and_fetched_again(across, raw):
    assert len(await across.read(raw, 0, 60)) >= 60
    for path in across.cold.cache.directory.iterdir():
        data = bytearray(path.read_bytes())
        data[-9] ^= 0xFF
        path.write_bytes(data)
    told = await across.fetch(raw, 0, verify=True)
    assert told[0].result.error is ErrorCode.NOT_AVAILABLE
    assert across.kit.log.failure is None
    found = []
    while len(found) < 100:
        answers = await across.fetch(raw, len(found), verify=True)
        found += [offset for each in answers for offset in each.offsets if offset >= len(found)]
    assert found == list(range(100))


async def test_a_bucket_that_is_away_is_said_and_the_log_is_read_on(across, raw):
    across.jobs.is_away = True
    (told,) = await across.fetch(raw, 0)
    assert told.result.error is ErrorCode.NOT_AVAILABLE
    assert "the bucket is away: told to be away" in told.result.message
    assert await across.read(raw, 60, 100) == list(range(60, 100))
    across.jobs.is_away = False
    async with asyncio.timeout(10):
        while (told := (await across.fetch(raw, 0))[0]).result.error is ErrorCode.NOT_AVAILABLE:
            await asyncio.sleep(0.02)
    assert told.offsets[0] == 0


async def test_a_short_poll_is_answered_while_the_bucket_is_slow(across, raw, monkeypatch):
    gate = asyncio.Event()
    call = across.jobs.call

    async def slow(job, /, **arguments):
        await gate.wait()
        return await call(job, **arguments)

    monkeypatch.setattr(across.jobs, "call", slow)
    assert await across.fetch(raw, 0, wait_ms=10) == []
    gate.set()
    (told,) = await across.fetch(raw)
    assert told.offsets[0] == 0


async def test_offsets_are_looked_up_on_both_sides(across):
    assert await across.ask_times(EARLIEST, LATEST) == [[0, 0], [0, 100]]
    times = [NOW_NS + seconds * SECOND for seconds in (-1, 0, 7, 45, 59, 60, 61, 99, 200)]
    assert [row[1] for row in await across.ask_times(*times)] == [0, 0, 7, 45, 59, 60, 61, 99, 100]
    across.partition.cold.raise_start(30)
    assert [row[1] for row in await across.ask_times(EARLIEST, times[0], times[3])] == [30, 30, 45]
    across.jobs.is_away = True
    assert await across.ask_times(EARLIEST, LATEST, times[6]) == [[0, 30], [0, 100], [0, 61]]
    assert await across.ask_times(times[3]) == [[ErrorCode.NOT_AVAILABLE, -1]]


async def test_a_leader_that_does_not_know_what_is_committed_knows_what_the_bucket_has(across, monkeypatch):
    monkeypatch.setattr(type(across.partition), "is_high_watermark_known", False)
    monkeypatch.setattr(across.partition, "high_watermark", 60)
    times = [NOW_NS + seconds * SECOND for seconds in (7, 45, 59, 60, 80)]
    found = [[0, 7], [0, 45], [0, 59], [0, 60], [ErrorCode.NOT_AVAILABLE, -1]]
    assert await across.ask_times(*times) == found


async def test_a_leader_that_has_yet_to_look_says_no_start(across):
    across.partition.cold = None
    assert await across.ask_times(EARLIEST, NOW_NS, LATEST) == [[11, -1], [11, -1], [0, 100]]
    (start,) = (await offsets(OffsetsRequest((OffsetQuery(KEY, EARLIEST),)), lambda _: across.partition, None)).results
    assert start.offset == 60, "a node without a bucket has nothing to look for"


async def test_epochs_that_the_log_has_not_any_more(across):
    def ends(*epochs):
        request = EpochEndRequest(tuple(EpochEndQuery(KEY, epoch) for epoch in epochs))
        return [[*result[3:]] for result in epoch_ends(request, lambda _: across.partition).results]

    across.partition.lead(9)
    across.publish(10)
    await across.tier()
    across.drop(keep=3)
    assert across.partition.log.epochs.entries == [(9, 107)]
    assert ends(9, 8, 7, 12) == [[9, 110], [7, 100], [7, 100], [9, 110]]
    assert ends(3) == [[-1, 0]]


async def test_what_the_bucket_holds_is_one_history(across):
    version = open_version(across.store, PartitionPath(UUID.hex(), 0))
    assert (version.start, version.end) == (0, 70)
    pieces = list(version.pieces())
    assert [(piece.start, piece.end, piece.extent.start is None) for piece in pieces] == [
        (0, 40, True),
        (40, 70, False),
    ]
    assert [offset for rows in version.read(35, 45) for offset in rows.column("offset").to_pylist()] == [*range(35, 45)]
    assert version.offset_at_time(NOW_NS + 50 * SECOND) == 50
    without_sets = open_version(across.store, version.path, offset=10)
    assert without_sets.end == 40


async def test_groups_are_replayed_from_the_bucket_first(tmp_path, executor):
    kit = Kit(tmp_path / "logs", name="__consumer_offsets", subject="", acks="off", dedupe_ids_max=0)
    across = Across(kit, tmp_path, executor)
    value = encode_offset(CommittedOffset(1, 1, 1, 1, 1, "orders", b""))
    for start in range(0, 300, 100):
        keys = [offset_key(b"g", bytes(16) + number.to_bytes(4, "big")) for number in range(start, start + 100)]
        across.partition.append_body(encode_records([GroupRecord(key, value) for key in keys]), NOW_NS)
        across.partition.end_pass()
        kit.sync()
    await across.tier()
    across.drop(keep=50)
    replay = await read_groups(across.partition, kit.files, executor, across.cold)
    assert len(replay.table) == 300
    across.cold.cache.clear()
    across.jobs.is_away = True
    with pytest.raises(ColdUnavailableError, match="told to be away"):
        await read_groups(across.partition, kit.files, executor, across.cold)
    across.partition.cold = None
    with pytest.raises(ColdUnavailableError, match="not known yet"):
        await read_groups(across.partition, kit.files, executor, across.cold)
    await across.cold.close()
    kit.close()


async def test_what_the_worker_is_asked_before_somebody_reads_costs_one_request(
    make_kit, tmp_path, executor, monkeypatch, caplog
):
    monkeypatch.setattr(reads, "WARM_UP_AFTER_S", 0.0)
    made = Across(make_kit(), tmp_path, executor)
    counts = made.jobs.context.store.counts
    async with asyncio.timeout(10):
        while not counts["get"]:
            await asyncio.sleep(0)
    await made.cold.close()
    assert sum(counts.values()) == 1
    assert "can not be read" not in caplog.text
