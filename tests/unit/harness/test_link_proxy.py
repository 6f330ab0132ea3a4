"""The proxy between nodes: what it holds back, slows down and drops."""

from __future__ import annotations

import asyncio

import pytest

from support.link_proxy import LinkProxy

PATIENCE_S = 0.2


async def echo(reader, writer):
    while data := await reader.read(1_000):
        writer.write(data.upper())
        await writer.drain()
    writer.close()


@pytest.fixture
async def place():
    """Where `b` is said to be, and the proxy in between; everything that connects is `a`."""
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    proxy = LinkProxy(lambda _port: "a")
    proxy.start()
    try:
        proxy.listen("b", ("127.0.0.1", 0), server.sockets[0].getsockname())
        yield proxy, proxy._servers[0].sockets[0].getsockname()
    finally:
        proxy.stop()
        server.close()


@pytest.fixture
async def link(place):
    proxy, address = place
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"hello")
    assert await reader.read(100) == b"HELLO"
    yield proxy, reader, writer
    writer.close()


@pytest.mark.parametrize("way", [("a", "b"), ("b", "a")])
async def test_what_is_held_back_comes_when_the_way_is_mended(link, way):
    proxy, reader, writer = link
    proxy.cut(*way)
    writer.write(b"later")
    answer = asyncio.ensure_future(reader.read(100))
    assert await asyncio.wait({answer}, timeout=PATIENCE_S) == (set(), {answer})
    proxy.mend()
    assert await asyncio.wait_for(answer, 5) == b"LATER"


async def test_other_ways_stay_open(link):
    proxy, reader, writer = link
    proxy.cut("c", "b")
    proxy.cut("b", "c")
    writer.write(b"still")
    assert await asyncio.wait_for(reader.read(100), 5) == b"STILL"


@pytest.mark.parametrize("way", [("a", "b"), ("b", "a")])
async def test_nobody_connects_over_a_way_that_is_cut(place, way):
    proxy, address = place
    proxy.cut(*way)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"hello")
    answer = asyncio.ensure_future(reader.read(100))
    assert await asyncio.wait({answer}, timeout=PATIENCE_S) == (set(), {answer})
    proxy.mend()
    assert await asyncio.wait_for(answer, 5) == b"HELLO"
    writer.close()


async def test_a_delay(link):
    proxy, reader, writer = link
    proxy.delay("b", "a", PATIENCE_S)
    began_s = asyncio.get_running_loop().time()
    writer.write(b"slow")
    assert await asyncio.wait_for(reader.read(100), 5) == b"SLOW"
    assert asyncio.get_running_loop().time() - began_s >= PATIENCE_S


async def test_connections_are_dropped(link):
    proxy, reader, _ = link
    assert proxy.drop("b", "c") == 0
    assert proxy.drop("a", "b") == 1
    assert await asyncio.wait_for(reader.read(100), 5) == b""
