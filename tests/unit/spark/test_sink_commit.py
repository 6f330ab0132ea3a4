"""A batch is in the stream once, whatever happens to those who commit it, and whenever."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from liftpy_client.errors import PublishTimeoutError
from liftpy_spark.sink_commit import forget
from liftpy_spark.sink_decision import Batch
from liftpy_spark.sink_errors import CommitUnclearError, StagingDamagedError
from liftpy_spark.sink_staging import collect_staging
from support.fault_store import Crash
from support.sink_kit import WINDOW_S, SinkWorld, Target, batch_of, lose_ack

ROWS = [(b"k%d" % (number % 17), b"value-%04d-" % number + bytes(40)) for number in range(60)]
ONCE = Counter(value for _, value in ROWS)


def staged(world):
    return [entry.key for entry in world.memory.list("spark/staging/")]


def assert_written(world):
    assert world.values() == ONCE
    assert staged(world) == []
    assert [key.rsplit(".", 1)[1] for key in (entry.key for entry in world.memory.list("spark/commits/"))] == [
        "done",
        "json",
    ]


async def count_effects():
    world = SinkWorld()
    await world.execute(ROWS, 3)
    assert_written(world)
    assert world.looks == 0, "whoever decides knows that nothing is there"
    return world.effects


async def test_a_batch_is_written_and_written_again_it_changes_nothing():
    world = SinkWorld()
    first = await world.execute(ROWS, 3)
    assert first.rows == len(ROWS)
    assert first.published == world.publications > 4
    again = await world.execute(ROWS, 5)
    assert (again.rows, again.published) == (len(ROWS), 0)
    assert_written(world)
    await world.execute(ROWS[:10], 2, batch_of(1))
    assert world.values() == ONCE + Counter(value for _, value in ROWS[:10])


@pytest.mark.parametrize("when", ["at", "after"])
async def test_a_crash_between_any_two_effects(when):
    total = await count_effects()
    for number in range(1, total + 1):
        world = SinkWorld()
        setattr(world, when, {number: world.crash})
        with pytest.raises(Crash):
            await world.execute(ROWS, 3)
        world.now_s += 10 * WINDOW_S  # the nodes have forgotten everything
        world.at, world.after = {}, {}
        await world.execute(ROWS, 5)
        assert_written(world)


@pytest.mark.parametrize("seed", range(30))
async def test_crashes_lost_acks_and_stalls_without_end(seed):
    rng = random.Random(seed)
    world = SinkWorld(partitions=rng.choice([1, 3]))

    def stall():
        world.now_s += rng.choice([1, 30, 500])

    for _ in range(200):
        first = world.effects
        places = rng.sample(range(first + 1, first + 60), 4)
        world.at = {places[0]: rng.choice([world.crash, stall]), places[1]: stall}
        world.after = {places[2]: rng.choice([world.crash, lose_ack]), places[3]: stall}
        try:
            await world.execute(ROWS, rng.randrange(1, 6))
        except (Crash, PublishTimeoutError):
            stall()
        else:
            break
    world.at, world.after = {}, {}
    await world.execute(ROWS, 2)
    assert_written(world)


async def test_a_chunk_that_is_late_arrives_after_the_look_and_is_not_doubled():
    world = SinkWorld(partitions=1)
    target = Target(world)
    publish = target.publish

    async def vanish(chunk, producer_id, sequence):
        if sequence >= 2:
            world.late.append(lambda: world.take(chunk, producer_id, sequence))
            raise PublishTimeoutError("on its way")
        return await publish(chunk, producer_id, sequence)

    target.publish = vanish
    sections = world.staged(batch_of(), ROWS, 3)
    with pytest.raises(PublishTimeoutError):
        await world.commit(batch_of(), sections, world.store(), target)
    assert world.late
    first = world.publications

    def late_and_slow():
        world.arrive()  # behind the look of the one who goes on
        world.now_s += 3 * WINDOW_S  # who is slow, so that no node knows them any more when their turn comes

    world.after_publication = {first + 1: late_and_slow}
    await world.execute(ROWS, 2)
    assert world.publications > first
    assert not world.late
    assert_written(world)
    assert world.looks >= 2


async def test_a_driver_that_sleeps_while_another_does_its_work():
    world = SinkWorld(partitions=2)
    started, finish = asyncio.Event(), asyncio.Event()
    target = Target(world)
    publish = target.publish

    async def sleep_first(chunk, producer_id, sequence):
        started.set()
        await finish.wait()
        return await publish(chunk, producer_id, sequence)

    target.publish = sleep_first
    sections = world.staged(batch_of(), ROWS, 3)
    sleeper = asyncio.create_task(world.commit(batch_of(), sections, world.store(), target))
    await started.wait()
    await world.execute(ROWS, 4)
    finish.set()  # its first chunks are on their way, and known to the nodes
    await sleeper
    assert_written(world)


async def test_a_driver_that_wakes_up_when_nobody_knows_ids_any_more():
    world = SinkWorld(partitions=2)
    sections = world.staged(batch_of(), ROWS, 3)
    store = world.store()
    counted = store.before

    def sleep(request):
        counted(request)
        if request.kind == "get_range" and not woken:
            woken.append(request)
            # Another one does everything, but for the mark, and dies.
            asyncio.run(_do_all_but_mark(world))
            world.now_s += 50 * WINDOW_S

    woken = []
    store.before = sleep
    await world.commit(batch_of(), sections, store, Target(world))
    assert woken
    assert world.looks > 0
    assert_written(world)


async def _do_all_but_mark(world):
    store = world.store()
    counted = store.before

    def die(request):
        counted(request)
        if request.kind == "create" and request.key.endswith(".done"):
            raise Crash("before the mark")

    store.before = die
    with pytest.raises(Crash):
        await world.commit(batch_of(), world.staged(batch_of(), ROWS, 3), store, Target(world))
    assert world.values() == ONCE


async def test_what_can_not_be_told_any_more_is_not_doubled():
    world = SinkWorld(partitions=1)
    total = await count_effects()
    world.at = {total // 2: world.crash}
    with pytest.raises(Crash):
        await world.execute(ROWS, 3)
    before = world.values()
    world.doubt = "its records before offset 7 are gone"
    with pytest.raises(CommitUnclearError, match=r"chunk .* of partition 0 .* before offset 7 are gone") as caught:
        await world.execute(ROWS, 3)
    assert batch_of().done_key in str(caught.value)
    assert world.values() == before
    world.doubt = ""
    await world.execute(ROWS, 3)
    assert_written(world)


async def test_a_doubt_is_none_where_all_chunks_are_found():
    world = SinkWorld()
    total = await count_effects()
    world.at = {total - 2: world.crash}  # before the mark that all is done
    with pytest.raises(Crash):
        await world.execute(ROWS, 3)
    assert world.values() == ONCE
    world.doubt = "something is gone"
    await world.execute(ROWS, 3)
    assert_written(world)


async def test_staged_objects_that_are_damaged_or_gone():
    for damage in ("gone", "damaged"):
        world = SinkWorld()
        world.after = {1: world.crash}
        with pytest.raises(Crash):
            await world.execute(ROWS, 3)
        (key, *_) = staged(world)
        body = world.memory.get(key).body
        world.memory.delete([key])
        if damage == "damaged":
            world.memory.create(key, body[:-9] + b"x" + body[-8:], "n")
        world.after = {}
        with pytest.raises(StagingDamagedError, match=key):
            await world.execute(ROWS, 3)


async def test_a_batch_without_rows_decides_nothing():
    world = SinkWorld()
    assert (await world.execute([], 2)).rows == 0
    assert world.effects == 0
    await world.execute(ROWS, 2)
    assert_written(world)


async def test_leftovers_are_collected_but_for_those_that_may_be_needed():
    world = SinkWorld()
    batches = [batch_of(number) for number in range(3)]
    await world.execute(ROWS, 2, batches[0])
    for key in (batches[0], batches[1]):
        world.memory.create(f"{key.staging_prefix}00000-left", b"a", "n")  # a task that failed, or was late
    world.at = {world.effects + 2: world.crash}
    with pytest.raises(Crash):
        await world.execute(ROWS, 2, batches[2])
    needed = {entry.key for entry in world.memory.list(batches[2].staging_prefix)}
    assert collect_staging(world.memory, 3_600, now_ns=10**9) == 0
    assert collect_staging(world.memory, 0, now_ns=10**18) == 2
    assert set(staged(world)) == needed
    world.at = {}
    await world.execute(ROWS, 3, batches[2])
    assert staged(world) == []


async def test_decisions_are_forgotten_after_many_batches():
    world = SinkWorld()
    for number in range(4):
        await world.execute(ROWS[:3], 1, batch_of(number))
        await forget(batch_of(number), 2, world.memory)
    kept = {entry.key for entry in world.memory.list("spark/commits/")}
    assert kept == {key for number in (2, 3) for key in (batch_of(number).decision_key, batch_of(number).done_key)}


async def test_two_streams_and_two_applications_do_not_meet():
    world = SinkWorld()
    for batch in (
        batch_of(),
        batch_of(application="other"),
        Batch(stream="s", uuid="cd" * 16, application="app", number=0),
    ):
        await world.execute(ROWS, 2, batch)
    assert world.values() == Counter(dict.fromkeys(ONCE, 3))
