"""A node that stopped reading from NATS goes on when the reason is gone, whoever notices."""

from __future__ import annotations

import asyncio

import pytest

from liftpy_client.connection.nats_options import NatsOptions
from liftpy_log.clock import SystemClock
from liftpy_server.ingest.connection import IngestConnection
from liftpy_server.partition.outbox import Outbox
from support.scripted_nats import ScriptedNats


@pytest.mark.parametrize("rounds", [1, 3])
async def test_reading_goes_on_without_a_commit_or_a_sync(rounds):
    overloaded = []
    async with ScriptedNats() as nats:
        ingest = IngestConnection(
            NatsOptions(url=nats.url),
            "test",
            SystemClock(),
            Outbox(lambda _: True),
            lambda: bool(overloaded) and overloaded.pop(),
            lambda _: None,
        )
        await ingest.start([])
        client = await nats.client(0)
        overloaded += [True] * (1 + rounds)
        client.send(b"PING\r\n")
        await nats.until(lambda: b"PONG" in client.lines)
        transport = ingest._current.connection._transport
        assert not transport.is_reading()
        async with asyncio.timeout(30):
            while not transport.is_reading():
                await asyncio.sleep(0.01)
        assert not overloaded
        await ingest.stop()
