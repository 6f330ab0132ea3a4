"""What somebody who reaches the ports of nodes, or may publish, tries against a cluster by sheer numbers."""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
from contextlib import closing

import google_crc32c
import nats
import psutil
import pytest

from liftpy_envelope.envelope import COOKIE
from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.group_offsets import CommitOffset, CommitStream
from liftpy_envelope.groups import GroupError
from support.attacks import attacker, few_lines, seconds, summed_up
from support.bad_days import NODES, in_sync, make_stream, whole_again
from support.cluster import eventually, quick_options
from support.cluster_kit import leader_of, running_cluster
from support.group_requests import GroupPull
from support.raw_pull import RawPull
from support.reading import metric

HTTP = "[http]\nport = 0\n"
MIB = 1024 * 1024
MILLION = 1_000_000


@pytest.fixture
async def kit(tmp_path):
    async with running_cluster(tmp_path, toml=HTTP) as kit:
        yield kit


@pytest.fixture
async def lift(kit):
    async with kit.connect() as lift:
        yield lift


async def measured(published, what, count):
    """Publish one after the other; prints how long acks take. The p99 in seconds."""
    return summed_up(what, [await seconds(published.more(1)) for _ in range(count)])


def process_of(node):
    return psutil.Process(node.process.pid)


def let_open(node, more):
    """Let a node that runs open so many more files, and no others."""
    limit = process_of(node).num_fds() + more
    resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (limit, limit))


def idle_connections(port, count):
    sockets = []
    for _ in range(count):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", port))
        sockets.append(sock)
    return sockets


async def test_idle_connections_use_up_all_files(kit, lift):
    """Before, one partition after the other went offline when its segment could not be opened, and stayed so."""
    published = await make_stream(lift, segment_bytes=65_536)
    for node in kit.nodes.values():
        let_open(node, 40)
    crowd = []
    async with few_lines(kit):
        try:
            for _ in range(5):
                for node in kit.nodes.values():
                    crowd += idle_connections(node.ready["http_port"], 60) + idle_connections(node.pull_port, 60)
                await published.more(4, size=20_000)
            assert kit.running == list(NODES)
        finally:
            for sock in crowd:
                sock.close()
    assert any("Too many open files" in node.log() for node in kit.nodes.values())
    await published.more(10, size=20_000)
    for node in kit.nodes.values():

        async def is_well(node=node):
            return await metric(node.ready["http_port"], "liftpy_partitions_offline") == 0

        await eventually(is_well, message="a partition is offline")
        assert "is offline" not in node.log()
    await whole_again(kit, lift, published)


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
async def test_a_follower_finds_a_place_among_strangers(kit, lift):
    published = await make_stream(lift)
    await measured(published, "nobody else", 100)
    await asyncio.to_thread(kit.kill, "node-3")
    ports = [str(node.pull_port) for node in kit.nodes.values()]
    async with few_lines(kit, "node-3"), attacker(STRANGERS, *ports):
        assert await measured(published, "strangers at the pull ports", 100) < 5
        await asyncio.to_thread(kit.start_nodes)
        await in_sync(lift, "s", NODES)
        assert await measured(published, "strangers at the pull ports, three replicas", 200) < 5
    async with lift.consume("s", start="earliest", options=quick_options()) as consumer:
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
async def test_hostile_envelopes(kit, lift):
    """Before, three of them cost 2.8 s of CPU, and moved leaders."""
    published = await make_stream(lift)
    leader = await leader_of(lift, "s")
    process = process_of(kit.nodes[leader])
    await measured(published, "nobody else", 100)
    before = process.cpu_times()
    async with few_lines(kit):
        with_replies = await nats.connect(kit.url)
        for payload in HOSTILE:
            answer = await with_replies.request("s", payload, timeout=20)
            assert b"20004" in answer.data, answer.data
        used = process.cpu_times()
        print(f"three envelopes: {used.user + used.system - before.user - before.system:.2f} s of CPU")
        flood = asyncio.create_task(flood_with(with_replies))
        assert await measured(published, "a flood of hostile envelopes", 200) < 5
        flood.cancel()
        await asyncio.gather(flood, return_exceptions=True)
        await with_replies.close()
    assert await leader_of(lift, "s") == leader
    await whole_again(kit, lift, published)


async def flood_with(client):
    while True:
        for payload in HOSTILE:
            await client.publish("s", payload)
            await client.flush(60)
            await asyncio.sleep(0.02)


async def test_a_flood_of_groups(kit, lift):
    """Before, 218 requests took 250 MB of memory and 229 MB of disk."""
    published = await make_stream(lift, partitions=1)
    await lift.create_stream("wide", subject="wide", partitions=1_000, replicas=1, min_isr=1)
    uuid = bytes.fromhex((await lift.stream_info("wide")).uuid)
    async with lift.consume("s", group="good", start="earliest", options=quick_options()) as consumer:
        async for message in consumer:
            if message.offset == 9:
                break
    before = {name: (process_of(node).memory_info().rss, size_of(node)) for name, node in kit.nodes.items()}
    pulls = {name: await GroupPull.open(lift, node.pull_port, name) for name, node in kit.nodes.items()}
    offsets = tuple(CommitOffset(number, 0, -1, bytes(1_000)) for number in range(1_000))
    answers = []
    async with few_lines(kit):
        for number in range(218):
            place = await pulls["node-1"].find(f"flood-{number}")
            rows = (CommitStream(uuid, "wide", offsets),)
            answers.append(await pulls[place.node_id].commit(f"flood-{number}", None, 0, rows))
    for pull in pulls.values():
        pull.close()
    print({error.name: sum(each.error is error for each in answers) for error in {each.error for each in answers}})
    for name, node in kit.nodes.items():
        rss, disk = process_of(node).memory_info().rss - before[name][0], size_of(node) - before[name][1]
        print(f"{name}: {rss / MIB:.0f} MiB more memory, {disk / MIB:.0f} MiB more on disk")
        assert rss < 100 * MIB
        assert disk < 3 * 35 * MIB  # of each of three nodes what one address may
    assert "groups.client_bytes_max" in next(each.message for each in answers if each.error is GroupError.GROUP_FULL)
    await published.more(10)
    async with lift.consume("s", group="good", options=quick_options()) as consumer:
        async for message in consumer:
            if message.offset == max(published.acked):
                await consumer.commit(message)
                break
    assert [row.offset for row in (await lift.group("good")).offsets] == [max(published.acked) + 1]
    await whole_again(kit, lift, published)


def size_of(node):
    return sum(path.stat().st_blocks * 512 for path in node.data.rglob("*") if path.is_file())


async def test_wrong_tokens_are_told_and_counted(kit, lift):
    published = await make_stream(lift)
    node = kit.nodes[await leader_of(lift, "s")]
    async with few_lines(kit):
        for _ in range(200):
            raw = await RawPull.open(node.pull_port)
            with closing(raw):
                assert (await raw.hello("wrong")).error == ErrorCode.UNAUTHENTICATED
        await published.more(10)
    assert "pull: refused ('127.0.0.1'" in node.log()
    assert await metric(node.ready["http_port"], "liftpy_auth_failures_total", door="pull") >= 200
    await whole_again(kit, lift, published)
