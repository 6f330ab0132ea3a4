"""Acks are written to a connection that may be gone before anybody is told so."""

from __future__ import annotations

import asyncio

from liftpy_client.connection.nats_options import NatsOptions
from liftpy_log.clock import SystemClock
from liftpy_server.nats.ack_connection import AckConnection
from support.scripted_nats import ScriptedNats

FRAME = b"PUB a 0\r\n\r\n"


async def test_a_closed_transport_takes_no_acks():
    async with ScriptedNats() as nats:
        acks = AckConnection(NatsOptions(url=nats.url), "acks", SystemClock())
        assert not acks.write(FRAME), "it is not connected"
        await acks.start()
        assert acks.write(FRAME)
        assert not acks.is_congested
        client = await nats.client(0)
        acks._open._transport.abort()  # before anybody is told
        for _ in range(3):
            assert not acks.write(FRAME)
            assert not acks.is_congested
            await asyncio.sleep(0)
        assert await nats.client(1) is not client
        await nats.until(lambda: acks.write(FRAME))
        await acks.stop()


async def test_the_last_acks_are_taken_before_the_connection_closes():
    async with ScriptedNats() as nats:
        acks = AckConnection(NatsOptions(url=nats.url), "acks", SystemClock())
        await acks.start()
        for _ in range(1_000):
            acks.write(FRAME)
        await acks.stop()
        client = await nats.client(0)
        assert client.lines.count(b"PUB a 0") == 1_000


async def test_a_server_that_takes_nothing_holds_no_node_up(monkeypatch):
    monkeypatch.setattr("liftpy_server.nats.ack_connection.ACKS_TAKEN_TIMEOUT_S", 0.05)
    async with ScriptedNats() as nats:
        acks = AckConnection(NatsOptions(url=nats.url), "acks", SystemClock())
        await acks.start()
        nats.answers = False
        async with asyncio.timeout(2):
            await acks.stop()
