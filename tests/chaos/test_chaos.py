"""Rounds of random faults under load: afterwards everything that was acknowledged is there, once, where it was said.

`CHAOS_SEED` repeats a plan of faults, `CHAOS_ROUNDS` makes it longer or shorter.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from chaos.faults import Faults
from support.cluster_kit import ClusterKit, create, settled
from support.history import History, check, report, timeline
from support.reading import read_all
from support.recorded_load import RecordedConsumer, RecordedPublisher
from support.replica_files import check_replicas
from support.small_disk import SmallDisk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import liftpy
    from support.history import Violation

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

MIB = 1024 * 1024
SEED = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1_000_000)
ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "32"))
ROUND_S = 60
AROUND_S = 400  # to begin, to end, and to judge
RECOVERED_WITHIN_S = 30.0
ACKS_AFTER_FAULT = 10
SMALL_DISK = 512 * MIB
STREAMS = {"one": 1, "six": 6}
SETTINGS = {"dedupe_window_s": 3_600.0}  # longer than any outage: whatever comes twice is a fault of the cluster
KEPT = "[storage]\ndisk_reserve_bytes = 4194304\n"


class Load:
    """Publishers and consumers of two streams."""

    def __init__(self, kit: ClusterKit, history: History) -> None:
        subjects = {"one": lambda _number: "one", "six": lambda number: f"six.{number % 24}"}
        self._kit = kit
        self._history = history
        self.publishers = [
            RecordedPublisher(kit.url, history, stream, subjects[stream], f"{stream}-{who}")
            for stream in STREAMS
            for who in "ab"
        ]
        without = RecordedPublisher(kit.url, history, "one", subjects["one"], "one-without-ids", has_id=False, rate=50)
        self.publishers.append(without)
        self.consumers = [
            RecordedConsumer(kit.url, history, "one", "from 0", {0: 0}),
            RecordedConsumer(kit.url, history, "six", "from 0", dict.fromkeys(range(6), 0)),
            RecordedConsumer(kit.url, history, "six", "restarts", dict.fromkeys(range(6), 0), life_s=3.0),
        ]
        for each in (*self.publishers, *self.consumers):
            each.start()

    async def begin_in_the_middle(self, lift: liftpy.Lift, who: str) -> None:
        """One more consumer, which does not begin at offset 0."""
        details = await lift.stream_info("one")
        starts = {each.partition: (each.high_watermark or 0) // 2 for each in details.partitions}
        self.consumers.append(RecordedConsumer(self._kit.url, self._history, "one", who, starts).start())

    async def goes_on(self) -> float:
        """Wait until every publisher has acks and every consumer records of now; how long that took, in seconds."""
        began_s = time.monotonic()
        goals = [publisher.acked + ACKS_AFTER_FAULT for publisher in self.publishers]
        consumed = [sum(consumer.next_offsets.values()) for consumer in self.consumers]
        while time.monotonic() < began_s + RECOVERED_WITHIN_S:
            acks = all(each.acked >= goal for each, goal in zip(self.publishers, goals, strict=True))
            if acks and all(
                sum(each.next_offsets.values()) > before for each, before in zip(self.consumers, consumed, strict=True)
            ):
                return time.monotonic() - began_s
            await asyncio.sleep(0.05)
        late = [each.who for each, goal in zip(self.publishers, goals, strict=True) if each.acked < goal]
        late += [
            f"{each.who} of {each.stream}"
            for each, before in zip(self.consumers, consumed, strict=True)
            if sum(each.next_offsets.values()) <= before
        ]
        raise AssertionError(f"within {RECOVERED_WITHIN_S:g} s after the fault nothing moves for {', '.join(late)}")

    async def finish(self) -> None:
        """Everything that was sent is acknowledged."""
        for publisher in self.publishers:
            await publisher.finish()

    async def stop_reading(self) -> None:
        """No consumer reads on."""
        for consumer in self.consumers:
            await consumer.finish()

    async def cancel(self) -> None:
        """Whatever state they are in."""
        for each in (*self.publishers, *self.consumers):
            await each.cancel()


@asynccontextmanager
async def small_disk_of(kit: ClusterKit, name: str) -> AsyncIterator[SmallDisk | None]:
    """A small file system under a node's data; None, with a word about it, where none can be mounted."""
    disk = SmallDisk(kit.nodes[name].data, SMALL_DISK)
    if not disk.is_there:
        print(f"no disk is filled: {disk.refusal}")
    try:
        yield disk if disk.is_there else None
    finally:
        disk.close()


async def final_contents(lift: liftpy.Lift) -> dict[tuple[str, int], list[bytes]]:
    """What is stored."""
    found = {(stream, partition): [] for stream, count in STREAMS.items() for partition in range(count)}
    for stream in STREAMS:
        for message in await read_all(lift, stream):
            contents = found[stream, message.partition]
            assert message.offset == len(contents), f"{message} where {len(contents)} was to come"
            contents.append(message.value or b"")
    return found


async def violations(kit: ClusterKit, lift: liftpy.Lift, history: History) -> list[Violation]:
    """Everything that is wrong at the end; all nodes are stopped afterwards."""
    await settled(lift, STREAMS)
    final = await final_contents(lift)
    await asyncio.to_thread(kit.stop_nodes)
    data = {name: node.data for name, node in kit.nodes.items()}
    found = list(check(history, final))
    for stream, count in STREAMS.items():
        found += check_replicas(data, stream, count)
    return found


async def run_rounds(kit: ClusterKit, load: Load, faults: Faults, lift: liftpy.Lift, history: History) -> list[str]:
    """Fault after fault; a table of what happened and how soon everything went on."""
    lines = []
    for number, fault in enumerate(faults.plan(ROUNDS), 1):
        history.happened(f"round {number}: {fault.__name__}")
        began_s = time.monotonic()
        try:
            await fault()
            await faults.start_all()
            waited_s = await load.goes_on()
            if number in {ROUNDS // 3, 2 * ROUNDS // 3}:
                await load.begin_in_the_middle(lift, f"from the middle, round {number}")
        except Exception as error:
            error.add_note(f"in round {number}, {fault.__name__}, of seed {SEED}; the nodes' logs are in {kit.home}")
            raise
        lines.append(f"{number:3} {fault.__name__:26} {time.monotonic() - began_s:6.1f} s {waited_s:6.2f} s until acks")
    return lines


async def test_rounds_of_faults(tmp_path, capsys):
    signal.alarm(ROUNDS * ROUND_S + AROUND_S)  # it knows how long it takes; the limit of all tests does not
    chance = random.Random(SEED)
    history = History(time.time)
    kit = ClusterKit(tmp_path, is_proxied=True, toml=KEPT)
    with capsys.disabled():
        print(f"\nCHAOS_SEED={SEED} CHAOS_ROUNDS={ROUNDS}")
    try:
        async with small_disk_of(kit, "node-3") as disk:
            try:
                await asyncio.to_thread(kit.start)
                async with kit.connect() as lift:
                    for stream, count in STREAMS.items():
                        subject = stream if count == 1 else f"{stream}.*"
                        await create(lift, stream, subject, partitions=count, **SETTINGS)
                    load = Load(kit, history)
                    try:
                        await load.goes_on()
                        faults = Faults(kit, lift, history, chance, "one", disk)
                        lines = await run_rounds(kit, load, faults, lift, history)
                        await load.finish()
                        await load.stop_reading()
                    finally:
                        await load.cancel()
                    found = await violations(kit, lift, history)
            finally:
                await asyncio.to_thread(kit.close)
    except Exception:
        with capsys.disabled():
            print("\n".join(timeline(history, [history.events[-1][0]], {})))
        raise
    finally:
        with capsys.disabled():
            print(f"{len(history.publications)} messages, {history.acked_count} acknowledged", end=", ")
            print(f"{len(history.sightings)} records read")
    with capsys.disabled():
        print("\n".join(lines))
    assert not found, report(history, found, kit.logs)
