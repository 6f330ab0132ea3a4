"""Collecting by tasks: what the collector of a node deletes, and nothing else, whatever happens between requests."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from types import SimpleNamespace

import pytest

from liftpy_bucket.errors import ManifestCorruptError, OvertakenError, StoreError
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.pins.held import Pins, load_pins
from liftpy_bucket.store.counting import CountingStore
from liftpy_bucket.store.memory import MemoryStore
from liftpy_bucket.upkeep.collecting import Collector
from liftpy_bucket.upkeep.forking import fork
from liftpy_spark.jobs import tasks
from liftpy_spark.jobs.collect import driver, task
from liftpy_spark.jobs.collect.driver import collect, collect_staged, cuts_of, plan_collect
from liftpy_spark.jobs.tasks import JobFailedError
from liftpy_spark.sink.decision import SinkBatch
from support.fault_store import Crash, Fault, FaultStore, crash_at, plan_at
from support.garbage_kit import GRACE, PATH, Clock, Ids, Writer, collector, digest_of, fragment, live_of, present

OTHER = PartitionPath(PATH.uuid, 4)
FORK = PartitionPath("f0" * 16, 3)
GRACE_S = GRACE / 1e9


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(clock):
    return MemoryStore(clock)


@pytest.fixture
def use(monkeypatch, clock):
    """Lets tasks run here, on a store of the test, at its time."""

    def run_here(_spark, given, work, *, what, read, progress=None):
        replies = [tasks._reply_of(tasks.packed(work, value), what) for value in given]
        for reply in replies:
            if reply.failure is not None:
                raise JobFailedError(reply.failure)
        if progress is not None:
            progress(len(given), len(given))
        return [tasks._result_of(reply, read, what) for reply in replies]

    def use(store):
        monkeypatch.setattr(driver, "run_tasks", run_here)
        monkeypatch.setattr(driver, "store_of", lambda _: store)
        monkeypatch.setattr(task, "store_of", lambda _: store)
        monkeypatch.setattr(task, "time", SimpleNamespace(time_ns=clock))
        return store

    return use


@pytest.fixture(params=["as it is", "small ranges"])
def sizes(request, monkeypatch):
    """Also with so little at a time that every range is cut and looked at in several steps."""
    if request.param == "small ranges":
        monkeypatch.setattr(driver, "_RANGE_OBJECTS", 7)
        monkeypatch.setattr(driver, "_RANGE_WEIGHT", 2)
        monkeypatch.setattr(driver, "_WAVE_TASKS", 2)
        monkeypatch.setattr(task, "_KEYS_PER_LOOK", 5)
        monkeypatch.setattr(task, "_CANDIDATES_MAX", 3)
        monkeypatch.setattr(task, "KEYS_MAX", 2)


def run(paths=(PATH,), **options):
    return collect(None, None, paths, grace_s=GRACE_S, **options)


def plan(paths=(PATH,)):
    return plan_collect(None, None, paths, grace_s=GRACE_S)


def fill(store, clock):
    """A partition with a folded history, merged objects, orphans, and pins that hold some of it."""
    pins = Pins(store, PATH, new_id=Ids("p"), now_ns=clock)
    writer = Writer(store).filled(40)
    held = pins.hold_version("reader", None)
    writer.merge(0, 5)
    writer.merge(10, 4)
    gone = pins.hold_version("gone", None)
    for base in (5, 100, 10**9):
        writer.upload(fragment(base, base + 1, f"orphan{base}"))
    writer.merge(20, 3)
    pins.release(gone)
    for name in ("fragments/readme.txt", "fragments/1-1-a.parquet", "notes"):
        store.create(PATH.directory + name, b"x", "n")
    return writer, held


def test_it_deletes_what_the_collector_of_a_node_deletes(store, clock, use, sizes):
    other_store = MemoryStore(clock)
    fill(store, clock)
    fill(other_store, clock)
    clock.now += 10 * GRACE
    there = collector(other_store, clock).run()
    assert there.deleted > 5
    counting = use(CountingStore(store))
    (planned,) = plan()
    assert {name: counting.counts[name] for name in ("create", "replace", "delete")} == {
        "create": 0,
        "replace": 0,
        "delete": 0,
    }
    assert (planned.objects, planned.size) == (there.deleted, there.freed)
    (done,) = run()
    assert (done.objects, done.size, done.problem) == (there.deleted, there.freed, "")
    kinds = ("fragments", "snapshots", "pins")
    left = {key.rsplit("/", 1)[-1] for key in present(store, kinds=kinds)}
    assert len(present(store, kinds=kinds)) == len(present(other_store, kinds=kinds))
    assert {"readme.txt", "1-1-a.parquet"} < left
    assert live_of(store) < present(store)
    assert plan()[0].objects == run()[0].objects == 0


def test_what_a_pin_holds_goes_when_it_is_released(store, clock, use, sizes):
    _, held = fill(store, clock)
    use(store)
    clock.now += 10 * GRACE
    run()
    before = present(store)
    Pins(store, PATH, new_id=Ids("r"), now_ns=clock).release(held)
    clock.now += 10 * GRACE
    assert run()[0].objects > 5
    assert present(store) < before
    assert {key for key in present(store) if "readme" not in key and "1-1-a" not in key} == live_of(store)


def test_what_an_expired_pin_held_goes_and_so_does_the_pin(store, clock, use, sizes):
    writer = Writer(store).filled(12)
    Pins(store, PATH, new_id=Ids("p"), now_ns=clock).hold_version("short", 5 * GRACE)
    writer.merge(0, 12)
    use(store)
    clock.now += 4 * GRACE
    assert run()[0].objects == 0
    clock.now += 6 * GRACE
    assert plan()[0].objects > 12
    run()
    assert present(store) == live_of(store)
    clock.now += 10 * GRACE
    run()
    assert present(store, kinds=("pins",)) == set()


def test_what_a_fork_holds_stays_until_the_fork_wants_it_no_more(store, clock, use, sizes):
    writer = Writer(store).filled(12)
    fork(store, PATH, FORK, epoch=1, node="n", new_id=Ids("f"))
    writer.merge(0, 12)
    use(store)
    clock.now += 10 * GRACE
    assert live_of(store) < present(store)
    run((PATH, FORK))
    assert len([key for key in present(store) if "/fragments/" in key]) == 13
    at = Writer(store, FORK, Ids("d")).file.load().root.end
    Collector(store, FORK, new_id=Ids("e"), now_ns=clock, grace_ns=GRACE).run(start=at)
    assert plan()[0].objects == 0
    assert run()[0].objects >= 12
    assert present(store) == live_of(store)


def test_nothing_younger_than_the_grace_period_goes(store, clock, use):
    writer = use(store) and Writer(store).filled(3)
    writer.upload(fragment(30, 40, "orphan"))
    clock.now += GRACE - 1
    assert (plan()[0].objects, run()[0].objects) == (0, 0)
    clock.now += 1
    assert (plan()[0].objects, run()[0].objects) == (1, 1)
    assert present(store) == live_of(store)


def test_the_clock_of_the_store_decides_not_that_of_a_task(store, clock, use, monkeypatch):
    use(store)
    Writer(store).filled(1).upload(fragment(10, 20, "young"))
    monkeypatch.setattr(task, "time", SimpleNamespace(time_ns=Clock(clock.now + 100 * GRACE)))
    assert run()[0].objects == 0
    assert len(present(store)) == 2


def worlds(clock):
    store = MemoryStore(clock)
    writer = Writer(store).filled(25)
    writer.merge(3, 3)
    born = writer.root.version
    late = fragment(writer.root.end, writer.root.end + 5, "late")
    writer.upload(late)
    clock.now += 10 * GRACE
    return store, writer, late, born


@pytest.mark.parametrize("fault", ["crash before", "crash after", Fault.LOST, Fault.TWICE, Fault.UNAVAILABLE])
def test_killed_at_every_request_nothing_is_lost_and_the_next_one_ends_it(use, clock, fault):
    number, ended = 0, False
    while not ended:
        number += 1
        store, writer, _, _ = worlds(clock)
        if isinstance(fault, Fault):
            faulty = FaultStore(store, plan_at({number: fault}))
        else:
            faulty = FaultStore(store, **{fault.removeprefix("crash "): crash_at(number)})
        use(faulty)
        with suppress(Crash, JobFailedError, StoreError):
            run()
        ended = len(faulty.requests) < number
        assert live_of(store) <= present(store)
        use(store)
        run()
        assert present(store) == live_of(store), number
        assert Writer(store, ids=Ids("z")).append().root.setsum == sum_of(writer.root.end)
    assert number > 15


def sum_of(end):
    total = digest_of(0)
    for offset in range(1, end):
        total += digest_of(offset)
    return total


@pytest.mark.parametrize("what", ["append", "name the late one", "merge", "claim", "collect", "pin"])
def test_a_leader_that_works_at_any_moment_loses_nothing(use, clock, what):
    number, ended, woke = 0, False, 0
    while not ended:
        number += 1
        store, writer, late, born = worlds(clock)

        def works(request, writer=writer, late=late, born=born, store=store, at=number):
            nonlocal woke
            if request.number != at:
                return
            try:
                if what == "append":
                    writer.append()
                elif what == "merge":
                    writer.merge(0, 3)
                elif what == "claim":
                    Writer(store, ids=Ids("n"), epoch=2).claim()
                elif what == "collect":
                    collector(store, clock).run()
                elif what == "pin":
                    Pins(store, PATH, new_id=Ids("p"), now_ns=clock).hold_version("late", None)
                else:
                    writer.retry_append(late, born)
                    woke += 1
            except OvertakenError:
                return  # it is told, and writes it anew by another name

        faulty = use(FaultStore(store, before=works))
        run()
        ended = len(faulty.requests) < number
        assert live_of(store) <= present(store), number
        use(store)
        clock.now += 10 * GRACE
        run()
        assert live_of(store) <= present(store), number
        if what == "pin":
            held = [pin for pin in load_pins(store, PATH) if pin.name.startswith("late")]
            assert all(store.head(PATH.fragment(each.name)) for pin in held for each in pin.root.fragments)
        else:
            assert present(store) == live_of(store), number
    assert number > 10
    assert (woke > 2) == (what == "name the late one")


def test_what_is_wrong_with_one_partition_leaves_the_others(store, clock, use):
    Writer(store).filled(2).upload(fragment(20, 30, "orphan"))
    broken = Writer(store, OTHER).filled(2)
    broken.upload(fragment(20, 30, "orphan"))
    pinned = PartitionPath(PATH.uuid, 5)
    Writer(store, pinned).filled(2).upload(fragment(20, 30, "orphan"))
    store.create(pinned.pin("what"), b"{", "n")
    store.delete([OTHER.root])
    store.create(OTHER.root, b"{}", "n")
    use(store)
    clock.now += 10 * GRACE
    nothing = PartitionPath(PATH.uuid, 6)
    for found in (plan((PATH, OTHER, pinned, nothing)), run((PATH, OTHER, pinned, nothing))):
        assert [each.objects for each in found] == [1, 0, 0, 0]
        assert [bool(each.problem) for each in found] == [False, True, True, False]
        assert OTHER.root in found[1].problem
        assert pinned.pin("what") in found[2].problem


def test_a_lost_snapshot_is_a_problem_and_nothing_is_deleted(store, clock, use):
    writer, _ = fill(store, clock)
    store.delete([PATH.snapshot(writer.root.snapshots[0].digest)])
    use(store)
    clock.now += 10 * GRACE
    before = present(store)
    assert "there is no object" in run()[0].problem
    assert present(store) == before


def test_the_progress_only_grows(store, clock, use, sizes):
    fill(store, clock)
    use(store)
    clock.now += 10 * GRACE
    seen = []
    run(progress=lambda *said: seen.append(said))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]


def test_ranges_hold_about_as_many_objects(store):
    writer = Writer(store).filled(200)
    ends = [pointer.end for pointer in writer.file.fragments(writer.root)]
    assert cuts_of(writer.root, 1_000) == []
    for objects in (10, 30, 199):
        cuts = cuts_of(writer.root, objects)
        edges = [0, *cuts, ends[-1]]
        held = [sum(start < end <= until for end in ends) for start, until in pairwise(edges)]
        assert sum(held) == 200
        assert max(held) <= 2 * objects
        assert len(cuts) >= 200 // objects - 1


FOUND = [0, 5, 2, 30, [["fragments/00000000000000000005-1-a.parquet", 10, 7]], None, ""]


def test_what_tasks_tell_is_checked():
    assert driver._read_found([FOUND])[0].candidates == (("fragments/00000000000000000005-1-a.parquet", 10, 7),)
    for at, wrong in ((0, -1), (3, "x"), (4, [["ROOT", 1, 1]]), (4, [["fragments/a", 1]]), (5, 1), (6, None)):
        with pytest.raises(ManifestCorruptError):
            driver._read_found([[*FOUND[:at], wrong, *FOUND[at + 1 :]]])
    for read, wrong in (
        (driver._read_found, None),
        (driver._read_taken, [[0, 1, 2]]),
        (driver._read_pair, 1),
    ):
        with pytest.raises(ManifestCorruptError):
            read(wrong)


@pytest.mark.parametrize("tells", [[[9, *FOUND[1:]]], [], [[*FOUND[:5], "", ""]]], ids=["place", "none", "no step"])
def test_a_task_that_tells_of_something_else_is_refused(store, use, monkeypatch, tells):
    Writer(store).filled(2)
    use(store)
    monkeypatch.setattr(driver, "look", lambda _: tells)
    with pytest.raises(JobFailedError, match="told of other ranges"):
        run()


UUIDS = ("0a" * 16, "fb" * 16)


def stage(store, uuid, number, *, decided=False, done=False):
    batch = SinkBatch(stream="s", uuid=uuid, application="app", number=number)
    for name in ("0-a", "1-b"):
        store.create(batch.staging_prefix + name, b"12345", "n")
    if decided:
        store.create(batch.decision_key, b"{}", "n")
    if done:
        store.create(batch.done_key, b"{}", "n")
    return batch


def test_what_the_sink_staged_goes_by_its_own_rule(store, clock, use):
    use(store)
    for uuid in UUIDS:
        stage(store, uuid, 1)
        pending = stage(store, uuid, 2, decided=True)
        stage(store, uuid, 3, decided=True, done=True)
    clock.now += 10 * GRACE
    young = stage(store, UUIDS[0], 4)

    def staged(**options):
        return collect_staged(None, None, older_than_s=GRACE_S, now_ns=clock.now, **options)

    assert staged(deletes=False) == (8, 40, 0, "")
    assert staged(deletes=True, uuid=UUIDS[1])[:2] == (4, 20)
    assert staged(deletes=True)[:2] == (4, 20)
    assert staged(deletes=True)[:2] == (0, 0)
    left = {entry.key.rsplit("/", 1)[0] + "/" for entry in store.list("spark/staging/")}
    assert {young.staging_prefix, pending.staging_prefix} < left
    assert len(left) == 3


def test_documents_of_applications_that_have_ended_go_with_what_was_staged(store, clock, use):
    use(store)
    for number in range(3):
        batch = SinkBatch(stream="s", uuid=UUIDS[0], application="app", number=number)
        for key in (batch.decision_key, batch.done_key):
            store.create(key, b"{}", "n")

    def staged(**options):
        return collect_staged(None, None, older_than_s=GRACE_S, now_ns=clock.now, **options)[:2]

    assert staged(deletes=True) == (0, 0)
    clock.now += 10 * GRACE
    assert staged(deletes=True, uuid=UUIDS[1]) == (0, 0)
    assert staged(deletes=False) == staged(deletes=True) == (4, 8)
    assert staged(deletes=True) == (0, 0)
    left = {entry.key for entry in store.list("spark/commits/")}
    assert left == {batch.decision_key, batch.done_key, batch.settled_key}
