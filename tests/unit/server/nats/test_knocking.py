"""A server that has ended is told from one that can not be reached."""

from __future__ import annotations

import socket

import pytest

from liftpy_server.nats import knocking
from liftpy_server.nats.server_pool import ServerAddress
from support.ports import free_port
from support.scripted_nats import ScriptedNats


async def test_a_port_that_refuses_has_no_server():
    async with ScriptedNats() as nats:
        ended = f"127.0.0.1:{free_port()}"
        assert await knocking.nobody_listens([ended])
        assert not await knocking.nobody_listens([nats.place])
        assert not await knocking.nobody_listens([ended, nats.place])


async def test_a_host_that_says_nothing_may_have_one(monkeypatch):
    monkeypatch.setattr(knocking, "KNOCK_TIMEOUT_S", 0.1)
    with socket.socket() as full:  # the second connection waits for its turn, and nobody answers it
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        place = f"127.0.0.1:{full.getsockname()[1]}"
        others = [socket.socket() for _ in range(3)]
        for other in others:
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        assert not await knocking.nobody_listens([place])
        assert await knocking.nobody_listens([place, f"127.0.0.1:{free_port()}"]), "the host says that none is there"
        for other in others:
            other.close()


@pytest.mark.parametrize(("host", "is_ours"), [("127.0.0.1", True), ("192.0.2.7", False), ("nats-1", False)])
def test_addresses_of_this_host(host, is_ours):
    assert knocking._is_ours(knocking.ServerAddress.parse(f"{host}:4222")) is is_ours


def test_an_address_is_not_ours_while_no_socket_can_be_opened(monkeypatch):
    def refuse(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(knocking.socket, "socket", refuse)
    assert not knocking._is_ours(ServerAddress.parse("127.0.0.1:4222"))
