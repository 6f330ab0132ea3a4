"""The prefetch buffer: bounded, in order, and it ends in every way it may."""

from __future__ import annotations

import asyncio

import pytest

from liftpy_client.consumer.positions import Position
from liftpy_client.consumer.prefetch import Fetched, PrefetchBuffer
from liftpy_envelope.pull import PartitionKey


def item(number, size=1_000, position=None):
    return Fetched(PartitionKey(bytes(16), number), position or Position(0, None), [], 1, 1, 0, size)


async def test_in_order_and_then_the_end():
    buffer = PrefetchBuffer(10_000)
    for number in range(3):
        buffer.put(item(number))
    buffer.finish()
    assert [(await buffer.take()).partition for _ in range(3)] == [0, 1, 2]
    assert await buffer.take() is None
    assert await buffer.take() is None


async def test_an_error_comes_after_what_was_fetched():
    buffer = PrefetchBuffer(10_000)
    buffer.put(item(1))
    buffer.finish(LookupError("broken"))
    assert (await buffer.take()).partition == 1
    with pytest.raises(LookupError):
        await buffer.take()


async def test_room_follows_the_bytes():
    buffer = PrefetchBuffer(2_000)
    buffer.put(item(0, 1_900))
    assert buffer.has_room
    buffer.put(item(1, 5_000))
    assert not buffer.has_room
    waiting = asyncio.ensure_future(buffer.wait_for_room())
    await buffer.take()
    assert not buffer.has_room
    await buffer.take()
    await asyncio.wait_for(waiting, 10)


async def test_taking_waits_for_data():
    buffer = PrefetchBuffer(2_000)
    taking = asyncio.ensure_future(buffer.take())
    await asyncio.sleep(0)
    assert not taking.done()
    buffer.put(item(7))
    assert (await asyncio.wait_for(taking, 10)).partition == 7


async def test_closing_drops_what_waits_and_wakes_the_taker():
    buffer = PrefetchBuffer(2_000)
    taking = asyncio.ensure_future(buffer.take())
    await asyncio.sleep(0)
    buffer.close()
    assert await asyncio.wait_for(taking, 10) is None
    buffer.finish(LookupError("too late to matter"))
    assert await buffer.take() is None


async def test_what_was_fetched_for_a_position_that_moved_is_dropped_and_makes_room():
    buffer = PrefetchBuffer(2_000)
    moved = Position(0, None)
    for number, position in enumerate([moved, None, moved]):
        buffer.put(item(number, 1_000, position))
    assert not buffer.has_room
    buffer.drop(moved)
    assert buffer.has_room
    assert (await buffer.take()).partition == 1
    buffer.finish()
    assert await buffer.take() is None


async def test_the_end_comes_when_all_sources_are_finished():
    buffer = PrefetchBuffer(2_000)
    buffer.add_source()
    buffer.add_source()
    taking = asyncio.ensure_future(buffer.take())
    buffer.finish()
    await asyncio.sleep(0)
    assert not taking.done()
    buffer.finish()
    buffer.add_source()
    await asyncio.sleep(0)
    assert not taking.done()
    buffer.finish()
    assert await asyncio.wait_for(taking, 10) is None


async def test_the_error_of_one_source_is_the_end_of_all():
    buffer = PrefetchBuffer(2_000)
    buffer.add_source()
    buffer.add_source()
    buffer.finish(LookupError("broken"))
    buffer.add_source()
    with pytest.raises(LookupError):
        await buffer.take()


async def test_an_error_that_was_told_can_be_over_and_one_that_was_not_is_told_first():
    buffer = PrefetchBuffer(10_000)
    buffer.add_source()
    buffer.finish(LookupError("broken"))
    buffer.go_on()
    with pytest.raises(LookupError):
        await buffer.take()
    buffer.go_on()
    assert await buffer.take() is None, "nothing brings more"


async def test_items_without_batches_use_room_too():
    buffer = PrefetchBuffer(2_000)
    for number in range(4):
        buffer.put(item(number, 0))
    assert not buffer.has_room


def test_many_readers_share_the_budget():
    buffer = PrefetchBuffer(16 * 1024 * 1024)
    assert buffer.fetch_bytes(4 * 1024 * 1024) == 4 * 1024 * 1024
    buffer.readers = 32
    assert buffer.fetch_bytes(4 * 1024 * 1024) == 512 * 1024
    buffer.readers = 10_000
    assert buffer.fetch_bytes(4 * 1024 * 1024) == 64 * 1024
