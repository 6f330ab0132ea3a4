"""Streams are created, changed, stopped, purged and deleted while publishers and consumers are at work."""

from __future__ import annotations

import asyncio
import json

import nats
import pytest

import liftpy
from liftpy_envelope.errors import AckErrorCode, ErrorCode
from support.cluster import eventually, quick_options
from support.reading import gaps, high_watermark, read_all, stored, take, values


@pytest.fixture
def lift(shared_lift):
    return shared_lift


@pytest.fixture
async def other(shared_nats):
    """A plain NATS client."""
    client = await nats.connect(shared_nats.url)
    yield client
    await client.close()


async def refused(code, request):
    with pytest.raises(liftpy.AdminError) as error:
        await request
    assert error.value.code is code, error.value
    return str(error.value)


async def acked(client, subject, value):
    """The offset that a plain message gets; its error code when it is refused."""
    answer = json.loads((await client.request(subject, value, timeout=30)).data)
    return answer["error"]["err_code"] if "error" in answer else answer["offset"]


async def test_create_is_idempotent(lift, name):
    first = await lift.create_stream(name, subject=f"{name}.>", retention_messages=10)
    again = await lift.create_stream(name, subject=f"{name}.>", retention_messages=10)
    assert (first.uuid, first.version, first.created) == (again.uuid, again.version, again.created)
    assert "request-reply services" in first.warnings[0]


@pytest.mark.parametrize(
    "other_settings", [{"subject": "elsewhere.>"}, {"sync": "interval"}, {"partitions": 2}, {"retention_age_s": 5}]
)
async def test_create_with_other_settings_is_a_conflict(lift, name, other_settings):
    created = await lift.create_stream(name, subject=name)
    text = await refused(ErrorCode.STREAM_EXISTS, lift.create_stream(name, **{"subject": name} | other_settings))
    assert next(iter(other_settings)) in text
    assert (await lift.stream_info(name)).raw == created.raw


async def test_a_message_right_after_create_is_never_lost(lift, other, name):
    for number in range(40):
        stream = f"{name}-{number}"
        await lift.create_stream(stream, subject=f"{name}.{number}")
        await other.publish(f"{name}.{number}", b"%d" % number)
    for number in range(40):
        await stored(lift, f"{name}-{number}", 1)
        assert await values(lift, f"{name}-{number}") == [b"%d" % number]
        await lift.delete_stream(f"{name}-{number}")


async def test_a_recreated_stream_is_another_one(lift, shared_node, name):
    old = await lift.create_stream(name, subject=name)
    for number in range(10):
        await lift.publish(name, b"old %d" % number)
    consumer = lift.consume(name, options=quick_options()).__aiter__()
    assert [(await anext(consumer)).offset for _ in range(10)] == list(range(10))
    await lift.delete_stream(name)
    new = await lift.create_stream(name, subject=name)
    assert new.uuid != old.uuid
    assert (await lift.publish(name, b"new")).offset == 0
    with pytest.raises(liftpy.StreamGoneError):
        await asyncio.wait_for(anext(consumer), 40)
    assert await values(lift, name) == [b"new"]
    streams = shared_node.data / "streams"
    await eventually(lambda: {path.name for path in streams.glob(f"{name}.*")} == {f"{name}.{new.uuid}"})


async def test_a_deleted_stream_is_gone_for_everyone(lift, name):
    await lift.create_stream(name, subject=name)
    await lift.publish(name, b"x")
    waiting = asyncio.ensure_future(take(lift.consume(name, start="new")))
    await lift.consume(name, stop="latest").__aiter__().__anext__()
    await lift.delete_stream(name)
    with pytest.raises(liftpy.StreamGoneError):
        await asyncio.wait_for(waiting, 40)
    with pytest.raises(liftpy.NoStreamError):
        await take(lift.consume(name))
    with pytest.raises(liftpy.NoStreamError):
        await lift.publish(name, b"y", retries=0)
    for request in (lift.stream_info, lift.delete_stream, lift.pause_stream, lift.resume_stream, lift.purge_stream):
        await refused(ErrorCode.UNKNOWN_STREAM, request(name))
    await refused(ErrorCode.UNKNOWN_STREAM, lift.update_stream(name, retention_messages=1))
    await refused(ErrorCode.UNKNOWN_STREAM, lift.set_read_only(name))


async def test_update_moves_the_subscription(lift, other, name):
    created = await lift.create_stream(name, subject=f"{name}.a")
    assert await acked(other, f"{name}.a", b"1") == 0
    changed = await lift.update_stream(name, subject=f"{name}.b", expected_version=created.version)
    assert (changed.config.subject, changed.version, changed.uuid) == (f"{name}.b", created.version + 1, created.uuid)
    await other.publish(f"{name}.a", b"nobody listens here any more")
    await other.flush()
    assert await acked(other, f"{name}.b", b"2") == 1
    assert await values(lift, name) == [b"1", b"2"]
    assert await lift.find_streams(f"{name}.a") == []
    assert await lift.find_streams(f"{name}.b") == [name]


async def test_update_of_an_overlapping_subject_loses_nothing(lift, other, name):
    await lift.create_stream(name, subject=f"{name}.*")
    stop = asyncio.Event()
    sent = 0

    async def publish():
        nonlocal sent
        while not stop.is_set():
            await other.publish(f"{name}.x", b"%d" % sent)
            sent += 1
            await other.flush()

    publishing = asyncio.ensure_future(publish())
    for subject in (f"{name}.>", f"{name}.x", f"{name}.*"):
        await lift.update_stream(name, subject=subject)
    stop.set()
    await publishing
    await eventually(lambda: _ends_with(lift, name, b"%d" % (sent - 1)))
    numbers = [int(value) for value in await values(lift, name)]
    assert sorted(set(numbers)) == list(range(sent))


async def _ends_with(lift, name, value):
    found = await take(lift.consume(name, start="latest", stop="latest"))
    return bool(found) and found[0].value == value


async def test_update_when_someone_was_quicker(lift, name):
    created = await lift.create_stream(name, subject=name)
    await lift.update_stream(name, retention_messages=5)
    text = await refused(
        ErrorCode.CONFLICT, lift.update_stream(name, retention_messages=6, expected_version=created.version)
    )
    assert str(created.version) in text
    assert (await lift.stream_info(name)).config.retention_messages == 5


@pytest.mark.parametrize(
    "changes", [{"partitions": 2}, {"spread": "mapping"}, {"partition_prefix": "other"}, {"name": "other"}]
)
async def test_fixed_settings_stay(lift, name, changes):
    created = await lift.create_stream(name, subject=name)
    body = json.dumps({"name": name, "changes": changes}).encode()
    answer = await lift.nats.request("LIFT.API.STREAM.UPDATE", body, timeout=30)
    assert "is fixed for the life of a stream" in answer.data.decode()
    assert (await lift.stream_info(name)).raw == created.raw


async def test_updated_settings_take_effect_at_once(lift, other, name):
    await lift.create_stream(name, subject=name)
    assert await acked(other, name, bytes(2_000)) == 0
    await lift.update_stream(name, message_bytes_max=1_000, compression="zstd")
    assert await acked(other, name, bytes(1_001)) == AckErrorCode.TOO_LARGE
    assert await acked(other, name, bytes(1_000)) == 1
    await lift.update_stream(name, acks="envelope")
    with pytest.raises(nats.errors.TimeoutError):
        await other.request(name, b"no ack on the reply subject", timeout=0.3)
    assert len(await read_all(lift, name)) == 3


@pytest.mark.parametrize(
    ("stop", "go_on", "code"),
    [
        ("pause_stream", "resume_stream", AckErrorCode.PAUSED),
        ("set_read_only", None, AckErrorCode.READ_ONLY),
    ],
)
async def test_a_stopped_stream_says_so_and_counts(lift, other, name, stop, go_on, code):
    await lift.create_stream(name, subject=name)
    await lift.publish(name, b"before")
    details = await getattr(lift, stop)(name)
    assert (details.paused, details.read_only) == (code is AckErrorCode.PAUSED, code is AckErrorCode.READ_ONLY)
    with pytest.raises(liftpy.PublishRefusedError) as error:
        await lift.publish(name, b"refused")
    assert error.value.code == code
    for _ in range(50):
        await other.publish(name, b"nobody can be told")
    await other.flush()
    word = code.name.lower()
    await eventually(lambda: _refused_count(lift, name, word, 51))
    (gap,) = await gaps(lift, name)
    assert (gap["cause"], gap["messages"]) == (word, 50)
    assert gap["until_ns"] >= gap["since_ns"]
    assert await values(lift, name) == [b"before"]
    if go_on:
        await getattr(lift, go_on)(name)
    else:
        await lift.set_read_only(name, read_only=False)
    assert (await lift.publish(name, b"after")).offset == 1
    assert await values(lift, name) == [b"before", b"after"]
    assert len(await gaps(lift, name)) == 1


async def _refused_count(lift, name, word, count):
    return (await lift.stream_info(name)).raw["counters"]["refused"].get(word) == count


async def test_stopping_twice_changes_nothing(lift, name):
    await lift.create_stream(name, subject=name)
    first = await lift.pause_stream(name)
    again = await lift.pause_stream(name)
    assert (first.version, first.paused) == (again.version, again.paused)


async def drain(messages):
    async for _ in messages:
        pass


async def fill(lift, name, count=20, **settings):
    await lift.create_stream(name, subject=f"{name}.>", **settings)
    for number in range(count):
        await lift.publish(f"{name}.x", b"%d" % number, key=b"%d" % number)


async def test_purge_of_everything(lift, name):
    await fill(lift, name)
    details = await lift.purge_stream(name)
    assert (details.messages, details.partitions[0].log_start) == (0, 20)
    assert await values(lift, name) == []
    assert (await lift.publish(f"{name}.x", b"after")).offset == 20
    assert await values(lift, name) == [b"after"]
    await lift.purge_stream(name)
    await lift.purge_stream(name)
    assert await high_watermark(lift, name) == 21


async def test_purge_below_an_offset(lift, name):
    await fill(lift, name)
    assert (await lift.purge_stream(name, offset=15)).messages == 5
    assert (await lift.purge_stream(name, offset=3)).partitions[0].log_start == 15
    assert [message.offset for message in await read_all(lift, name)] == [15, 16, 17, 18, 19]
    await refused(ErrorCode.INVALID_REQUEST, lift.purge_stream(name, offset=21))  # mistyped, it would delete everything
    assert (await lift.stream_info(name)).messages == 5
    assert (await lift.purge_stream(name, offset=20)).partitions[0].log_start == 20


async def test_purge_of_one_partition(lift, name):
    await fill(lift, name, 60, partitions=3)
    before = {part.partition: part.high_watermark for part in (await lift.stream_info(name)).partitions}
    await lift.purge_stream(name, partition=1)
    messages = await read_all(lift, name)
    assert {message.partition for message in messages} == {0, 2}
    assert len(messages) == before[0] + before[2]
    await refused(ErrorCode.INVALID_REQUEST, lift.purge_stream(name, offset=3))
    await refused(ErrorCode.INVALID_REQUEST, lift.purge_stream(name, partition=3))
    await lift.purge_stream(name, partition=0, offset=2)
    assert (await lift.stream_info(name)).partitions[0].log_start == 2


async def test_consumers_below_a_purge_are_told(lift, name):
    await fill(lift, name, 100)
    await lift.purge_stream(name, offset=60)
    with pytest.raises(liftpy.OffsetLostError) as lost:
        await take(lift.consume(name, start=10, stop=100))
    assert (lost.value.offset, lost.value.log_start, lost.value.log_end) == (10, 60, 100)
    options = quick_options(on_lost="earliest")
    assert [message.offset for message in await take(lift.consume(name, start=10, stop=100, options=options))] == list(
        range(60, 100)
    )
    following = asyncio.ensure_future(take(lift.consume(name, start=10, options=quick_options(on_lost="new")), 1))
    while not following.done():
        await lift.publish(f"{name}.x", b"new")
    assert (await following)[0].offset >= 100


async def test_a_consumer_that_a_purge_overtakes_is_told(lift, name):
    await fill(lift, name, 100)
    options = quick_options(fetch_bytes=1, prefetch_bytes=1)
    consumer = lift.consume(name, options=options).__aiter__()
    assert (await anext(consumer)).offset == 0
    await lift.purge_stream(name)
    with pytest.raises(liftpy.OffsetLostError) as lost:
        await asyncio.wait_for(drain(consumer), 40)
    assert lost.value.log_start == 100


async def test_purge_keeps_what_is_above_after_a_restart(lift, shared_node, name):
    await fill(lift, name)
    await lift.purge_stream(name, offset=7)
    await asyncio.to_thread(shared_node.restart)
    assert [message.offset for message in await read_all(lift, name)] == list(range(7, 20))
    assert (await lift.stream_info(name)).partitions[0].log_start == 7
