"""The node is killed in the middle of acknowledged publishing, again and again."""

from __future__ import annotations

import asyncio
import time

import pytest

import liftpy
from liftpy_envelope.events import EVENTS_STREAM
from support.acked import assert_stored_once, start_publishers
from support.cluster import NodeProcess, eventually
from support.reading import gaps, metric

KILLS = 3
PER_LIFE = 1_000  # messages acknowledged in each life of the node


async def acked_more(publishers, count):
    goal = sum(len(publisher.acked) for publisher in publishers) + count
    await eventually(lambda: sum(len(publisher.acked) for publisher in publishers) >= goal, 40)


@pytest.fixture
def node(nats_server, tmp_path):
    process = NodeProcess(nats_server.url, tmp_path / "node", "--http-port", "0").start()
    yield process
    process.stop()


@pytest.mark.parametrize(("sync", "streams"), [("always", 1), ("always", 6), ("interval", 1)])
async def test_every_acked_message_is_there_once(nats_server, node, sync, streams):
    """With six streams the rounds go through the write-ahead log, with one they do not."""
    names = [f"s{number}" for number in range(streams)]
    publishers = []
    async with liftpy.connect(nats_server.url) as lift:
        for name in names:
            await lift.create_stream(name, subject=name, sync=sync)
        try:
            publishers = start_publishers(nats_server.url, names, max(1, 4 // streams))
            for life in range(KILLS):
                await acked_more(publishers, PER_LIFE)
                await asyncio.to_thread(node.restart)
                for name in names:
                    (partition,) = (await lift.stream_info(name)).partitions
                    assert partition.leader_epoch == life + 2
            await acked_more(publishers, PER_LIFE)
            for publisher in publishers:
                await publisher.finish()
        finally:
            for publisher in publishers:
                await publisher.cancel()
        for name in names:
            await assert_stored_once(lift, name, [one for one in publishers if one._subject == name])
    assert "Traceback" not in node.log()


async def test_messages_sent_again_after_a_kill_are_known(lift, node):
    """The ids of stored messages are read back from the log."""
    await lift.create_stream("s", subject="s")
    acks = [await lift.publish("s", b"%d" % number, message_id=f"id-{number}") for number in range(200)]
    async with lift.publisher() as publisher:
        pending = [await publisher.publish("s", b"batched %d" % number) for number in range(100)]
        await publisher.flush()
        sequence = publisher._sequence
        await asyncio.to_thread(node.restart)
        publisher._sequence = 0
        again = [await publisher.publish("s", b"batched %d" % number) for number in range(100)]
        assert [(await ack).offset for ack in again] == [(await ack).offset for ack in pending]
        assert sequence >= 1
    for number, ack in enumerate(acks):
        resent = await lift.publish("s", b"%d" % number, message_id=f"id-{number}")
        assert (resent.offset, resent.duplicate) == (ack.offset, True)
    assert (await lift.stream_info("s")).messages == 300


async def _all_recorded(lift):
    """Whether the metadata know of all gaps: otherwise a kill makes one long gap of two."""
    return (await lift.node_info())["partitions_in_gap"] == 0


async def test_a_kill_is_a_gap_everywhere(lift, node):
    """In the stream's info with its time span and cause, in the metrics and in the log; every kill is one."""
    await lift.create_stream("s", subject="s")
    node.stop()
    await asyncio.to_thread(node.start)
    await eventually(lambda: _all_recorded(lift))
    for life in range(1, KILLS + 1):
        killed_ns = time.time_ns()
        node.kill()
        logged = len(node.log())
        await asyncio.to_thread(node.start)
        started_ns = time.time_ns()
        stopped, *died = await gaps(lift, "s")
        assert stopped["cause"] == "the node was stopped"
        assert [gap["cause"] for gap in died] == ["the node died"] * life
        newest = max(died, key=lambda gap: gap["until_ns"])  # it may begin where the one before did, or earlier
        assert newest["messages"] is None
        assert newest["since_ns"] <= killed_ns < newest["until_ns"] <= started_ns
        assert await metric(node.ready["http_port"], "liftpy_stream_gaps_total", stream="s") == 1
        told = "stream s partition 0: messages may be missing"
        await eventually(lambda told=told, logged=logged: told in node.log()[logged:])
        assert (await lift.publish("s", b"x")).offset == life - 1
        await eventually(lambda: _all_recorded(lift))


async def test_a_kill_in_the_first_seconds_is_a_gap_too(lift, node):
    await lift.create_stream("s", subject="s")
    await lift.publish("s", b"x")
    killed_ns = time.time_ns()
    await asyncio.to_thread(node.restart)
    (gap,) = await gaps(lift, "s")
    assert gap["cause"] == "the node died"
    assert gap["since_ns"] <= killed_ns < gap["until_ns"]


async def test_paused_and_purged_stay_so(lift, node):
    await lift.create_stream("paused", subject="paused")
    await lift.create_stream("purged", subject="purged")
    for number in range(10):
        await lift.publish("purged", b"%d" % number)
    await lift.pause_stream("paused")
    await lift.purge_stream("purged", offset=4)
    await asyncio.to_thread(node.restart)
    assert (await lift.stream_info("paused")).paused
    assert (await lift.stream_info("purged")).partitions[0].log_start == 4
    with pytest.raises(liftpy.PublishRefusedError, match="paused"):
        await lift.publish("paused", b"x")
    assert (await lift.publish("purged", b"x")).offset == 10


async def test_admin_changes_survive_a_kill(lift, node):
    """What was answered is durable: creates, deletes and updates."""
    for number in range(30):
        await lift.create_stream(f"s{number}", subject=f"s.{number}")
    for number in range(0, 30, 3):
        await lift.delete_stream(f"s{number}")
    for number in range(1, 30, 3):
        await lift.update_stream(f"s{number}", retention_messages=number)
    before = [stream.raw["config"] async for stream in lift.streams()]
    await asyncio.to_thread(node.restart)
    assert [stream.raw["config"] async for stream in lift.streams()] == before
    directories = {path.name.partition(".")[0] for path in (node.data / "streams").iterdir()}
    assert directories == {EVENTS_STREAM, *(config["name"] for config in before)}


async def test_kills_during_admin_requests(lift, node):
    """A stream whose creation was answered is there afterwards, and can be used; whatever else there is, too."""
    created = []

    async def create(number):
        try:
            await lift.create_stream(f"s{number}", subject=f"s.{number}")
            created.append(f"s{number}")
        except (liftpy.NodeUnavailableError, liftpy.AdminError):
            pass

    for round_number in range(3):
        numbers = range(round_number * 60, round_number * 60 + 60)
        creating = [asyncio.ensure_future(create(number)) for number in numbers]
        before = len(created)
        await eventually(lambda before=before: len(created) > before + 20)
        await asyncio.to_thread(node.restart)
        for task in creating:
            task.cancel()
        await asyncio.gather(*creating, return_exceptions=True)
    there = {stream.name: stream.config.subject async for stream in lift.streams()}
    assert set(created) <= set(there)
    for subject in there.values():
        assert (await lift.publish(subject, b"x")).offset == 0
