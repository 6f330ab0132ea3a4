"""A batch is in the stream once, whatever happens to those who commit it, and whenever."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from itertools import count

import pytest

from liftpy_bucket.errors import StagingDamagedError
from liftpy_client.errors import PublishTimeoutError
from liftpy_spark.jobs.collect.directory import collect_directory
from liftpy_spark.sink.accounts import forget, forget_idle, settled_below
from liftpy_spark.sink.decision import SinkBatch
from liftpy_spark.sink.errors import BatchMismatchError, CommitUnclearError
from liftpy_spark.sink.staging import collect_staging
from support.fault_store import Crash
from support.sink_kit import WINDOW_S, SinkWorld, Target, batch_of, lose_ack

ROWS = [(b"k%d" % (number % 17), b"value-%04d-" % number + bytes(40)) for number in range(60)]
ONCE = Counter(value for _, value in ROWS)


@pytest.fixture(params=["bucket", "bucket, leaders read", "directory", "directory, leaders read"])
def new_world(request, tmp_path):
    """Makes worlds in which rows are staged in the bucket or in a directory, and leaders read them or the driver."""
    numbers = count()

    def make(**options):
        leaders_read = request.param.endswith("leaders read")
        if request.param.startswith("bucket"):
            return SinkWorld(**options, leaders_read=leaders_read)
        directory = tmp_path / str(next(numbers))
        directory.mkdir()
        return SinkWorld(**options, directory=directory, leaders_read=leaders_read)

    return make


def assert_written(world):
    assert world.values() == ONCE
    assert world.staged() == []
    assert list(world.memory.list("spark/staging/")) == []
    assert [key.rsplit(".", 1)[1] for key in (entry.key for entry in world.memory.list("spark/commits/"))] == [
        "done",
        "json",
    ]


async def count_effects(new_world):
    world = new_world()
    await world.execute(ROWS, 3)
    assert_written(world)
    assert world.looks == 0, "whoever decides knows that nothing is there"
    return world.effects


async def test_a_batch_is_written_and_written_again_it_changes_nothing(new_world):
    world = new_world()
    first = await world.execute(ROWS, 3)
    assert first.rows == len(ROWS)
    assert first.published == world.publications > 4
    again = await world.execute(ROWS, 5)
    assert (again.rows, again.published) == (len(ROWS), 0)
    assert_written(world)
    await world.execute(ROWS[:10], 2, batch_of(1))
    assert world.values() == ONCE + Counter(value for _, value in ROWS[:10])


@pytest.mark.parametrize("when", ["at", "after"])
async def test_a_crash_between_any_two_effects(new_world, when):
    total = await count_effects(new_world)
    for number in range(1 if when == "at" else 2, total + 1):  # the first finds that nothing was forgotten yet
        world = new_world()
        setattr(world, when, {number: world.crash})
        with pytest.raises(Crash):
            await world.execute(ROWS, 3)
        world.now_s += 10 * WINDOW_S  # the nodes have forgotten everything
        world.at, world.after = {}, {}
        await world.execute(ROWS, 5)
        assert_written(world)


@pytest.mark.parametrize("seed", range(30))
async def test_crashes_lost_acks_and_stalls_without_end(new_world, seed):
    rng = random.Random(seed)
    world = new_world(partitions=rng.choice([1, 3]))
    world.unread, world.read_unheard = ({*rng.sample(range(1, 200), 20)} for _ in range(2))

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


async def test_a_chunk_that_is_late_arrives_after_the_look_and_is_not_doubled(new_world):
    world = new_world(partitions=1)
    target = Target(world)
    publish = target.publish

    async def vanish(chunk, producer_id, sequence):
        if sequence >= 2:
            world.late.append(lambda: world.take(chunk, producer_id, sequence))
            raise PublishTimeoutError("on its way")
        return await publish(chunk, producer_id, sequence)

    target.publish = vanish
    sections = world.stage(batch_of(), ROWS, 3)
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


async def test_a_driver_that_sleeps_while_another_does_its_work(new_world):
    world = new_world(partitions=2)
    started, finish = asyncio.Event(), asyncio.Event()
    target = Target(world)
    publish = target.publish

    async def sleep_first(chunk, producer_id, sequence):
        started.set()
        await finish.wait()
        return await publish(chunk, producer_id, sequence)

    target.publish = sleep_first
    sections = world.stage(batch_of(), ROWS, 3)
    sleeper = asyncio.create_task(world.commit(batch_of(), sections, world.store(), target))
    await started.wait()
    await world.execute(ROWS, 4)
    finish.set()  # its first chunks are on their way, and known to the nodes
    await sleeper
    assert_written(world)


async def test_a_driver_that_wakes_up_when_nobody_knows_ids_any_more(new_world):
    world = new_world(partitions=2)
    world.leaders_read = False  # it is to sleep where it reads
    sections = world.stage(batch_of(), ROWS, 3)
    store = world.store()
    woken = []

    def sleep():
        if not woken:
            woken.append(1)
            # Another one does everything, but for the mark, and dies.
            asyncio.run(_do_all_but_mark(world))
            world.now_s += 50 * WINDOW_S

    world.at = {world.effects + 3: sleep}  # the first section is read, the decision is there
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
        await world.commit(batch_of(), world.stage(batch_of(), ROWS, 3), store, Target(world))
    assert world.values() == ONCE


async def test_what_can_not_be_told_any_more_is_not_doubled(new_world):
    world = new_world(partitions=1)
    total = await count_effects(new_world)
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


async def test_a_doubt_is_none_where_all_chunks_are_found(new_world):
    world = new_world()
    total = await count_effects(new_world)
    world.at = {total - 2: world.crash}  # before the mark that all is done
    with pytest.raises(Crash):
        await world.execute(ROWS, 3)
    assert world.values() == ONCE
    world.doubt = "something is gone"
    await world.execute(ROWS, 3)
    assert_written(world)


async def test_staged_objects_that_are_damaged_or_gone(new_world):
    for damage in ("gone", "damaged"):
        world = new_world()
        world.after = {2: world.crash}  # when it is decided
        with pytest.raises(Crash):
            await world.execute(ROWS, 3)
        (entry, *_) = world.place().entries("spark/staging/")
        body = world.place().read(entry.key, 0, entry.size)
        world.place().delete([entry.key])
        if damage == "damaged":
            put(world, entry.key, body[:-9] + b"x" + body[-8:])
        world.after = {}
        before = world.values()
        with pytest.raises(StagingDamagedError, match=re.escape(world.place().name(entry.key))) as caught:
            await world.execute(ROWS, 3)
        assert str(caught.value).startswith("batch 0 of app into stream s: staged ")
        assert ("it is gone; " if damage == "gone" else "its checksum does not match") in str(caught.value)
        assert f"create the object {batch_of().done_key} in the bucket" in str(caught.value)
        assert not any(entry.key.endswith(".done") for entry in world.memory.list("spark/commits/"))
        assert before <= world.values() <= ONCE
        put(world, entry.key, body)
        await world.execute(ROWS, 3)
        assert_written(world)


def put(world, key, body):
    """Have something under a key, whatever is there."""
    world.place().delete([key])
    world.place().create(key, [body], key[-39:-7])


async def test_a_batch_without_rows_decides_nothing(new_world):
    world = new_world()
    assert (await world.execute([], 2)).rows == 0
    assert world.effects == 1, "a look whether another execution had rows"
    await world.execute(ROWS, 2)
    assert_written(world)


async def test_leftovers_are_collected_but_for_those_that_may_be_needed(new_world):
    world = new_world()
    batches = [batch_of(number) for number in range(3)]
    await world.execute(ROWS, 2, batches[0])
    for batch in (batches[0], batches[1]):
        put(world, f"{batch.staging_prefix}00000-{'e' * 32}.arrows", b"a")  # a task that failed, or was late
    world.at = {world.effects + 6: world.crash}
    with pytest.raises(Crash):
        await world.execute(ROWS, 2, batches[2])
    needed = {entry.key for entry in world.place().entries(batches[2].staging_prefix)}
    assert collected(world, 3_600, now_ns=10**9) == 0
    assert collected(world, 0, now_ns=10**19) == 2
    assert set(world.staged()) == needed
    world.at = {}
    await world.execute(ROWS, 3, batches[2])
    assert world.staged() == []


def collected(world, older_than_s, now_ns):
    if world.directory is None:
        return collect_staging(world.memory, older_than_s, now_ns)
    ages = {"older_than_s": older_than_s, "now_ns": now_ns}
    return collect_directory(world.memory, str(world.directory), (), **ages, deletes=True).objects


def accounted(world):
    return {entry.key for entry in world.memory.list("spark/commits/") if not entry.key.endswith("settled")}


async def test_decisions_are_forgotten_after_many_batches(new_world):
    world = new_world()
    numbers = (3, 10, 20_260_101, 20_260_102)  # of a query that seldom has rows, or by the date
    for number in numbers:
        await world.execute(ROWS[:3], 1, batch_of(number))
        forget(batch_of(number), 2, world.memory, f"n{number}")
    kept = [batch_of(number) for number in numbers[2:]]
    assert accounted(world) == {key for batch in kept for key in (batch.decision_key, batch.done_key)}
    assert settled_below(world.memory, batch_of()) == numbers[2]
    assert forget(batch_of(), 2, world.memory, "again") == []


async def test_a_batch_that_was_forgotten_is_not_written_again(new_world):
    world = new_world()
    for number in (5, 8, 9):
        await world.execute(ROWS[:3], 1, batch_of(number))
    forget(batch_of(), 1, world.memory, "n")
    before = world.values()
    for number in (5, 6):  # 6 had no rows when it was new
        with pytest.raises(BatchMismatchError, match=f"batch {number} of app into stream s is so old.*3 rows are not"):
            await world.execute(ROWS[:3], 1, batch_of(number))
    world.strict = False
    assert (await world.execute(ROWS[:3], 1, batch_of(5))).published == 0
    assert world.values() == before
    assert world.staged() == []
    await world.execute(ROWS[:3], 1, batch_of(10))


async def test_of_an_application_that_has_ended_its_last_batch_stays(new_world):
    world = new_world()
    for number in (5, 8, 9):
        await world.execute(ROWS[:3], 1, batch_of(number))
    single = batch_of(0, f"once-{'0' * 32}")
    for application in (single, batch_of(0, "cut")):
        world.at = {world.effects + 6: world.crash}
        with pytest.raises(Crash):
            await world.execute(ROWS, 2, application)
    world.at = {}
    before = accounted(world)
    later = {"older_than_s": 60, "now_ns": 10**19}
    assert list(forget_idle(world.memory, older_than_s=60, now_ns=10**9)) == [], "they are younger"
    told = [entry.key for entry in forget_idle(world.memory, **later, deletes=False)]
    assert accounted(world) == before
    assert [entry.key for entry in forget_idle(world.memory, **later)] == told
    last, cut = batch_of(9), batch_of(0, "cut")
    assert accounted(world) == before.difference(told) == {last.decision_key, last.done_key, cut.decision_key}
    assert settled_below(world.memory, last) == 9
    with pytest.raises(BatchMismatchError, match="batch 8 of app into stream s is so old"):
        await world.execute(ROWS[:3], 1, batch_of(8))
    assert (await world.execute(ROWS[:3], 1, last)).published == 0, "it is known to be written"
    await world.execute(ROWS[:3], 1, batch_of(10))
    assert collected(world, 60, now_ns=10**19) > 0
    assert not list(world.place().entries(single.staging_prefix)), "nobody can execute it again"
    assert list(world.place().entries(cut.staging_prefix))
    await world.execute(ROWS, 3, cut)


async def test_a_batch_that_is_forgotten_while_its_driver_sleeps_is_not_written_again(new_world):
    world = new_world()

    def sleep():
        world.at = {}
        for number in range(3):
            asyncio.run(world.execute(ROWS, 1, batch_of(number)))
        forget(batch_of(), 1, world.memory, "n")
        world.now_s += 50 * WINDOW_S

    world.at = {world.effects + 2: sleep}  # before it decides
    before = Counter(dict.fromkeys(ONCE, 3))
    with pytest.raises(BatchMismatchError, match="is so old"):
        await world.execute(ROWS, 2)
    assert world.values() == before
    assert not world.memory_has(batch_of().decision_key)


async def test_a_batch_that_was_interrupted_is_never_forgotten(new_world):
    world = new_world()
    world.at = {world.effects + 5: world.crash}
    with pytest.raises(Crash):
        await world.execute(ROWS, 2, batch_of(2))
    world.at = {}
    for number in (1, 3, 4, 5):
        await world.execute(ROWS[:3], 1, batch_of(number))
    forget(batch_of(), 1, world.memory, "n")
    assert settled_below(world.memory, batch_of()) == 2
    await world.execute(ROWS, 2, batch_of(2))
    assert all(world.values()[value] >= 1 for value in ONCE)
    forget(batch_of(), 1, world.memory, "m")
    assert settled_below(world.memory, batch_of()) == 5


async def test_two_streams_and_two_applications_do_not_meet(new_world):
    world = new_world()
    for batch in (
        batch_of(),
        batch_of(application="other"),
        SinkBatch(stream="s", uuid="cd" * 16, application="app", number=0),
    ):
        await world.execute(ROWS, 2, batch)
    assert world.values() == Counter(dict.fromkeys(ONCE, 3))


MORE = [(b"k", b"new-%04d-" % number) for number in range(60)]


OTHERS = [MORE, ROWS[:-1], [*ROWS, (b"k", b"one more")], [*ROWS[:-1], (b"other", ROWS[-1][1])]]


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("interrupted", [False, True])
async def test_other_rows_for_a_batch_that_was_decided_are_not_dropped_in_silence(new_world, other, interrupted):
    world = new_world()
    if interrupted:
        world.at = {await count_effects(new_world) // 2: world.crash}
        with pytest.raises(Crash):
            await world.execute(ROWS, 3)
        world.at = {}
    else:
        await world.execute(ROWS, 3)
    with pytest.raises(BatchMismatchError, match=f"{len(other)} rows.*failOnMismatch") as caught:
        await world.execute(other, 2)
    assert "batch 0 of app into stream s" in str(caught.value)
    assert_written(world)  # what was decided is whole, and what was staged for nothing is gone
    world.strict = False
    assert await world.execute(other, 2) == (len(ROWS), 0)
    assert_written(world)


async def test_rows_that_come_in_another_order_by_other_tasks_are_the_same_rows(new_world):
    world = new_world(partitions=3)
    mixed = [(None if number % 3 else key, value) for number, (key, value) in enumerate(ROWS)]
    await world.execute(mixed, 1)
    await world.execute(mixed[::-1], 4)
    assert_written(world)


async def test_an_interrupted_batch_is_finished_also_by_an_execution_without_rows(new_world):
    total = await count_effects(new_world)
    for number in range(3, total):
        world = new_world()
        world.at = {number: world.crash}
        with pytest.raises(Crash):
            await world.execute(ROWS, 3)
        world.at = {}
        world.now_s += 10 * WINDOW_S
        if world.memory_has(batch_of().decision_key):
            assert (await world.execute([], 2)).rows == len(ROWS)
            assert_written(world)


async def test_records_that_a_restore_has_taken_are_missed_when_their_batch_is_executed_again(new_world):
    world = new_world()
    await world.execute(ROWS, 3)
    world.cut(0, keep=1)
    for overtaken in (False, True):
        if overtaken:  # others have written since, so that the partition is longer than before
            world.logs[0] += [(b"another", number, [b"x"] * 20) for number in range(9)]
        with pytest.raises(BatchMismatchError, match=r"written up to .* partition 0, .* are gone.*failOnMismatch"):
            await world.execute(ROWS, 3)
    before = world.values()
    world.strict = False
    assert (await world.execute(ROWS, 3)).published == 0
    assert world.values() == before


@pytest.mark.parametrize("overtaken", [False, True])
async def test_records_that_a_restore_has_taken_are_missed_by_the_next_batch(new_world, overtaken):
    world = new_world()
    await world.execute(ROWS, 3)
    kept = world.values()
    world.cut(1, keep=1)
    assert world.values() < kept
    found = f"ends at {world.end(1)} now"
    if overtaken:  # others have written more since than was lost
        found = f"has other records from {world.end(1)} on"
        world.logs[1] += [(b"another", number, [b"x"] * 20) for number in range(9)]
    with pytest.raises(BatchMismatchError, match=rf"batch 1 .*batch 0 .* partition 1, .* {found}.* are gone.*failOnM"):
        await world.execute(MORE, 2, batch_of(1))
    assert not world.memory_has(batch_of(1).decision_key)
    world.strict = False
    await world.execute(MORE, 2, batch_of(1))
    world.strict = True
    await world.execute(MORE, 2, batch_of(2))


async def test_a_new_leader_that_lost_nothing_is_none_of_a_batchs_business(new_world):
    world = new_world()
    for number in range(4):
        await world.execute(ROWS if number % 2 else MORE, 2, batch_of(number))
        world.new_leader(number % 2)
        world.logs[number % 2].append((b"another", number, [b"x"] * 7))
    await world.execute(ROWS, 2, batch_of(3))


async def test_records_that_a_restore_has_taken_are_missed_by_a_batch_that_follows_batches_without_rows(new_world):
    world = new_world()
    await world.execute(ROWS, 3)
    await world.execute([], 2, batch_of(1))
    world.cut(1, keep=1)
    with pytest.raises(BatchMismatchError, match=r"batch 3 of .*batch 0 .* partition 1, .* are gone.*failOnM"):
        await world.execute(MORE, 2, batch_of(3))
    assert not world.memory_has(batch_of(3).decision_key)


async def test_records_that_a_restore_has_taken_are_missed_where_the_last_batches_wrote_to_other_partitions(new_world):
    world = new_world()
    await world.execute(ROWS, 3)
    chunks = len(world.logs[1])
    elsewhere = {value for _, _, values in world.logs[0] for value in values}
    key = next(key for key, value in ROWS if value in elsewhere)
    for number in (1, 2):
        await world.execute([(key, b"more")], 1, batch_of(number))
    assert len(world.logs[1]) == chunks
    world.cut(1, keep=1)
    with pytest.raises(BatchMismatchError, match=r"batch 3 of .* partition 1, .* are gone.*failOnM"):
        await world.execute(MORE, 2, batch_of(3))
    world.strict = False
    await world.execute(MORE, 2, batch_of(3))
    world.strict = True
    await world.execute(MORE, 2, batch_of(4))


async def test_a_mark_that_somebody_made_by_hand_counts(new_world):
    world = new_world()
    world.at = {await count_effects(new_world) // 2: world.crash}
    with pytest.raises(Crash):
        await world.execute(ROWS, 3)
    world.at = {}
    world.memory.create(batch_of().done_key, b"checked by hand\n", "hand")
    before = world.values()
    assert await world.execute(ROWS, 2) == (len(ROWS), 0)
    await world.execute(MORE, 2, batch_of(1))
    assert world.values() == before + Counter(value for _, value in MORE)


async def test_leaders_read_what_is_in_the_bucket_and_the_driver_reads_nothing():
    world = SinkWorld(leaders_read=True)
    store = world.store()
    done = await world.commit(batch_of(), world.stage(batch_of(), ROWS, 3), store, Target(world))
    assert_written(world)
    assert world.references == done.published == world.publications > 3
    assert not any(
        request.key.startswith("spark/staging/") for request in store.requests if request.kind == "get_range"
    )


@pytest.mark.parametrize("unheard", [False, True])
async def test_what_a_leader_does_not_read_the_driver_publishes(unheard):
    world = SinkWorld(leaders_read=True)
    setattr(world, "read_unheard" if unheard else "unread", {2, 5})
    done = await world.execute(ROWS, 3)
    assert_written(world)
    assert done.published == world.references - (2 if unheard else 0), "what is found by a look is not published again"
    assert world.publications == world.references


async def test_a_look_that_fails_is_none_that_others_may_rely_on():
    """Chunks that leaders may have stored are published after a look; that somebody tried to look is not enough."""
    world = SinkWorld(partitions=1, leaders_read=True)
    world.read_unheard = {1, 2, 3}
    target = Target(world)

    async def fail(*_):
        await asyncio.sleep(0)
        raise PublishTimeoutError("no answer")

    target.look = fail
    with pytest.raises(PublishTimeoutError, match="no answer"):
        await world.commit(batch_of(), world.stage(batch_of(), ROWS, 3), world.store(), target)
    assert world.publications == world.references, "the driver published nothing by itself"
    await world.execute(ROWS, 2)
    assert_written(world)
