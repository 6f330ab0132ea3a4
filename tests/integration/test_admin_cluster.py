"""Three nodes in one process: any of them answers for all of them."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import asynccontextmanager

import pyarrow as pa
import pytest

import liftpy
from liftpy_client.connection.nats_options import NatsOptions
from liftpy_envelope.errors import ErrorCode
from liftpy_server.node.node import Node
from liftpy_server.settings.cluster import ClusterConfig
from liftpy_server.settings.config import HttpConfig, NodeConfig, PullConfig
from support.cluster import NodeProcess, eventually
from support.ports import free_ports

NAMES = ("n1", "n2", "n3")


def make_node(url, home, name, **cluster):
    return Node(
        NodeConfig(
            node_id=name,
            data_dir=str(home / name),
            nats=NatsOptions(url=url),
            pull=PullConfig(port=0),
            http=HttpConfig(port=0),
            # Three nodes share the processor time of one: each may be silent for a while.
            cluster=ClusterConfig(key_file=str(home / "key"), leader_timeout_s=3.0, **cluster),
        )
    )


@asynccontextmanager
async def running(url, home):
    """Three started nodes, by name; what they change of the whole process is put back."""
    switch_interval, threads, io_threads = sys.getswitchinterval(), pa.cpu_count(), pa.io_thread_count()
    (home / "key").write_bytes(b"k" * 32)
    ports = dict(zip(NAMES, free_ports(3), strict=True))
    peers = tuple(f"{name}@127.0.0.1:{port}" for name, port in ports.items())
    nodes = {name: make_node(url, home, name, port=port, peers=peers) for name, port in ports.items()}
    try:
        await asyncio.gather(*(node.start() for node in nodes.values()))
        yield nodes
    finally:
        await asyncio.gather(*(node.stop() for node in nodes.values()))
        sys.setswitchinterval(switch_interval)
        pa.set_cpu_count(threads)
        pa.set_io_thread_count(io_threads)


@pytest.fixture
async def cluster(nats_server, tmp_path):
    async with running(nats_server.url, tmp_path) as nodes, liftpy.connect(nats_server.url, timeout_s=10.0) as client:
        yield nodes, client


async def settled(client, name):
    details = await client.stream_info(name)
    wanted = details.config.replicas
    return all(len(part.isr) == wanted and part.target is None and not part.unreachable for part in details.partitions)


async def test_streams_of_a_cluster(cluster):
    nodes, client = cluster
    created = await client.create_stream("orders", subject="orders.>", partitions=3, replicas=3)

    async def is_spread():
        return sorted(str(part.leader) for part in (await client.stream_info("orders")).partitions) == list(NAMES)

    await eventually(is_spread)
    for number in range(30):
        await client.publish("orders.x", b"%d" % number, key=b"%d" % number)
    seen = [(await client.stream_info("orders")).messages for _ in range(9)]
    assert seen == [30] * 9
    for name in NAMES:
        told = await nodes["n1"].admin.requests.ask(name, "NODE.INFO", {}, 20.0)
        assert told["node"]["node_id"] == name
        assert (await client.node_info(name))["unreachable"] is False
    paused = await client.pause_stream("orders")
    assert (paused.paused, paused.warnings) == (True, ())
    assert all(node.streams.by_uuid[created.uuid].state.paused for node in nodes.values())
    assert not (await client.resume_stream("orders")).paused
    purged = await client.purge_stream("orders")
    assert (purged.messages, purged.unreachable_partitions) == (0, 0)
    await client.delete_stream("orders")
    await eventually(lambda: not any(created.uuid in node.streams.by_uuid for node in nodes.values()))


async def test_the_cluster_and_a_node_that_stops(cluster):
    nodes, client = cluster
    await client.create_stream("orders", subject="orders.>", partitions=3, replicas=3)
    before = await client.cluster_info()
    assert (before.metadata_leader in NAMES, before.voters, before.under_replicated_count) == (True, NAMES, 0)
    await nodes["n3"].stop()

    async def expired():
        return {node.node_id: node.state for node in await client.node_details()}["n3"] == "expired"

    await eventually(expired)

    async def is_told():
        details = await client.cluster_info()
        told = [node.unreachable for node in details.nodes], details.leaderless_count, details.under_replicated_count
        return told == ([False, False, True], 0, 4)  # the events have a partition, too

    await eventually(is_told)
    assert {part.leader for part in (await client.stream_info("orders")).partitions} == {"n1", "n2"}


async def test_replicas_are_moved_and_a_node_is_emptied_and_removed(cluster):
    _, client = cluster
    await client.create_stream("orders", subject="orders.>", replicas=1)
    for number in range(20):
        await client.publish("orders.x", b"%d" % number)
    (first,) = (await client.stream_info("orders")).partitions
    begun = await client.reassign_stream("orders", replicas=2)
    assert begun.moves[0].target[0] == first.leader

    async def moved():
        return (await client.stream_info("orders")).config.replicas == 2 and await settled(client, "orders")

    await eventually(moved, 40.0)
    drained = (await client.stream_info("orders")).partitions[0].leader
    with pytest.raises(liftpy.AdminError, match="drain it first") as refused:
        await client.remove_node(drained)
    assert refused.value.code is ErrorCode.CONFLICT
    assert (await client.drain_node(drained)).warnings == ()

    async def empty():
        found = {node.node_id: node for node in await client.node_details()}
        return (found[drained].replicas, found[drained].leaderships) == (0, 0)

    await eventually(empty, 40.0)
    assert (await client.stream_info("orders")).messages == 20
    await client.remove_node(drained)
    left = tuple(name for name in NAMES if name != drained)

    async def gone():
        details = await client.cluster_info()
        return details.voters == left and tuple(node.node_id for node in details.nodes) == left

    await eventually(gone)


async def test_a_node_joins(cluster, nats_server, tmp_path):
    """It is taken in by whichever node is asked, votes when it has the metadata, and gets replicas."""
    _, client = cluster
    await client.create_stream("orders", subject="orders.>", replicas=3)
    await client.publish("orders.x", b"1")
    (port,) = free_ports(1)
    joined = make_node(nats_server.url, tmp_path, "n4", port=port, join=True)
    await joined.start()
    try:

        async def votes():
            return (await client.cluster_info()).voters == (*NAMES, "n4")

        await eventually(votes, 40.0)
        await client.reassign_stream("orders", partitions={0: ["n4", "n1", "n2"]})

        async def moved():
            (part,) = (await client.stream_info("orders")).partitions
            return part.target is None and part.replicas == ("n4", "n1", "n2") and set(part.isr) == set(part.replicas)

        await eventually(moved, 40.0)
        assert (await client.stream_info("orders")).messages == 1
    finally:
        await joined.stop()


@pytest.fixture
def processes(nats_server, tmp_path):
    """Three nodes, each in a process of its own."""
    (tmp_path / "key").write_bytes(b"k" * 32)
    ports = dict(zip(NAMES, free_ports(3), strict=True))
    peers = [f"{name}@127.0.0.1:{port}" for name, port in ports.items()]
    nodes = {}
    for name, port in ports.items():
        toml = f"""
node_id = "{name}"
[cluster]
port = {port}
peers = {json.dumps(peers)}
key_file = "{tmp_path / "key"}"
"""
        nodes[name] = NodeProcess(nats_server.url, tmp_path / name, toml=toml)
    for node in nodes.values():
        node.spawn()
    try:
        for node in nodes.values():
            node.wait_ready()
        yield nodes
    finally:
        for node in nodes.values():
            node.kill()


async def test_a_node_that_hangs_is_shown_and_hides_nothing_else(nats_server, processes):
    """Its partitions keep their places without numbers until others lead them; the answers come in time."""
    async with liftpy.connect(nats_server.url, timeout_s=3.5) as client:
        created = await client.create_stream("orders", subject="orders.>", partitions=6, replicas=1)
        await client.create_stream("safe", subject="safe.>", partitions=3, replicas=3)
        hanging = created.partitions[0].leader
        processes[hanging].signal(signal.SIGSTOP)
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        for _ in range(20):  # every node answers these, whichever hangs
            await client.nats.request("LIFT.API.METADATA", b'{"streams": ["orders"]}', timeout=30)
            await client.nats.request("LIFT.API.STREAM.FIND", b'{"subject": "orders.x"}', timeout=30)
        answers = await asyncio.gather(*(_ask_until_answered(client) for _ in range(4)))
        assert loop.time() - begun_s < 60  # a third of it where nothing else runs
        for details, _ in answers:
            assert [part.partition for part in details.partitions] == list(range(6))
            for part in details.partitions:
                assert part.unreachable == (part.leader in {hanging, None})

        async def led_elsewhere():
            details, _ = await _ask_until_answered(client)
            safe = client.nats.request("LIFT.API.METADATA", b'{"streams": ["safe"]}', timeout=30)
            (stream,) = json.loads((await safe).data)["streams"]
            return hanging not in {part["leader"] for part in stream["partitions"]} and details.unreachable_partitions

        await eventually(led_elsewhere, 40.0)
        processes[hanging].signal(signal.SIGCONT)

        async def well():
            details, whole = await _ask_until_answered(client)
            return not details.unreachable_partitions and whole.leaderless_count == 0

        await eventually(well, 40.0)


async def _ask_until_answered(client):
    """NATS may hand requests to the node that hangs, which says nothing, more than once."""
    while True:
        try:
            return await client.stream_info("orders"), await client.cluster_info()
        except liftpy.NodeUnavailableError:
            continue
