"""`GroupConsumer.atomically` against a real node: outputs once, after resets and without a dedupe window."""

from __future__ import annotations

import asyncio

import pytest

import liftpy
from liftpy_client.group.options import GroupOptions
from support.cluster import quick_options
from support.group_kit import fill

COUNT = 12


@pytest.fixture
def lift(shared_lift):
    return shared_lift


async def streams(lift, name):
    await lift.create_stream(name, subject=f"{name}.>", partitions=2)
    await fill(lift, name, COUNT)
    await lift.create_stream(f"{name}-a", subject=f"a.{name}.>", partitions=3, dedupe_window_s=0)
    await lift.create_stream(f"{name}-b", subject=f"b.{name}", dedupe_window_s=0)


def consumer(lift, name):
    options = GroupOptions(session_timeout_s=20.0, commit_interval_s=None)
    return lift.consume(name, group=name, options=quick_options(), group_options=options)


async def handle_all(lift, name, *, run="", fail_at=None):
    async with consumer(lift, name) as reader:
        for number in range(COUNT):
            message = await reader.next(20.0)
            assert message is not None
            async with reader.atomically(message, run=run) as outputs:
                for subject in ("x", "y", "x"):
                    outputs.publish(f"a.{name}.{subject}", message.value, key=message.key, headers={"S": subject})
                outputs.publish(f"b.{name}", message.value)
                if number == fail_at:
                    raise KeyError("not this time")


async def stored(lift, stream):
    return [message.value async for message in lift.consume(stream, stop="latest")]


async def test_outputs_are_stored_once_however_often_a_message_is_handled(lift, name):
    await streams(lift, name)
    with pytest.raises(KeyError):
        await handle_all(lift, name, fail_at=5)
    assert len(await stored(lift, f"{name}-b")) == 5, "what is left by an exception sends nothing"
    for _ in range(2):  # nothing is ever committed
        await handle_all(lift, name)
        assert sorted(await stored(lift, f"{name}-b")) == sorted(b"%d" % number for number in range(COUNT))
        assert len(await stored(lift, f"{name}-a")) == 3 * COUNT
    await handle_all(lift, name, run="again")
    assert len(await stored(lift, f"{name}-b")) == 2 * COUNT


async def test_a_transaction_is_of_the_message_that_was_delivered_last(lift, name):
    await streams(lift, name)
    async with consumer(lift, name) as reader:
        first = await reader.next(20.0)
        async with reader.atomically(first) as outputs:
            with pytest.raises(liftpy.UsageError, match="another transaction"):
                await reader.atomically(first).__aenter__()
            with pytest.raises(liftpy.UsageError, match="must be bytes"):
                outputs.publish(f"b.{name}", "text")
        with pytest.raises(liftpy.UsageError, match="is over"):
            outputs.publish(f"b.{name}", b"late")
        second = await reader.next(20.0)
        with pytest.raises(liftpy.UsageError, match="delivered last"):
            await reader.atomically(first).__aenter__()
        block = reader.atomically(second)
        outputs = await block.__aenter__()
        outputs.publish("nobody.stores.this", b"v")
        outputs.publish(f"b.{name}", b"v")
        with pytest.raises(liftpy.NoStreamError):
            await block.__aexit__(None, None, None)
    assert await stored(lift, f"{name}-b") == []


async def test_process_with_a_plain_function(lift, name):
    await streams(lift, name)
    stop, left = asyncio.Event(), asyncio.get_running_loop()

    def handle(message, outputs):
        outputs.publish(f"b.{name}", message.value)
        if message.value == b"3":
            raise ValueError("never")
        if message.value == b"%d" % (COUNT - 1):
            left.call_soon_threadsafe(left.call_later, 0.3, stop.set)

    async with asyncio.timeout(60):
        await lift.process(
            *(name, handle), group=name, atomic=True, concurrency=4, dead_letter=f"a.{name}.dead", stop=stop,
            options=quick_options(), group_options=GroupOptions(session_timeout_s=20.0, commit_interval_s=0.1),
        )  # fmt: skip
    wanted = sorted(b"%d" % number for number in range(COUNT) if number != 3)
    assert sorted(await stored(lift, f"{name}-b")) == wanted
    assert await stored(lift, f"{name}-a") == [b"3"]


async def test_the_synchronous_client(lift, shared_nats, name):
    await streams(lift, name)

    def work():
        with liftpy.connect_sync(shared_nats.url) as sync:
            options = GroupOptions(session_timeout_s=20.0, commit_interval_s=None)
            with sync.consume(name, group=name, options=quick_options(), group_options=options) as reader:
                message = reader.poll(20.0)
                with pytest.raises(KeyError), reader.atomically(message) as outputs:
                    outputs.publish(f"b.{name}", {}["not sent"])
                for _ in range(2):
                    with reader.atomically(message) as outputs:
                        outputs.publish(f"b.{name}", b"sent")

    await asyncio.to_thread(work)
    assert await stored(lift, f"{name}-b") == [b"sent"]
