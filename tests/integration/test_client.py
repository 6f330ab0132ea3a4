"""The client library against a real node: publishing, consuming, administering, and the mistakes that users make."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import liftpy
from liftpy_client.consumer.start_finder import StartFinder
from liftpy_envelope.envelope import encode_message_envelope
from support.cluster import eventually, make_nats, quick_options
from support.reading import read_all, take


@pytest.fixture
def lift(shared_lift):
    return shared_lift


async def offsets(lift, stream, **where):
    return [message.offset for message in await take(lift.consume(stream, **where))]


async def fill(lift, stream, count, **config):
    """A stream with `count` numbered messages."""
    await lift.create_stream(stream, subject=f"{stream}.>", **config)
    async with lift.publisher(stream=stream) as publisher:
        for number in range(count):
            await publisher.publish(f"{stream}.x", b"%d" % number, key=b"%d" % number)


async def test_a_users_own_message_id_header_counts(lift, name):
    await lift.create_stream(name, subject=name)
    first = await lift.publish(name, b"x", headers={"Nats-Msg-Id": "one"})
    again = await lift.publish(name, b"x", headers={"Nats-Msg-Id": "one"})
    assert (first.duplicate, again.duplicate, again.offset) == (False, True, first.offset)


async def test_a_payload_that_is_an_envelope_is_stored_as_it_is(lift, name):
    await lift.create_stream(name, subject=name)
    payload = encode_message_envelope(b"inner")
    await lift.publish(name, payload)
    assert [message.value for message in await read_all(lift, name)] == [payload]


@pytest.mark.parametrize("acks", ["reply", "envelope"])
async def test_streams_that_ack_nobody_by_themselves_ack_those_who_wait(lift, name, acks):
    await lift.create_stream(name, subject=name, acks=acks, ack_policy="none")
    assert (await lift.publish(name, b"1", retries=0)).offset == 0
    async with lift.publisher() as publisher:
        ack = await publisher.publish(name, b"2")
    assert (await ack).offset == 1


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"value": "text"}, liftpy.UsageError),
        ({"value": b"", "headers": {"A": "b\r\nC: d"}}, liftpy.LiftError),
        ({"value": b"x" * 2**21}, liftpy.UsageError),
        ({"value": b"", "expected_offset": -1}, liftpy.UsageError),
        ({"value": b"", "ack_policy": "some"}, liftpy.UsageError),
        ({"value": b"", "ack_policy": "none"}, liftpy.UsageError),
        ({"value": b"", "retries": -1}, liftpy.UsageError),
        ({"value": b"", "timeout_s": 0}, liftpy.UsageError),
        ({"value": b"", "stream": "other"}, liftpy.NoStreamError),
    ],
)
async def test_mistakes_of_a_publisher(lift, name, arguments, kind):
    await lift.create_stream(name, subject=name)
    with pytest.raises(kind):
        await lift.publish(name, **arguments)
    assert await read_all(lift, name) == []


async def test_the_route_follows_a_stream_that_was_recreated(lift, name):
    await lift.create_stream(name, subject=name)
    await lift.publish(name, b"x")
    await lift.delete_stream(name)
    with pytest.raises(liftpy.NoStreamError):
        await lift.publish(name, b"x")
    await lift.create_stream(name, subject=name, partitions=3, spread="mapping")
    assert (await lift.publish(name, b"x", key=b"k")).stream == name
    await lift.update_stream(name, acks="off")
    with pytest.raises(liftpy.UsageError, match="sends no acks"):
        await lift.publish(name, b"x")


async def test_another_clients_delete_is_noticed(lift, shared_nats, name):
    await lift.create_stream(name, subject=name)
    await lift.publish(name, b"x")
    async with liftpy.connect(shared_nats.url) as other:
        await other.delete_stream(name)
    with pytest.raises(liftpy.NoStreamError):
        await lift.publish(name, b"x", timeout_s=30)


async def test_batches_fit_what_the_stream_takes(lift, name):
    await lift.create_stream(name, subject=name, message_bytes_max=2_000)
    async with lift.publisher() as publisher:
        for number in range(200):
            await publisher.publish(name, b"%0100d" % number)
        await publisher.publish_batch(name, {"value": pa.array([b"%0100d" % n for n in range(200, 400)])})
    assert [int(message.value) for message in await read_all(lift, name)] == list(range(400))


async def test_messages_of_a_key_keep_their_order_across_subjects(lift, name):
    await lift.create_stream(name, subject=f"{name}.>", partitions=3)
    count = 3_000
    async with lift.publisher(batch_bytes=2_000) as publisher:
        for number in range(count):
            subject, key = f"{name}.{number * 7 % 5}", b"k%d" % (number % 11)
            if number % 100 == 50:
                await publisher.publish_batch(subject, {"value": pa.array([b"%d" % number]), "key": pa.array([key])})
            else:
                await publisher.publish(subject, b"%d" % number, key=key)
    found: dict = {}
    for message in await read_all(lift, name):
        found.setdefault(message.key, []).append((int(message.value), message.subject))
    assert sum(map(len, found.values())) == count
    for messages in found.values():
        assert messages == sorted(messages)
        assert len({subject for _, subject in messages}) == 5


async def test_arrow_is_spread_by_key(lift, name):
    await lift.create_stream(name, subject=f"{name}.>", partitions=4)
    count = 5_000
    async with lift.publisher() as publisher:
        records = {
            "value": pa.array([b"%d" % number for number in range(count)]),
            "key": pa.array([None if number % 50 == 0 else b"k%d" % (number % 50) for number in range(count)]),
        }
        acks = await publisher.publish_batch(f"{name}.x", records)
        assert {(await ack).partition for ack in acks} == {0, 1, 2, 3}
    messages = await read_all(lift, name)
    homes: dict = {}
    for message in messages:
        homes.setdefault(message.key, []).append((message.partition, int(message.value)))
    assert sum(map(len, homes.values())) == count
    for places in homes.values():
        assert len({partition for partition, _ in places}) == 1
        assert [number for _, number in places] == sorted(number for _, number in places)
    single = await lift.publish(f"{name}.x", b"", key=b"k7")
    assert single.partition == homes[b"k7"][0][0]


async def test_a_publisher_goes_on_when_a_pause_is_over(lift, name):
    await lift.create_stream(name, subject=name)
    await lift.pause_stream(name)
    async with lift.publisher() as publisher:
        ack = await publisher.publish(name, b"x")
        await eventually(lambda: _refused(lift, name))
        await lift.resume_stream(name)
        assert (await asyncio.wait_for(ack, 40)).offset == 0
    assert len(await read_all(lift, name)) == 1


async def _refused(lift, name):
    return (await lift.stream_info(name)).raw["counters"]["refused"]


async def test_starts_per_partition_and_where_they_stop(lift, name):
    await fill(lift, name, 40, partitions=3)
    ends = {part.partition: part.high_watermark for part in (await lift.stream_info(name)).partitions}
    messages = await take(lift.consume(name, start={0: ends[0] - 1, 2: ends[2]}, stop="latest"))
    counts = {number: sum(message.partition == number for message in messages) for number in range(3)}
    assert counts == {0: 1, 1: ends[1], 2: 0}
    assert len(await take(lift.consume(name, start=0, stop=1))) == 3
    assert len(await take(lift.consume(name, start="latest", stop="latest"))) == 3
    assert {message.partition for message in await take(lift.consume(name, stop="latest", partitions=[2, 0, 2]))} == {
        0, 2,
    }  # fmt: skip


async def test_a_partition_that_is_done_does_not_keep_the_others_busy(lift, name):
    await fill(lift, name, 20, partitions=2)
    one = (await read_all(lift, name))[-1]
    options = quick_options(wait_ms=1_000)
    consuming = asyncio.ensure_future(
        take(lift.consume(name, start={one.partition: 0}, stop=100, options=options), None, 60)
    )
    async with lift.publisher() as publisher:
        number = 0
        while not consuming.done():
            await publisher.publish(f"{name}.x", b"", key=b"%d" % number)
            number += 1
            await asyncio.sleep(0)
    assert len(await consuming) == 200


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        ({"start": 11, "stop": "latest"}, liftpy.OffsetLostError),
        ({"start": 11}, liftpy.OffsetLostError),
        ({"start": 11, "stop": datetime.now(UTC)}, liftpy.OffsetLostError),
        ({"partitions": [1]}, liftpy.UsageError),
        ({"partitions": []}, liftpy.UsageError),
        ({"start": {1: 0}}, liftpy.UsageError),
        ({"start": {"0": 0}}, liftpy.UsageError),
        ({"start": datetime(2026, 1, 1)}, liftpy.UsageError),  # noqa: DTZ001
        ({"stop": "never"}, liftpy.UsageError),
    ],
)
async def test_mistakes_of_a_consumer(lift, name, where, kind):
    await fill(lift, name, 10)
    with pytest.raises(kind):
        await take(lift.consume(name, **where))


async def test_beyond_the_end_and_told_to_go_on(lift, name):
    await fill(lift, name, 10)
    for on_lost, expected in (("earliest", list(range(10))), ("latest", [9]), ("new", [])):
        assert await offsets(lift, name, start=99, stop="latest", options=quick_options(on_lost=on_lost)) == expected


async def test_times_beyond_both_ends(lift, name):
    await fill(lift, name, 10)
    day = timedelta(days=1)
    now = datetime.now(UTC)
    assert await offsets(lift, name, start=now - day, stop=now + day) == list(range(10))
    assert await offsets(lift, name, start=now + day, stop="latest") == []
    assert await offsets(lift, name, start="earliest", stop=now - day) == []


async def test_a_consumer_that_starts_before_the_first_message(lift, name):
    await lift.create_stream(name, subject=name)
    for start in ("earliest", "latest", "new", 0, datetime.now(UTC)):
        before = (await lift.stream_info(name)).messages
        consumer = lift.consume(name, start=start if before == 0 else "new", options=quick_options())
        waiting = asyncio.ensure_future(take(consumer, 1))
        while not waiting.done():
            await lift.publish(name, b"x")
        assert (await waiting)[0].offset >= before


async def test_closing_a_consumer_ends_its_iteration(lift, name):
    await lift.create_stream(name, subject=name)
    consumer = lift.consume(name)
    waiting = asyncio.ensure_future(take(consumer))
    await eventually(lambda: consumer._places)
    await consumer.close()
    assert await asyncio.wait_for(waiting, 40) == []
    await consumer.close()


async def test_an_iteration_ends_when_another_begins(lift, name):
    """The next one begins with what was in hand: nobody said that it was processed."""
    await fill(lift, name, 3)
    consumer = lift.consume(name)
    first, second = aiter(consumer), aiter(consumer)
    assert (await anext(first)).offset == 0
    assert (await anext(second)).offset == 0
    with pytest.raises(liftpy.UsageError, match="elsewhere"):
        await anext(first)
    assert (await anext(second)).offset == 1
    await consumer.close()


async def test_earliest_means_whatever_is_earliest_when_it_is_read(lift, name, monkeypatch):
    """Records may go between the question where a stream begins and the first fetch: nobody asked for those."""
    await fill(lift, name, 50)
    consumer = lift.consume(name, stop=50)
    found = StartFinder.find

    async def find_and_purge(finder, stream):
        place, positions = await found(finder, stream)
        await lift.purge_stream(name, offset=20)
        return place, positions

    monkeypatch.setattr(StartFinder, "find", find_and_purge)
    assert [message.offset for message in await take(consumer)] == list(range(20, 50))


async def test_small_prefetch_loses_nothing(lift, name):
    await fill(lift, name, 500)
    options = quick_options(fetch_bytes=1, prefetch_bytes=1)
    assert await offsets(lift, name, stop="latest", options=options) == list(range(500))
    batches = [batch async for batch in lift.consume_batches(name, start=17, stop=400, options=options)]
    assert pa.Table.from_batches(batches).column("offset").to_pylist() == list(range(17, 400))


async def test_an_abandoned_consumer_leaves_nothing_behind(lift, name):
    await fill(lift, name, 10)
    async for _ in lift.consume(name):
        break
    async with lift.consume(name) as consumer:
        async for _ in consumer:
            break
    consuming = asyncio.ensure_future(take(lift.consume(name)))
    await asyncio.sleep(0.05)
    consuming.cancel()
    await asyncio.gather(consuming, return_exceptions=True)
    await eventually(lambda: not [task for task in asyncio.all_tasks() if task.get_name() == f"fetch {name}"])


async def test_admin_arguments_that_no_node_understands(lift, name):
    await lift.create_stream(name, subject=name)
    with pytest.raises(liftpy.UsageError, match="cannot be sent"):
        await lift.update_stream(name, retention_age_s=timedelta(days=1))
    with pytest.raises(liftpy.ConfigError, match="did you mean retention_age_s"):
        await lift.create_stream(f"{name}-2", subject=f"{name}.2", retention_age=5)
    with pytest.raises(liftpy.ConfigError, match="did you mean retention_bytes"):
        await lift.update_stream(name, retention_byte=5)


async def test_a_list_of_several_pages(lift, name, monkeypatch):
    monkeypatch.setattr("liftpy_client.admin.admin._STREAMS_PAGE", 8)
    wanted = [f"{name}-{number:03}" for number in range(20)]
    await asyncio.gather(*(lift.create_stream(stream, subject=stream) for stream in wanted))
    assert [stream.name async for stream in lift.streams() if stream.name.startswith(f"{name}-")] == wanted
    await asyncio.gather(*(lift.delete_stream(stream) for stream in wanted))


async def test_nobody_there(tmp_path, monkeypatch):
    monkeypatch.delenv("NATS_URL", raising=False)
    with pytest.raises(liftpy.UnreachableError, match=r"127\.0\.0\.1:1 cannot be reached"):
        await liftpy.connect("nats://127.0.0.1:1", timeout_s=0.5)
    server = make_nats(tmp_path / "nats")
    try:
        lift = await liftpy.connect(server.url, timeout_s=0.5)
        for work in (lift.node_info(), lift.publish("s", b""), take(lift.consume("s"))):
            with pytest.raises(liftpy.NodeUnavailableError, match="no liftpy node answers"):
                await work
        await lift.close()
        for work in (lift.node_info(), lift.publish("s", b"")):
            with pytest.raises(liftpy.DisconnectedError, match="closed"):
                await work
    finally:
        server.stop()


async def test_wrong_password(tmp_path):
    config = "listen: 127.0.0.1:4222\nauthorization { user: u, password: right }\n"
    server = make_nats(tmp_path / "nats", config=config)
    try:
        async with liftpy.connect(server.url, user="u", password="right"):
            pass
        with pytest.raises(liftpy.UnreachableError, match=r"(?i)authorization"):
            await liftpy.connect(server.url, user="u", password="wrong", timeout_s=1)
    finally:
        server.stop()
