"""Connections of nodes over nats-py: what keeps others' floods small must not end a connection that keeps up."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext

import pytest
from nats.protocol.parser import Parser

from liftpy_client.connection.nats_options import NatsOptions
from liftpy_envelope.errors import LiftError
from liftpy_server.nats.link import NatsLink, check_nats_version
from support.scripted_nats import ScriptedNats

TICK_S = 0.02


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("liftpy_server.nats.link._WATCH_INTERVAL_S", TICK_S)
    monkeypatch.setattr("liftpy_server.nats.link._BEHIND_S_MAX", 5 * TICK_S)


@pytest.fixture
def stalls(monkeypatch):
    """Seconds for which the process stands still, when there are some left, while it takes a chunk apart."""
    stalls = []
    parse = Parser.parse

    async def slow_parse(parser, data=b""):
        if stalls and b"MSG" in data:
            time.sleep(stalls.pop())  # the whole process stands still
        await parse(parser, data)

    monkeypatch.setattr(Parser, "parse", slow_parse)
    return stalls


class Asked:
    """A bounded link with a subscription."""

    def __init__(self, nats):
        self.taken = 0
        self.link = NatsLink(NatsOptions(url=nats.url), "test", on_client=self._subscribe, is_bounded=True)

    async def _subscribe(self, client):
        await client.subscribe("ask", cb=self._take)
        await client.flush()

    async def _take(self, _message):
        self.taken += 1

    async def took(self, count):
        async with asyncio.timeout(30):
            while self.taken < count:
                await asyncio.sleep(TICK_S)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("stall_s", [TICK_S, 20 * TICK_S])
async def test_a_stall_while_little_is_asked_is_no_flood(stalls, stall_s):
    """A request that meets a busy machine, or a process that is stopped, and then nothing: the connection stays."""
    async with ScriptedNats() as nats:
        asked = Asked(nats)
        await asked.link.start()
        client = await nats.client(0)
        for number in range(1, 4):
            stalls.append(stall_s)
            client.message("ask", b"?")
            await asked.took(number)
            for _ in range(20):  # looks of the link at itself
                await asyncio.sleep(TICK_S)
        assert len(nats.clients) == 1
        assert asked.link.is_connected
        await asked.link.stop()


@pytest.mark.usefixtures("quick")
async def test_a_slow_machine_that_keeps_up_with_what_is_asked_keeps_its_connection(stalls):
    stalls += [0.003] * 100
    async with ScriptedNats() as nats:
        asked = Asked(nats)
        await asked.link.start()
        client = await nats.client(0)
        for _ in range(100):
            client.message("ask", b"?")
            await asyncio.sleep(TICK_S / 2)
        await asked.took(100)
        assert len(nats.clients) == 1
        await asked.link.stop()


@pytest.mark.usefixtures("quick")
async def test_a_flood_is_left_behind():
    async with ScriptedNats() as nats:
        asked = Asked(nats)
        await asked.link.start()
        client = await nats.client(0)
        async with asyncio.timeout(30):
            while len(nats.clients) == 1:
                for _ in range(2_000):
                    client.message("ask", bytes(100))
                await asyncio.sleep(TICK_S / 4)
        await asked.link.stop()


@pytest.mark.usefixtures("quick")
async def test_a_reader_that_ended_without_a_word_is_noticed(caplog):
    """nats-py stays connected then, and tells nobody: the link looks at a private name of its."""
    async with ScriptedNats() as nats:
        asked = Asked(nats)
        await asked.link.start()
        asked.link.client._reading_task.cancel()
        client = await nats.client(1)
        async with asyncio.timeout(30):
            while "ask" not in client.subscriptions:
                await asyncio.sleep(TICK_S)
        client.message("ask", b"x")
        await asked.took(1)
        assert "nats-py stopped reading; connecting again" in caplog.text
        await asked.link.stop()


@pytest.mark.parametrize(("found", "is_refused"), [("2.16.3", False), ("2.17.0", True), ("2.160.0", True)])
def test_a_nats_py_that_this_was_not_written_against_is_refused(monkeypatch, found, is_refused):
    monkeypatch.setattr("liftpy_server.nats.link.importlib.metadata.version", lambda _name: found)
    with pytest.raises(LiftError, match=f"nats-py {found} is installed") if is_refused else nullcontext():
        check_nats_version()
