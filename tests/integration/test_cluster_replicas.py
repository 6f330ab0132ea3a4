"""Replicas of streams on three nodes: created again under the same name, observers, racks, moved, and drained away."""

from __future__ import annotations

import asyncio

import pytest

from support.cluster import eventually
from support.cluster_kit import create, leader_of, partitions, running_cluster, settled
from support.reading import values
from support.replica_files import check_replicas

NODES = {"node-1", "node-2", "node-3"}


@pytest.fixture
async def kit(tmp_path):
    async with running_cluster(tmp_path) as kit:
        yield kit


@pytest.fixture
async def lift(kit):
    async with kit.connect() as lift:
        yield lift


async def test_a_follower_was_away_while_its_stream_was_deleted_and_made_again(kit, lift):
    await create(lift, "s", "s")
    for number in range(20):
        await lift.publish("s", b"old %d" % number)
    away = min(NODES - {await leader_of(lift, "s")})
    await asyncio.to_thread(kit.kill, away)
    await lift.delete_stream("s")
    # The first ISR holds only nodes with a session, so that the one that is away is waited for by nobody.
    await eventually(lambda: _is_given_up(lift, away))
    again = await lift.create_stream("s", subject="s", replicas=3, min_isr=2)
    for number in range(5):
        assert (await lift.publish("s", b"new %d" % number)).offset == number
    await asyncio.to_thread(kit.start_nodes)
    await settled(lift, ["s"])
    assert await values(lift, "s") == [b"new %d" % number for number in range(5)]
    streams = kit.nodes[away].data / "streams"
    await eventually(lambda: [path.name for path in streams.glob("s.*")] == [f"s.{again.uuid}"])
    await asyncio.to_thread(kit.stop_nodes)
    assert list(check_replicas({name: node.data for name, node in kit.nodes.items()}, "s", 1)) == []


async def _is_given_up(lift, node_id):
    return any(node.node_id == node_id and node.state == "expired" for node in await lift.node_details())


async def test_an_observer_follows_and_is_waited_for_by_nobody(tmp_path):
    # A replica that counts would be waited for until then.
    async with running_cluster(tmp_path, cluster={"replica_lag_max_s": 3_600.0}) as kit, kit.connect() as lift:
        await create(lift, "s", "s", replicas=2, observers=1)
        (partition,) = await partitions(lift, "s")
        (observer,) = partition.observers
        assert set(partition.isr) == NODES - {observer}
        for number in range(20):
            await lift.publish("s", b"%d" % number)
        await eventually(lambda: _has(lift, observer, 20))
        await asyncio.to_thread(kit.kill, observer)
        await lift.publish("s", b"20")
        await asyncio.to_thread(kit.start_nodes)
        await eventually(lambda: _has(lift, observer, 21))
        await asyncio.to_thread(kit.stop_nodes)
        assert list(check_replicas({name: node.data for name, node in kit.nodes.items()}, "s", 1)) == []


async def _has(lift, node_id, count):
    (partition,) = await partitions(lift, "s")
    return any(state.node == node_id and state.log_end == count for state in partition.replica_states)


async def test_replicas_move_while_messages_come(kit, lift):
    await lift.create_stream("s", subject="s", replicas=1)
    (partition,) = await partitions(lift, "s")
    assert len(partition.replicas) == 1
    sent = 0

    async def publish():
        nonlocal sent
        while True:
            await lift.publish("s", b"%d" % sent, message_id=str(sent))
            sent += 1

    publishing = asyncio.ensure_future(publish())
    try:
        await lift.reassign_stream("s", replicas=3)
        await eventually(lambda: _is_kept_by(lift, NODES), 40)
        target = max(NODES - {await leader_of(lift, "s")})
        await lift.update_stream("s", min_isr=1)
        await lift.reassign_stream("s", partitions={0: [target]})
        await eventually(lambda: _is_kept_by(lift, {target}), 40)
    finally:
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
    stored = await values(lift, "s")
    assert stored[:sent] == [b"%d" % number for number in range(sent)]
    assert await leader_of(lift, "s") == target


async def _is_kept_by(lift, nodes):
    (partition,) = await partitions(lift, "s")
    return set(partition.replicas) == set(partition.isr) == nodes and partition.target is None


async def test_a_new_replica_knows_which_outputs_are_stored_though_no_log_shows_them(kit, lift):
    """The stream keeps no ids, and its records are purged before the new replica is made."""
    await lift.create_stream("source", subject="source", replicas=3)
    await lift.create_stream("out", subject="out", replicas=1, dedupe_window_s=0)
    await settled(lift, ["source"])
    for number in range(5):
        await lift.publish("source", b"%d" % number)

    async def handle_all(run=""):
        async with lift.consume("source", group="g") as consumer:
            for _ in range(5):
                message = await consumer.next(timeout_s=30)
                async with consumer.atomically(message, run=run) as outputs:
                    outputs.publish("out", message.value)

    await handle_all()
    assert await values(lift, "out") == [b"%d" % number for number in range(5)]
    await lift.purge_stream("out")
    target = max(NODES - {await leader_of(lift, "out")})
    await lift.reassign_stream("out", partitions={0: [target]})
    await eventually(lambda: _is_led_by_alone(lift, "out", target), 40)
    await lift.reset_group("g", {"source": {0: 0}})
    await handle_all()
    assert await values(lift, "out") == []
    await lift.reset_group("g", {"source": {0: 0}})
    await handle_all(run="again")
    assert len(await values(lift, "out")) == 5


async def _is_led_by_alone(lift, stream, node):
    (partition,) = await partitions(lift, stream)
    return partition.replicas == (node,) and partition.leader == node and partition.target is None


async def test_the_preferred_replica_leads_again_after_its_return(tmp_path):
    async with running_cluster(tmp_path, cluster={"preferred_return_s": 1.0}) as kit, kit.connect() as lift:
        await create(lift, "s", "s")
        (partition,) = await partitions(lift, "s")
        preferred = partition.replicas[0]
        await eventually(lambda: _is_led_by(lift, {preferred}))
        await asyncio.to_thread(kit.kill, preferred)
        await eventually(lambda: _is_led_by(lift, NODES - {preferred}))
        await asyncio.to_thread(kit.start_nodes)
        await eventually(lambda: _is_led_by(lift, {preferred}), 40)


async def _is_led_by(lift, nodes):
    return await leader_of(lift, "s") in nodes
