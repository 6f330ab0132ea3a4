"""Forks name another partition's objects, which stay as long as they do, whatever becomes of the other one."""

from contextlib import suppress

import pytest

from liftpy_bucket.errors import LineageError, OvertakenError, SealedError
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.pins.held import Pins, load_pins
from liftpy_bucket.manifest.root.reach import keys_of, reach
from liftpy_bucket.store.counting import CountingStore
from liftpy_bucket.store.memory import MemoryStore
from liftpy_bucket.upkeep.exporting import export_list
from liftpy_bucket.upkeep.forking import fork
from liftpy_bucket.upkeep.sealing import seal
from liftpy_bucket.upkeep.verifying import verify
from support.fault_store import Crash, FaultStore, crash_at
from support.garbage_kit import GRACE, PATH, Clock, Ids, Writer, collector, live_of, present

FORK = PartitionPath("ee" * 16, 0)
AGAIN = PartitionPath("ff" * 16, 0)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(clock):
    return MemoryStore(clock)


@pytest.fixture
def source(store):
    return Writer(store).filled(30)


def forked(store, source=PATH, target=FORK, ids="f"):
    return fork(store, source, target, epoch=1, node="node1", new_id=Ids(ids))


def reached(store, path):
    """Keys of all that a root reaches, wherever it lies."""
    writer = Writer(store, path)
    found = reach(writer.root, writer.file.snapshot)
    homes = {path.at(each.home) for each in (*found.snapshots, *found.fragments)}
    return {key for home in homes for key in keys_of(found, path, home)}


def everything(store):
    return {entry.key for entry in store.list("streams/")}


def collect(store, clock, *paths, start=0):
    """Until nothing is left to do."""
    for path in paths:
        number = 0
        while collector(store, clock, path, Ids(f"c{clock.now}-{number}-")).run(start=start).deleted:
            number += 1


def test_a_fork_copies_nothing(store, source):
    before = everything(store)
    counting = CountingStore(store)
    made = forked(counting)
    assert made.end == 300
    assert made.homes == (PATH,)
    assert counting.bytes_out < 20_000
    new = everything(store) - before
    assert {key.split("/")[3] for key in new} == {"ROOT", "pins"}
    assert reached(store, FORK) == live_of(store)
    assert verify(store, FORK).problems == []


def test_shared_objects_outlive_the_deletion_of_their_source(store, clock, source):
    forked(store)
    shared = reached(store, FORK)
    collect(store, clock, PATH, start=300)
    clock.now += 5 * GRACE
    collect(store, clock, PATH)
    assert live_of(store) == set()
    assert shared <= present(store)
    assert verify(store, FORK).problems == []


def test_they_go_when_the_fork_names_them_no_more(store, clock, source):
    forked(store)
    fork_writer = Writer(store, FORK, Ids("t"))
    fork_writer.append()
    collect(store, clock, PATH, start=300)
    collect(store, clock, FORK, start=150)
    clock.now += GRACE
    collect(store, clock, PATH)
    assert reached(store, FORK) <= everything(store)
    collect(store, clock, FORK, start=300)
    clock.now += GRACE
    collect(store, clock, FORK, PATH)
    clock.now += GRACE
    collect(store, clock, PATH)
    assert present(store) == set()
    assert load_pins(store, PATH) == ()
    assert reached(store, FORK) == present(store, FORK)


def test_a_pinned_version_of_the_fork_holds_them_too(store, clock, source):
    forked(store)
    pins = Pins(store, FORK, new_id=Ids("p"), now_ns=clock)
    shared = reached(store, FORK)
    pin = pins.hold_version("read", ttl_ns=None)
    collect(store, clock, FORK, start=300)
    collect(store, clock, PATH, start=300)
    clock.now += GRACE
    collect(store, clock, FORK, PATH)
    assert shared <= present(store)
    pins.release(pin)
    collect(store, clock, PATH)
    assert present(store) == set()


def test_a_fork_of_a_fork_holds_both(store, clock, source):
    forked(store)
    Writer(store, FORK, Ids("t")).append()
    made = forked(store, FORK, AGAIN, "g")
    assert set(made.homes) == {PATH, FORK}
    shared = reached(store, AGAIN)
    for path, start in ((PATH, 300), (FORK, 310)):
        collect(store, clock, path, start=start)
    clock.now += 3 * GRACE
    collect(store, clock, FORK, PATH, FORK)
    assert shared <= everything(store)
    collect(store, clock, AGAIN, start=310)
    clock.now += GRACE
    collect(store, clock, AGAIN, FORK, PATH)
    assert present(store) == present(store, FORK) == set()


def test_a_source_that_goes_on_does_not_concern_the_fork(store, clock, source):
    forked(store)
    shared = reached(store, FORK)
    source.append()
    source.merge(3, 8)
    clock.now += GRACE
    collect(store, clock, PATH, start=100)
    assert reached(store, FORK) == shared <= everything(store)
    assert live_of(store) <= present(store)


@pytest.mark.parametrize("wrong", ["no source", "target there"])
def test_what_can_not_be_forked_is_said(store, wrong):
    if wrong == "target there":
        Writer(store).filled(1)
        Writer(store, FORK).claim()
    with pytest.raises(LineageError, match="nothing of partition" if wrong == "no source" else "in the bucket already"):
        forked(store)


@pytest.mark.parametrize("kind", ["before", "after"])
def test_a_crash_at_any_request_of_a_fork_leaves_nothing_behind_for_good(clock, kind):
    for number in range(1, 60):
        store = MemoryStore(clock)
        source = Writer(store).filled(12)
        faulty = FaultStore(store, **{kind: crash_at(number)})
        with suppress(Crash):
            forked(faulty)
        is_there = Writer(store, FORK).file.load() is not None
        source.merge(2, 4)
        clock.now += GRACE
        collect(store, clock, PATH, start=60)
        if is_there:
            assert reached(store, FORK) <= everything(store)
        else:
            assert present(store) == live_of(store)
            assert load_pins(store, PATH) == () or all(pin.dropped for pin in load_pins(store, PATH))
        if number > len(faulty.requests):
            break
    assert 5 < number < 60


@pytest.mark.parametrize("at", range(1, 14))
def test_a_fork_stalled_past_the_grace_period_is_refused_or_whole(clock, at):
    """Between any two of its requests the source drops everything, and collectors run for a long time."""
    store = MemoryStore(clock)
    Writer(store).filled(12)

    def work(request):
        if request.number == at:
            collect(store, clock, PATH, start=60)
            clock.now += 2 * GRACE
            collect(store, clock, PATH, start=80)
            clock.now += 2 * GRACE
            collect(store, clock, PATH)

    try:
        forked(FaultStore(store, before=work))
    except OvertakenError:
        assert Writer(store, FORK).root.sealed, "its place was taken"
        assert live_of(store) == present(store)
    else:
        assert reached(store, FORK) <= everything(store)


@pytest.mark.parametrize("at", range(1, 40))
def test_a_fork_made_during_a_collection_of_its_source_is_whole(clock, at):
    store = MemoryStore(clock)
    source = Writer(store).filled(24)
    source.merge(2, 4)
    clock.now += GRACE

    def work(request):
        if request.number == at:
            forked(store)

    collector(FaultStore(store, before=work), clock).run(start=100)
    collect(store, clock, PATH)
    if Writer(store, FORK).file.load() is not None:
        assert reached(store, FORK) <= everything(store)
    assert live_of(store) <= present(store)


def test_a_sealed_partition_takes_nothing_more_but_is_collected(store, clock, source):
    assert seal(store, PATH, new_id=Ids("x")).root.sealed
    version = seal(store, PATH, new_id=Ids("y")).root.version
    assert version == source.root.version
    with pytest.raises(SealedError):
        source.append()
    collect(store, clock, PATH, start=200)
    clock.now += GRACE
    collect(store, clock, PATH)
    assert present(store) == live_of(store)
    with pytest.raises(LineageError, match="nothing of partition"):
        seal(store, FORK, new_id=Ids("z"))


def test_an_export_is_one_version_and_a_pinned_one_stays(store, clock, source):
    export = export_list(store, PATH)
    assert (export.start, export.end, len(export.objects)) == (0, 300, 30)
    assert [each.start for each in export.objects] == list(range(0, 300, 10))
    assert {each.key for each in export.objects} <= present(store)
    pin = Pins(store, PATH, new_id=Ids("p"), now_ns=clock).hold_version("spark", ttl_ns=None)
    source.merge(0, 20)
    collect(store, clock, PATH, start=100)
    clock.now += GRACE
    collect(store, clock, PATH)
    assert export_list(store, PATH, pin=pin) == export
    assert {each.key for each in export.objects} <= present(store)
    newer = export_list(store, PATH)
    assert (newer.start, newer.objects[0].start, newer.objects[0].end) == (100, 100, 200)
    assert export_list(store, FORK) is None


@pytest.mark.parametrize("at", range(1, 12))
def test_an_export_during_a_collection_is_whole(clock, at):
    store = MemoryStore(clock)
    source = Writer(store).filled(40)

    def work(request):
        if request.number == at:
            source.merge(0, 10)
            clock.now += GRACE
            collect(store, clock, PATH, start=200)

    export = export_list(FaultStore(store, before=work), PATH)
    assert export.objects[0].start == export.start
    assert export.objects[-1].end == export.end
