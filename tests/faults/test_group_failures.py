"""Processes of a group on one node: killed, frozen, restarted, joined by others; what is read again and what pauses."""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections import Counter
from contextlib import asynccontextmanager, contextmanager

import pytest

from liftpy_client.group.offsets import committed
from support.cluster import eventually
from support.group_kit import Reading, fill, reading
from support.group_worker import WorkerProcess

STATIC_S = 40.0  # a process has that long to come back


@pytest.fixture
def lift(shared_lift):
    return shared_lift


@pytest.fixture
def worker(shared_nats, tmp_path, name):
    """Starts processes in a group of the stream; kills them in the end."""
    numbers = itertools.count()
    started = []

    def start(**more):
        started.append(WorkerProcess(tmp_path, f"worker-{next(numbers)}", shared_nats.url, name, f"{name}-g", **more))
        return started[-1]

    yield start
    for each in started:
        each.kill()


async def make(lift, name, partitions, count):
    await lift.create_stream(name, subject=f"{name}.>", partitions=partitions)
    await fill(lift, name, count)


@asynccontextmanager
async def filling(lift, stream, pause_s=0.01):
    """Messages come all the time, spread over the partitions."""

    async def run():
        async with lift.publisher(stream=stream) as publisher:
            for number in itertools.count():
                await publisher.publish(f"{stream}.x", b"more %d" % number, key=b"%d" % number)
                await asyncio.sleep(pause_s)

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextmanager
def frozen(process):
    process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.signal(signal.SIGCONT)


def begun(process):
    """Where it began, by partition, as it was told last."""
    return {int(number): at or 0 for line in process.of("begin") for number, at in line[4].items()}


async def test_after_kill_9_at_most_one_interval_is_read_again(lift, worker, name):
    interval_s = 1.0
    await make(lift, name, partitions=2, count=2000)
    first = worker(interval_s=interval_s, handling_s=0.005)
    await eventually(lambda: first.count("commit") >= 3)
    await asyncio.sleep(interval_s * 0.7)
    first.kill()
    killed_s = time.time()
    second = worker()
    await eventually(lambda: len(begun(second)) == 2)
    starts = begun(second)
    again = [line for line in first.of("read") if line[3] >= starts[line[2]]]
    assert again, "it was killed in the midst of an interval"
    assert len(again) < first.count("read") / 2
    oldest_s = min(at_s for _, at_s, *_ in again)
    # What it had handled when it asked for its last commit that was answered is not among them.
    answered = {line[4] for line in first.of("commit") if line[6] == "NONE"}
    asked_s = max(line[1] for line in first.of("try") if line[4] in answered)
    assert killed_s - 5 * interval_s < asked_s < oldest_s, f"{len(again)} records of {killed_s - oldest_s:.2f} s"
    handled = {(line[2], line[3]) for line in first.of("read")}
    assert all((number, offset) in handled for number, at in starts.items() for offset in range(at)), "nothing is lost"


async def test_a_frozen_process_that_wakes_commits_nothing(lift, worker, name):
    await make(lift, name, partitions=2, count=600)
    sleeper = worker(interval_s=0.1, handling_s=0.01)
    await eventually(lambda: sleeper.count("commit") >= 2)
    with frozen(sleeper):
        heir = worker(interval_s=0.1)
        await eventually(lambda: len(begun(heir)) == 2)
        await eventually(lambda: heir.count("commit") >= 1)
        taken = begun(heir)
        sleeper.look()
        told = len(sleeper.lines)
    await eventually(lambda: sleeper.count("lost") == 1)
    after = sleeper.lines[told:]
    until_lost = after[: next(at for at, line in enumerate(after) if line[0] == "lost")]
    assert sum(line[0] == "read" for line in until_lost) <= 1, "it had no more in its hand than that"
    old_id = sleeper.of("begin")[0][2]
    asked = {tuple(line[2:5]): set(map(int, line[5])) for line in sleeper.of("try") if line[2] == old_id}
    answers = [line for line in after if line[0] == "commit" and line[2] == old_id and line[6] == "NONE"]
    assert [line for line in answers if set(line[5]) != asked[tuple(line[2:5])]] == [], "all of it is refused"
    now = {number: row.offset for number, row in (await committed(lift._session, f"{name}-g", name)).items()}
    assert all(now[number] >= offset for number, offset in taken.items())
    await eventually(lambda: sleeper.count("begin") >= 2, message="it gets one of them again")


async def test_a_static_process_that_restarts_within_its_session_moves_nothing(lift, worker, name):
    async def shares():
        members = (await lift.group(f"{name}-g")).members
        return {member.instance_id: set(member.assigned.get(name, ())) for member in members}

    async def is_spread():
        return [len(numbers) for numbers in (await shares()).values()] == [2, 2, 2]

    await make(lift, name, partitions=6, count=120)
    async with filling(lift, name):
        crew = {who: worker(instance_id=who, session_s=STATIC_S, interval_s=0.2) for who in "abc"}
        await eventually(lambda: all(each.count("begin") for each in crew.values()), 40)
        await eventually(is_spread)
        had = await shares()
        await eventually(lambda: all(set(begun(crew[who])) >= numbers for who, numbers in had.items()))
        others = [crew["a"], crew["c"]]
        await eventually(lambda: all(each.of("assigned") for each in others))  # it is told after messages have begun
        told = [len(each.of("assigned") + each.of("revoked")) for each in others]
        crew["b"].kill()
        again = worker(instance_id="b", session_s=STATIC_S, interval_s=0.2)
        await eventually(lambda: again.count("read") > 20, 40)
        assert set(begun(again)) == had["b"]
        read = [each.count("read") for each in others]
        await eventually(lambda: all(each.count("read") > count for each, count in zip(others, read, strict=True)))
        assert [len(each.of("assigned") + each.of("revoked")) for each in others] == told
        assert await shares() == had


def read_of(reader):
    """How many messages it got, by partition."""
    return Counter(message.partition for message in reader.messages)


async def test_only_partitions_that_move_pause(lift, name):
    """The old owner lets go of what moves when it has read much more of what stays."""
    moving, may_go = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def let_go(partitions):
        if not moving.done():
            moving.set_result(({number for _, number in partitions}, read_of(one)))
        await may_go.wait()

    await make(lift, name, partitions=6, count=60)
    one = Reading(lift, name, f"{name}-g", on_revoked=let_go)
    async with filling(lift, name, 0.005), one:
        await eventually(lambda: len(read_of(one)) == 6)
        async with reading(lift, name, f"{name}-g") as two:
            moved, had = await asyncio.wait_for(moving, 40)
            stay = set(range(6)) - moved
            assert (len(stay), len(moved)) == (3, 3)
            try:
                await eventually(
                    lambda: all(read_of(one)[partition] >= had[partition] + 50 for partition in stay),
                    message="what stays waits for what moves",
                )
                assert {partition: read_of(one)[partition] for partition in moved} == {at: had[at] for at in moved}
                assert two.messages == []
            finally:
                may_go.set()
            await eventually(lambda: set(read_of(two)) == moved)
            assert (set(numbers(one)), set(numbers(two))) == (stay, moved)


def numbers(reader):
    return [number for _, number in reader.consumer.assignment]
