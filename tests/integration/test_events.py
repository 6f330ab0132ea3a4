"""What happens to a cluster is in the stream of the events, each event once, whoever dies."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter

import nats
import pytest

from liftpy_client.errors import AdminError
from liftpy_envelope.events import COMMON_FIELDS, EVENTS_STREAM, KINDS
from support.cluster import eventually
from support.cluster_kit import create, leader_of, metadata_leader, partitions, running_cluster, settled
from support.reading import read_all

PARTITIONS = 6
WAIT_S = 40.0


async def events_of(lift):
    """All events, checked: as documented, each once, in the order of the metadata."""
    messages = await read_all(lift, EVENTS_STREAM)
    events = [json.loads(message.value) for message in messages]
    ids = [event["id"] for event in events]
    assert len(set(ids)) == len(ids)
    places = [tuple(map(int, each.split("."))) for each in ids]
    assert places == sorted(places)
    for event, message in zip(events, messages, strict=True):
        assert set(event) <= {*COMMON_FIELDS, *KINDS[event["kind"]].fields}
        assert message.subject.startswith(event["kind"])
    return events


async def until(lift, kind, count=1, **fields):
    """The events of a kind with these fields, once there are so many."""

    async def found():
        if EVENTS_STREAM not in [stream.name async for stream in lift.streams(internal=True)]:
            return None
        events = [each for each in await events_of(lift) if each["kind"] == kind]
        events = [each for each in events if all(each.get(name) == value for name, value in fields.items())]
        return events if len(events) >= count else None

    return await eventually(found, WAIT_S, f"no {count} events {kind} with {fields}")


@pytest.fixture
async def cluster(tmp_path):
    """Leaders stay where they are: nobody gets a leadership back."""
    async with running_cluster(tmp_path, cluster={"preferred_return_s": 600.0}) as kit, kit.connect() as lift:
        yield kit, lift


@pytest.mark.parametrize("whose", [leader_of, metadata_leader])
async def test_a_leader_is_killed(cluster, whose):
    """Each of its partitions has one event of another leader, although the leader of the events dies with it."""
    kit, lift = cluster
    await create(lift, "orders", "orders.>", partitions=PARTITIONS)
    await until(lift, "stream.created", stream="orders")
    assert len(await until(lift, "node.joined", 3)) == 3
    seen = 0
    for _ in range(2):
        await settled(lift, ["orders", EVENTS_STREAM])
        victim = await (whose(lift) if whose is metadata_leader else whose(lift, EVENTS_STREAM))
        led = {part.partition for part in await partitions(lift, "orders") if part.leader == victim}
        await asyncio.to_thread(kit.kill, victim)
        await until(lift, "node.gone", node=victim)
        await asyncio.to_thread(kit.start_nodes, [victim])
        await until(lift, "node.started", node=victim)
        changed = (await until(lift, "leader.changed", seen + len(led), stream="orders"))[seen:]
        assert Counter(each["partition"] for each in changed) == Counter(led)
        seen += len(changed)
        for each in changed:
            assert each["previous"] == victim
            assert each["leader"] not in {victim, None}
            assert each["cause"]
        await settled(lift, ["orders"])
        assert len(await until(lift, "isr.whole", 1, stream="orders", partition=0))


async def test_what_people_do_and_what_befalls_a_stream(cluster):
    """One cluster: a stream from its creation to its end, a node that stands still, a drain, a gap, refusals."""
    kit, lift = cluster
    await create(lift, "orders", "orders")
    await lift.update_stream("orders", retention_bytes=10**9)
    await lift.pause_stream("orders")
    async with await nats.connect(kit.url) as publisher:
        await publisher.publish("orders", b"refused")
        await publisher.flush()
        assert (await until(lift, "refusals.begun", stream="orders"))[0]["reason"] == "paused"
    await lift.resume_stream("orders")
    edited = [each["changes"] for each in await until(lift, "stream.edited", 3, stream="orders")]
    assert edited == [{"retention_bytes": [0, 10**9]}, {"paused": [False, True]}, {"paused": [True, False]}]

    leader = await leader_of(lift, "orders")
    follower = next(name for name in kit.nodes if name != leader)
    await kit.pause([follower], 6.0)
    (shrunk,) = [each for each in await until(lift, "isr.shrunk", stream="orders") if follower in each["left"]]
    assert shrunk["replicas"] == 3
    await settled(lift, ["orders"])
    assert len(await until(lift, "isr.whole", stream="orders")) == 1

    await asyncio.to_thread(kit.kill, leader)
    refused, gap = await until(lift, "gap.closed", 2, stream="orders")
    assert (refused["node"], refused["messages"]) == (leader, 1)
    assert gap["since_ns"] < gap["until_ns"] <= gap["time_ns"]
    assert gap["cause"]
    await asyncio.to_thread(kit.start_nodes, [leader])
    await settled(lift, ["orders"])

    drained = await leader_of(lift, "orders")
    await lift.drain_node(drained)
    await until(lift, "node.draining", node=drained)
    moved = await until(lift, "leader.changed", stream="orders", previous=drained)
    assert moved[-1]["cause"] == f"{drained} is drained"
    await lift.drain_node(drained, cancel=True)
    await until(lift, "node.undrained", node=drained)

    await lift.delete_stream("orders")
    (deleted,) = await until(lift, "stream.deleted", stream="orders")
    (created,) = await until(lift, "stream.created", stream="orders")
    assert deleted["uuid"] == created["uuid"]
    await check_command(kit.url)
    await check_listeners(kit.url, lift)


async def check_command(url):
    """The command prints them."""
    text = await command(url, "events", "--kind", "stream", "--stream", "orders")
    assert [line.split()[2] for line in text.splitlines()] == [
        "stream.created", *["stream.edited"] * 3, "stream.deleted"
    ]  # fmt: skip
    events = [json.loads(line) for line in (await command(url, "events", "--json", "--since", "all")).splitlines()]
    assert {"node.joined", "leader.changed"} <= {event["kind"] for event in events}
    assert not any(event.get("stream", "").startswith("__") for event in events)


async def command(url, *arguments):
    line = [sys.executable, "-m", "liftpy", "-s", url, *arguments]
    done = await asyncio.to_thread(subprocess.run, line, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout


async def check_listeners(url, lift):
    """Nobody but the nodes changes the stream; people see it when they ask, and read what they like of it."""
    assert EVENTS_STREAM not in [stream.name async for stream in lift.streams()]
    with pytest.raises(AdminError, match="liftpy's own"):
        await lift.delete_stream(EVENTS_STREAM)
    with pytest.raises(AdminError, match="liftpy's own"):
        await lift.update_stream(EVENTS_STREAM, subject="activity")
    await lift.update_stream(EVENTS_STREAM, retention_age_s=3_600.0)
    await until(lift, "stream.edited", stream=EVENTS_STREAM, changes={"retention_age_s": [30 * 86_400.0, 3_600.0]})
    async with await nats.connect(url) as publisher:
        for subject in (EVENTS_STREAM, f"{EVENTS_STREAM}.x", "stream.created.orders"):
            await publisher.publish(subject, b"{}")
        await publisher.flush()
    gone = [message async for message in lift.consume(EVENTS_STREAM, subjects=["stream.deleted.>"], stop="latest")]
    assert [message.key for message in gone] == [b"stream/orders"]
    await lift.update_stream(EVENTS_STREAM, retention_age_s=7_200.0)  # what comes after what was published is no other
    (_,) = await until(lift, "stream.edited", stream=EVENTS_STREAM, changes={"retention_age_s": [3_600.0, 7_200.0]})
