"""What somebody who may publish on the NATS account tries against a cluster: no node ends, nothing is lost.

During each attack the acks of a publisher come soon, and the nodes log a few lines (see `support.attacks`).
"""

from __future__ import annotations

import asyncio
import json
import re
import time

import nats
import pytest

from liftpy_envelope.group_routing import GROUPS_STREAM
from support.attacks import attacked, attacker, seconds, summed_up
from support.bad_days import NODES, make_stream, whole_again
from support.cluster import eventually, quick_options
from support.cluster_kit import ClusterKit, metadata_leader, partitions

FLOOD_S = 10.0


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    kit = ClusterKit(tmp_path_factory.mktemp("attacked")).start()
    yield kit
    kit.close()


@pytest.fixture
def name(request):
    """Of the test's stream."""
    return re.sub(r"\W+", "-", request.node.name)[:60]


@pytest.fixture
async def lift(kit):
    async with kit.connect() as lift:
        yield lift


@pytest.fixture
async def stranger(kit):
    client = await nats.connect(kit.url)
    yield client
    await client.close()


async def say(stranger, subject, body, timeout_s=20):
    """What somebody answers to a stranger."""
    return json.loads((await stranger.request(subject, json.dumps(body).encode(), timeout=timeout_s)).data)


async def test_nobody_but_a_node_makes_a_node_leave(kit, lift, stranger, name):
    published = await make_stream(lift, name)
    told = await say(stranger, "LIFT.API.METADATA", {})
    incarnations = {node["node_id"]: node["incarnation"] for node in told["nodes"]}
    async with attacked(kit, published):
        for node_id, incarnation in incarnations.items():
            for body in ({"incarnation": incarnation}, {}):
                for _ in range(20):
                    await say(stranger, f"LIFT.NODE.{node_id}.NODE.LEFT", body)
    await whole_again(kit, lift, published)


async def test_nobody_but_a_node_purges(kit, lift, stranger, name):
    published = await make_stream(lift, name)
    async with lift.consume(name, group="g", start="earliest", options=quick_options()) as consumer:
        async for message in consumer:
            if message.offset == 9:
                break
    before = [(row.partition, row.offset) for row in (await lift.group("g")).offsets]
    assert before
    async with attacked(kit, published):
        for purged in (name, GROUPS_STREAM):
            details = await lift.stream_info(purged)
            for part in details.partitions:
                body = {"name": purged, "uuid": details.uuid, "partitions": [part.partition], "offset": None}
                await say(stranger, f"LIFT.NODE.{part.leader}.STREAM.PURGE", body)
    starts = [part.log_start for purged in (name, GROUPS_STREAM) for part in await partitions(lift, purged)]
    assert set(starts) == {0}
    await asyncio.to_thread(kit.kill, *NODES)  # the coordinators read what is left
    await asyncio.to_thread(kit.start_nodes)

    async def group():
        found = [each.group for each in await lift.groups()]
        return [(row.partition, row.offset) for row in (await lift.group("g")).offsets] if "g" in found else found

    await eventually(group, 60.0)
    assert await group() == before
    await whole_again(kit, lift, published)


async def test_what_nodes_say_to_each_other_can_be_neither_repeated_nor_answered(kit, lift, stranger, name):
    """Somebody reads along, answers before the nodes do, and says again what they have said."""
    published = await make_stream(lift, name)
    heard = []

    async def overhear(message):
        heard.append(message)
        if not message.reply.startswith("_INBOX.stranger"):
            await stranger.publish(message.reply, b'{"error": {"code": 404, "err_code": 4, "description": "gone"}}')

    await stranger.subscribe("LIFT.NODE.>", cb=overhear)
    await stranger.flush()
    for _ in range(9):  # each time another node may be asked, and the leader answers
        details = await lift.stream_info(name)
        assert (details.messages, details.unreachable_partitions) == (20, 0)
    assert heard
    async with attacked(kit, published):
        inbox = await stranger.subscribe("_INBOX.stranger.>")
        for message in [*heard]:
            await stranger.publish(message.subject, message.data, "_INBOX.stranger.1", headers=message.headers)
            assert json.loads((await inbox.next_msg(20)).data)["error"]["code"] == 401
    await whole_again(kit, lift, published)


async def test_no_node_connects_to_where_a_stranger_says_it_is(kit, lift, stranger, name):
    published = await make_stream(lift, name)
    dialed = []
    server = await asyncio.start_server(lambda _, writer: dialed.append(writer), "127.0.0.1", 0)
    body = {"node_id": "evil", "host": "127.0.0.1", "port": server.sockets[0].getsockname()[1]}
    async with attacked(kit, published):
        for subject in ("LIFT.API.NODE.JOIN", *(f"LIFT.NODE.{node}.NODE.JOIN" for node in NODES)):
            assert "error" in await say(stranger, subject, body)
        await metadata_leader(lift)
        info = await say(stranger, "LIFT.API.CLUSTER.INFO", {})
        assert [info["cluster"]["learners"], len(info["cluster"]["voters"])] == [[], 3]
    assert dialed == []
    server.close()
    await whole_again(kit, lift, published)


async def test_no_stream_listens_to_what_nodes_and_clients_say(kit, lift, stranger, name):
    """Before, a stream on `>` recorded the answers of METADATA, with the tokens of the pull ports."""
    published = await make_stream(lift, name)
    async with attacked(kit, published):
        for settings in [{"subject": each} for each in (">", "*", "LIFT.>", "_INBOX.>", "$SRV.>")] + [{"group": "q"}]:
            body = {"name": "ears", "subject": "ears", "acks": "off"} | settings
            told = await say(stranger, "LIFT.API.STREAM.CREATE", body)
            assert "allow_reserved_subjects" in told["error"]["description"], told
    assert "ears" not in [stream.name async for stream in lift.streams()]
    await whole_again(kit, lift, published)


FLOOD = """
import asyncio, sys, nats

async def main(url, *requests):
    client = await nats.connect(url)
    print("up", flush=True)
    while True:
        for subject, _, body in (request.partition(" ") for request in requests):
            for number in range(200):
                payload = body.encode() or b'{"limit": %d}' % (number % 5 + 1)
                await client.publish(subject, payload, reply="_INBOX.flood")
        await client.flush(60)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "requests",
    [
        ["LIFT.API.CLUSTER.INFO"],
        ["LIFT.API.NODE.LIST", "LIFT.API.STREAM.LIST", "LIFT.API.TIER.STATUS", "LIFT.API.GROUP.LIST"],
        [f"LIFT.NODE.{name}.NODE.LAGS" for name in NODES],
        ['LIFT.API.METADATA {"streams": null}', 'LIFT.API.STREAM.FIND {"subject": "s"}'],
        ['LIFT.API.METADATA {"streams": ["nowhere"]}'],
    ],
    ids=["cluster info", "lists", "between nodes", "metadata", "streams that are not there"],
)
async def test_a_flood_of_questions(kit, lift, stranger, name, requests):
    """Acks go on, clients find their streams, and the metadata keep their leader."""
    published = await make_stream(lift, name)
    leader = await metadata_leader(lift)
    async with attacked(kit, published), attacker(FLOOD, kit.url, *requests):
        answers = []
        until_s = time.monotonic() + FLOOD_S
        while time.monotonic() < until_s:
            if "METADATA" not in requests[0]:
                answers.append(await seconds(nodes_told(stranger)))
            await asyncio.sleep(0.1)
        if answers:
            summed_up(f"{requests}: METADATA", answers)
    assert await metadata_leader(lift) == leader
    await whole_again(kit, lift, published)


async def nodes_told(stranger):
    assert len((await say(stranger, "LIFT.API.METADATA", {}))["nodes"]) == 3
