"""Replicas are moved as asked, and away from a node that is to go."""

from __future__ import annotations

import pytest

from liftpy_envelope.errors import ConfigError, ErrorCode
from liftpy_server.admin.cluster.requests import read_reassign
from liftpy_server.metadata.errors import MetadataRefusedError
from liftpy_server.requests.errors import AdminError
from support.admin_cluster import AdminCluster


@pytest.fixture
def cluster(tmp_path):
    return AdminCluster(tmp_path, count=4)


def targets(cluster, name):
    return [partition.target for partition in cluster.author.state.streams[name].partitions]


async def refused(code, request):
    with pytest.raises((AdminError, MetadataRefusedError)) as error:
        await request
    assert error.value.code is code, error.value
    return str(error.value)


async def test_more_replicas_keep_those_that_are_there(cluster):
    cluster.create("a", ["n1"], ["n2"])
    answer = await cluster["n3"].ask("STREAM.REASSIGN", name="a", replicas=3)
    for number, first in enumerate(["n1", "n2"]):
        target = targets(cluster, "a")[number]
        assert (target[0], len(set(target))) == (first, 3)
        move = answer["moves"][number]
        assert (move["target"], move["removing"], move["progress"]) == (list(target), [], 0)
        assert [replica["node"] for replica in move["adding"]] == list(target[1:])
    assert answer["move_count"] == 2


async def test_fewer_replicas_keep_those_that_are_well(cluster):
    cluster.create("a", ["n1", "n2", "n3"], min_isr=1)
    cluster.author.do("expire_node", node_id="n2", incarnation=1)
    await cluster["n1"].ask("STREAM.REASSIGN", name="a", replicas=2)
    assert targets(cluster, "a") == [("n1", "n3")]


async def test_a_node_that_is_away_is_told(cluster):
    cluster.create("a", ["n1", "n2", "n3"])
    cluster.author.do("expire_node", node_id="n4", incarnation=1)
    answer = await cluster["n1"].ask("STREAM.REASSIGN", name="a", partitions={"0": ["n1", "n2", "n4"]}, dry_run=True)
    assert "node 'n4' is away" in answer["warnings"][0]
    answer = await cluster["n1"].ask("STREAM.REASSIGN", name="a", partitions={"0": ["n2", "n1", "n3"]})
    assert answer["warnings"] == []


async def test_nodes_wanted_twice_or_too_many():
    for nodes, said in ((["n1", "n1"], "each node once"), ([f"n{n}" for n in range(24)], "at most 7 replicas and 16")):
        with pytest.raises(ConfigError, match=said):
            read_reassign({"name": "a", "partitions": {"0": nodes}})
    assert read_reassign({"name": "a", "observers": 16}).observers == 16


async def test_a_drained_node_is_left_first(cluster):
    cluster.create("a", ["n1", "n2"], min_isr=1)
    cluster.author.do("drain_node", node_id="n1", draining=True)
    await cluster["n1"].ask("STREAM.REASSIGN", name="a", replicas=1)
    assert targets(cluster, "a") == [("n2",)]


async def test_as_many_replicas_as_there_are(cluster):
    cluster.create("a", ["n1", "n2"])
    answer = await cluster["n1"].ask("STREAM.REASSIGN", name="a", replicas=2)
    assert (answer["moves"], targets(cluster, "a")) == ([], [None])


async def test_observers(cluster):
    cluster.create("a", ["n1", "n2"])
    await cluster["n1"].ask("STREAM.REASSIGN", name="a", observers=2)
    (partition,) = cluster.author.state.streams["a"].partitions
    assert (partition.target[:2], set(partition.target_observers)) == (("n1", "n2"), {"n3", "n4"})


async def test_named_nodes(cluster):
    cluster.create("a", ["n1", "n2"], ["n2", "n3"])
    answer = await cluster["n1"].ask("STREAM.REASSIGN", name="a", partitions={"1": ["n4", "n2", "n3"]}, observers=1)
    partition = cluster.author.state.streams["a"].partitions[1]
    assert (partition.target, partition.target_observers) == (("n4", "n2", "n3"), ("n3",))
    assert targets(cluster, "a")[0] is None
    assert [move["partition"] for move in answer["moves"]] == [1]


async def test_a_dry_run_moves_nothing(cluster):
    cluster.create("a", ["n1"])
    answer = await cluster["n1"].ask("STREAM.REASSIGN", name="a", replicas=2, dry_run=True)
    assert (answer["move_count"], targets(cluster, "a")) == (1, [None])
    assert answer["moves"][0]["target"][0] == "n1"


async def test_another_move_waits_until_the_first_is_over_or_cancelled(cluster):
    cluster.create("a", ["n1"])
    await cluster["n1"].ask("STREAM.REASSIGN", name="a", partitions={"0": ["n2"]})
    again = cluster["n1"].ask("STREAM.REASSIGN", name="a", partitions={"0": ["n3"]})
    assert "is being moved to n2" in await refused(ErrorCode.CONFLICT, again)
    assert (await cluster["n1"].ask("STREAM.REASSIGN", name="a", cancel=True))["cancelled"] == 1
    await cluster["n1"].ask("STREAM.REASSIGN", name="a", partitions={"0": ["n3"]})
    assert targets(cluster, "a") == [("n3",)]


@pytest.mark.parametrize(
    ("body", "code", "told"),
    [
        ({"name": "none", "replicas": 1}, ErrorCode.UNKNOWN_STREAM, "no stream 'none'"),
        ({"name": "a", "replicas": 5}, ErrorCode.INVALID_REQUEST, "the cluster has 4"),
        ({"name": "a", "partitions": {"7": ["n1"]}}, ErrorCode.INVALID_REQUEST, "no partition 7"),
        ({"name": "a", "partitions": {"0": ["n9"]}}, ErrorCode.INVALID_REQUEST, "no node 'n9'"),
        ({"name": "a", "partitions": {"0": ["n1"]}, "observers": 1}, ErrorCode.INVALID_REQUEST, "one at least"),
    ],
)
async def test_what_can_not_be_moved(cluster, body, code, told):
    cluster.create("a", ["n1"])
    assert told in await refused(code, cluster["n1"].ask("STREAM.REASSIGN", **body))
    assert targets(cluster, "a") == [None]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "a"}, "replicas"),
        ({"name": "a", "replicas": 0}, "replicas"),
        ({"name": "a", "replicas": 8}, "replicas"),
        ({"name": "a", "observers": -1}, "observers"),
        ({"name": "a", "replicas": 2, "partitions": {"0": ["n1"]}}, "replicas"),
        ({"name": "a", "replicas": 2, "cancel": True}, "cancel"),
        ({"name": "a", "partitions": {}}, "partitions"),
        ({"name": "a", "partitions": ["n1"]}, "partitions"),
        ({"name": "a", "partitions": {"x": ["n1"]}}, "partitions"),
        ({"name": "a", "partitions": {"9" * 5_000: ["n1"]}}, "partitions"),
        ({"name": "a", "partitions": {"0": []}}, "partitions.0"),
        ({"name": "a", "partitions": {"0": ["n1", "n1"]}}, "partitions.0"),
        ({"name": "a", "partitions": {"0": [1]}}, "partitions.0"),
        ({"name": "a", "replica": 2}, "replica"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_request_that_is_wrong(body, field):
    with pytest.raises(ConfigError) as error:
        read_reassign(body)
    assert error.value.field == field


async def test_a_drain_moves_leaderships_at_once_and_replicas_after_them(cluster):
    cluster.create("a", ["n1", "n2"], ["n3", "n1"])
    cluster.create("b", ["n1"])
    cluster.create("c", ["n2"])
    answer = await cluster["n2"].ask("NODE.DRAIN", node_id="n1")
    assert (answer["move_count"], answer["warnings"]) == (3, [])
    streams = cluster.author.state.streams
    assert streams["a"].partitions[0].leader == "n2"
    for partition in (*streams["a"].partitions, *streams["b"].partitions):
        assert "n1" not in partition.target
    assert targets(cluster, "c") == [None]
    assert cluster.author.state.nodes["n1"].draining
    shown = (await cluster["n2"].ask("CLUSTER.INFO"))["cluster"]
    assert (shown["reassignment_count"], shown["nodes"][0]["state"]) == (3, "draining")
    assert (await cluster["n2"].ask("NODE.DRAIN", node_id="n1"))["warnings"] == []


async def test_a_drain_that_is_cancelled(cluster):
    cluster.create("a", ["n1", "n2"])
    cluster.create("b", ["n2"])
    await cluster["n1"].ask("STREAM.REASSIGN", name="b", partitions={"0": ["n3"]})
    await cluster["n2"].ask("NODE.DRAIN", node_id="n1")
    answer = await cluster["n2"].ask("NODE.DRAIN", node_id="n1", cancel=True)
    assert (answer["cancelled"], targets(cluster, "a"), targets(cluster, "b")) == (1, [None], [("n3",)])
    assert not cluster.author.state.nodes["n1"].draining


async def test_a_drain_says_what_is_being_moved_otherwise(cluster):
    cluster.create("a", ["n1"])
    await cluster["n1"].ask("STREAM.REASSIGN", name="a", replicas=2)
    (warning,) = (await cluster["n2"].ask("NODE.DRAIN", node_id="n1"))["warnings"]
    assert "1 partitions of node 'n1' are being reassigned" in warning


async def test_a_drain_without_room_says_so(tmp_path):
    cluster = AdminCluster(tmp_path, count=2)
    cluster.create("a", ["n1", "n2"])
    answer = await cluster["n1"].ask("NODE.DRAIN", node_id="n1")
    assert "1 replicas stay on node 'n1'" in answer["warnings"][0]
    assert "there is no node 'n9'" in await refused(
        ErrorCode.INVALID_REQUEST, cluster["n1"].ask("NODE.DRAIN", node_id="n9")
    )
