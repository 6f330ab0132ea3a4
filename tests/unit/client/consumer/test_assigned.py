"""A consumer whose partitions come and go: what counts as finished, and that nothing revoked is handed out."""

from __future__ import annotations

import asyncio
import random

import pytest

from liftpy_client.consumer.assigned import AssignedConsumer
from liftpy_client.consumer.options import ConsumeOptions
from liftpy_client.consumer.positions import Position
from liftpy_client.errors import ConsumerEndedError, OffsetLostError, StreamGoneError, UsageError
from support.examples import first
from support.fake_log import FakeLogs


def assigned(logs, *, batches=False, **options):
    return AssignedConsumer(logs, ConsumeOptions(**({"wait_ms": 50} | options)), batches=batches)


async def take(iterating, count):
    return [await anext(iterating) for _ in range(count)]


def offsets_of(consuming):
    return {number: offset for (_, _, number), (offset, _) in consuming.positions().items()}


@pytest.fixture
def logs():
    return FakeLogs(s=[100, 100, 100])


@pytest.fixture
async def consuming(logs):
    consuming = assigned(logs)
    async with asyncio.timeout(20):
        yield consuming
        await consuming.close()


async def test_a_message_is_finished_when_the_next_one_is_asked_for(logs, consuming):
    uuid = logs.places["s"].uuid
    await consuming.assign("s", uuid, {0: 8})
    assert consuming.positions() == {("s", uuid, 0): (8, -1)}
    iterating = aiter(consuming)
    assert (await anext(iterating)).offset == 8
    assert consuming.positions() == {("s", uuid, 0): (8, -1)}
    assert (await anext(iterating)).offset == 9
    assert consuming.positions() == {("s", uuid, 0): (9, 1)}
    assert (await anext(iterating)).offset == 10
    assert consuming.positions() == {("s", uuid, 0): (10, 1)}
    assert consuming.position("s", uuid, 0) == 11
    await iterating.aclose()
    await consuming.close()
    assert consuming.positions() == {("s", uuid, 0): (10, 1)}


async def test_a_handler_that_raises_leaves_its_message_unfinished(logs, consuming):
    await consuming.assign("s", logs.places["s"].uuid, {0: 0})

    async def consume():
        async for message in consuming:
            1 / (25 - message.offset)

    with pytest.raises(ZeroDivisionError):
        await consume()
    assert offsets_of(consuming) == {0: 25}
    async for message in consuming:
        assert message.offset == 25
        break
    consuming.settle("s", logs.places["s"].uuid, 0, 26)  # it is committed
    async for message in consuming:
        assert message.offset == 26
        break
    assert offsets_of(consuming) == {0: 26}


async def test_a_batch_whose_handler_raises_is_delivered_again(logs):
    consuming = assigned(logs, batches=True)
    await consuming.assign("s", logs.places["s"].uuid, {0: 0})
    firsts = []
    for _ in range(2):
        async for records in consuming:
            firsts.append(records.column("offset")[0].as_py())
            break
    assert firsts == [0, 0]
    assert offsets_of(consuming) == {0: 0}
    await consuming.close()


async def test_messages_in_hand_together_are_finished_together(logs, consuming):
    uuid = logs.places["s"].uuid
    await consuming.assign("s", uuid, {0: 8})
    batch = await consuming.next_batch(100, 5.0)
    assert [message.offset for message in batch] == [8, 9]  # what one fetch brought
    assert offsets_of(consuming) == {0: 8}
    assert consuming.in_hand.partition == 0
    batch = await consuming.next_batch(3, 5.0)
    assert [message.offset for message in batch] == [10, 11, 12]
    assert offsets_of(consuming) == {0: 10}
    consuming.settle("s", uuid, 0, 12)
    assert offsets_of(consuming) == {0: 12}
    assert (await consuming.next(5.0)).offset == 13
    assert offsets_of(consuming) == {0: 13}
    async for message in consuming:  # another iteration
        assert message.offset == 13
        break
    batch = await consuming.next_batch(4, 5.0)
    assert [message.offset for message in batch] == [13, 14, 15, 16]
    assert await consuming.revoke("s", uuid, [0]) == {("s", uuid, 0): (13, 1)}


async def test_a_time_limit_ends_no_iteration(logs, consuming):
    uuid = logs.places["s"].uuid
    assert await consuming.next(0.0) is None
    await consuming.assign("s", uuid, {0: 99})
    assert (await consuming.next(5.0)).offset == 99
    assert offsets_of(consuming) == {0: 99}
    assert await consuming.next(0.01) is None
    assert offsets_of(consuming) == {0: 100}
    assert await consuming.next_batch(5, 0.01) == []
    logs.grow("s", 0, 1)
    assert (await consuming.next(5.0)).offset == 100
    await consuming.close()
    with pytest.raises(ConsumerEndedError):
        await consuming.next(5.0)


async def test_nothing_is_handed_out_after_it_was_revoked(logs, consuming):
    uuid = logs.places["s"].uuid
    await consuming.assign("s", uuid, {0: 0, 1: 0})
    iterating = aiter(consuming)
    first = (await take(iterating, 3))[-1]
    finished = await consuming.revoke("s", uuid, [first.partition, 7])
    assert finished == {("s", uuid, first.partition): (2, 1)}
    other = 1 - first.partition
    messages = await take(iterating, 100)
    assert {message.partition for message in messages} == {other}
    await consuming.assign("s", uuid, {first.partition: 2, 2: Position(95, None, epoch=1)})
    again = await take(iterating, 103)
    assert [message.offset for message in again if message.partition == first.partition] == list(range(2, 100))
    assert [message.offset for message in again if message.partition == 2] == list(range(95, 100))
    assert offsets_of(consuming)[other] == 100


async def test_it_does_not_end_without_partitions_but_when_it_is_closed(logs, consuming):
    uuid = logs.places["s"].uuid
    waiting = asyncio.ensure_future(anext(aiter(consuming), None))
    await consuming.assign("s", uuid, {0: 100})
    await consuming.revoke("s", uuid, [0])
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await consuming.close()
    assert await waiting is None
    with pytest.raises(UsageError, match="closed"):
        await consuming.assign("s", uuid, {0: 0})


@pytest.mark.parametrize("batches", [False, True])
async def test_nothing_is_handed_out_after_it_was_closed_amid_a_batch(logs, batches):
    consuming = assigned(logs, batches=batches)
    await consuming.assign("s", logs.places["s"].uuid, {0: 0, 1: 0})
    iterating = aiter(consuming)
    async with asyncio.timeout(20):
        await take(iterating, 1 if batches else 3)
        finished = consuming.positions()
        await consuming.close()
        assert consuming.positions() == finished, "what is in hand is not finished before the next is asked for"
        assert await anext(iterating, None) is None


async def test_pausing_leaves_what_is_in_hand_unfinished_until_the_next_is_asked_for(logs, consuming):
    uuid = logs.places["s"].uuid
    await consuming.assign("s", uuid, {0: 0})
    iterating = aiter(consuming)
    await take(iterating, 5)
    consuming.pause("s", uuid, [0, 9])
    assert (offsets_of(consuming), consuming.position("s", uuid, 0)) == ({0: 4}, 5)
    waiting = asyncio.ensure_future(anext(iterating))
    await asyncio.sleep(0.05)
    assert offsets_of(consuming) == {0: 5}
    consuming.resume("s", uuid, [0, 9])
    assert (await waiting).offset == 5
    consuming.seek("s", uuid, 0, 50)
    consuming.seek("s", uuid, 9, 50)
    assert offsets_of(consuming) == {0: 50}
    assert (await anext(iterating)).offset == 50
    assert consuming.lag() == {("s", uuid, 0): 49}


async def test_arrow_batches_are_finished_as_a_whole(logs):
    logs.batches = 4
    uuid = logs.places["s"].uuid
    consuming = assigned(logs, batches=True)
    async with asyncio.timeout(20):
        await consuming.assign("s", uuid, {0: 3})
        iterating = aiter(consuming)
        records = await anext(iterating)
        assert records.column("offset").to_pylist() == list(range(3, 40))
        assert offsets_of(consuming) == {0: 3}
        await anext(iterating)
        assert consuming.positions() == {("s", uuid, 0): (40, 1)}
        await consuming.close()


async def test_what_was_skipped_is_finished_and_no_epoch_vouches_for_it(logs, consuming):
    uuid = logs.places["s"].uuid
    logs.log("s").skips = {10: 90}
    await consuming.assign("s", uuid, {0: 5})
    iterating = aiter(consuming)
    await take(iterating, 5)
    waiting = asyncio.ensure_future(anext(iterating))
    while consuming.positions() != {("s", uuid, 0): (90, -1)}:
        await asyncio.sleep(0)
        if waiting.done():
            break
    assert (await waiting).offset == 90
    assert consuming.positions() == {("s", uuid, 0): (90, -1)}
    await anext(iterating)
    assert consuming.positions() == {("s", uuid, 0): (91, 1)}


async def test_positions_that_are_gone_follow_the_policy(logs, consuming):
    uuid = logs.places["s"].uuid
    logs.log("s").start = 50
    await consuming.assign("s", uuid, {0: 10})
    with pytest.raises(OffsetLostError, match="choose 50 to 100"):
        await anext(aiter(consuming))
    lenient = assigned(logs, on_lost="earliest")
    await lenient.assign("s", uuid, {0: 10})
    assert (await anext(aiter(lenient))).offset == 50
    await lenient.close()


async def test_a_stream_that_is_gone_is_an_error_only_while_it_is_assigned(logs, consuming, monkeypatch):
    old = logs.places["s"].uuid
    await consuming.assign("s", old, {0: 100})
    waiting = asyncio.ensure_future(anext(aiter(consuming)))
    await asyncio.sleep(0.05)
    new = logs.create("s", [7]).uuid
    for key in [key for key in logs.logs if key.uuid == old]:
        del logs.logs[key]
    logs.grown.set()
    await asyncio.sleep(0.5)
    assert not waiting.done()
    await consuming.revoke("s", old, [0])
    await consuming.assign("s", new, {0: 0})
    assert (await waiting).offset == 0
    monkeypatch.setattr("liftpy_client.consumer.assigned._LOOK_S", 0.0)
    with pytest.raises(StreamGoneError):
        await consuming.assign("s", old, {0: 0})
    monkeypatch.setattr("liftpy_client.consumer.assigned._GONE_GRACE_S", 0.2)
    strict = assigned(logs)
    await strict.assign("s", new, {0: 7})
    logs.create("s", [7])
    del logs.logs[logs.places["s"].key(0)._replace(uuid=new)]
    with pytest.raises(StreamGoneError):
        await anext(aiter(strict))
    await strict.close()


@pytest.mark.parametrize("seed", first(5, range(20)))
async def test_whatever_is_done_to_it_every_partition_is_read_in_order_from_where_it_was_put(seed):
    """After every move the next message of a partition is the one that was said, and nothing is left out after it."""
    chance = random.Random(seed)
    logs = FakeLogs(per_batch=chance.randint(1, 7), batches=chance.randint(1, 4), a=[400] * 3, b=[400] * 2)
    consuming = assigned(logs, prefetch_bytes=chance.choice([1, 3_000, 10**6]))
    uuids = {name: place.uuid for name, place in logs.places.items()}
    expected: dict = {}
    paused = set()

    async def act():
        name = chance.choice("ab")
        number = chance.randrange(3 if name == "a" else 2)
        place = name, uuids[name], number
        offset = chance.randrange(400)
        what = chance.choice(["assign", "revoke", "seek", "pause", "resume"])
        if what == "assign":
            await consuming.assign(name, uuids[name], {number: offset})
            expected[place] = offset
            paused.discard(place)
        elif what == "revoke":
            finished = await consuming.revoke(name, uuids[name], [number])
            assert set(finished) == ({place} & set(expected))
            expected.pop(place, None)
            paused.discard(place)
        elif what == "seek" and place in expected:
            consuming.seek(*place, offset)
            expected[place] = offset
        elif what == "pause" and place in expected:
            consuming.pause(name, uuids[name], [number])
            paused.add(place)
        elif what == "resume" and place in expected:
            consuming.resume(name, uuids[name], [number])
            paused.discard(place)

    handed = 0
    async with asyncio.timeout(60):
        iterating = aiter(consuming)
        while handed < 3_000:
            if not any(offset < 400 for place, offset in expected.items() if place not in paused):
                await act()
                continue
            message = await anext(iterating)
            place = message.stream, uuids[message.stream], message.partition
            assert place not in paused
            assert message.offset == expected[place], f"seed {seed}"
            expected[place] += 1
            handed += 1
            if chance.random() < 0.2:
                await act()
                for where, offset in expected.items():
                    assert consuming.position(*where) == offset
        await consuming.close()
