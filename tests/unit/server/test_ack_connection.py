"""Acks are written to a connection that may be gone before anybody is told so."""

from __future__ import annotations

import asyncio

import pytest

from liftpy_envelope.settings import parse_settings
from liftpy_server.ack_connection import AckConnection
from liftpy_server.config import NatsOptions


@pytest.fixture
async def server():
    async with await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0) as server:
        yield server


async def test_a_closed_transport_takes_no_acks(server):
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    acks = AckConnection(parse_settings(NatsOptions, {}), "acks")
    assert not acks.write(b"PUB a 0\r\n\r\n"), "it is not connected"
    acks._below = writer.transport
    assert acks.write(b"PUB a 0\r\n\r\n")
    assert not acks.is_congested
    writer.transport.abort()
    for _ in range(3):
        assert not acks.write(b"PUB a 0\r\n\r\n")
        assert not acks.is_congested
        await asyncio.sleep(0)
