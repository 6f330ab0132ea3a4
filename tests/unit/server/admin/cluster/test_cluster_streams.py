"""Requests about streams of several nodes: any node answers, with numbers that only the leaders know."""

from __future__ import annotations

import asyncio

import pytest
from nats.errors import TimeoutError as NatsTimeoutError

from liftpy_envelope.errors import ErrorCode
from liftpy_server.admin import gather
from liftpy_server.consensus.settings import Voter
from liftpy_server.gaps.gap import Gap
from liftpy_server.ingest.connection import SubscriptionRefusedError
from liftpy_server.requests.errors import AdminError
from support.admin_cluster import AdminCluster, partition
from support.server_kit import NOW_NS, SetClock


@pytest.fixture
def cluster(tmp_path):
    return AdminCluster(tmp_path)


@pytest.fixture
def orders(cluster):
    """A stream whose partitions n1 and n2 lead."""
    uuid = cluster.create("orders", ["n1", "n2", "n3"], ["n2", "n3", "n1"])
    cluster["n1"].lead("orders", partition(0, 5, replicas=[("n2", 5, True), ("n3", 3, False)]))
    cluster["n2"].lead("orders", partition(1, 7, start=2), partition(0, 4))
    return uuid


async def refused(code, request):
    with pytest.raises(AdminError) as error:
        await request
    assert error.value.code is code, error.value
    return str(error.value)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(gather, "FOLLOW_TIMEOUT_S", 0.05)
    monkeypatch.setattr(gather, "READY_TIMEOUT_S", 0.5)
    monkeypatch.setattr(gather, "_READY_ASK_S", 0.05)
    monkeypatch.setattr(gather, "_READY_AGAIN_S", 0.01)


async def test_any_node_shows_what_the_leaders_know(cluster, orders):
    answers = [(await node.ask("STREAM.INFO", name="orders"))["stream"] for node in cluster.nodes.values()]
    assert answers[0] == answers[1] == answers[2]
    first, second = answers[0]["partitions"]
    assert (first["leader"], first["replicas"], first["isr"]) == ("n1", ["n1", "n2", "n3"], ["n1", "n2", "n3"])
    assert (first["high_watermark"], second["log_start"], second["log_end"]) == (5, 2, 7)
    assert (first["observers"], first["target"], first["unreachable"]) == ([], None, False)
    assert first["replica_states"][1] == {"node": "n3", "log_end": 3, "lag_messages": 2, "in_sync": False}
    assert (answers[0]["messages"], answers[0]["bytes"], answers[0]["unreachable_partitions"]) == (10, 120, 0)


async def test_counters_and_gaps_of_all_leaders(cluster):
    cluster.create("orders", ["n1"], ["n2"])
    for node, ago_s, count in (("n1", 2, 3), ("n2", 5, 4)):
        led = partition(int(node == "n2"), 1)
        state = cluster[node].lead("orders", led)
        state.counters.messages = count
        state.counters.refused["paused"] = count
        led.gaps.open(SetClock().elapsed() - ago_s, node)
    shown = (await cluster["n3"].ask("STREAM.INFO", name="orders"))["stream"]
    assert (shown["counters"]["messages"], shown["counters"]["refused"], shown["gap_count"]) == (7, {"paused": 7}, 2)
    assert [(gap["since_ns"], gap["partition"], gap["cause"]) for gap in shown["gaps"]] == [
        (NOW_NS - 5 * 10**9, 1, "n2"),
        (NOW_NS - 2 * 10**9, 0, "n1"),
    ]
    (listed,) = (await cluster["n3"].ask("STREAM.LIST"))["streams"]
    assert (listed["gap_count"], "gaps" in listed) == (0, False), "before they are recorded only the leaders know"


async def test_gaps_are_known_when_no_leader_is(cluster, orders):
    """And what a leader knows better than the metadata counts."""
    since_ns = NOW_NS - 5 * 10**9
    gap = ["n1.1.1", 2, since_ns, None, 0, None]
    cluster.author.do("record_gaps", causes=["lost"], gaps=[["orders", orders, 0, *gap]])
    shown = (await cluster["n3"].ask("STREAM.INFO", name="orders"))["stream"]
    expected = {"partition": 0, "since_ns": since_ns, "until_ns": None, "cause": "lost", "messages": None}
    assert (shown["gaps"], shown["gap_count"]) == ([expected], 1)
    led = cluster["n1"].streams.by_uuid[orders].partitions[0]
    led.gaps.take_over([Gap.from_plain([*gap[:4], "lost", None])], SetClock().elapsed(), "another led")
    led.gaps.close()
    shown = (await cluster["n3"].ask("STREAM.INFO", name="orders"))["stream"]
    assert (shown["gaps"], shown["gap_count"]) == ([expected | {"until_ns": NOW_NS}], 1)
    (listed,) = (await cluster["n3"].ask("STREAM.LIST"))["streams"]
    assert (listed["gap_count"], "gaps" in listed) == (1, False)
    for node in ("n1", "n2"):
        cluster[node].silence = NatsTimeoutError()
    shown = (await cluster["n3"].ask("STREAM.INFO", name="orders"))["stream"]
    assert (shown["gaps"], shown["gap_count"]) == ([expected], 1)


@pytest.mark.parametrize("silence", [NatsTimeoutError(), OSError("broken")])
async def test_a_silent_leader_leaves_its_partitions_without_numbers(cluster, orders, silence):
    cluster["n2"].silence = silence
    shown = (await cluster["n3"].ask("STREAM.INFO", name="orders"))["stream"]
    first, second = shown["partitions"]
    assert (first["unreachable"], first["high_watermark"]) == (False, 5)
    assert (second["unreachable"], second["leader"], second["isr"]) == (True, "n2", ["n2", "n3", "n1"])
    assert second["high_watermark"] is None
    assert "n2" in second["unreachable_reason"]
    assert (shown["messages"], shown["unreachable_partitions"]) == (5, 1)


async def test_a_node_that_is_not_there_and_a_partition_without_a_leader(cluster, orders):
    del cluster.nodes["n2"]
    cluster.author.do("expire_node", node_id="n1", incarnation=1)
    cluster.author.do("expire_node", node_id="n2", incarnation=1)
    cluster.author.do("expire_node", node_id="n3", incarnation=1)
    shown = (await cluster["n3"].ask("STREAM.INFO", name="orders"))["stream"]
    assert [partition["leader"] for partition in shown["partitions"]] == [None, None]
    assert "no node leads it: its in-sync replicas are down (n" in shown["partitions"][0]["unreachable_reason"]


async def test_a_list_asks_each_leader_once(cluster):
    for number in range(40):
        name = f"s{number:02d}"
        cluster.create(name, ["n1"], ["n2"])
        cluster["n1"].lead(name, partition(0, number))
        cluster["n2"].lead(name, partition(1, 1))
    answer = await cluster["n3"].ask("STREAM.LIST")
    assert [stream["messages"] for stream in answer["streams"]] == [number + 1 for number in range(40)]
    assert (cluster["n1"].asked, cluster["n2"].asked) == (["STREAM.INFO"], ["STREAM.INFO"])


async def test_a_leader_is_asked_again_for_what_did_not_fit(cluster):
    for number in range(10):
        cluster.create(f"s{number}", ["n1"])
        cluster["n1"].lead(f"s{number}", partition(0, number))
    cluster["n1"].local.answer_bytes_max = 3_000
    answer = await cluster["n2"].ask("STREAM.LIST")
    assert [stream["messages"] for stream in answer["streams"]] == list(range(10))
    assert len(cluster["n1"].asked) > 2


async def test_create_places_replicas_and_waits_for_every_leader(cluster):
    answer = await cluster["n1"].ask("STREAM.CREATE", name="orders", subject="orders.>", partitions=3, replicas=3)
    leaders = [partition["leader"] for partition in answer["stream"]["partitions"]]
    assert (sorted(leaders), answer["created"]) == (["n1", "n2", "n3"], True)
    assert all("STREAM.READY" in cluster[node].asked for node in ("n2", "n3"))


@pytest.mark.parametrize("asked", ["n1", "n2", "n3"])
async def test_a_subscription_refused_on_one_leader_deletes_the_stream_again(cluster, asked):
    cluster["n2"].streams.refusal = SubscriptionRefusedError("n2 may not subscribe")
    request = cluster[asked].ask("STREAM.CREATE", name="orders", subject="orders.>", partitions=3, replicas=3)
    assert "n2 may not subscribe" in await refused(ErrorCode.SUBSCRIPTION_REFUSED, request)
    assert "orders" not in cluster.author.state.streams


async def test_a_stream_that_was_there_is_not_deleted(cluster, orders):
    config = cluster.author.state.streams["orders"].config.to_plain()
    cluster["n2"].streams.refusal = SubscriptionRefusedError("n2 may not subscribe")
    await refused(ErrorCode.SUBSCRIPTION_REFUSED, cluster["n1"].ask("STREAM.CREATE", **config))
    assert "orders" in cluster.author.state.streams


@pytest.mark.usefixtures("impatient")
async def test_a_leader_that_does_not_listen_in_time_is_named(cluster):
    cluster["n2"].streams.is_listening = False
    request = cluster["n1"].ask("STREAM.CREATE", name="orders", subject="orders.>", partitions=3, replicas=3)
    assert "'n2'" in await refused(ErrorCode.OUTCOME_UNKNOWN, request)
    assert "orders" in cluster.author.state.streams


@pytest.mark.usefixtures("impatient")
async def test_create_goes_on_with_a_new_leader(cluster, monkeypatch):
    monkeypatch.setattr(gather, "READY_TIMEOUT_S", 5.0)
    cluster["n2"].silence = NatsTimeoutError()
    moved = []

    async def deposed(body, ready=cluster["n3"].local.ready):
        if not moved:
            moved.append(cluster.author.do("expire_node", node_id="n2", incarnation=1))
        return await ready(body)

    cluster["n3"].between_nodes["STREAM.READY"] = deposed
    answer = await cluster["n1"].ask("STREAM.CREATE", name="orders", subject="orders.>", partitions=3, replicas=3)
    assert "n2" not in [partition["leader"] for partition in answer["stream"]["partitions"]]
    assert moved


async def test_more_replicas_than_nodes(cluster):
    with pytest.raises(Exception, match="replicas: 4 replicas need 4 nodes; the cluster has 3"):
        await cluster["n1"].ask("STREAM.CREATE", name="orders", subject="orders.>", replicas=4)


async def test_nodes_that_are_starting_are_waited_for(cluster):
    metadata = cluster["n1"].node.metadata
    metadata.voters = tuple(Voter(node_id, "h", 1) for node_id in ("n1", "n2", "n3", "n4"))
    asking = asyncio.ensure_future(
        cluster["n1"].ask("STREAM.CREATE", name="orders", subject="orders.>", observers=1, replicas=3)
    )
    await asyncio.sleep(0.05)
    assert not asking.done()
    assert metadata.proposed == []
    asking.cancel()


@pytest.mark.parametrize("node", ["n1", "n2", "n3"])
async def test_purge_is_done_by_the_leaders(cluster, orders, node):
    answer = await cluster[node].ask("STREAM.PURGE", name="orders")
    assert answer["log_starts"] == {"0": 5, "1": 7}
    assert [part.log_start for part in cluster.author.state.streams["orders"].partitions] == [5, 7]
    assert (await cluster[node].ask("STREAM.PURGE", name="orders", partition=1, offset=3))["log_starts"] == {"1": 7}


async def test_purge_that_can_not_reach_a_leader_says_what_is_left(cluster, orders):
    cluster["n2"].silence = NatsTimeoutError()
    text = await refused(ErrorCode.NOT_AVAILABLE, cluster["n3"].ask("STREAM.PURGE", name="orders"))
    assert "partitions [1] on node 'n2'" in text
    assert [part.log_start for part in cluster.author.state.streams["orders"].partitions] == [5, 0]


async def test_purge_of_a_partition_led_elsewhere_by_now(cluster, orders):
    body = {"name": "orders", "uuid": orders, "partitions": [0], "offset": None}
    assert "does not lead" in await refused(ErrorCode.NOT_LEADER, cluster["n2"].between_nodes["STREAM.PURGE"](body))


async def test_purge_is_checked_before_anything_is_done(cluster, orders):
    await refused(ErrorCode.INVALID_REQUEST, cluster["n1"].ask("STREAM.PURGE", name="orders", offset=3))
    await refused(ErrorCode.INVALID_REQUEST, cluster["n1"].ask("STREAM.PURGE", name="orders", partition=2))
    assert "purge_partition" not in cluster.metadata.proposed


@pytest.mark.usefixtures("impatient")
async def test_pause_waits_for_all_leaders_and_names_the_slow(cluster, orders):
    answer = await cluster["n3"].ask("STREAM.PAUSE", name="orders")
    assert (answer["stream"]["paused"], answer["warnings"]) == (True, [])
    assert ("STREAM.FOLLOWED" in cluster["n1"].asked, "STREAM.FOLLOWED" in cluster["n2"].asked) == (True, True)
    cluster["n2"].follows = False
    answer = await cluster["n3"].ask("STREAM.RESUME", name="orders")
    assert answer["stream"]["paused"] is False
    (warning,) = answer["warnings"]
    assert "node 'n2' does not follow the change yet" in warning


async def test_an_update_that_one_leader_is_not_allowed_is_taken_back(cluster, orders):
    cluster["n2"].streams.by_uuid[orders].refusal = SubscriptionRefusedError("n2 may not subscribe new.>")
    request = cluster["n1"].ask("STREAM.UPDATE", name="orders", changes={"subject": "new.>"})
    assert "n2 may not subscribe" in await refused(ErrorCode.SUBSCRIPTION_REFUSED, request)
    assert cluster.author.state.streams["orders"].config.subject == "orders.>"


@pytest.mark.usefixtures("impatient")
async def test_delete_warns_of_a_node_that_does_not_follow(cluster, orders):
    cluster["n3"].follows = False
    answer = await cluster["n1"].ask("STREAM.DELETE", name="orders")
    assert (answer["deleted"], answer["uuid"]) == ("orders", orders)
    assert "'n3'" in answer["warnings"][0]


async def test_what_another_node_has_just_created_is_found(cluster):
    """This node's metadata may be a moment behind."""
    node = cluster["n1"]
    with pytest.raises(AdminError, match="there is no stream 'orders'"):
        await node.ask("STREAM.INFO", name="orders")
    cluster.metadata.before_read = lambda: cluster.metadata.author.state.streams or cluster.create("orders", ["n2"])
    assert (await node.ask("STREAM.INFO", name="orders"))["stream"]["name"] == "orders"
    reads = cluster.metadata.reads
    found = (await node.ask("STREAM.FIND", subject="orders.x"))["streams"]
    assert found == [{"name": "orders", "acks": "reply", "subject": "orders.>"}]
    assert (await node.ask("METADATA", streams=["orders"]))["streams"][0]["config"]["name"] == "orders"
    assert cluster.metadata.reads == reads
    assert (await node.ask("METADATA", streams=["nothing"]))["streams"] == []
    assert cluster.metadata.reads == reads + 1


async def test_metadata_tells_where_replicas_are(cluster):
    cluster.create("orders", ["n2", "n1", "n3"], replicas=2, observers=1)
    answer = await cluster["n1"].ask("METADATA", streams=["orders"])
    (place,) = answer["streams"][0]["partitions"]
    assert (place["leader"], place["replicas"], place["isr"], place["observers"]) == (
        "n2",
        ["n2", "n1", "n3"],
        ["n2", "n1"],
        ["n3"],
    )
    assert {node["node_id"]: node["rack"] for node in answer["nodes"]} == {"n1": None, "n2": None, "n3": None}
