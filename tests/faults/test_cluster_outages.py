"""Nodes that are away, stand still, or hear only half of the others: what goes on, what is refused, what comes back."""

from __future__ import annotations

import asyncio
import json
import signal
import time

import nats
import pytest

import liftpy
from liftpy_log.checkpoint import load_checkpoint
from liftpy_log.storage.disk import OsDisk
from support.bad_days import NODES, in_sync, make_stream, told, whole_again
from support.cluster import eventually, quick_options
from support.cluster_kit import ClusterKit, create, leader_of, partitions, running_cluster, settled
from support.reading import read_all, take, values
from support.segments import segment_files

ANSWERED_S = 10.0  # no publisher and no command waits longer for a word
HOUR_S = 3600
QUICK = {"replica_lag_max_s": 2.0}
STILL_S = 3.0  # longer than that, and than all other time-outs


@pytest.fixture
async def kit(tmp_path):
    async with running_cluster(tmp_path, cluster=QUICK) as kit:
        yield kit


@pytest.fixture
async def lift(kit):
    async with kit.connect() as lift:
        yield lift


async def refusal(client, subject, payload):
    """The error of an ack; None when there is no answer."""
    try:
        answer = json.loads((await client.request(subject, payload, timeout=ANSWERED_S)).data)
    except (nats.errors.NoRespondersError, TimeoutError):
        return None
    assert "error" in answer, f"a message was acknowledged that a minority has: {answer}"
    return answer["error"]


def stored_bytes(node):
    return sum(path.stat().st_size for path in segment_files(node.data, "s"))


async def test_a_majority_is_gone(kit, lift):
    """Readers are served, commands are told why, publishers hear nothing that may be wrong; all goes on afterwards."""
    published = await make_stream(lift)
    leader = await leader_of(lift, "s")
    others = sorted(set(NODES) - {leader})
    client = await nats.connect(kit.url)
    try:
        # Followers that stand still take nothing more, so what is published meanwhile waits for an ack.
        for name in others:
            kit.nodes[name].signal(signal.SIGSTOP)
        stored = stored_bytes(kit.nodes[leader])
        waiting = asyncio.ensure_future(refusal(client, "s", b"waits"))
        await eventually(lambda: stored_bytes(kit.nodes[leader]) > stored)
        await asyncio.to_thread(kit.kill, *others)
        assert await waiting is None, "for all this leader knows, the others may store it"
        creating = asyncio.ensure_future(lift.create_stream("other", subject="other"))
        await told(kit.nodes[leader], "no majority of the metadata nodes was heard")
        assert await refusal(client, "s", b"new") is None
        assert await values(lift, "s") == list(published.acked.values())
        with pytest.raises(liftpy.AdminError, match="no answer from a majority of the metadata nodes within 10 s"):
            await creating
    finally:
        await client.close()
    await asyncio.to_thread(kit.start_nodes, others[:1])
    await eventually(lambda: _takes(lift), 40.0)
    await create(lift, "another", "another", replicas=2)
    await asyncio.to_thread(kit.start_nodes)
    await in_sync(lift, "s", NODES)
    stored = [message.value for message in await take(lift.consume("s", stop="latest"))]
    assert [value for value in stored if value in published.acked.values()] == list(published.acked.values())
    assert b"new" not in stored


async def _takes(lift):
    try:
        await lift.publish("s", b"again")
    except liftpy.LiftError:
        return False
    return True


async def _leads_not(lift, node_id):
    return await leader_of(lift, "s") != node_id


async def test_a_leader_that_is_cut_off_does_not_refuse_what_its_successor_stores(tmp_path):
    """It has its connection to NATS, so every message reaches it as well as its successor."""
    async with running_cluster(tmp_path, cluster=QUICK, is_proxied=True) as kit, kit.connect() as lift:
        published = await make_stream(lift)
        old = await leader_of(lift, "s")
        client = await nats.connect(kit.url)
        inbox = client.new_inbox()
        answers = []

        async def answered(message):
            if message.data:
                answers.append(json.loads(message.data))

        await client.subscribe(inbox, cb=answered)
        kit.cut_off(old)
        await told(kit.nodes[old], "messages that want to be safe are refused")
        await eventually(lambda: _leads_not(lift, old))
        await published.more(1)
        answers.clear()
        for number in range(200):
            await client.publish("s", b"beside %d" % number, reply=inbox)
        await eventually(lambda: len(answers) >= 200)
        await published.more(50)
        assert [answer for answer in answers if "error" in answer] == []
        assert len({answer["offset"] for answer in answers}) == 200
        kit.links.mend()
        await told(kit.nodes[old], "registers again")
        await client.close()
        await published.more(5)
        await settled(lift, ["s"])
        stored = {message.offset: message.value for message in await read_all(lift, "s")}
        assert published.acked.items() <= stored.items()
        assert len(stored) == len(published.acked) + 200


async def test_all_nodes_are_killed_at_once(kit, lift):
    streams = [await make_stream(lift, name, 0) for name in ("a", "b", "c")]
    tasks = [asyncio.ensure_future(each.more(150)) for each in streams]
    await eventually(lambda: all(len(each.acked) > 30 for each in streams), 40.0)
    await asyncio.to_thread(kit.kill, *NODES)
    await asyncio.to_thread(kit.start_nodes)
    await asyncio.gather(*tasks)
    await whole_again(kit, lift, *streams)
    for node in kit.nodes.values():
        assert "unclean" not in node.log()


async def test_a_leader_stands_still_for_longer_than_every_timeout(kit, lift):
    """What it had not committed when it stood still does not count, and nobody reads it from it afterwards."""
    published = await make_stream(lift)
    old = await leader_of(lift, "s")
    reading = asyncio.ensure_future(take(lift.consume("s", options=quick_options()), 60))
    client = await nats.connect(kit.url)
    inbox = client.new_inbox()
    answers = []

    async def answered(message):
        answers.append(json.loads(message.data) if message.data else None)

    await client.subscribe(inbox, cb=answered)
    kit.nodes[old].signal(signal.SIGSTOP)
    try:
        for number in range(5):  # they wait in its socket, and it finds them when it goes on
            await client.publish("s", b"late %d" % number, reply=inbox)
        await client.flush()
        await asyncio.sleep(STILL_S)
        await published.more(20)
        await eventually(lambda: _leads_not(lift, old))
    finally:
        kit.nodes[old].signal(signal.SIGCONT)
    await published.more(20)
    late = [answer for answer in answers if answer is not None and "error" not in answer]
    assert late == []
    assert [message.value for message in await reading] == list(published.acked.values())
    await client.close()
    await told(kit.nodes[old], "this node was silent for 1 s and was given up: it registers again")
    await whole_again(kit, lift, published)


SKEWED = """
import sys
from liftpy.cli.app import app
from liftpy_log.clock import SystemClock
import liftpy_server.node.node as node

SKEW_NS = int(sys.argv.pop(1)) * 10**9

class SkewedClock(SystemClock):
    def now_ns(self):
        return super().now_ns() + SKEW_NS

node.SystemClock = SkewedClock
app()
"""


async def test_clocks_an_hour_apart(tmp_path):
    """Times of records go by their leader's clock and never step back; nothing else depends on clocks."""
    runner = tmp_path / "skewed.py"
    runner.write_text(SKEWED)
    kit = ClusterKit(tmp_path, cluster=QUICK)
    for name, skew_s in (("node-1", -HOUR_S), ("node-2", HOUR_S)):
        kit.nodes[name].command[1:3] = [str(runner), str(skew_s)]
    try:
        await asyncio.to_thread(kit.start)
        async with kit.connect() as lift:
            published = await make_stream(lift, dedupe_window_s=60)
            for _ in range(2):
                await asyncio.to_thread(kit.kill, await leader_of(lift, "s"))
                await published.more(10)
                await asyncio.to_thread(kit.start_nodes)
                await in_sync(lift, "s", NODES)
            times = [message.timestamp for message in await take(lift.consume("s", stop="latest"))]
            assert times == sorted(times)
            await whole_again(kit, lift, published)
    finally:
        await asyncio.to_thread(kit.close)


@pytest.mark.slow
async def test_two_nodes_hear_each_other_one_way_only(tmp_path):
    """The third is heard by both: somebody leads, and does so without end."""
    async with running_cluster(tmp_path, cluster=QUICK, is_proxied=True) as kit, kit.connect() as lift:
        published = await make_stream(lift)
        leader = await leader_of(lift, "s")
        follower = next(name for name in NODES if name != leader)
        kit.links.cut(leader, follower)
        await published.more(20)
        (before,) = await partitions(lift, "s")
        began_s = time.monotonic()
        while time.monotonic() - began_s < 5.0:
            await published.more(1)
            await asyncio.sleep(0.1)
        (after,) = await partitions(lift, "s")
        assert after.leader_epoch - before.leader_epoch <= 4
        kit.links.mend()
        await published.more(5)
        await whole_again(kit, lift, published)


async def test_what_is_known_to_be_committed_is_read_while_an_in_sync_replica_is_away(kit, lift):
    """Both replicas are killed, and one of them is not back: the other does not know whether its last records count."""
    await create(lift, "s", "s.>", replicas=2, min_isr=2)
    for number in range(20):
        await lift.publish("s.x", b"%d" % number, ack_policy="all")
    leader = await leader_of(lift, "s")
    (other,) = set((await partitions(lift, "s"))[0].replicas) - {leader}
    path, uuid = kit.nodes[leader].data / "checkpoint", (await lift.stream_info("s")).uuid

    def is_noted():
        noted = load_checkpoint(OsDisk(), path)
        return noted is not None and noted.mark(uuid, 0) >= 20

    await eventually(is_noted, 20.0, "no checkpoint is written")
    for number in range(20, 25):
        await lift.publish("s.x", b"%d" % number, ack_policy="all")
    await asyncio.to_thread(kit.kill, leader, other)
    await asyncio.to_thread(kit.start_nodes, [leader])
    assert await leader_of(lift, "s") == leader
    wanted = [b"%d" % number for number in range(20)]
    assert [message.value for message in await take(lift.consume("s"), 20)] == wanted
    assert [message.value for message in await take(lift.consume("s", stop=20))] == wanted
    await asyncio.to_thread(kit.start_nodes, [other])
    assert await values(lift, "s") == [b"%d" % number for number in range(25)]
