"""Outputs of `process(atomic=True)` are stored once: members are killed before they commit, and leaders of outputs."""

from __future__ import annotations

import asyncio
from collections import Counter

from support.atomic_worker import AtomicWorkerProcess
from support.cluster import eventually
from support.cluster_kit import create, leader_of, running_cluster, settled

KEYS = 20
PER_KEY = 30


def is_poison(key, number):
    return (key * 7 + number) % 89 == 0


def value_of(key, number):
    return f"{key}-{number}" + ("!" if is_poison(key, number) else "")


async def publish(lift):
    async with lift.publisher(stream="s") as publisher:
        for number in range(PER_KEY):
            for key in range(KEYS):
                await publisher.publish("s.x", value_of(key, number).encode(), key=b"%d" % key)
            await publisher.flush()
            await asyncio.sleep(0.05)


async def is_committed(lift):
    details = await lift.stream_info("s")
    ends = {number: partition.high_watermark for number, partition in enumerate(details.partitions)}
    return {number: row.offset for number, row in (await lift.committed("g", "s")).items()} == ends


async def test_each_output_is_there_once_whatever_is_killed(tmp_path):
    """The streams of outputs remember no ids: only what their leaders know of ordered producers keeps doubles away."""
    workers = []
    async with running_cluster(tmp_path) as kit, kit.connect() as lift:
        await create(lift, "s", "s.>", partitions=3)
        await create(lift, "once", "once.>", partitions=3, dedupe_window_s=0)
        await settled(lift, ["s", "once"])

        async def begin():
            workers.append(await AtomicWorkerProcess(kit.url, "s", "g").__aenter__())

        try:
            await asyncio.gather(begin(), begin())
            await eventually(lambda: all(worker.count("ready") for worker in workers))
            publishing = asyncio.create_task(publish(lift))
            for turn in range(3):
                had = sum(worker.count("handled") for worker in workers)
                await eventually(lambda had=had: sum(worker.count("handled") for worker in workers) > had + 40, 60)
                await workers[turn].kill()
                await begin()
                if turn == 1:
                    await asyncio.to_thread(kit.kill, await leader_of(lift, "once"))
            await publishing
            await eventually(lambda: is_committed(lift), 120)
        finally:
            for worker in workers:
                await worker.kill()
        stored = [message async for message in lift.consume("once", stop="latest")]
    again = sum(worker.count("handled") for worker in workers) - len(
        {tuple(line) for worker in workers for line in worker.lines if line[0] == "handled"}
    )
    check(stored)
    assert again > 0, "no message was handled twice, so nothing was shown"


def check(stored):
    every = [(key, number) for key in range(KEYS) for number in range(PER_KEY)]
    well = [each for each in every if not is_poison(*each)]
    subjects = {subject: [m for m in stored if m.subject.startswith(subject)] for subject in ("once.a", "once.b")}
    assert Counter(m.value.decode() for m in subjects["once.a"]) == Counter(value_of(*each) for each in well)
    halves = Counter(f"{value_of(*each)}.{half}" for each in well for half in (1, 2))
    assert Counter(m.value.decode() for m in subjects["once.b"]) == halves
    letters = [m.value.decode() for m in stored if m.subject == "once.dead"]
    assert sorted(letters) == sorted(value_of(*each) for each in every if is_poison(*each))
    for key in range(KEYS):
        numbers = [int(m.value.split(b"-")[1]) for m in subjects["once.a"] if m.key == b"%d" % key]
        assert numbers == sorted(numbers), f"outputs of key {key} are not in the order of the source"
