"""What a node looks at before coordinators do: ends of logs, and whether it leads still."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from liftpy_envelope.group_offsets import CommitOffset, CommitRefusal, CommitRequest, CommitStream, OffsetFetchRequest
from liftpy_envelope.group_routing import GROUPS_STREAM
from liftpy_envelope.groups import GroupError
from liftpy_envelope.pull import PartitionKey
from liftpy_server.groups.host.checking import RequestChecks, without

UUID, OWN = b"o" * 16, b"g" * 16


class Cluster:
    """A partition that ends at 10, as this node `a` sees it, and what the metadata's leader says."""

    def __init__(self, leader="a", epoch=3, *, is_leading=True):
        self.reads = 0
        self.leader = SimpleNamespace(leader=leader, leader_epoch=epoch)
        log = SimpleNamespace(log_end=10)
        partition = SimpleNamespace(log=log, is_leading=is_leading, epoch=3)
        self.checks = RequestChecks("a", {PartitionKey(UUID, 0): partition}, self)

    async def read(self):
        self.reads += 1
        names = (("orders", UUID), (GROUPS_STREAM, OWN))
        return SimpleNamespace(
            streams={name: SimpleNamespace(uuid=uuid.hex(), partitions=[self.leader]) for name, uuid in names}
        )


def commit(*offsets):
    rows = tuple(CommitOffset(number, offset) for number, offset in enumerate(offsets))
    return CommitRequest("g", "", "", -1, 0, (CommitStream(UUID, "orders", rows),))


async def test_an_offset_beyond_the_end_is_refused_and_the_end_is_not():
    cluster = Cluster()
    assert await cluster.checks.refusals(commit(10)) == ()
    assert cluster.reads == 0, "nobody is asked for what is as usual"
    refusals = await cluster.checks.refusals(commit(11, 99))
    assert refusals == (CommitRefusal(PartitionKey(UUID, 0), GroupError.INVALID_REQUEST),)
    assert without(commit(11, 99), {row.key for row in refusals}).streams[0].offsets == (CommitOffset(1, 99),)


@pytest.mark.parametrize(
    "cluster", [Cluster(leader="b"), Cluster(epoch=4), Cluster(is_leading=False)], ids=["other", "newer", "follower"]
)
async def test_a_node_that_may_be_behind_refuses_nothing(cluster):
    assert await cluster.checks.refusals(commit(11)) == ()


@pytest.mark.parametrize(("leader", "epoch", "may"), [("a", 3, True), ("b", 4, False), ("a", 4, False)])
async def test_only_who_leads_still_tells_what_is_committed(leader, epoch, may):
    cluster = Cluster(leader, epoch)
    assert await cluster.checks.may_tell(OffsetFetchRequest("g", "", "", -1, ()), 3) is may
    assert cluster.reads == 1
    assert await cluster.checks.may_tell(OffsetFetchRequest("g", "1-ab", "", 1, ()), 3), "members name a generation"
    assert cluster.reads == 1
