"""Processes of a group on one node: killed, frozen, restarted, joined by others; what is read again and what pauses."""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from contextlib import asynccontextmanager, contextmanager

import pytest

from liftpy_client.group_offsets import committed
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
        told = [len(each.of("assigned") + each.of("revoked")) for each in others]
        crew["b"].kill()
        again = worker(instance_id="b", session_s=STATIC_S, interval_s=0.2)
        await eventually(lambda: again.count("read") > 20, 40)
        assert set(begun(again)) == had["b"]
        read = [each.count("read") for each in others]
        await eventually(lambda: all(each.count("read") > count for each, count in zip(others, read, strict=True)))
        assert [len(each.of("assigned") + each.of("revoked")) for each in others] == told
        assert await shares() == had


class Timed(Reading):
    """Notes when it got each message of each partition."""

    async def _read(self):
        self.times = {}
        async for message in self.consumer:
            self.messages.append(message)
            self.times.setdefault(message.partition, []).append(time.monotonic())

    def gap_s(self, partition, begin_s, end_s):
        """The longest time without a message of a partition in a time."""
        inside = [at for at in self.times[partition] if begin_s <= at <= end_s]
        return max(later - sooner for sooner, later in itertools.pairwise([begin_s, *inside, end_s]))


async def test_only_partitions_that_move_pause(lift, name):
    """The old owner takes long to let go of what moves; what stays is read all the time."""
    slow_s = 3.0
    revoked = asyncio.Event()

    async def let_go(_partitions):
        revoked.set()
        await asyncio.sleep(slow_s)

    await make(lift, name, partitions=6, count=60)
    async with (
        filling(lift, name, 0.005),
        Timed(lift, name, f"{name}-g", session_timeout_s=20.0, on_revoked=let_go) as one,
    ):
        await eventually(lambda: len(getattr(one, "times", {})) == 6)
        joined_s = time.monotonic()
        async with reading(lift, name, f"{name}-g", session_timeout_s=20.0) as two:
            await asyncio.wait_for(revoked.wait(), 40)
            await eventually(lambda: len({message.partition for message in two.messages}) == 3)
            end_s = time.monotonic()
            stay, moved = set(numbers(one)), set(numbers(two))
            assert (len(stay), len(moved)) == (3, 3)
            longest_s = max(one.gap_s(partition, joined_s, end_s) for partition in stay)
            print(f"partitions that stay: at most {longest_s:.3f} s without a message in {end_s - joined_s:.1f} s")
            assert longest_s < slow_s * 0.8, "it waits for what moves"
            assert not [at for partition in moved for at in one.times[partition] if at > end_s - slow_s]
            revoked.clear()


def numbers(reader):
    return [number for _, number in reader.consumer.assignment]
