"""The prefetch buffer: bounded, in order, and it ends in every way it may."""

from __future__ import annotations

import asyncio

import pytest

from liftpy_client.prefetch import Fetched, PrefetchBuffer


def item(number, size=10):
    return Fetched(number, [], size)


async def test_in_order_and_then_the_end():
    buffer = PrefetchBuffer(100)
    for number in range(3):
        buffer.put(item(number))
    buffer.finish()
    assert [(await buffer.take()).partition for _ in range(3)] == [0, 1, 2]
    assert await buffer.take() is None
    assert await buffer.take() is None


async def test_an_error_comes_after_what_was_fetched():
    buffer = PrefetchBuffer(100)
    buffer.put(item(1))
    buffer.finish(LookupError("broken"))
    assert (await buffer.take()).partition == 1
    with pytest.raises(LookupError):
        await buffer.take()


async def test_room_follows_the_bytes():
    buffer = PrefetchBuffer(20)
    buffer.put(item(0, 19))
    assert buffer.has_room
    buffer.put(item(1, 50))
    assert not buffer.has_room
    waiting = asyncio.ensure_future(buffer.wait_for_room())
    await buffer.take()
    assert not buffer.has_room
    await buffer.take()
    await asyncio.wait_for(waiting, 10)


async def test_taking_waits_for_data():
    buffer = PrefetchBuffer(20)
    taking = asyncio.ensure_future(buffer.take())
    await asyncio.sleep(0)
    assert not taking.done()
    buffer.put(item(7))
    assert (await asyncio.wait_for(taking, 10)).partition == 7


async def test_closing_drops_what_waits_and_wakes_the_taker():
    buffer = PrefetchBuffer(20)
    taking = asyncio.ensure_future(buffer.take())
    await asyncio.sleep(0)
    buffer.close()
    assert await asyncio.wait_for(taking, 10) is None
    buffer.finish(LookupError("too late to matter"))
    assert await buffer.take() is None
