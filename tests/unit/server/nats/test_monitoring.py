"""What a server's monitoring port tells, and what there is instead of an answer."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from liftpy_server.nats.monitoring import MonitoringError, SlowConsumerLimits, ask_limits
from support.ports import free_port

TOLD = {"server_id": "S", "max_pending": 64 << 20, "write_deadline": 10_000_000_000}


@asynccontextmanager
async def answering(monkeypatch, answer, *, ends=True):
    """A server that gives everybody the same answer."""

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        if ends:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        monkeypatch.setattr("liftpy_server.nats.monitoring._PORT", server.sockets[0].getsockname()[1])
        yield SimpleNamespace(address=SimpleNamespace(host="127.0.0.1"), info={"server_id": "S"})


def http(body, status=b"200 OK"):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"HTTP/1.0 %b\r\nContent-Type: application/json\r\n\r\n%b" % (status, content)


async def test_it_tells(monkeypatch):
    async with answering(monkeypatch, http(TOLD)) as connection:
        assert await ask_limits(connection) == SlowConsumerLimits(64 << 20, 10.0)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (http(TOLD | {"server_id": "T"}), "another server"),
        (http({"server_id": "S"}), "neither max_pending nor write_deadline"),
        (http(TOLD, b"404 Not Found"), "404 Not Found"),
        (http([]), "something else"),
        (http(b"{"), "varz: "),
        (http(b" " * (1 << 21)), "no end"),
        (b"-ERR 'Unknown Protocol Operation'\r\n", "it answers b"),
        (b"", "it answers b''"),
    ],
)
async def test_what_is_no_answer_of_the_server(monkeypatch, answer, why):
    async with answering(monkeypatch, answer) as connection:
        with pytest.raises(MonitoringError, match=why):
            await ask_limits(connection)


async def test_a_port_that_says_nothing(monkeypatch):
    monkeypatch.setattr("liftpy_server.nats.monitoring._TIMEOUT_S", 0.05)
    async with answering(monkeypatch, b"HTTP", ends=False) as connection:
        with pytest.raises(MonitoringError, match="does not answer"):
            await ask_limits(connection)
        monkeypatch.setattr("liftpy_server.nats.monitoring._PORT", free_port())
        monkeypatch.setattr("liftpy_server.nats.monitoring._TIMEOUT_S", 10.0)
        with pytest.raises(MonitoringError, match="http://127"):
            await ask_limits(connection)
