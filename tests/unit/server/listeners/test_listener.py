"""A listener stays open for those who are awaited, however many others stand in it."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl

import psutil
import pytest
import trustme

from liftpy_server.listeners.listener import Listener
from liftpy_server.listeners.refusals import ListenerRefusals

FRIEND, STRANGER, OTHER_STRANGER = "127.0.0.2", "127.0.0.3", "127.0.0.4"


class Welcoming:
    """A listener whose peers are admitted when they say so, and are told that they were."""

    def __init__(self, **given):
        self.refusals = ListenerRefusals()
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.port = self.sock.getsockname()[1]
        self.listener = Listener(
            "pull", self.sock, self.refusals, **{"strangers_max": 8, "per_address_max": 4, **given}
        )

    async def serve(self, reader, writer):
        await reader.readexactly(1)
        self.listener.admit()
        writer.write(b"!")
        await reader.read()

    async def knock(self, host=STRANGER):
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(host, 0))

    async def enter(self, host=FRIEND):
        reader, writer = await self.knock(host)
        writer.write(b"?")
        async with asyncio.timeout(5):
            assert await reader.readexactly(1) == b"!"
        return reader, writer


@pytest.fixture
async def welcoming():
    made = Welcoming()
    made.listener.start(made.serve)
    yield made
    await made.listener.stop()


async def is_closed(reader, timeout_s=5.0):
    async with asyncio.timeout(timeout_s):
        try:
            return await reader.read(1) == b""
        except ConnectionError:
            return True


async def test_the_oldest_stranger_of_an_address_goes_for_a_newer_one(welcoming):
    friend = await welcoming.enter()
    crowd = [await welcoming.knock() for _ in range(10)]
    for reader, _ in crowd[:6]:
        assert await is_closed(reader)
    assert welcoming.listener.count == 5
    assert welcoming.refusals.busy["pull"] == 6
    await welcoming.enter(STRANGER)  # who comes from the same address is served as well, when it says at once who it is
    friend[1].write(b"more")
    with pytest.raises(TimeoutError):
        await is_closed(friend[0], 0.05)


async def test_strangers_of_many_addresses(welcoming):
    crowd = [await welcoming.knock(f"127.0.1.{number}") for number in range(1, 13)]
    for reader, _ in crowd[:4]:
        assert await is_closed(reader)
    assert welcoming.listener.count == 8
    await welcoming.enter()


async def test_strangers_do_not_count_when_they_are_gone(welcoming):
    for _ in range(20):
        _, writer = await welcoming.knock()
        writer.close()
        await writer.wait_closed()
    await welcoming.enter()
    assert welcoming.refusals.busy["pull"] <= 16


async def test_it_opens_again_when_files_can_be_opened_again(welcoming, monkeypatch, caplog):
    """The oldest stranger goes for that; nothing is said again and again."""
    idle, _ = await welcoming.knock()
    accept, left = socket.socket.accept, [3]

    def refuse(sock):
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(sock)

    monkeypatch.setattr(socket.socket, "accept", refuse)
    await welcoming.enter()
    assert await is_closed(idle)
    assert left == [0]
    assert welcoming.refusals.busy["pull"] == 3
    assert caplog.text.count("Too many open files") == 1


async def test_strangers_are_counted_before_tls_begins():
    """Whoever does not even shake hands held a descriptor for as long as it took to lose patience."""
    authority, server = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    welcoming = Welcoming(tls=server, handshake_timeout_s=30.0)
    welcoming.listener.start(welcoming.serve)
    crowd = [await welcoming.knock() for _ in range(10)]
    for reader, _ in crowd[:6]:
        assert await is_closed(reader)
    assert welcoming.listener.count == 4
    _, garbage = crowd[9]
    garbage.write(b"GET / HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(5):
        await crowd[9][0].read()
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", welcoming.port, local_addr=(FRIEND, 0), ssl=client, server_hostname="localhost"
    )
    writer.write(b"?")
    assert await reader.readexactly(1) == b"!"
    assert welcoming.refusals.malformed["pull"] == 1
    writer.close()
    await welcoming.listener.stop()


async def test_all_are_closed_when_it_stops(welcoming):
    peers = [await welcoming.enter(), await welcoming.knock()]
    await welcoming.listener.stop()
    for reader, _ in peers:
        assert await is_closed(reader)
    with pytest.raises(ConnectionError):
        await welcoming.knock()


async def test_a_peer_that_is_sent_away_before_it_was_served_leaves_no_socket(welcoming):
    """Both come in one pass of the event loop."""
    before = open_sockets()
    crowd = [socket.create_connection(("127.0.0.1", welcoming.port), source_address=(STRANGER, 0)) for _ in range(30)]
    await welcoming.enter()
    assert open_sockets() <= before + len(crowd) + 4 + 2
    for sock in crowd:
        sock.close()


def open_sockets():
    return len(psutil.Process().net_connections("tcp"))
