"""What a node finds out about itself is told once, and bounded while nobody hears it."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.pull import PartitionKey
from liftpy_server.events.teller import EventTeller
from liftpy_server.metadata.errors import MetadataRefusedError, MetadataUnknownError
from liftpy_server.tier.schedule.places import Job, Phase, Trouble
from support.metadata_commands import Author
from support.server_kit import NOW_NS, SetClock

KEY = PartitionKey(bytes(16), 1)


class Node:
    """A node whose disk, bucket and counts are set, and the metadata that it tells.

    Attributes:
        errors: raised by the next proposals.
        told: command id and kinds of each.
    """

    def __init__(self):
        self.author = Author()
        self.author.register("n1")
        self.errors = []
        self.told = []
        self.disk = SimpleNamespace(storage_full=False, free_bytes=5, reserve_bytes=3)
        self.refused = Counter()
        counters = SimpleNamespace(refused=self.refused)
        stream = SimpleNamespace(info=SimpleNamespace(name="orders"), state=SimpleNamespace(counters=counters))
        self.place = SimpleNamespace(phase=Phase.CLAIMED, trouble=None)
        self.health = SimpleNamespace(code="", message="", is_usable=True)
        self.partitions = {KEY: SimpleNamespace(stream=SimpleNamespace(name="orders"))}
        tierer = SimpleNamespace(
            health=self.health, schedule=SimpleNamespace(places={KEY: self.place}), partitions=self.partitions
        )
        tier = SimpleNamespace(tierer=tierer)
        streams = SimpleNamespace(by_uuid={"u": stream})
        self.clock = SetClock()
        self.teller = EventTeller("n1", streams, self.disk, tier, self.clock, self.propose)

    async def propose(self, op, *, command_id, **args):
        self.told.append((command_id, [event[0] for event in args["events"]]))
        if self.errors:
            raise self.errors.pop(0)
        self.author.do(op, **args)

    async def look(self):
        """A look at the node; returns the events that the cluster hears of."""
        before = self.author.state.told
        self.teller.look()
        await self.teller._tell()
        return () if self.author.state.told is before else self.author.state.told


@pytest.fixture
def node():
    return Node()


async def test_a_full_disk(node):
    assert await node.look() == ()
    node.disk.storage_full, node.disk.free_bytes = True, 2
    (full,) = await node.look()
    assert full[:5] == ("disk.full", NOW_NS, None, None, "n1")
    assert full.details == {"free_bytes": 2, "reserve_bytes": 3}
    assert await node.look() == ()
    node.disk.storage_full, node.disk.free_bytes = False, 9
    node.clock.advance(4)
    (freed,) = await node.look()
    assert (freed.kind, freed.details) == ("disk.freed", {"free_bytes": 9, "reserve_bytes": 3, "seconds": 4.0})


async def test_uploads_that_are_stopped(node):
    node.health.code, node.health.message, node.health.is_usable = "unavailable", "nobody answers", False
    node.place.phase, node.place.trouble = Phase.STOPPED, Trouble(Job.UPLOAD, "hole", "records are missing", 0.0, True)
    bucket, partition = await node.look()
    assert (bucket.kind, bucket.stream, bucket.details["cause"]) == ("upload.stopped", None, "nobody answers")
    assert (partition.stream, partition.partition, partition.details["code"]) == ("orders", 1, "hole")
    node.health.code, node.health.is_usable = "", True
    assert [event.kind for event in await node.look()] == ["upload.resumed"]
    node.partitions.clear()
    assert await node.look() == (), "another node leads it: that one tells of it"


async def test_refusals(node):
    node.refused["paused"] = 4
    (begun,) = await node.look()
    assert (begun.kind, begun.stream, begun.details) == ("refusals.begun", "orders", {"reason": "paused"})


async def test_who_may_have_been_heard_tells_the_same_again(node):
    node.disk.storage_full = True
    node.errors = [MetadataUnknownError("told to")]
    with pytest.raises(MetadataUnknownError):
        await node.look()
    node.refused["paused"] = 1
    await node.look()
    (first, _), (again, kinds), (other, _) = node.told
    assert first == again != other
    assert kinds == ["disk.full"]
    assert node.teller.dropped == 0


async def test_what_is_refused_is_counted_and_dropped(node):
    node.disk.storage_full = True
    node.errors = [MetadataRefusedError(ErrorCode.CONFLICT, "told to")]
    with pytest.raises(MetadataRefusedError):
        await node.look()
    assert await node.look() == ()
    assert node.teller.dropped == 1


def test_what_nobody_hears_is_bounded(node):
    for number in range(3):
        node.refused.update(f"{number}.{each}" for each in range(600))
        node.teller.look()
        node.clock.advance(100)
    assert len(node.teller._queue) == 1_000
    assert node.teller.dropped > 0
