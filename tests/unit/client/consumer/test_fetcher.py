"""The fetcher against nodes that fail in every way: what it hands out has no hole and nothing twice."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace

import pyarrow as pa
import pytest

from liftpy_client.connection.cluster import StreamPlace
from liftpy_client.consumer.consumer import ConsumeOptions
from liftpy_client.consumer.fetcher import Fetcher
from liftpy_client.consumer.positions import Position
from liftpy_client.consumer.prefetch import PrefetchBuffer
from liftpy_client.errors import (
    CorruptRecordsError,
    DisconnectedError,
    LogDivergedError,
    NodeUnavailableError,
    NoStreamError,
    OffsetLostError,
    PullError,
    StreamGoneError,
)
from liftpy_envelope.batch import encode_plain_body
from liftpy_envelope.bodies import pack_body
from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.pull import Api, EpochEndResponse, EpochEndResult, FetchResponse, FetchResult, PartitionKey
from liftpy_envelope.stream_config import StreamConfig
from support.batches import stamped
from support.cluster import eventually

UUID = bytes(range(16))


def place(partitions=1, uuid=UUID):
    config = StreamConfig(name="s", subject="s", partitions=partitions)
    return StreamPlace(uuid, config, ("n1",) * partitions)


def batches(first, count):
    return b"".join(
        stamped(encode_plain_body([b"s"], [b"%d" % number]), number) for number in range(first, first + count)
    )


def response(*parts, error=ErrorCode.NONE, log_start=0, epoch=1):
    """An answer with record batches of partitions: (partition, bytes)."""
    results = [
        FetchResult(PartitionKey(UUID, partition), error, "because", epoch, 100, log_start, len(data))
        for partition, data in parts
    ]
    body = pa.py_buffer(b"".join(data for _, data in parts))
    return SimpleNamespace(result=pack_body(FetchResponse(tuple(results))), body=body)


class Node:
    """Answers fetches from a script; an exception in it is raised.

    Attributes:
        fetches: the bodies of the fetches it got.
        opened: how often it was connected to.
        leaders: of the partitions, when asked.
        lineages: answers about the ends of epochs that come before the usual one.
        silent: a node that does not accept connections.
    """

    def __init__(self, *script, lineage=(ErrorCode.NONE, "", 1, 1000)):
        self.script = list(script)
        self.lineage = lineage
        self.fetches = []
        self.opened = 0
        self.names = []
        self.leaders = None
        self.lineages = []
        self.silent = ""
        self.on_open = lambda _: None
        self.places_asked = 0
        self.heard_s = 0.0
        self.place = place()
        self.cluster = SimpleNamespace(latest=self.latest, node=lambda _: None)

    async def latest(self, _name):
        self.places_asked += 1
        await asyncio.sleep(0.01)
        if isinstance(self.place, Exception):
            raise self.place
        return self.place if self.leaders is None else dataclasses.replace(self.place, leaders=self.leaders)

    async def open_pull(self, node):
        if node == self.silent:
            await asyncio.Event().wait()
        self.opened += 1
        self.names.append(node)
        self.on_open(node)
        return self

    def close(self):
        """A connection that nobody needs any more."""

    async def request(self, api, body):
        if api is Api.EPOCH_END_OFFSET:
            lineage = self.lineages.pop(0) if self.lineages else self.lineage
            results = [EpochEndResult(query.key, *lineage) for query in body.queries]
            return SimpleNamespace(result=pack_body(EpochEndResponse(tuple(results))))
        self.fetches.append(body)
        if not self.script:
            await asyncio.Event().wait()
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def consume(node, *positions, **options):
    """Offsets of what a fetcher hands out, by partition, until it ends."""
    buffer = PrefetchBuffer(1_000_000)
    where = dict(enumerate(positions or (Position(0, 4),)))
    node.place = place(len(where)) if isinstance(node.place, StreamPlace) and node.place.uuid == UUID else node.place
    fetcher = Fetcher(node, place(len(where)), where, buffer, ConsumeOptions(**options))
    task = asyncio.ensure_future(fetcher.run())
    found = {number: [] for number in where}
    try:
        async with asyncio.timeout(20):
            while (item := await buffer.take()) is not None:
                for batch in item.batches:
                    base = batch.header.base_offset
                    found[item.partition] += range(base + batch.first, base + batch.last)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return found


@pytest.mark.parametrize(
    "trouble",
    [
        DisconnectedError("gone"),
        TimeoutError(),
        ConnectionResetError("reset"),
        PullError(ErrorCode.NOT_LEADER, "moved"),
        PullError(ErrorCode.TOO_MANY_REQUESTS, "busy"),
        response((0, batches(2, 1)[:-8] + bytes(8))),
        response((0, b""), error=ErrorCode.NOT_AVAILABLE),
    ],
    ids=lambda trouble: type(trouble).__name__,
)
async def test_it_goes_on_where_it_was(trouble):
    node = Node(response((0, batches(0, 2))), trouble, response((0, batches(1, 3))))
    assert await consume(node) == {0: [0, 1, 2, 3]}
    assert node.opened == 2
    assert [fetch.partitions[0].offset for fetch in node.fetches if fetch.partitions] == [0, 2]


async def test_after_damage_the_node_is_asked_to_look_itself():
    damaged = bytearray(batches(0, 4))
    damaged[-20] ^= 1
    node = Node(response((0, bytes(damaged))), response((0, batches(3, 1))))
    assert await consume(node) == {0: [0, 1, 2, 3]}
    assert [fetch.verify for fetch in node.fetches if fetch.partitions] == [False, True]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.PARTITION_OFFLINE, CorruptRecordsError),
        (ErrorCode.UNKNOWN_STREAM, StreamGoneError),
        (ErrorCode.OFFSET_OUT_OF_RANGE, OffsetLostError),
        (ErrorCode.BATCH_CORRUPT, CorruptRecordsError),
    ],
)
async def test_what_can_not_be_mended_is_told(code, kind):
    with pytest.raises(kind):
        await consume(Node(*[response((0, b""), error=code)] * 100))


async def test_refusals_for_good_are_told():
    with pytest.raises(PullError, match="no"):
        await consume(Node(PullError(ErrorCode.INVALID_REQUEST, "no")))


@pytest.mark.parametrize("now", [NoStreamError("gone"), place(1, bytes(16))], ids=["deleted", "recreated"])
async def test_a_stream_that_is_gone(now):
    node = Node(DisconnectedError("gone"))
    node.place = now
    with pytest.raises(StreamGoneError):
        await consume(node)


async def test_a_cluster_that_is_away_is_waited_for():
    node = Node(DisconnectedError("gone"), DisconnectedError("gone"), response((0, batches(0, 4))))
    node.place = NodeUnavailableError("away")
    assert await consume(node) == {0: [0, 1, 2, 3]}


@pytest.mark.parametrize("lineage", [(ErrorCode.NONE, "", 0, 50), (ErrorCode.NONE, "", 1, 1)])
async def test_a_log_that_is_another_one_is_not_read_on(lineage):
    node = Node(response((0, batches(0, 2))), DisconnectedError("gone"), response((0, batches(2, 2))), lineage=lineage)
    with pytest.raises(LogDivergedError) as raised:
        await consume(node)
    assert (raised.value.stream, raised.value.partition, raised.value.position) == ("s", 0, 2)
    assert raised.value.offset == min(2, lineage[3])


@pytest.mark.parametrize("lineage", [(ErrorCode.NONE, "", *end) for end in ((1, 2), (-1, 2), (-1, 7))])
async def test_a_log_that_may_be_the_same_is_read_on(lineage):
    node = Node(response((0, batches(0, 2))), DisconnectedError("gone"), response((0, batches(2, 2))), lineage=lineage)
    assert await consume(node) == {0: [0, 1, 2, 3]}


async def test_a_leader_that_changed_on_the_same_connection_is_asked_too():
    node = Node(response((0, batches(0, 2))), response((0, batches(2, 1)), epoch=3), lineage=(ErrorCode.NONE, "", 1, 1))
    with pytest.raises(LogDivergedError):
        await consume(node)


async def test_a_position_beyond_the_log_is_another_log_and_not_a_lost_offset():
    lost = response((0, b""), error=ErrorCode.OFFSET_OUT_OF_RANGE)
    node = Node(response((0, batches(0, 2))), lost, lineage=(ErrorCode.NONE, "", 1, 1))
    with pytest.raises(LogDivergedError):
        await consume(node, on_lost="earliest")


async def test_a_leader_that_can_not_tell_is_asked_again():
    node = Node(response((0, batches(0, 2))), DisconnectedError("gone"), *[response((0, batches(2, 2)))] * 3)
    node.lineages = [(ErrorCode.NOT_LEADER, "no leader", -1, -1), (ErrorCode.NOT_AVAILABLE, "not yet", -1, -1)]
    assert await consume(node) == {0: [0, 1, 2, 3]}


async def test_what_happens_to_one_partition_does_not_disturb_the_others():
    moved = response((1, b""), error=ErrorCode.NOT_LEADER)
    node = Node(response((0, batches(0, 1)), (1, batches(0, 1))), moved, response((0, batches(1, 3))))
    node.place, node.leaders = place(2), ("n1", None)
    buffer = PrefetchBuffer(1_000_000)
    positions = {0: Position(0, 4), 1: Position(0, 4)}
    task = asyncio.ensure_future(Fetcher(node, place(2), positions, buffer, ConsumeOptions()).run())
    await eventually(lambda: positions[0].is_done)
    assert node.opened == 1
    node.leaders = None
    node.script = [response((1, batches(1, 3)))]
    await asyncio.wait_for(task, 20)
    assert positions[1].is_done
    assert node.opened == 2
    assert node.places_asked < 100


async def test_a_node_that_falls_silent_is_left_when_another_one_leads():
    node = Node(response((0, batches(0, 2))))
    node.leaders = ("n2",)
    node.on_open = lambda name: name == "n2" and node.script.append(response((0, batches(2, 2))))
    assert await consume(node, wait_ms=0) == {0: [0, 1, 2, 3]}
    assert node.names == ["n1", "n2"]


async def test_a_node_that_does_not_accept_is_left_when_another_one_leads():
    node = Node()
    node.leaders = ("n2",)
    node.silent = "n1"
    node.on_open = lambda _: node.script.append(response((0, batches(0, 4))))
    assert await consume(node) == {0: [0, 1, 2, 3]}


@pytest.mark.parametrize(("on_lost", "first", "stop"), [("earliest", 90, 92), ("latest", 99, 100), ("new", None, 100)])
async def test_a_lost_offset_and_what_to_do_then(on_lost, first, stop):
    lost = response((0, b""), error=ErrorCode.OFFSET_OUT_OF_RANGE, log_start=90)
    node = Node(lost, response((0, batches(90, 2) if first == 90 else batches(99, 1))))
    assert await consume(node, Position(5, stop), on_lost=on_lost) == {
        0: [] if first is None else [*range(first, stop)]
    }


async def test_a_beginning_that_moved_before_anything_was_read_is_not_lost():
    lost = response((0, b""), error=ErrorCode.OFFSET_OUT_OF_RANGE, log_start=2)
    node = Node(lost, response((0, batches(2, 2))))
    assert await consume(node, Position(0, 4, is_exact=False)) == {0: [2, 3]}
    node = Node(response((0, batches(0, 1))), lost, lost)
    with pytest.raises(OffsetLostError):
        await consume(node, Position(0, 4, is_exact=False))


async def test_partitions_that_are_done_are_forgotten():
    node = Node(
        response((0, batches(0, 2)), (1, batches(0, 1))),
        response((0, batches(2, 1)), (1, batches(1, 1))),
        response((0, b""), error=ErrorCode.PARTITION_OFFLINE),
        response((1, batches(2, 2))),
    )
    assert await consume(node, Position(0, 2), Position(0, 4)) == {0: [0, 1], 1: [0, 1, 2, 3]}
    assert (PartitionKey(UUID, 0),) in [fetch.forget for fetch in node.fetches]
