"""`process` in processes of their own: members and the leader are killed, handlers raise and hang."""

from __future__ import annotations

import asyncio
import random

from support.cluster import eventually
from support.cluster_kit import create, leader_of, running_cluster, settled
from support.process_worker import WorkerProcess

KEYS = 40
PER_KEY = 30


def is_poison(key, number):
    return (key * 7 + number) % 97 == 0


async def publish(lift):
    """Messages of all keys in turns, each key on several subjects; the value is the number within the key."""
    async with lift.publisher(stream="s") as publisher:
        for number in range(PER_KEY):
            for key in range(KEYS):
                text = f"{number}!" if is_poison(key, number) else str(number)
                await publisher.publish(f"s.{(key + number) % 3}", text.encode(), key=b"%d" % key)
            await publisher.flush()
            await asyncio.sleep(0.05)  # so that kills fall among the messages


async def is_committed(lift):
    details = await lift.stream_info("s")
    ends = {number: partition.high_watermark for number, partition in enumerate(details.partitions)}
    return {number: row.offset for number, row in (await lift.committed("g", "s")).items()} == ends


async def test_members_and_a_leader_are_killed(tmp_path):
    """Every message is handled at least once, those of a key in order; the dead letters are those that must be."""
    dice = random.Random(1)
    workers = []
    async with running_cluster(tmp_path) as kit, kit.connect() as lift:
        await create(lift, "s", "s.>", partitions=6)
        await create(lift, "dead", "dead.>")
        await settled(lift, ["s", "dead"])
        alive = []

        async def begin():
            worker = await WorkerProcess(kit.url, "s", "g", "dead.s").__aenter__()
            workers.append(worker)
            alive.append(worker)

        try:
            await asyncio.gather(begin(), begin())
            await eventually(lambda: all(worker.count("ready") for worker in alive))
            publishing = asyncio.create_task(publish(lift))
            for _ in range(2):
                had = sum(worker.count("handled") for worker in workers)
                await eventually(lambda had=had: sum(worker.count("handled") for worker in workers) > had + 100, 60)
                await alive.pop(dice.randrange(len(alive))).kill()
                await begin()
            leader = await leader_of(lift, "s")
            await asyncio.to_thread(kit.kill, leader)
            await publishing
            await eventually(lambda: is_committed(lift), 90)
            alive[0].process.terminate()
            await asyncio.wait_for(alive[0].process.wait(), 30)
            await eventually(lambda: alive[0].count("ended") == 1)
        finally:
            for worker in workers:
                await worker.kill()
        letters = [message async for message in lift.consume("dead", stop="latest")]
    check(workers, letters)


def check(workers, letters):
    lines = sorted(
        (int(at), int(key), int(value))
        for worker in workers
        for what, *more in worker.lines
        if what == "handled"
        for key, value, at in [more]
    )
    done = {key: {number for number in range(PER_KEY) if is_poison(key, number)} for key in range(KEYS)}
    for _, key, number in lines:
        assert set(range(number)) <= done[key], f"key {key}: {number} before {set(range(number)) - done[key]}"
        done[key].add(number)
    assert all(numbers == set(range(PER_KEY)) for numbers in done.values())
    poison = sorted((key, f"{number}!") for key in range(KEYS) for number in range(PER_KEY) if is_poison(key, number))
    assert sorted((int(letter.key), letter.value.decode()) for letter in letters) == poison
    assert {letter.headers["Dead-Letter-Attempts"] for letter in letters} == {"8"}
