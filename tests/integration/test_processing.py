"""`process` against a real node: dead letters in a stream, batches, threads, the synchronous client, and SIGTERM."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

import liftpy
from liftpy_client.group.options import GroupOptions
from support.cli import Cli
from support.cluster import eventually, quick_options
from support.group_kit import fill

QUICK = {
    "options": quick_options(),
    "group_options": GroupOptions(session_timeout_s=20.0, commit_interval_s=0.1),
}


@pytest.fixture
def lift(shared_lift):
    return shared_lift


async def make(lift, name, partitions=4, count=60):
    await lift.create_stream(name, subject=f"{name}.>", partitions=partitions)
    await fill(lift, name, count)


async def is_committed(lift, name, group):
    details = await lift.stream_info(name)
    ends = {number: part.high_watermark for number, part in enumerate(details.partitions) if part.high_watermark}
    return {number: row.offset for number, row in (await lift.committed(group, name)).items() if row.offset} == ends


async def test_dead_letters_are_in_their_stream_before_the_offset_is_committed(lift, name):
    await make(lift, name)
    await lift.create_stream(f"{name}-dlq", subject=f"dead.{name}")
    handled, stop = [], asyncio.Event()

    async def handle(message):
        if message.value in {b"7", b"41"}:
            raise KeyError("unknown customer")
        handled.append(message.value)

    retry = liftpy.Retry(3, (0.0, 0.01))
    work = asyncio.create_task(
        lift.process(name, handle, group=name, retry=retry, dead_letter=f"dead.{name}", stop=stop, **QUICK)
    )
    await eventually(lambda: is_committed(lift, name, name))
    stop.set()
    await work
    letters = [message async for message in lift.consume(f"{name}-dlq", stop="latest")]
    assert {message.value for message in letters} == {b"7", b"41"}
    assert len(letters) == 2
    assert {message.headers["Dead-Letter-Cause"] for message in letters} == {"KeyError: 'unknown customer'"}
    assert {message.headers["Dead-Letter-Attempts"] for message in letters} == {"3"}
    assert {message.headers["Dead-Letter-Stream"] for message in letters} == {name}
    assert len(handled) == len(set(handled)) == 58


async def test_dead_letters_are_replayed(lift, shared_nats, name, tmp_path):
    await make(lift, name, partitions=2, count=6)
    await lift.create_stream(f"{name}-dlq", subject=f"dead.{name}")
    handled, stop, is_mended = [], asyncio.Event(), False

    async def handle(message):
        if message.value in {b"2", b"5"} and not is_mended:
            raise ValueError("not yet")
        handled.append((message.key, message.value, dict(message.headers)))

    work = asyncio.create_task(lift.process(name, handle, group=name, dead_letter=f"dead.{name}", stop=stop, **QUICK))
    await eventually(lambda: is_committed(lift, name, name))
    cli = Cli(shared_nats.url, tmp_path)
    command = ("replay-dlq", f"{name}-dlq")
    shown = await asyncio.to_thread(cli.lines, *command, "--dry-run")
    assert {(row["subject"], row["offset"], row["cause"]) for row in shown} == {
        (f"{name}.x", None, "ValueError: not yet")
    }
    assert await asyncio.to_thread(cli.lines, *command, "--group", "another") == []
    letters = await asyncio.to_thread(cli.lines, "consume", f"{name}-dlq", "--dead-letter", "--stop", "latest")
    assert {(row["dead_letter"]["stream"], row["dead_letter"]["group"]) for row in letters} == {(name, name)}
    assert len(handled) == 4
    is_mended = True
    assert len(await asyncio.to_thread(cli.lines, *command)) == 2
    await eventually(lambda: len(handled) == 6)
    assert await asyncio.to_thread(cli.lines, *command) == [], "the position is stored"
    assert len(await asyncio.to_thread(cli.lines, *command, "--group", name, "--dry-run")) == 2, "one of its own"
    stop.set()
    await work
    assert {value for _, value, _ in handled} == {b"%d" % number for number in range(6)}
    assert all("Dead-Letter-Cause" not in headers for _, _, headers in handled)


async def test_it_ends_with_the_connection(lift, shared_nats, name):
    await make(lift, name)
    handled = []

    async def handle(message):
        await asyncio.sleep(0.01)
        handled.append(message.value)

    async with liftpy.connect(shared_nats.url) as another:
        work = asyncio.create_task(another.process(name, handle, group=name, **QUICK))
        await eventually(lambda: handled)
    assert work.done(), "it has committed and left before the connection is closed"
    await work
    assert sum(row.offset for row in (await lift.committed(name, name)).values()) == len(handled)


async def test_streams_by_pattern_also_those_that_are_created_later(lift, name, monkeypatch):
    monkeypatch.setattr("liftpy_client.group.membership._LOOK_S", 0.2)
    handled, consumed, stop = [], [], asyncio.Event()

    async def handle(message):
        handled.append((message.stream, message.value))

    async def consume():
        async for message in lift.consume(f"{name}-*", group=f"{name}-2", options=quick_options()):
            consumed.append((message.stream, message.value))  # noqa: PERF401 - it never ends

    work = asyncio.create_task(lift.process(f"{name}-*", handle, group=name, stop=stop, **QUICK))
    consuming = asyncio.create_task(consume())
    for number, suffix in enumerate(("a", "b")):
        stream = f"{name}-{suffix}"
        await lift.create_stream(stream, subject=f"{stream}.>", partitions=2)
        await fill(lift, stream, 10)
        await eventually(lambda: len(handled) == len(consumed) == 10 * (number + 1))  # noqa: B023 - awaited at once
    stop.set()
    await work
    consuming.cancel()
    await asyncio.wait({consuming})
    assert len(set(handled)) == len(set(consumed)) == 20


async def test_dead_letters_need_a_stream(lift, name):
    await make(lift, name)
    with pytest.raises(liftpy.NoStreamError, match=r"no stream stores 'dead\.nowhere'"):
        await lift.process(name, print, group=name, dead_letter="dead.nowhere")


async def test_batches(lift, name):
    await make(lift, name)
    rows, stop = [], asyncio.Event()

    def handle(batch):
        assert batch.num_rows <= 10
        rows.extend(batch["value"].to_pylist())

    work = asyncio.create_task(
        lift.process(name, handle, group=name, batch=liftpy.Batch(rows=10, wait_s=0.05), stop=stop, **QUICK)
    )
    await eventually(lambda: is_committed(lift, name, name))
    stop.set()
    await work
    assert sorted(rows, key=int) == [b"%d" % number for number in range(60)]


def test_the_synchronous_client_is_stopped_by_sigterm(shared_nats, shared_node, name):
    handled = []

    def handle(message):
        handled.append(message.value)
        if len(handled) == 60:
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()

    with liftpy.connect_sync(shared_nats.url) as lift:
        lift.create_stream(name, subject=f"{name}.>", partitions=2)
        for number in range(60):
            lift.publish(f"{name}.x", b"%d" % number, key=b"%d" % (number % 9))
        lift.process(name, handle, group=name, **QUICK)
        assert sorted(handled, key=int) == [b"%d" % number for number in range(60)]
        assert sum(row.offset for row in lift.committed(name, name).values()) == 60
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_the_synchronous_client_is_stopped_by_ctrl_c(shared_nats, shared_node, name):
    handled = []

    def handle(message):
        handled.append(message.value)
        os.kill(os.getpid(), signal.SIGINT)

    with liftpy.connect_sync(shared_nats.url) as lift:
        lift.create_stream(name, subject=f"{name}.>")
        lift.publish(f"{name}.x", b"1")
        with pytest.raises(KeyboardInterrupt):
            lift.process(name, handle, group=name, **QUICK)
        assert lift.committed(name, name)[0].offset == len(handled) == 1
