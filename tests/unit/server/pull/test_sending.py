"""A peer that goes away while it is answered is no error of the node's, whatever the event loop calls it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from liftpy_server.pull.sending import ResponseSender


@pytest.fixture
async def sender():
    async with await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0) as server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        with ThreadPoolExecutor(1) as executor:
            sender = ResponseSender(writer, executor, 1.0)
            yield sender, writer
            sender.close()


async def test_nothing_is_sent_to_who_is_gone(sender):
    sender, writer = sender
    assert sender.send_now([b"small"], 5)
    writer.transport.abort()
    for _ in range(3):
        assert sender.is_clear
        assert sender.send_now([b"small"], 5)
        assert sender.send_now([bytes(100_000)] * 2, 200_000)
        with pytest.raises(ConnectionError):
            await sender.send(b"head")
        await asyncio.sleep(0)
