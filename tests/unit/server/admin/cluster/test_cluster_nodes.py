"""Requests about nodes: which there are, how the cluster is, and who comes and goes."""

from __future__ import annotations

import asyncio
import logging

import pytest
from nats.errors import TimeoutError as NatsTimeoutError

from liftpy_envelope.errors import ConfigError, ErrorCode
from liftpy_server.admin.cluster import handlers as node_handlers
from liftpy_server.consensus.settings import Voter
from liftpy_server.metadata.errors import MetadataRefusedError
from liftpy_server.requests.errors import AdminError, NodeSilentError
from support.admin_cluster import AdminCluster, partition


@pytest.fixture
def cluster(tmp_path):
    return AdminCluster(tmp_path)


async def refused(code, request):
    with pytest.raises((AdminError, MetadataRefusedError)) as error:
        await request
    assert error.value.code is code, error.value
    return str(error.value)


async def test_list(cluster):
    cluster.create("a", ["n1", "n2", "n3"])
    cluster.create("b", ["n1", "n3"])
    cluster["n1"].lead("a", partition(0, 9, replicas=[("n2", 9, True), ("n3", 4, False)]))
    cluster["n1"].lead("b", partition(0, 9, replicas=[("n3", 8, True)]))
    cluster.author.do("expire_node", node_id="n2", incarnation=1)
    cluster.author.do("drain_node", node_id="n3", draining=True)
    cluster["n2"].silence = NatsTimeoutError()
    first, second, third = (await cluster["n1"].ask("NODE.LIST"))["nodes"]
    assert [node["state"] for node in (first, second, third)] == ["up", "expired", "draining"]
    assert [node["leaderships"] for node in (first, second, third)] == [2, 0, 0]
    assert [node["replicas"] for node in (first, second, third)] == [2, 1, 2]
    assert [node["lag_messages"] for node in (first, second, third)] == [0, 0, 6]
    assert [node["out_of_sync"] for node in (first, second, third)] == [0, 1, 0]
    assert [node["unreachable"] for node in (first, second, third)] == [False, True, False]
    assert [node["metadata_leader"] for node in (first, second, third)] == [True, False, False]
    assert (first["incarnation"], first["rack"], first["metadata_voter"]) == (1, None, True)
    assert "pull_token" not in first


async def test_a_leader_of_the_metadata_that_fell_silent_is_none(cluster):
    """A follower remembers it while it stands for election in vain."""
    assert (await cluster["n2"].ask("CLUSTER.INFO"))["cluster"]["metadata_leader"] == "n1"
    cluster.metadata.silence_s["n1"] = 30.0
    shown = (await cluster["n2"].ask("CLUSTER.INFO"))["cluster"]
    assert shown["metadata_leader"] is None
    assert not any(node["metadata_leader"] for node in shown["nodes"])


@pytest.mark.parametrize("endpoint", ["CLUSTER.INFO", "NODE.LIST"])
async def test_a_majority_is_asked_once(cluster, endpoint):
    """Where there is none, every time costs a second, and whoever asks waits no longer than five."""
    cluster["n2"].silence = NatsTimeoutError()
    await cluster["n1"].ask(endpoint)
    assert cluster.metadata.reads == 1


async def test_where_no_majority_answers_is_told_what_this_node_knows(cluster, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(node_handlers, "_LATEST_TIMEOUT_S", 0.01)
    monkeypatch.setattr(cluster.metadata, "read", asyncio.Event().wait)
    assert (await cluster["n1"].ask("CLUSTER.INFO"))["cluster"]["metadata_leader"] == "n1"
    text = "listing what this node knows of the cluster, which may be old: no answer from a majority within 0.01 s"
    assert caplog.messages == [text]


async def test_info_of_any_node(cluster):
    assert (await cluster["n2"].ask("NODE.INFO"))["node"]["node_id"] == "n2"
    shown = (await cluster["n2"].ask("NODE.INFO", node_id="n3"))["node"]
    assert (shown["node_id"], shown["unreachable"], shown["nats_connected"]) == ("n3", False, True)
    cluster["n3"].silence = NatsTimeoutError()
    shown = (await cluster["n2"].ask("NODE.INFO", node_id="n3"))["node"]
    assert (shown["node_id"], shown["unreachable"], shown["state"]) == ("n3", True, "up")
    assert "n3" in shown["unreachable_reason"]
    text = await refused(ErrorCode.INVALID_REQUEST, cluster["n2"].ask("NODE.INFO", node_id="n4"))
    assert "n1, n2, n3" in text


async def test_the_cluster(cluster):
    cluster.create("a", ["n1", "n2"], ["n2", "n3"])
    uuid = cluster.create("b", ["n1"])
    cluster.create("c", ["n3"])
    cluster.author.do("reassign_partitions", name="b", uuid=uuid, moves=[[0, ["n2"], []]])
    cluster["n1"].lead("b", partition(0, 200, start=100, replicas=[("n2", 125, False)]))
    cluster.author.do("expire_node", node_id="n3", incarnation=1)
    shown = (await cluster["n2"].ask("CLUSTER.INFO"))["cluster"]
    assert (shown["cluster_id"], shown["metadata_leader"], shown["streams"], shown["partitions"]) == (
        "c" * 32,
        "n1",
        3,
        4,
    )
    assert [node["node_id"] for node in shown["nodes"]] == [voter["node_id"] for voter in shown["voters"]]
    (moving,) = shown["reassignments"]
    assert (moving["stream"], moving["target"], moving["removing"], moving["progress"]) == ("b", ["n2"], ["n1"], 0.25)
    assert moving["adding"] == [{"node": "n2", "log_end": 125, "lag_messages": 75, "in_sync": False}]
    (leaderless,) = shown["leaderless"]
    assert (leaderless["stream"], shown["leaderless_count"]) == ("c", 1)


async def test_internal_streams_are_not_counted_but_looked_after(cluster):
    cluster.create("a", ["n1"])
    cluster.create("__consumer_offsets", ["n3"], ["n3"], min_isr=1, subject="")
    cluster.author.do("expire_node", node_id="n3", incarnation=1)
    shown = (await cluster["n2"].ask("CLUSTER.INFO"))["cluster"]
    assert (shown["streams"], shown["partitions"], shown["leaderless_count"]) == (1, 1, 2)


async def test_partitions_with_too_few_replicas_in_sync(cluster):
    for number in range(3):
        cluster.create(f"s{number}", ["n1", "n2", "n3"])
    cluster.author.do("expire_node", node_id="n3", incarnation=1)
    shown = (await cluster["n1"].ask("CLUSTER.INFO", limit=2))["cluster"]
    assert (shown["under_replicated_count"], len(shown["under_replicated"])) == (3, 2)
    assert (shown["under_replicated"][0]["stream"], shown["under_replicated"][0]["missing"]) == ("s0", ["n3"])


async def test_replicas_that_come_are_not_missing_yet(cluster):
    uuid = cluster.create("a", ["n1"])
    cluster.author.do("reassign_partitions", name="a", uuid=uuid, moves=[[0, ["n1", "n2", "n3"], []]])
    shown = (await cluster["n1"].ask("CLUSTER.INFO"))["cluster"]
    assert (shown["under_replicated_count"], shown["reassignment_count"]) == (0, 1)
    assert shown["reassignments"][0]["progress"] == 0


async def test_join(cluster):
    assert await cluster["n2"].ask("NODE.JOIN") == {"node_id": "n2", "challenge": "challenge of n2"}
    assert cluster.metadata.learners == ()
    answer = await cluster["n2"].ask_as_node("NODE.JOIN", node_id="n4", host="10.0.0.4", port=7000)
    assert (answer["cluster_id"], answer["voters"]) == ("c" * 32, [[f"n{n}", "127.0.0.1", 7000] for n in (1, 2, 3)])
    assert cluster.metadata.learners == (Voter("n4", "10.0.0.4", 7000),)
    text = await refused(
        ErrorCode.CONFLICT, cluster["n2"].ask_as_node("NODE.JOIN", node_id="n1", host="10.0.0.9", port=7000)
    )
    assert "member already" in text


@pytest.mark.parametrize(("node_id", "host", "port"), [("a b", "h", 1), ("n4", "", 1), ("n4", "h", 65_536)])
async def test_join_from_nowhere(cluster, node_id, host, port):
    with pytest.raises(ConfigError):
        await cluster["n2"].ask_as_node("NODE.JOIN", node_id=node_id, host=host, port=port)
    assert cluster.metadata.learners == ()


async def test_join_of_a_node_that_stays_alone(tmp_path):
    alone = AdminCluster(tmp_path, count=1)
    alone.metadata.voters = (Voter("n1", "127.0.0.1", 0),)
    text = await refused(ErrorCode.CONFLICT, alone["n1"].ask("NODE.JOIN"))
    assert "cluster.port" in text
    assert alone.metadata.learners == ()


@pytest.mark.parametrize("asked", ["n1", "n2", "n3"])
@pytest.mark.parametrize("leader", ["n1", "n3"])
async def test_remove(cluster, asked, leader):
    """Also by the node itself, and also when it leads the metadata."""
    cluster.metadata.leader_id = leader
    assert (await cluster[asked].ask("NODE.REMOVE", node_id="n3"))["removed"] == "n3"
    assert [voter.node_id for voter in cluster.metadata.voters] == ["n1", "n2"]
    assert sorted(cluster.author.state.nodes) == ["n1", "n2"]
    await refused(ErrorCode.INVALID_REQUEST, cluster["n1"].ask("NODE.REMOVE", node_id="n3"))


async def test_a_node_that_was_to_join_and_never_came_is_removed(cluster):
    await cluster["n1"].ask_as_node("NODE.JOIN", node_id="n4", host="10.0.0.4", port=7000)
    assert (await cluster["n2"].ask("NODE.REMOVE", node_id="n4"))["removed"] == "n4"
    assert cluster.metadata.learners == ()
    assert sorted(cluster.author.state.nodes) == ["n1", "n2", "n3"]
    text = await refused(ErrorCode.INVALID_REQUEST, cluster["n2"].ask("NODE.REMOVE", node_id="n4"))
    assert "there is no node 'n4'" in text


async def test_a_node_without_a_vote_is_removed(cluster):
    cluster.metadata.voters = cluster.metadata.voters[:2]
    await cluster["n1"].ask("NODE.REMOVE", node_id="n3")
    assert sorted(cluster.author.state.nodes) == ["n1", "n2"]


async def test_a_node_with_replicas_is_not_removed(cluster):
    cluster.create("a", ["n1", "n3"], ["n2", "n3"])
    text = await refused(ErrorCode.CONFLICT, cluster["n1"].ask("NODE.REMOVE", node_id="n3"))
    assert "has 2 replicas: drain it first" in text
    assert len(cluster.metadata.voters) == 3


async def test_the_last_node_stays(tmp_path):
    alone = AdminCluster(tmp_path, count=1)
    text = await refused(ErrorCode.CONFLICT, alone["n1"].ask("NODE.REMOVE", node_id="n1"))
    assert "only one" in text


async def test_a_node_that_nobody_else_can_remove(cluster):
    cluster["n1"].silence = cluster["n2"].silence = NatsTimeoutError()
    text = await refused(ErrorCode.NOT_AVAILABLE, cluster["n3"].ask("NODE.REMOVE", node_id="n3"))
    assert "no other node can remove 'n3' now" in text
    assert len(cluster.metadata.voters) == 3


async def test_what_answers_is_checked(cluster, tmp_path):
    async def garbage(_body):
        return ["no object"]

    cluster["n2"].between_nodes["NODE.INFO"] = garbage
    shown = (await cluster["n1"].ask("NODE.INFO", node_id="n2"))["node"]
    assert shown["unreachable"]
    assert "no node of liftpy" in shown["unreachable_reason"]
    assert NodeSilentError.retriable
