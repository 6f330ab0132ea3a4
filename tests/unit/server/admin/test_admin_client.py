"""The client's admin methods read what the nodes' handlers say."""

from __future__ import annotations

import pytest
from nats.errors import TimeoutError as NatsTimeoutError

from liftpy_client.admin.admin import Admin
from liftpy_client.errors import NodeUnavailableError
from support.admin_cluster import AdminCluster, partition


class DirectCluster:
    """Hands admin requests to one node's handlers."""

    def __init__(self, node):
        self._node = node
        self.unanswered = 0

    async def request(self, endpoint, body, timeout_s=None):
        if self.unanswered:
            self.unanswered -= 1
            raise NodeUnavailableError("a node hangs")
        return await self._node.ask(endpoint, **body)

    def forget(self, _name):
        pass


@pytest.fixture
def cluster(tmp_path):
    return AdminCluster(tmp_path)


@pytest.fixture
def admin(cluster):
    return Admin(DirectCluster(cluster["n2"]))


async def test_streams(cluster, admin):
    created = await admin.create_stream("orders", subject="orders.>", replicas=3, partitions=3)
    assert sorted(part.leader for part in created.partitions) == ["n1", "n2", "n3"]
    assert [set(part.replicas) for part in created.partitions] == [{"n1", "n2", "n3"}] * 3
    for part in created.partitions:
        followers = [(node, 4, True) for node in part.isr if node != part.leader]
        local = cluster[part.leader].streams.by_uuid.get(created.uuid)
        assert local is None
        cluster[part.leader].lead("orders", partition(part.partition, 5, replicas=followers))
    cluster["n3"].silence = NatsTimeoutError()
    details = await admin.stream_info("orders")
    assert (details.messages, details.unreachable_partitions) == (10, 1)
    for part in details.partitions:
        assert part.unreachable == (part.leader == "n3")
        assert part.high_watermark == (None if part.unreachable else 5)
        assert {(replica.lag_messages, replica.in_sync) for replica in part.replica_states} == (
            set() if part.unreachable else {(1, True)}
        )
    assert [stream.name async for stream in admin.streams()] == ["orders"]
    cluster["n3"].silence = None
    assert (await admin.purge_stream("orders", partition=0)).uuid == details.uuid
    assert (await admin.pause_stream("orders")).paused


async def test_cluster_and_nodes(cluster, admin):
    cluster.create("a", ["n1", "n2"])
    cluster.author.do("expire_node", node_id="n2", incarnation=1)
    details = await admin.cluster_info()
    assert (details.cluster_id, details.metadata_leader, details.voters) == ("c" * 32, "n1", ("n1", "n2", "n3"))
    assert [(node.node_id, node.state, node.replicas) for node in details.nodes] == [
        ("n1", "up", 1),
        ("n2", "expired", 1),
        ("n3", "up", 0),
    ]
    assert (details.under_replicated_count, details.leaderless, details.reassignments) == (0, (), ())
    assert [node.metadata_leader for node in await admin.node_details()] == [True, False, False]
    assert (await admin.node_info("n3"))["node_id"] == "n3"


async def test_moves(cluster, admin):
    cluster.create("a", ["n1"])
    planned = await admin.reassign_stream("a", replicas=2, dry_run=True)
    assert (planned.count, planned.moves[0].target[0], (await admin.cluster_info()).reassignment_count) == (1, "n1", 0)
    begun = await admin.reassign_stream("a", partitions={0: ["n2"]})
    assert (begun.moves[0].removing, begun.moves[0].adding[0].node, begun.moves[0].progress) == (("n1",), "n2", 0.0)
    assert (await admin.cluster_info()).reassignments[0].target == ("n2",)
    assert await admin.cancel_reassignment("a") == 1
    assert (await admin.drain_node("n1")).count == 1
    assert (await admin.drain_node("n1", cancel=True)).cancelled == 1
    await admin.remove_node("n3")
    assert [node.node_id for node in await admin.node_details()] == ["n1", "n2"]


async def test_what_changes_nothing_is_asked_twice(cluster):
    direct = DirectCluster(cluster["n1"])
    admin = Admin(direct)
    cluster.create("a", ["n1"])
    direct.unanswered = 1
    assert len(await admin.nodes()) == 3
    direct.unanswered = 1
    assert (await admin.stream_info("a")).name == "a"
    for request, times in ((admin.cluster_info, 2), (lambda: admin.pause_stream("a"), 1)):
        direct.unanswered = times
        with pytest.raises(NodeUnavailableError):
            await request()
        assert direct.unanswered == 0
    assert not (await admin.stream_info("a")).paused
