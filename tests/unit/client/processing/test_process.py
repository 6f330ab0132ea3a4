"""Members that call handlers, against a real coordinator and a log in this process."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time

import pytest

from liftpy_client.errors import HandlerFailedError, HandlerStuckError, UsageError
from liftpy_client.message import Message
from liftpy_client.processing.dead_letters import original_headers
from liftpy_client.processing.options import Batch, Retry
from liftpy_envelope.headers import encode_header_block
from support.cluster import eventually
from support.examples import first
from support.process_kit import FakeWorld, Member, Trial

COUNTS = [100, 60, 0, 31]


@pytest.fixture
async def world():
    return FakeWorld(COUNTS)


async def test_everything_is_handled_in_order_and_committed(world):
    trial = Trial(world)
    member = Member(world, trial.handle)
    await eventually(lambda: trial.handled.keys() == trial.places)
    await member.end()
    assert set(trial.handled.values()) == {1}
    assert await world.committed() == {0: 100, 1: 60, 3: 31}


async def test_commits_happen_at_their_interval(world):
    trial = Trial(world)
    member = Member(world, trial.handle)
    async with asyncio.timeout(20):
        while await world.committed() != {0: 100, 1: 60, 3: 31}:
            await asyncio.sleep(0.01)
    await member.end()


async def test_a_message_in_hand_is_not_committed_and_those_behind_it_are_not_either(world):
    hold = asyncio.Event()
    handled = []

    async def handle(message):
        if (message.partition, message.offset) == (0, 40):
            await hold.wait()
        handled.append((message.partition, message.offset))

    member = Member(world, handle)
    # of the lane of offset 40, nothing behind it is handled; other lanes and partitions go on
    await eventually(lambda: len(handled) == 191 - 20)
    async with asyncio.timeout(20):
        while await world.committed() != {0: 40, 1: 60, 3: 31}:
            await asyncio.sleep(0.01)
    hold.set()
    await eventually(lambda: len(handled) == 191)
    await member.end()
    assert (await world.committed())[0] == 100


async def test_failures_are_tried_again_in_order(world):
    trial = Trial(world)
    trial.trouble = (0.3, 0.0)
    member = Member(world, trial.handle, retry=Retry(100, (0.0, 0.002)))
    await eventually(lambda: trial.handled.keys() == trial.places)
    await member.end()
    assert trial.calls > 191
    assert set(trial.handled.values()) == {1}


async def test_dead_letters_say_what_happened(world):
    trial = Trial(world)
    trial.poison = {(0, 5), (1, 59)}
    world.unsure = 1
    member = Member(world, trial.handle, dead_letter="dead.s")
    await eventually(lambda: trial.handled.keys() == trial.places - trial.poison)
    await eventually(lambda: len(world.letters) == 2)
    await member.end()
    assert await world.committed() == {0: 100, 1: 60, 3: 31}
    letter = next(letter for letter in world.letters.values() if letter.headers["Dead-Letter-Partition"] == "0")
    assert (letter.subject, letter.value) == ("dead.s", b"5")
    assert letter.headers == {
        "Dead-Letter-Attempts": "4",
        "Dead-Letter-Cause": "ValueError: no (0, 5)",
        "Dead-Letter-Group": "g",
        "Dead-Letter-Offset": "5",
        "Dead-Letter-Partition": "0",
        "Dead-Letter-Stream": "s",
        "Dead-Letter-Subject": "s.2",
        "Dead-Letter-Time": "1970-01-01T00:00:00+00:00",
    }


async def test_an_offset_is_not_committed_before_its_dead_letter_is_acknowledged(world):
    trial = Trial(world)
    trial.poison = {(0, 5)}
    acknowledged = asyncio.Event()
    publish = world.publish

    async def slow(*arguments, **more):
        await acknowledged.wait()
        await publish(*arguments, **more)

    world.publish = slow
    member = Member(world, trial.handle, dead_letter="dead.s")
    await eventually(lambda: (1, 59) in trial.handled and (0, 99) in trial.handled)
    async with asyncio.timeout(20):
        while (await world.committed()).get(1) != 60:
            await asyncio.sleep(0.01)
    assert (await world.committed())[0] == 5
    acknowledged.set()
    await eventually(lambda: trial.handled.keys() == trial.places - trial.poison)
    await member.end()
    assert (await world.committed())[0] == 100


async def test_without_dead_letters_the_error_ends_it(world):
    trial = Trial(world)
    trial.poison = {(1, 30)}
    member = Member(world, trial.handle)
    with pytest.raises(
        HandlerFailedError, match=r"stream s partition 1 offset 30: .* failed after 4 calls, with ValueError"
    ) as caught:
        await member.task
    assert isinstance(caught.value.__cause__, ValueError)
    assert (await world.committed())[1] == 30


async def test_a_handler_that_hangs_is_interrupted_and_called_again(world):
    trial = Trial(world)
    trial.trouble = (0.0, 0.02)
    member = Member(world, trial.handle, handler_timeout_s=0.05, retry=Retry(50, (0.0, 0.001)), concurrency=64)
    await eventually(lambda: trial.handled.keys() == trial.places)
    await member.end()
    assert set(trial.handled.values()) == {1}


async def test_a_handler_that_cannot_be_interrupted_ends_it_and_gives_the_partitions_back(world):
    trial = Trial(world)

    async def handle(message):
        while message.offset == 7:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if is_over:
                    raise
        await trial.handle(message)

    is_over = False
    member = Member(world, handle, handler_timeout_s=0.1)
    with pytest.raises(HandlerStuckError, match=r"offset 7: the handler has not ended after 0\.\d s"):
        await member.task
    is_over = True
    heir = Member(world, trial.handle)
    await eventually(lambda: len(heir.partitions) == 4)
    await eventually(lambda: trial.handled.keys() == trial.places)
    await heir.end()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


async def test_a_process_that_stands_still_blames_no_handler(world):
    started, calls = asyncio.Event(), []

    async def handle(message):
        calls.append((message.partition, message.offset))
        started.set()
        for _ in range(5):
            await asyncio.sleep(0.002)

    member = Member(world, handle, handler_timeout_s=0.4, retry=Retry(1), group_options={"session_timeout_s": 20.0})
    await started.wait()
    time.sleep(1.2)
    await eventually(lambda: len(calls) == 191)
    await member.end()
    assert len(set(calls)) == 191


async def test_plain_functions_run_in_threads(world):
    names, handled = set(), []
    barrier = threading.Barrier(3, timeout=20)

    def handle(message):
        if (message.partition, message.offset) in {(0, 0), (0, 1), (0, 2)}:
            barrier.wait()  # three subjects: three threads at the same time
        names.add(threading.current_thread().name)
        handled.append((message.partition, message.offset))

    member = Member(world, handle, concurrency=3)
    await eventually(lambda: len(handled) == 191)
    await member.end()
    assert names == {"liftpy g-1", "liftpy g-2", "liftpy g-3"}
    await eventually(lambda: not any(thread.name.startswith("liftpy g-") for thread in threading.enumerate()))


async def test_a_plain_function_that_hangs_ends_it(world):
    release = threading.Event()

    def handle(message):
        if message.offset == 7:
            release.wait(30)

    member = Member(world, handle, handler_timeout_s=0.1)
    with pytest.raises(HandlerStuckError):
        await member.task
    release.set()


async def test_stopping_finishes_what_is_in_hand(world):
    started, handled = [], []
    go_on = asyncio.Event()

    async def handle(message):
        started.append((message.partition, message.offset))
        await go_on.wait()
        handled.append((message.partition, message.offset))

    member = Member(world, handle, concurrency=4)
    await eventually(lambda: len(started) == 4)
    member.stop.set()
    await asyncio.sleep(0.01)
    assert not member.task.done()
    go_on.set()
    await member.end()
    assert sorted(handled) == sorted(started)
    assert len(started) == 4
    assert sum((await world.committed()).values()) == 4


async def test_cancelling_finishes_what_is_in_hand(world):
    started, handled = asyncio.Event(), []

    async def handle(message):
        started.set()
        await asyncio.sleep(0.05)
        handled.append(message.offset)

    member = Member(world, handle, concurrency=1)
    await started.wait()
    member.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await member.task
    assert sum((await world.committed()).values()) == len(handled) == 1


async def test_the_shutdown_is_bounded(world):
    started = asyncio.Event()

    async def handle(_):
        started.set()
        await asyncio.Event().wait()

    member = Member(world, handle, shutdown_timeout_s=0.1)
    await started.wait()
    begun = time.monotonic()
    await member.end()
    assert time.monotonic() - begun < 5
    assert sum((await world.committed()).values()) == 0


async def test_a_connection_that_closes_waits_for_it_and_not_for_ever(world):
    begun, hold = asyncio.Event(), asyncio.Event()

    async def handle(_):
        begun.set()
        await hold.wait()

    member = Member(world, handle, shutdown_timeout_s=600.0)
    await begun.wait()
    closing = asyncio.create_task(member.process.close())
    await asyncio.sleep(0.05)
    assert not closing.done(), "it waits for what is in hand"
    closing.cancel()
    async with asyncio.timeout(20):
        await asyncio.wait({closing, member.task})
    assert closing.cancelled()
    assert member.task.done()


async def test_sigterm_stops_it(world):
    trial = Trial(world)
    member = Member(world, trial.handle)
    await eventually(lambda: trial.handled.keys() == trial.places)
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(20):
        await member.task
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert await world.committed() == {0: 100, 1: 60, 3: 31}


async def test_memory_is_bounded(world):
    go_on = asyncio.Event()

    async def handle(_):
        await go_on.wait()

    member = Member(world, handle, in_flight_messages=12, concurrency=100)
    await eventually(lambda: len(member.process._schedule.running) > 0)
    await asyncio.sleep(0.1)
    assert member.process._schedule._count <= 12
    go_on.set()
    async with asyncio.timeout(20):
        while await world.committed() != {0: 100, 1: 60, 3: 31}:
            await asyncio.sleep(0.01)
    await member.end()


async def test_a_slow_partition_does_not_stop_the_others(world):
    go_on = asyncio.Event()
    handled = set()

    async def handle(message):
        if message.partition == 0:
            await go_on.wait()
        handled.add((message.partition, message.offset))

    member = Member(world, handle, in_flight_messages=30, by="partition")
    await eventually(lambda: len(handled) == 91)
    go_on.set()
    await eventually(lambda: len(handled) == 191)
    await member.end()


async def test_batches(world):
    handled = []

    async def handle(batch):
        handled.append((batch["partition"][0].as_py(), batch["offset"].to_pylist()))

    member = Member(world, handle, batch=Batch(rows=25, wait_s=0.05), by="partition")
    await eventually(lambda: sum(len(offsets) for _, offsets in handled) == 191)
    await member.end()
    assert max(len(offsets) for _, offsets in handled) == 25
    for number, count in enumerate(COUNTS):
        assert [offset for partition, offsets in handled if partition == number for offset in offsets] == [
            *range(count)
        ]
    assert await world.committed() == {0: 100, 1: 60, 3: 31}


async def test_dead_letters_of_a_batch(world):
    async def handle(batch):
        if 30 in batch["offset"].to_pylist():
            raise ValueError("thirty")

    member = Member(world, handle, batch=Batch(rows=10, wait_s=0.02), dead_letter="dead.s", by="partition")
    async with asyncio.timeout(20):
        while await world.committed() != {0: 100, 1: 60, 3: 31}:
            await asyncio.sleep(0.01)
    await member.end()
    found = {
        (letter.headers["Dead-Letter-Partition"], letter.headers["Dead-Letter-Offset"])
        for letter in world.letters.values()
    }
    assert {("0", "30"), ("1", "30"), ("3", "30")} <= found
    assert all(letter.value == letter.headers["Dead-Letter-Offset"].encode() for letter in world.letters.values())


async def test_members_share_and_hand_over_without_a_repetition(world):
    trial = Trial(world)
    trial.pause_s = 0.02
    one = Member(world, trial.handle)
    await eventually(lambda: len(trial.handled) > 20)
    two = Member(world, trial.handle)
    await eventually(lambda: len(one.partitions) == len(two.partitions) == 2)
    await one.end()
    await eventually(lambda: len(two.partitions) == 4)
    await eventually(lambda: trial.handled.keys() == trial.places)
    await two.end()
    assert set(trial.handled.values()) == {1}, "nothing is handled twice when partitions move as planned"
    assert await world.committed() == {0: 100, 1: 60, 3: 31}


async def is_committed(world, ends):
    world.tick()  # so that members are given up that were killed before they had an id
    return await world.committed() == ends


@pytest.mark.parametrize("seed", first(4, range(40)))
async def test_chaos(seed):
    dice = random.Random(seed)
    world = FakeWorld([dice.randint(0, 150) for _ in range(4)], per_batch=dice.choice([1, 7, 30]))
    trial = Trial(world, seed)
    trial.trouble = (0.05, 0.01)
    trial.pause_s = 0.01
    trial.poison = {place for place in sorted(trial.places) if dice.random() < 0.02}
    options = {
        "dead_letter": "dead.s",
        "handler_timeout_s": 0.1,
        "in_flight_messages": dice.choice([20, 1_000]),
        "retry": Retry(12, (0.0, 0.002)),
    }
    members = [Member(world, trial.handle, **options)]
    for _ in range(dice.randint(2, 6)):
        world.unsure = dice.choice([0, 0, 1])
        await asyncio.sleep(dice.random() * 0.1)
        event = dice.choice(["join", "leave", "kill", "coordinator"])
        if event == "join" or not members:
            members.append(Member(world, trial.handle, **options))
        elif event == "coordinator":
            world.leader = dice.choice(world.node_ids)
        else:
            member = members.pop(dice.randrange(len(members)))
            member_id = member.member_id
            await (member.end() if event == "leave" else member.kill())
            if event == "kill" and member_id:
                world.expel(member_id)
    members.append(Member(world, trial.handle, **options))
    ends = {number: count for number, count in enumerate(world.counts) if count}
    await eventually(lambda: is_committed(world, ends), 30, "not all is committed")
    for member in members:
        await member.end()
    assert trial.handled.keys() == trial.places - trial.poison, "every message is handled at least once"
    found = {
        (int(letter.headers["Dead-Letter-Partition"]), int(letter.headers["Dead-Letter-Offset"]))
        for letter in world.letters.values()
    }
    assert found == trial.poison, "dead letters are exact"
    assert len(world.letters) == len(found)


async def test_a_stream_that_matches_later_is_handled(world, monkeypatch):
    monkeypatch.setattr("liftpy_client.group.membership._LOOK_S", 0.05)
    world.listed = []
    trial = Trial(world)
    member = Member(world, trial.handle, streams=("s*",))
    await eventually(lambda: member.member_id)
    member_id = member.member_id
    assert member.partitions == []
    world.listed = ["other", "s"]
    await eventually(lambda: trial.handled.keys() == trial.places)
    assert member.member_id == member_id
    await member.end()
    assert await world.committed() == {0: 100, 1: 60, 3: 31}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"concurrency": 0}, "concurrency must be between 1"),
        ({"by": "colour"}, "by: 'colour' is not one of key, subject, partition"),
        ({"batch": Batch(), "by": "subject"}, "batches are of one partition"),
        ({"retry": 5}, r"retry: 5 is not a liftpy\.Retry"),
        ({"handler_timeout_s": 0}, "handler_timeout_s must be between"),
    ],
)
async def test_options_are_checked(world, options, text):
    with pytest.raises(UsageError, match=text):
        Member(world, print, **options)


async def generator(_message):
    yield


async def test_what_by_returns_is_checked(world):
    member = Member(world, Trial(world).handle, by=lambda message: [message.subject])
    with pytest.raises(UsageError, match=r"by: the function returned \['s.0'\] for Message\(s\[.* must be hashable"):
        await member.task

    def raises(message):
        raise KeyError("tenant")

    member = Member(world, Trial(world).handle, by=raises)
    with pytest.raises(KeyError, match="tenant") as raised:
        await member.task
    assert "`by` of `process`, for Message(s[" in raised.value.__notes__[0]

    async def slow(message):
        return message.subject

    with pytest.raises(UsageError, match="is `async def`"):
        Member(world, Trial(world).handle, by=slow)


async def test_a_handler_that_a_call_does_not_run_is_refused(world):
    with pytest.raises(UsageError, match="is a generator, so that a call of it does nothing"):
        Member(world, generator)


async def test_a_handler_that_awaits_what_was_cancelled_has_failed(world):
    trial = Trial(world)

    async def handle(message):
        if (message.partition, message.offset) == (1, 5):
            gone = asyncio.get_running_loop().create_future()
            gone.cancel()
            await gone
        await trial.handle(message)

    member = Member(world, handle, dead_letter="dead.s", retry=Retry(2, (0.0, 0.001)))
    await eventually(lambda: trial.handled.keys() == trial.places - {(1, 5)})
    await eventually(lambda: len(world.letters) == 1)
    await member.end()
    (letter,) = world.letters.values()
    assert letter.headers["Dead-Letter-Cause"] == "RuntimeError: the handler raised CancelledError"
    assert await world.committed() == {0: 100, 1: 60, 3: 31}


def test_a_dead_letter_keeps_all_values_of_a_header():
    block = b"NATS/1.0\r\nA: 1\r\nA: 2\r\nB: 3\r\nNot one: 4\r\nNats-Msg-Id: 5\r\n\r\n"
    message = Message("s", 0, 0, 0, "s.1", None, block, b"")
    assert original_headers(message) == {"A": ["1", "2"], "B": "3"}
    assert encode_header_block(original_headers(message)) == b"NATS/1.0\r\nA: 1\r\nA: 2\r\nB: 3\r\n\r\n"


def test_waits_grow_and_have_jitter():
    retry = Retry(5, (0.1, 1.0))
    assert [retry.wait_s(failed, 1.0) for failed in (1, 2, 3, 4, 5, 1_000)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert retry.wait_s(1, 0.0) == 0.05
    with pytest.raises(UsageError, match="backoff_s must grow"):
        Retry(5, (3, 1))
