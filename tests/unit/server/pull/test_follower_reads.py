"""Replicas that follow are read up to what they know to be committed; new leaders do not tell what they do not know."""

from __future__ import annotations

from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.pull import (
    EARLIEST,
    LATEST,
    FetchPartition,
    FetchRequest,
    OffsetQuery,
    OffsetsRequest,
    PartitionKey,
)
from liftpy_server.pull.queries import offsets
from liftpy_server.pull.session import FetchSession
from support.batches import records_of
from support.nats_frames import msg
from support.server_kit import NOW_NS, UUID

MUCH = 1_000_000
KEY = PartitionKey(UUID, 0)


def store(kit, count, *, sync=True):
    for _ in range(count):
        kit.receive(msg(b"orders.a", b"value"))
    if sync:
        kit.sync()


def offsets_of(found):
    data = b"".join(
        piece.segment.path.read_bytes()[piece.position : piece.position + piece.length] for piece in found.slices
    )
    return [record.offset for record in records_of(data)]


class Following:
    """A replica that follows, and may be read while `is_in_sync`."""

    def __init__(self, kit):
        self.is_in_sync = True
        self.partition = kit.partition
        self.partition.gone = ErrorCode.NOT_LEADER
        self.session = FetchSession(lambda _: ErrorCode.NOT_LEADER, self._readable)

    def _readable(self, _key):
        return self.partition if self.is_in_sync else ErrorCode.NOT_LEADER

    def want(self, offset, *, any_replica=True):
        self.session.apply(FetchRequest(MUCH, 0, (FetchPartition(KEY, offset),), any_replica=any_replica))

    def told(self):
        return [(news.result.error, offsets_of(news)) for news in self.session.collect(MUCH)]


def test_a_replica_that_follows_is_read_by_who_asks_for_it(kit):
    store(kit, 3)
    following = Following(kit)
    following.want(0, any_replica=False)
    assert following.told() == [(ErrorCode.NOT_LEADER, [])]
    following.want(1)
    assert following.told() == [(ErrorCode.NONE, [1, 2])]


def test_a_replica_that_follows_is_read_no_further_than_it_knows_to_be_committed(kit):
    store(kit, 3)
    store(kit, 2, sync=False)
    following = Following(kit)
    following.want(4)
    assert following.told() == []
    kit.sync()
    assert following.told() == [(ErrorCode.NONE, [4])]


def test_a_replica_that_is_out_of_sync_says_so_to_who_waits(kit):
    store(kit, 3)
    following = Following(kit)
    following.want(3)
    assert following.told() == [(ErrorCode.NONE, [])]
    assert following.told() == []
    following.session.look_at_followers(10.0)
    assert following.told() == []
    following.is_in_sync = False
    following.session.look_at_followers(10.5)
    assert following.told() == []
    following.session.look_at_followers(11.5)
    assert following.told() == [(ErrorCode.NOT_LEADER, [])]


class Unsettled:
    """The replication of a leader that was just elected."""

    def is_high_watermark_known(self):
        return False


async def test_a_leader_that_does_not_know_what_is_committed_says_so(kit):
    """What it knows to be committed it tells; nothing else of it can turn out otherwise."""
    store(kit, 3)
    store(kit, 2, sync=False)
    kit.partition.attach(Unsettled())
    kit.partition.lead(8)
    questions = (EARLIEST, NOW_NS, LATEST, NOW_NS + 10**9)
    request = OffsetsRequest(tuple(OffsetQuery(KEY, question) for question in questions))
    results = (await offsets(request, lambda _: kit.partition)).results
    assert [result.error for result in results] == [0, 0, ErrorCode.NOT_AVAILABLE, ErrorCode.NOT_AVAILABLE]
    assert [result.offset for result in results] == [0, 0, -1, -1]
    for result in results[2:]:
        assert "offsets 0 to 2 are known to be; 3 to 4 are once all" in result.message
        assert "stop at offset 3" in result.message


async def test_what_a_new_leader_knows_to_be_committed_is_read(kit):
    store(kit, 3)
    store(kit, 2, sync=False)
    kit.partition.attach(Unsettled())
    kit.partition.lead(8)
    session = FetchSession(lambda _: kit.partition)
    session.apply(FetchRequest(MUCH, 0, (FetchPartition(KEY, 0),)))
    assert [offsets_of(found) for found in session.collect(MUCH)] == [[0, 1, 2]]
    assert session.collect(MUCH) == []
