"""A fetch with subjects waits for what it wants, gets on where there is nothing, and lets nobody starve."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from liftpy_envelope.bodies import pack_body, unpack_body
from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.frames import Request, ResponseReader
from liftpy_envelope.pull import Api, FetchPartition, FetchRequest, FetchResponse, PartitionKey
from liftpy_log.histogram import Histogram
from liftpy_log.partition_log import LogConfig
from liftpy_server.pull.fetching import FetchAnswers
from liftpy_server.pull.filtering import SCAN_COST_MAX
from liftpy_server.pull.session import FetchSession
from support.filter_kit import records_in
from support.nats_frames import msg
from support.server_kit import UUID

MUCH = 1 << 20


class Sender:
    """Takes answers as the socket's sender does."""

    def __init__(self):
        self.answers = []

    async def send(self, head, pieces=()):
        body = b"".join(
            piece if isinstance(piece, bytes) else piece[0].read(piece[1].position, piece[1].length) for piece in pieces
        )
        reader = ResponseReader()
        responses, data = [], head + body
        while data:
            buffer = reader.buffer()
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            responses += reader.filled(size)
            data = data[size:]
        self.answers += responses


class Desk:
    """Fetches of one connection on the partitions of a kit."""

    def __init__(self, kit, executor):
        self.kit = kit
        self.sender = Sender()
        self.is_urgent = False
        self.session = FetchSession(self._lookup)
        self.answers = FetchAnswers(
            session=self.session,
            sender=self.sender,
            files=kit.files,
            executor=executor,
            is_urgent=lambda: self.is_urgent,
            fetch_s=Histogram(),
        )

    def _lookup(self, key):
        return self.kit.partitions.get(key.partition, ErrorCode.UNKNOWN_STREAM)

    async def fetch(self, *offsets, subjects=(), bytes_max=MUCH, wait_ms=0, verify=False):
        """(result, records) of every partition in the answer."""
        wanted = tuple(FetchPartition(PartitionKey(UUID, number), offset) for number, offset in enumerate(offsets))
        fetch = FetchRequest(bytes_max, wait_ms, wanted, subjects=tuple(subjects), verify=verify)
        await self.answers.answer(Request(1, Api.FETCH, 1, pack_body(fetch)))
        response = self.sender.answers.pop()
        found, at = [], 0
        for result in unpack_body(FetchResponse, response.result).results:
            found.append((result, records_in(bytes(response.body)[at : at + result.body_bytes])))
            at += result.body_bytes
        assert at == len(response.body)
        return found

    def store(self, *subjects, count=1, size=100, number=0):
        prefix = b"lift.%d.orders." % number if len(self.kit.partitions) > 1 else b"orders."
        self.kit.receive(*(msg(prefix + subject, bytes(size), number + 1) for subject in subjects * count))
        self.kit.sync()


@pytest.fixture
def executor():
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def desk(kit, executor):
    return Desk(kit, executor)


def offsets(part):
    return [record.offset for record in part[1]]


async def test_only_what_is_wanted_comes(desk):
    desk.store(*[b"other"] * 200, b"eu", *[b"other"] * 200)
    ((result, records),) = await desk.fetch(0, subjects=["orders.eu"])
    assert [(record.offset, record.subject) for record in records] == [(200, b"orders.eu")]
    assert (result.next_offset, result.high_watermark, result.log_start, result.delete_horizon) == (-1, 401, 0, 0)
    assert await desk.fetch(subjects=["orders.eu"]) == []
    desk.store(b"eu")
    assert [offsets(part) for part in await desk.fetch()] == [[401]]


async def test_what_does_not_match_is_told_as_where_to_go_on(desk):
    desk.store(b"other", count=300)
    ((result, records),) = await desk.fetch(0, subjects=["orders.eu"])
    assert (result.next_offset, result.body_bytes, records) == (300, 0, [])
    desk.store(b"other", count=10)
    ((result, _),) = await desk.fetch(wait_ms=1)
    assert (result.next_offset, result.high_watermark) == (310, 310)


async def test_a_fetch_without_subjects_is_answered_as_ever(desk):
    desk.store(b"other", b"eu")
    ((result, records),) = await desk.fetch(0)
    assert [record.offset for record in records] == [0, 1]
    assert (result.next_offset, result.delete_horizon) == (-1, 0)
    ((result, records),) = await desk.fetch(0, subjects=["orders.eu", ">"])
    assert ([record.offset for record in records], result.next_offset) == ([0, 1], -1)


async def test_waiting_goes_on_while_only_others_are_published(desk):
    desk.store(b"other")
    assert len(await desk.fetch(0, subjects=["orders.eu"])) == 1, "the first round tells where the partition is"
    waiting = asyncio.ensure_future(desk.fetch(wait_ms=60_000))
    for _ in range(20):
        desk.store(b"other", count=3)
        await asyncio.sleep(0.001)
        assert not waiting.done()
    desk.store(b"eu")
    ((result, records),) = await asyncio.wait_for(waiting, 10)
    assert (61 in [record.offset for record in records], result.next_offset) == (True, -1)


async def test_a_reader_hears_at_once_that_it_has_caught_up(make_kit, executor):
    desk = Desk(make_kit(), executor)
    for _ in range(100):
        desk.store(b"other", count=64, size=4_000)
    told, wanted = [], [0]
    while not told or told[-1] < 6_400:
        ((result, _),) = await asyncio.wait_for(desk.fetch(*wanted, subjects=["orders.eu"], wait_ms=60_000), 10)
        told.append(result.next_offset)
        wanted = []
    assert len(told) == 2
    desk.store(b"other")
    waiting = asyncio.ensure_future(desk.fetch(wait_ms=60_000))
    await asyncio.sleep(0.02)
    assert not waiting.done(), "from then on it is not told of every message of others"
    desk.store(b"eu")
    await asyncio.wait_for(waiting, 10)


async def test_a_partition_that_began_empty_is_not_behind(desk):
    ((result, _),) = await desk.fetch(0, subjects=["orders.eu"])
    assert result.next_offset == -1
    desk.store(b"other")
    waiting = asyncio.ensure_future(desk.fetch(wait_ms=60_000))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    desk.is_urgent = True
    desk.session.news.set()
    ((result, _),) = await asyncio.wait_for(waiting, 10)
    assert result.next_offset == 1


async def test_who_asks_for_something_else_is_not_kept_waiting(desk):
    desk.store(b"other", count=10)
    await desk.fetch(0, subjects=["orders.eu"])
    desk.store(b"other", count=10)
    desk.is_urgent = True
    ((result, _),) = await asyncio.wait_for(desk.fetch(wait_ms=60_000), 10)
    assert result.next_offset == 20


async def test_one_fetch_looks_through_a_bounded_part_and_the_next_goes_on(make_kit, executor):
    desk = Desk(make_kit(log=LogConfig(segment_bytes=4 << 20)), executor)
    for _ in range(100):
        desk.store(b"other", count=64, size=4_000)
    desk.store(b"eu")
    looked, position, records = [], 0, []
    wanted = [0]
    while not records:
        ((result, records),) = await desk.fetch(*wanted, subjects=["orders.eu"], wait_ms=60_000)
        wanted = []
        looked.append(result.next_offset - position)
        position = result.next_offset
    assert [record.offset for record in records] == [6_400]
    assert len(looked) == 2
    assert looked[0] * 4_000 <= SCAN_COST_MAX + (1 << 20)


async def test_partitions_take_turns_and_filters_are_their_own(make_kit, executor):
    desk = Desk(make_kit(partitions=3, spread="mapping"), executor)
    for number in range(3):
        desk.store(*[b"other"] * 300, b"eu", number=number)
    found = await desk.fetch(0, 0, 0, subjects=["orders.eu"], bytes_max=1)
    assert [(result.key.partition, [r.offset for r in records]) for result, records in found] == [(0, [300])]
    assert [result.key.partition for result, _ in await desk.fetch(bytes_max=1)] == [1]
    assert [result.key.partition for result, _ in await desk.fetch(bytes_max=1)] == [2]
    ((_, records),) = await desk.fetch(0, subjects=["orders.other"])
    assert {record.offset for record in records} >= set(range(300))
    desk.store(b"other", number=1)
    assert [(part[0].key.partition, offsets(part)) for part in await desk.fetch()] == [(1, [])]


async def test_damage_ends_the_partition_and_says_where(desk):
    desk.store(b"other", count=300)
    (segment,) = desk.kit.log.segments
    with segment.path.open("r+b") as file:
        file.seek(5_000)
        file.write(b"\xff" * 8)
    ((result, records),) = await desk.fetch(0, subjects=["orders.eu"])
    assert (result.error, records) == (ErrorCode.PARTITION_OFFLINE, [])
    assert segment.path.name in result.message


async def test_a_reader_that_found_damage_has_whole_batches_checked(make_kit, executor):
    desk = Desk(make_kit(partitions=2, spread="mapping"), executor)
    for number in range(2):
        desk.store(*[b"other"] * 300, b"eu", number=number)
    found = await desk.fetch(0, 0, verify=True)
    assert [len(records) for _, records in found] == [301, 301]
    found = await desk.fetch(0, 0, subjects=["orders.eu"], verify=True)
    assert [len(records) for _, records in found] == [1, 1]


async def test_no_file_stays_pinned(desk):
    desk.store(b"other", count=300)
    await desk.fetch(0, subjects=["orders.eu"])
    desk.store(b"eu")
    await desk.fetch()
    assert not any(entry.pins for entry in desk.kit.files._entries.values())
    waiting = asyncio.ensure_future(desk.fetch(wait_ms=60_000))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not any(entry.pins for entry in desk.kit.files._entries.values())
