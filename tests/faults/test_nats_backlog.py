"""A node that is far behind what NATS holds for it: what is lost then lies in gaps, and the cause is named."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time

import numpy as np
import pytest

import liftpy
from support.cluster import eventually, make_nats
from support.cluster_kit import create, leader_of, running_cluster
from support.inprocess import running_node
from support.ports import free_port
from support.raw_nats import RawNats, pub
from support.reading import gaps, values

BURST = 2_000


class Flooder(threading.Thread):
    """A plain publisher as fast as NATS takes it, in a thread of its own.

    Attributes:
        name: one letter, with which its messages begin.
        bursts: for each burst that NATS has confirmed, when it was begun and when it was confirmed.
    """

    def __init__(self, port, name):
        super().__init__(daemon=True)
        self.name, self.bursts = name, []
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._is_stopped = threading.Event()

    def run(self):
        self._socket.sendall(b'CONNECT {"verbose":false,"pedantic":false,"lang":"test","version":"1"}\r\n')
        letter = self.name.encode()
        with self._socket, self._socket.makefile("rb") as lines:
            while not self._is_stopped.is_set():
                first = len(self.bursts) * BURST
                frames = [b"PUB s 100\r\n%b%099d\r\n" % (letter, number) for number in range(first, first + BURST)]
                began_ns = time.time_ns()
                self._socket.sendall(b"".join(frames) + b"PING\r\n")
                while lines.readline() != b"PONG\r\n":
                    pass
                self.bursts.append((began_ns, time.time_ns()))

    async def stop(self):
        self._is_stopped.set()
        await asyncio.to_thread(self.join)

    @property
    def sent(self):
        """How many NATS has taken."""
        return len(self.bursts) * BURST


@contextlib.asynccontextmanager
async def flooding(port, names):
    flooders = [Flooder(port, name) for name in names]
    for flooder in flooders:
        flooder.start()
    try:
        yield flooders
    finally:
        for flooder in flooders:
            await flooder.stop()


async def stored_by(lift, flooders):
    """For each publisher, which of its messages are stored."""
    found = {flooder.name.encode(): np.zeros(flooder.sent, bool) for flooder in flooders}
    async with lift.consume_batches("s", start="earliest", stop="latest") as batches:
        async for batch in batches:
            for value in batch.column("value").to_pylist():
                found[value[:1]][int(value[1:])] = True
    return [found[flooder.name.encode()] for flooder in flooders]


@pytest.mark.slow
async def test_what_nats_held_for_a_leader_that_died_lies_in_a_gap(tmp_path):
    """The shipped settings let NATS hold a gigabyte for a leader, so messages of seconds go with it."""
    async with running_cluster(tmp_path) as kit, kit.connect() as lift:
        await create(lift, "s", "s")
        leader = await leader_of(lift, "s")
        async with flooding(kit.nats[0].port, "abcd") as flooders:
            await eventually(lambda: sum(flooder.sent for flooder in flooders) > 1_500_000, 120)
            killed_ns = time.time_ns()
            await asyncio.to_thread(kit.kill, leader)
            known = await eventually(lambda: closed(lift), 60)
            goal = sum(flooder.sent for flooder in flooders) + 10 * BURST
            await eventually(lambda: sum(flooder.sent for flooder in flooders) > goal, 60)
        await eventually(lambda: is_quiet(lift), 120)
        missing, earliest_ns = 0, killed_ns
        for flooder, stored in zip(flooders, await stored_by(lift, flooders), strict=True):
            for burst, (began_ns, ended_ns) in enumerate(flooder.bursts):
                absent = BURST - int(stored[burst * BURST : (burst + 1) * BURST].sum())
                missing += absent
                if absent:
                    earliest_ns = min(earliest_ns, began_ns)
                    assert any(gap["since_ns"] <= ended_ns and began_ns <= gap["until_ns"] for gap in known), (
                        f"{absent} messages of {began_ns} to {ended_ns} lie in no gap: {known}"
                    )
        since_s = [round((gap["since_ns"] - killed_ns) / 1e9, 2) for gap in known]
        until_s = [round((gap["until_ns"] - killed_ns) / 1e9, 2) for gap in known]
        print(
            f"{missing:,} of {sum(flooder.sent for flooder in flooders):,} messages are missing, the first "
            f"{(killed_ns - earliest_ns) / 1e9:.2f} s before the kill; gaps {list(zip(since_s, until_s, strict=True))}"
        )
        assert missing > 10_000, "the leader was not far behind, so this shows little"


async def closed(lift):
    known = await gaps(lift, "s")
    return known if known and all(gap["until_ns"] is not None for gap in known) else None


async def is_quiet(lift):
    """Nothing more comes."""
    before = (await lift.stream_info("s")).messages
    await asyncio.sleep(1.0)
    return (await lift.stream_info("s")).messages == before


@pytest.mark.slow
async def test_a_node_that_reads_nothing_for_half_a_minute_loses_nothing(tmp_path):
    """NATS holds the messages, and the node's connection stays, although no question of its is answered meanwhile."""
    server = await asyncio.to_thread(make_nats, tmp_path / "nats")
    try:
        async with running_node(server.url, tmp_path / "node") as node, liftpy.connect(server.url) as lift:
            await lift.create_stream("s", subject="s")
            is_overloaded, node.ingest._is_overloaded = node.ingest._is_overloaded, lambda: True
            async with await RawNats.open(server.port) as raw:
                for first in range(0, 100_001, BURST):
                    frames = [pub(b"s", b"%d" % number) for number in range(first, min(first + BURST, 100_001))]
                    raw.write(b"".join(frames))
                    await raw.flush(60)
            await asyncio.sleep(29)  # it is the time that matters
            held = 100_001 - (await lift.stream_info("s")).messages
            node.ingest._is_overloaded = is_overloaded
            await eventually(lambda: has_all(lift, 100_001), 60)
            assert [int(value) for value in await values(lift, "s")] == list(range(100_001))
            print(f"{held:,} of 100,001 messages waited for 29 s: 0 are missing; gaps {await gaps(lift, 's')}")
            assert held > 50_000
            assert (await gaps(lift, "s"), node.ingest.reconnects) == ([], 0)
    finally:
        await asyncio.to_thread(server.stop)


async def has_all(lift, count):
    return (await lift.stream_info("s")).messages >= count


MIB = 1 << 20


@pytest.mark.slow
async def test_large_messages_that_nats_does_not_hold(tmp_path, monkeypatch, caplog):
    """Six of 60 MiB, of which the server's own settings let it hold one: it says so beforehand, and afterwards."""
    monitoring = free_port()
    monkeypatch.setattr("liftpy_server.nats.monitoring._PORT", monitoring)
    config = f"listen: 127.0.0.1:4222\nhttp: 127.0.0.1:{monitoring}\nmax_payload: {60 * MIB}\n"
    server = await asyncio.to_thread(make_nats, tmp_path / "nats", config=config)
    try:
        async with running_node(server.url, tmp_path / "node"), liftpy.connect(server.url, timeout_s=30) as lift:
            await eventually(lambda: "it holds 64 MiB for this node at most (max_pending)" in caplog.text)
            assert "let it hold 480 MiB or more" in caplog.text
            await lift.create_stream("s", subject="s", message_bytes_max=64 * MIB)
            sent = []
            async with await RawNats.open(server.port) as raw:
                for number in range(6):
                    began_ns = time.time_ns()
                    raw.write(pub(b"s", b"%d" % number + bytes(60 * MIB - 1)))
                    await raw.flush(120)
                    sent.append((began_ns, time.time_ns()))

                async def last_is_stored():
                    raw.write(pub(b"s", b"end"))
                    return (await values(lift, "s"))[-1:] == [b"end"]

                await eventually(last_is_stored, 120)
            stored = {int(value[:1]) for value in await values(lift, "s") if value != b"end"}
            known = await gaps(lift, "s")
            print(f"{len(stored)} of 6 are stored; {[gap['cause'] for gap in known]}")
            for number in {*range(6)} - stored:
                began_ns, ended_ns = sent[number]
                assert any(gap["since_ns"] <= ended_ns and began_ns <= gap["until_ns"] for gap in known), number
            assert len(stored) < 6, "the server held all of them, so this shows nothing"
            assert any("as it does with slow consumers" in gap["cause"] for gap in known)  # where it can be known
    finally:
        await asyncio.to_thread(server.stop)
