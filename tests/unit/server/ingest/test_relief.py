"""A node that stopped reading from NATS goes on when the reason is gone, whoever notices."""

from __future__ import annotations

import asyncio

import pytest

from liftpy_client.nats_options import NatsOptions
from liftpy_server.ingest.connection import IngestConnection
from liftpy_server.outbox import Outbox
from support.server_kit import SetClock


class Protocol:
    """What reads from the server, or does not."""

    is_reading = True

    def pause(self) -> None:
        self.is_reading = False

    def resume(self) -> None:
        self.is_reading = True


@pytest.mark.parametrize("rounds", [1, 3])
async def test_reading_goes_on_without_a_commit_or_a_sync(rounds):
    overloaded = [True] * (1 + rounds)
    ingest = IngestConnection(
        NatsOptions(),
        "test",
        SetClock(),
        Outbox(lambda _: True),
        lambda: bool(overloaded) and overloaded.pop(),
        lambda _: None,
    )
    protocol = Protocol()
    ingest.connected(protocol)
    ingest.receive(b"")
    assert not protocol.is_reading
    async with asyncio.timeout(30):
        while not protocol.is_reading:
            await asyncio.sleep(0.01)
    assert not overloaded
    await ingest.stop()
