"""Consumers that are steered while they run: what was fetched ahead for elsewhere never reaches the application."""

from __future__ import annotations

import asyncio
import gc
import weakref
from datetime import UTC, datetime, timedelta

import pytest

from liftpy_client.consumer.consumer import BatchConsumer, ConsumeOptions, Consumer
from liftpy_client.errors import ConsumerEndedError, OffsetLostError, UsageError
from support.cluster import eventually
from support.fake_log import FakeLogs


def consumer(logs, *streams, kind=Consumer, start="earliest", stop="latest", partitions=None, **options):
    return kind(logs, streams or ["s"], start, stop, partitions, ConsumeOptions(**({"wait_ms": 50} | options)))


async def offsets(consuming, partition=0):
    return [message.offset async for message in consuming if message.partition == partition]


async def noted(consuming, into):
    async for message in consuming:
        into.add((message.partition, message.offset))


async def test_it_goes_on_where_it_was_sought():
    logs = FakeLogs(s=[100])
    found = []
    async with asyncio.timeout(20), consumer(logs) as consuming:
        async for message in consuming:
            found.append(message.offset)
            if found == [0, 1, 2]:
                consuming.seek(95)
            elif found[-1] == 99 and 50 not in found:
                consuming.seek({0: 50})
    assert found == [0, 1, 2, *range(95, 100), *range(50, 100)]


async def test_seeking_before_it_begins_and_after_all_was_fetched():
    logs = FakeLogs(s=[30, 30])
    consuming = consumer(logs)
    consuming.seek(25)
    found = []
    async with asyncio.timeout(20), consuming:
        await eventually(lambda: consuming.lag() == {0: 5, 1: 5})
        async for message in consuming:
            found.append((message.partition, message.offset))
            if len(found) == 10:
                consuming.seek({0: 28})
    assert sorted(found[:10]) == [(number, offset) for number in (0, 1) for offset in range(25, 30)]
    assert found[10:] == [(0, 28), (0, 29)]


async def test_what_was_returned_last_comes_again_if_wanted():
    logs = FakeLogs(s=[10])
    async with asyncio.timeout(20), consumer(logs, stop=None) as consuming:
        assert (await consuming.next()).offset == 0
        assert (await consuming.next()).offset == 1
        consuming.redeliver()
        assert (await consuming.next()).offset == 1
        assert [message.offset for message in await consuming.next_batch(3)] == [2, 3, 4]
        consuming.redeliver()
        assert [message.offset for message in await consuming.next_batch(2)] == [2, 3]


async def test_seeking_to_a_time():
    logs = FakeLogs(per_batch=1, s=[40])
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    async with asyncio.timeout(20), consumer(logs) as consuming:
        await consuming.seek_to_time(epoch + timedelta(seconds=30.5))
        assert await offsets(consuming) == list(range(31, 40))
        await consuming.seek_to_time(epoch + timedelta(days=1))
        assert consuming.position() == 40
        with pytest.raises(UsageError, match="time zone"):
            await consuming.seek_to_time(datetime(2020, 1, 1))  # noqa: DTZ001 - that it has none is the point


async def test_a_paused_partition_is_silent_and_the_others_go_on_beyond_the_buffer():
    logs = FakeLogs(s=[200, 2_000])
    found = []
    async with asyncio.timeout(20), consumer(logs, prefetch_bytes=2_000, fetch_bytes=1_000) as consuming:
        async for message in consuming:
            found.append((message.partition, message.offset))
            if message.partition == 0 and message.offset == 5:
                consuming.pause([0])
            if found[-1] == (1, 1_999):
                assert [offset for number, offset in found if number == 0] == list(range(6))
                assert consuming.position(0) == 6
                consuming.resume([0])
    assert [offset for number, offset in found if number == 0] == list(range(200))
    assert [offset for number, offset in found if number == 1] == list(range(2_000))


async def test_all_that_is_paused_waits_and_does_not_end():
    logs = FakeLogs(s=[20])
    async with asyncio.timeout(20), consumer(logs) as consuming:
        consuming.pause()
        reading = asyncio.ensure_future(offsets(consuming))
        await asyncio.sleep(0.1)
        assert not reading.done()
        consuming.seek(15)
        await asyncio.sleep(0.05)
        assert not reading.done()
        consuming.resume()
        assert await reading == list(range(15, 20))


async def test_record_batches_are_steered_too():
    logs = FakeLogs(per_batch=5_000, batches=2, s=[20_000])
    found = []
    async with asyncio.timeout(20), consumer(logs, kind=BatchConsumer) as consuming:
        async for records in consuming:
            found.append((records.column("offset")[0].as_py(), records.num_rows))
            assert consuming.position() == sum(found[-1])
            if len(found) == 1:
                consuming.seek(12_345)
    assert found == [(0, 5_000), (12_345, 2_655), (15_000, 5_000)]


async def test_several_streams_at_once():
    logs = FakeLogs(a=[30], b=[20, 10])
    async with asyncio.timeout(20), consumer(logs, "a", "b") as consuming:
        with pytest.raises(UsageError, match="not one of those"):
            consuming.seek(3)
        consuming.seek(25, stream="a")
        found = [(message.stream, message.partition, message.offset) async for message in consuming]
        assert consuming.lag(stream="b") == {0: 0, 1: 0}
        assert consuming.position(1, stream="b") == 10
    assert sorted(found) == sorted(
        [("a", 0, n) for n in range(25, 30)] + [("b", 0, n) for n in range(20)] + [("b", 1, n) for n in range(10)]
    )


async def test_the_buffer_bounds_all_streams_together():
    logs = FakeLogs(batches=4, a=[5_000] * 4, b=[5_000] * 4)
    async with asyncio.timeout(20), consumer(logs, "a", "b", prefetch_bytes=20_000, fetch_bytes=20_000) as consuming:
        most = 0
        async for _ in consuming:
            most = max(most, consuming._feed._buffer._bytes)
    assert most < 80_000


async def test_subjects_that_are_not_wanted_are_left_out_and_count_as_read():
    logs = FakeLogs(s=[31])
    async with asyncio.timeout(20), consumer(logs, subjects=("s.1",)) as consuming:
        assert await offsets(consuming) == list(range(1, 31, 3))
        assert (consuming.position(), consuming.lag()) == (31, {0: 0})
    assert logs.fetches[0].subjects == ("s.1",)
    async with asyncio.timeout(20), consumer(logs, kind=BatchConsumer, subjects=("s.2", "none")) as consuming:
        assert [n async for records in consuming for n in records.column("offset").to_pylist()] == list(range(2, 31, 3))


async def test_what_a_node_skips_counts_as_read():
    logs = FakeLogs(s=[1_000])
    logs.log("s").skips = {20: 980, 990: 1_000}
    logs.log("s").delete_horizon = 7
    async with asyncio.timeout(20), consumer(logs) as consuming:
        assert await offsets(consuming) == [*range(20), *range(980, 990)]
        assert consuming.position() == 1_000
        assert consuming.delete_horizon() == 7


async def test_an_offset_that_is_not_there_when_it_is_sought():
    logs = FakeLogs(s=[100])
    logs.log("s").start = 50
    async with asyncio.timeout(20), consumer(logs) as consuming:
        consuming.seek(10)
        with pytest.raises(OffsetLostError, match="choose 50 to 100"):
            await offsets(consuming)
    for policy, expected in (("earliest", list(range(50, 100))), ("latest", [99]), ("new", [])):
        async with asyncio.timeout(20), consumer(logs, on_lost=policy) as consuming:
            consuming.seek(10)
            assert await offsets(consuming) == expected


async def test_after_an_error_it_goes_on_where_it_is_sought_and_so_do_the_other_partitions():
    logs = FakeLogs(s=[100, 100])
    logs.log("s", 0).start = 50
    async with asyncio.timeout(20), consumer(logs, on_lost="error") as consuming:
        consuming.seek({0: 10})
        before = set()
        with pytest.raises(OffsetLostError):
            await noted(consuming, before)
        consuming.seek({0: 60})
        after = set()
        await noted(consuming, after)
    assert not before & after
    assert before | after == {(0, offset) for offset in range(60, 100)} | {(1, offset) for offset in range(100)}


async def handled(consuming, failing):
    """What the natural retry loop handles; each of these offsets fails once."""
    done = []
    while True:
        try:
            async for message in consuming:
                if message.offset in failing:
                    failing.remove(message.offset)
                    raise LookupError
                done.append(message.offset)
        except LookupError:
            continue
        return done


@pytest.mark.parametrize("is_entered", [True, False])
async def test_the_natural_retry_loop_handles_every_message(is_entered):
    consuming = consumer(FakeLogs(s=[50]))
    async with asyncio.timeout(20):
        if is_entered:
            async with consuming:
                assert await handled(consuming, {0, 5, 9, 10, 49}) == list(range(50))
        else:
            assert await handled(consuming, {0, 5, 9, 10, 49}) == list(range(50))


async def test_a_message_in_hand_of_a_paused_partition_is_delivered_again_when_it_is_resumed():
    async with asyncio.timeout(20), consumer(FakeLogs(s=[50])) as consuming:
        async for message in consuming:
            if message.offset == 13:
                consuming.pause()
                break
        assert await consuming.next(0.01) is None
        consuming.resume()
        assert (await consuming.next()).offset == 13


async def test_one_by_one_until_its_stop():
    async with asyncio.timeout(20), consumer(FakeLogs(s=[12])) as consuming:
        found = [(await consuming.next(5.0)).offset for _ in range(12)]
        assert found == list(range(12))
        with pytest.raises(ConsumerEndedError):
            await consuming.next()
        for timeout_s in (-1, "x"):
            with pytest.raises(UsageError, match="timeout_s"):
                await consuming.next(timeout_s)
        with pytest.raises(UsageError, match="max_messages"):
            await consuming.next_batch(0)


async def test_only_one_task_waits_for_the_next_item():
    consuming = consumer(FakeLogs(per_batch=5, s=[50]), stop=None)
    async with asyncio.timeout(20), consuming:
        first, second = await asyncio.gather(consuming.next(), consuming.next(), return_exceptions=True)
        assert first.offset == 0
        assert isinstance(second, UsageError)
        assert [(await consuming.next()).offset for _ in range(49)] == list(range(1, 50))


async def test_what_an_iteration_had_is_given_up_by_the_next_one():
    consuming = consumer(FakeLogs(s=[5]))
    feeds = weakref.WeakSet()
    async with asyncio.timeout(20):
        for _ in range(5):
            assert await offsets(consuming) == list(range(5))
            feeds.add(consuming._feed)
    gc.collect()
    assert len(feeds) == 1


async def test_what_nobody_refers_to_any_more_ends():
    logs = FakeLogs(s=[50])
    async for _ in consumer(logs, stop=None):
        break
    await eventually(lambda: not logs.running)


def test_what_is_left_open_when_its_event_loop_closes_warns():
    async def leave():
        left = consumer(FakeLogs(s=[3]), stop=None)
        await left.next()
        return left

    def leave_it():
        asyncio.run(leave())
        gc.collect()

    with pytest.warns(ResourceWarning, match="a Consumer was not closed, and its event loop is"):
        leave_it()


async def test_where_the_stream_is_is_asked_once():
    class Counting(FakeLogs):
        asked = 0

        async def stream(self, name, *, fresh=False):
            self.asked += 1
            return await super().stream(name, fresh=fresh)

        latest = stream

    logs = Counting(s=[10, 10])
    assert len(await offsets(consumer(logs))) == 10
    assert logs.asked == 1


async def test_waiting_for_news_is_no_obstacle():
    logs = FakeLogs(s=[10, 10])
    async with asyncio.timeout(20), consumer(logs, stop=None, wait_ms=30_000) as consuming:
        iterating = aiter(consuming)
        for _ in range(20):
            await anext(iterating)
        waiting = asyncio.ensure_future(anext(iterating))
        await asyncio.sleep(0.05)
        consuming.seek({1: 9})
        assert (await waiting).offset == 9
        consuming.pause([0])
        logs.grow("s", 0, 1)
        logs.grow("s", 1, 1)
        assert (await anext(iterating)).partition == 1
        consuming.resume([0])
        assert (await anext(iterating)).partition == 0


@pytest.mark.parametrize(
    "mistake",
    [
        lambda consuming: consuming.seek(-1),
        lambda consuming: consuming.seek({0: "x"}),
        lambda consuming: consuming.seek({7: 1}),
        lambda consuming: consuming.pause([7]),
        lambda consuming: consuming.resume([]),
        lambda consuming: consuming.position(7),
        lambda consuming: consuming.lag(stream="t"),
    ],
)
async def test_mistakes(mistake):
    async with consumer(FakeLogs(s=[1])) as consuming:
        with pytest.raises(UsageError):
            mistake(consuming)


async def test_what_it_knows_as_soon_as_it_has_begun():
    logs = FakeLogs(s=[1], t=[9])
    async with consumer(logs, "s", "t", start=2, stop=None) as consuming:
        assert consuming.lag(stream="t") == {0: 7}
        assert consuming.stream_uuid(stream="t") == logs.places["t"].uuid.hex()
        with pytest.raises(UsageError, match="is not one of those that are consumed"):
            consuming.stream_uuid()


async def test_what_is_asked_too_early():
    with pytest.raises(UsageError, match="has not begun"):
        consumer(FakeLogs(s=[1])).position()
    with pytest.raises(UsageError, match="has not begun"):
        consumer(FakeLogs(s=[1])).stream_uuid()
    with pytest.raises(UsageError):
        consumer(FakeLogs(s=[1]), "s", "s")
    with pytest.raises(UsageError):
        consumer(FakeLogs(s=[1]), "s", "t", start={0: 1})
