"""What somebody who reaches the ports of nodes, or may publish, tries against a cluster by sheer numbers.

During each attack the acks of a publisher come soon, and the nodes log a few lines (see `support.attacks`).
"""

from __future__ import annotations

import asyncio
import re
import resource
import socket
import struct
from contextlib import closing, contextmanager

import google_crc32c
import nats
import psutil
import pytest

from liftpy_envelope.envelope import COOKIE
from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.group_offsets import CommitOffset, CommitStream
from liftpy_envelope.groups import GroupError
from liftpy_envelope.pull import Api
from support.attacks import attacked, attacker
from support.bad_days import NODES, in_sync, make_stream, whole_again
from support.cluster import eventually, quick_options
from support.cluster_kit import ClusterKit, leader_of
from support.group_requests import GroupPull
from support.raw_pull import RawPull, pull_token
from support.reading import metric

FLOOD_S = 5.0
HTTP = "[http]\nport = 0\n"
MIB = 1024 * 1024
MILLION = 1_000_000


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    kit = ClusterKit(tmp_path_factory.mktemp("attacked"), toml=HTTP).start()
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


def process_of(node):
    return psutil.Process(node.process.pid)


@contextmanager
def few_files(kit, more):
    """Let nodes that run open so many more files each, and no others."""
    before = {
        node.process.pid: resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE) for node in kit.nodes.values()
    }
    for node in kit.nodes.values():
        limit = process_of(node).num_fds() + more
        resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (limit, before[node.process.pid][1]))
    try:
        yield
    finally:
        for pid, limits in before.items():
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def idle_connections(port, count):
    sockets = []
    for _ in range(count):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", port))
        sockets.append(sock)
    return sockets


async def test_idle_connections_use_up_all_files(kit, lift, name):
    """Before, one partition after the other went offline when its segment could not be opened, and stayed so."""
    published = await make_stream(lift, name, segment_bytes=65_536)
    rolling = await make_stream(lift, f"{name}-rolling", segment_bytes=65_536)  # refused while no file can be opened
    crowd = []
    with few_files(kit, 40):
        async with attacked(kit, published):
            try:
                for _ in range(5):
                    for node in kit.nodes.values():
                        crowd += idle_connections(node.ready["http_port"], 60) + idle_connections(node.pull_port, 60)
                    await rolling.more(4, size=20_000)
            finally:
                for sock in crowd:
                    sock.close()
    assert any("Too many open files" in node.log() for node in kit.nodes.values())
    await rolling.more(10, size=20_000)
    for node in kit.nodes.values():

        async def is_well(node=node):
            return await metric(node.ready["http_port"], "liftpy_partitions_offline") == 0

        await eventually(is_well, message="a partition is offline")
        assert "is offline" not in node.log()
    await whole_again(kit, lift, published, rolling)


STRANGERS = """
import socket, sys, time
ports = [int(port) for port in sys.argv[1:]]
print("up", flush=True)
crowd = []
while True:
    for port in ports:
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", port))
        crowd.append(sock)
    if len(crowd) > 900:
        for sock in crowd[:300]:
            sock.close()
        del crowd[:300]
    time.sleep(0.002)
"""


@pytest.mark.slow
async def test_a_follower_finds_a_place_among_strangers(kit, lift, name):
    published = await make_stream(lift, name)
    await asyncio.to_thread(kit.kill, "node-3")
    ports = [str(node.pull_port) for node in kit.nodes.values()]
    async with attacked(kit, published, "node-3"), attacker(STRANGERS, *ports):
        await asyncio.to_thread(kit.start_nodes)
        await in_sync(lift, name, NODES)
    async with lift.consume(name, start="earliest", options=quick_options()) as consumer:
        async for message in consumer:
            if message.offset == max(published.acked):
                break
    await whole_again(kit, lift, published)


def envelope(body):
    head = bytes((1, 1, 0, 12))
    crc = google_crc32c.extend(google_crc32c.value(head), body)
    return COOKIE + head + struct.pack("<I", crc) + body


HOSTILE = [
    envelope(b"\x81\xa7headers" + head + b"\x90" * (MILLION - 100))
    for head in (b"\xdd" + struct.pack(">I", MILLION - 100), b"\x81\xa1a\xdd" + struct.pack(">I", MILLION - 100))
] + [envelope(b"\x90" * (MILLION - 100))]


@pytest.mark.slow
async def test_hostile_envelopes(kit, lift, name):
    """Before, three of them cost 2.8 s of CPU, and moved leaders."""
    published = await make_stream(lift, name)
    leader = await leader_of(lift, name)
    process = process_of(kit.nodes[leader])
    before = process.cpu_times()
    async with attacked(kit, published):
        with_replies = await nats.connect(kit.url)
        for payload in HOSTILE:
            answer = await with_replies.request(name, payload, timeout=20)
            assert b"20004" in answer.data, answer.data
        used = process.cpu_times()
        print(f"three envelopes: {used.user + used.system - before.user - before.system:.2f} s of CPU")
        flood = asyncio.create_task(flood_with(with_replies, name))
        await asyncio.sleep(FLOOD_S)
        flood.cancel()
        await asyncio.gather(flood, return_exceptions=True)
        await with_replies.close()
    assert await leader_of(lift, name) == leader
    await whole_again(kit, lift, published)


async def flood_with(client, subject):
    while True:
        for payload in HOSTILE:
            await client.publish(subject, payload)
            await client.flush(60)
            await asyncio.sleep(0.02)


async def test_a_flood_of_questions_where_a_time_lies(kit, lift, name):
    """A log is looked through for each; it is done in slices, between which the node does everything else."""
    published = await make_stream(lift, name, partitions=1)
    uuid, leader = bytes.fromhex((await lift.stream_info(name)).uuid), await leader_of(lift, name)
    node, token = kit.nodes[leader], await pull_token(lift, leader)
    body = [[[[uuid, 0], moment] for moment in range(10_000)]]
    answers = []
    async with attacked(kit, published):
        for _ in range(4):
            async with await RawPull.open(node.pull_port) as raw:
                assert (await raw.hello(token)).error == ErrorCode.NONE
                for _ in range(5):
                    raw.send(Api.LIST_OFFSETS, body)
                answers.append(await raw.receive())  # the others are given up with the connection
    assert [len(answer.result[0]) for answer in answers] == [10_000] * 4
    await whole_again(kit, lift, published)


async def test_a_flood_of_groups(kit, lift, name):
    """Before, 218 requests took 250 MB of memory and 229 MB of disk."""
    published = await make_stream(lift, name, partitions=1)
    await lift.create_stream("wide", subject="wide", partitions=1_000, replicas=1, min_isr=1)
    uuid = bytes.fromhex((await lift.stream_info("wide")).uuid)
    async with lift.consume(name, group="good", start="earliest", options=quick_options()) as consumer:
        async for message in consumer:
            if message.offset == 9:
                break
    before = {node: (process_of(node).memory_info().rss, size_of(node)) for node in kit.nodes.values()}
    pulls = {node_id: await GroupPull.open(lift, node.pull_port, node_id) for node_id, node in kit.nodes.items()}
    offsets = tuple(CommitOffset(number, 0, -1, bytes(1_000)) for number in range(1_000))
    answers = []
    async with attacked(kit, published):
        for number in range(218):
            place = await pulls["node-1"].find(f"flood-{number}")
            rows = (CommitStream(uuid, "wide", offsets),)
            answers.append(await pulls[place.node_id].commit(f"flood-{number}", None, 0, rows))
    for pull in pulls.values():
        pull.close()
    print({error.name: sum(each.error is error for each in answers) for error in {each.error for each in answers}})
    for node_id, node in kit.nodes.items():
        rss, disk = process_of(node).memory_info().rss - before[node][0], size_of(node) - before[node][1]
        print(f"{node_id}: {rss / MIB:.0f} MiB more memory, {disk / MIB:.0f} MiB more on disk")
        assert rss < 100 * MIB
        assert disk < 3 * 35 * MIB  # of each of three nodes what one address may
    assert "groups.client_bytes_max" in next(each.message for each in answers if each.error is GroupError.GROUP_FULL)
    await published.more(10)
    async with lift.consume(name, group="good", options=quick_options()) as consumer:
        async for message in consumer:
            if message.offset == max(published.acked):
                await consumer.commit(message)
                break
    assert [row.offset for row in (await lift.group("good")).offsets] == [max(published.acked) + 1]
    await whole_again(kit, lift, published)


def size_of(node):
    return sum(path.stat().st_blocks * 512 for path in node.data.rglob("*") if path.is_file())


async def test_wrong_tokens_are_told_and_counted(kit, lift, name):
    published = await make_stream(lift, name)
    node = kit.nodes[await leader_of(lift, name)]
    async with attacked(kit, published):
        for _ in range(200):
            raw = await RawPull.open(node.pull_port)
            with closing(raw):
                assert (await raw.hello("wrong")).error == ErrorCode.UNAUTHENTICATED
    assert "pull: refused ('127.0.0.1'" in node.log()
    assert await metric(node.ready["http_port"], "liftpy_auth_failures_total", listener="pull") >= 200
    await whole_again(kit, lift, published)
