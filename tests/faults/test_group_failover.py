"""Committed offsets never step back: the coordinator dies before it answers, is cut off, and all nodes are killed."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from liftpy_client.errors import LiftError
from liftpy_client.group.offsets import committed
from liftpy_envelope.group_routing import GROUPS_STREAM, partition_of_group
from support.cluster import eventually
from support.cluster_kit import CLIENT, create, leader_of, partitions, running_cluster, settled
from support.group_kit import Reading, fill, reading
from support.group_log import CommitRow, read_group

GROUP = "billing"
TIMES = {"session_timeout_s": 20.0, "commit_interval_s": None}


@pytest.fixture
async def kit(tmp_path):
    async with running_cluster(tmp_path, cluster={"replica_lag_max_s": 2.0}, is_proxied=True) as kit:
        yield kit


@pytest.fixture
async def lift(kit):
    async with kit.connect() as lift:
        await create(lift, "orders", "orders.>", partitions=2)
        await fill(lift, "orders", 40)
        yield lift


async def offsets(lift):
    return {number: row.offset for number, row in (await committed(lift._session, GROUP, "orders")).items()}


async def total(lift):
    """How much is committed; asked again while a coordinator is looked for."""

    async def ask():
        try:
            return await offsets(lift)
        except LiftError:
            return None

    return sum((await eventually(ask, 60.0, "nobody tells what is committed")).values())


async def place_of(lift):
    """The partition in which the group is, and who leads it."""
    number = partition_of_group(GROUP, len(await partitions(lift, GROUPS_STREAM)))
    return number, await leader_of(lift, GROUPS_STREAM, number)


@asynccontextmanager
async def asking(lift):
    """What is committed, asked again and again; each answer is to say as much as the one before."""
    told = []
    over = asyncio.Event()

    async def ask():
        while not over.is_set():  # no cancellation: `wait_for` of Python 3.11 swallows one that comes with the answer
            try:
                told.append(await offsets(lift))
            except LiftError:
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.02)

    task = asyncio.create_task(ask())
    try:
        yield told
    finally:
        over.set()
        await task
    known = {}
    for number, answer in enumerate(told):
        back = {key: (at, answer.get(key)) for key, at in known.items() if answer.get(key, 0) < at}
        assert not back, f"answer {number} of {len(told)} steps back: {back}"
        known |= answer


async def test_a_commit_whose_answer_is_lost_with_its_coordinator_is_made_once(kit, lift):
    async with reading(lift, "orders", GROUP, **TIMES) as one, asking(lift):
        await eventually(lambda: len(one.messages) == 40)
        number, victim = await place_of(lift)
        await settled(lift, [GROUPS_STREAM])
        kit.links.cut(victim, CLIENT)  # it hears what is asked, and nobody hears what it answers
        before = (await partitions(lift, GROUPS_STREAM))[number].high_watermark
        committing = asyncio.create_task(one.consumer.commit())

        async def is_there():
            return (await partitions(lift, GROUPS_STREAM))[number].high_watermark > before

        await eventually(is_there)
        assert not committing.done()
        await asyncio.to_thread(kit.kill, victim)
        kit.links.mend()
        await asyncio.wait_for(committing, 40)
        assert await total(lift) == 40
        await asyncio.to_thread(kit.start_nodes)
        await settled(lift, [GROUPS_STREAM])
        uuid = bytes.fromhex((await lift.stream_info("orders")).uuid)
    await asyncio.to_thread(kit.stop_nodes)
    rows = [row for row in read_group(kit.nodes[victim].data, number, GROUP, uuid) if isinstance(row, CommitRow)]
    assert sorted(row.partition for row in rows) == [0, 1], rows


async def test_a_coordinator_that_is_cut_off_tells_and_takes_nothing_old(kit, lift):
    async with reading(lift, "orders", GROUP, **TIMES) as one, asking(lift) as told:
        await eventually(lambda: len(one.messages) == 40)
        await one.consumer.commit()
        await eventually(lambda: told and sum(told[-1].values()) == 40)
        number, old = await place_of(lift)
        kit.cut_off(old)  # consumers, and NATS, still reach it

        async def has_moved():
            return (await partitions(lift, GROUPS_STREAM))[number].leader not in {None, old}

        await eventually(has_moved, 40, "nobody took over")
        await asyncio.wait_for(fill(lift, "orders", 40, 40), 40)
        await eventually(lambda: len(one.messages) == 80, 40)
        await asyncio.wait_for(one.consumer.commit(), 40)
        await eventually(lambda: sum(told[-1].values()) == 80, 40)
        kit.links.mend()
        await settled(lift, [GROUPS_STREAM])
        count = len(told)
        await eventually(lambda: len(told) > count + 10)
        assert one.of("on_lost_partitions") == []


async def test_all_nodes_are_killed_and_nobody_notices(kit, lift):
    async with asking(lift):
        one = await Reading(lift, "orders", GROUP, **TIMES).__aenter__()
        try:
            await eventually(lambda: len(one.messages) == 40)
            await one.consumer.commit()
            who = one.consumer.member_id, one.consumer.generation
            await asyncio.to_thread(kit.kill, *kit.nodes)
            await asyncio.to_thread(kit.start_nodes)
            await asyncio.wait_for(fill(lift, "orders", 40, 40), 60)
            await eventually(lambda: len(one.messages) == 80, 40)
            await asyncio.wait_for(one.consumer.commit(), 40)
            assert (one.consumer.member_id, one.consumer.generation) == who
            assert [what for what, _ in one.events] == ["on_assigned"]
            assert await total(lift) == 80
        finally:
            await one.stop()
