"""Collecting a partition: what nobody reaches goes, what anybody reaches stays, whatever happens between."""

import pytest

from liftpy_bucket.errors import OvertakenError
from liftpy_bucket.manifest import boundary
from liftpy_bucket.manifest.garbage import NOTHING, load_garbage
from liftpy_bucket.store.counting import CountingStore
from liftpy_bucket.store.memory import MemoryStore
from support.fault_store import FaultStore
from support.garbage_kit import GRACE, PATH, Clock, Ids, Writer, collector, fragment, live_of, present


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(clock):
    return MemoryStore(clock)


def test_nothing_to_collect_costs_no_write(store, clock):
    Writer(store).filled(3)
    counting = CountingStore(store)
    clock.now += 10 * GRACE
    assert collector(counting, clock).run().deleted == 0
    assert counting.counts["create"] == counting.counts["replace"] == counting.counts["delete"] == 0


def test_a_bucket_without_the_partition_is_left_alone(store, clock):
    assert collector(store, clock).run().loaded is None


def test_an_orphan_goes_when_it_is_older_than_the_grace_period(store, clock):
    writer = Writer(store).filled(3)
    orphan = fragment(30, 40, "orphan")
    writer.upload(orphan)
    clock.now += GRACE - 1
    assert collector(store, clock).run().deleted == 0
    clock.now += 1
    collected = collector(store, clock).run()
    assert (collected.deleted, collected.freed) == (1, orphan.pointer.size)
    assert present(store) == live_of(store)
    assert load_garbage(store, PATH).keys == NOTHING.keys


def test_the_clock_of_the_store_decides_not_that_of_the_collector(store, clock):
    writer = Writer(store).filled(1)
    writer.upload(fragment(10, 20, "young"))
    fast = Clock(clock.now + 100 * GRACE)
    assert collector(store, fast).run().deleted == 0
    assert len(present(store)) == 2


def test_what_is_not_ours_stays(store, clock):
    Writer(store).filled(1)
    for name in ("fragments/readme.txt", "notes", "fragments/1-1-a.parquet"):
        store.create(PATH.directory + name, b"x", "n")
    clock.now += 10 * GRACE
    assert collector(store, clock).run().deleted == 0


def test_a_writer_stalled_past_the_collection_does_not_resurrect_what_was_collected(store, clock):
    writer = Writer(store).filled(2)
    loaded = writer.file.load()
    stalled = fragment(20, 30, "stalled")
    writer.upload(stalled)
    clock.now += GRACE
    assert collector(store, clock).run().deleted == 1
    with pytest.raises(OvertakenError):
        writer.commit_append(loaded, stalled)  # with the root that it knew
    with pytest.raises(OvertakenError, match="written anew"):
        writer.retry_append(stalled, loaded.root.version)  # with the root of now
    assert writer.append().root.end == 30
    assert present(store) == live_of(store)


@pytest.mark.parametrize("phase", ["computed", "applied"])
def test_a_writer_that_wakes_within_a_collection_is_refused_or_seen(store, clock, phase):
    writer = Writer(store).filled(2)
    born = writer.root.version
    late = fragment(20, 30, "late")
    writer.upload(late)
    clock.now += GRACE
    collecting = collector(store, clock)
    collection = collecting.compute()
    assert collection.doomed == (PATH.fragment(late.pointer.name),)
    if phase == "computed":
        writer.retry_append(late, born)  # its root is still the one it knew
        with pytest.raises(OvertakenError):
            collecting.apply(collection)
        assert collecting.run().deleted == 0
    else:
        loaded = collecting.apply(collection)
        with pytest.raises(OvertakenError):
            writer.retry_append(late, born)
        assert collecting.delete(collection, loaded).deleted == 1
    assert present(store) == live_of(store)


def test_the_boundary_moves_before_the_root_and_before_anything_is_deleted(store, clock):
    writer = Writer(store).filled(2)
    writer.upload(fragment(20, 30, "orphan"))
    clock.now += GRACE
    collecting = collector(store, clock)
    version = writer.root.version
    collection = collecting.compute()
    assert boundary.read_boundary(store, PATH.directory) == version + 1
    assert writer.root.version == version
    assert len(present(store)) == 3
    loaded = collecting.apply(collection)
    assert loaded.root.version == version + 1
    assert len(present(store)) == 3
    collecting.delete(collection, loaded)
    assert len(present(store)) == 2


def test_racing_collectors_do_not_take_each_others_garbage(store, clock):
    """The slower one's list is old: what it has is gone or still nobody's, and the other one's GARBAGE stays."""
    writer = Writer(store).filled(2)
    writer.upload(fragment(20, 30, "first"))
    clock.now += GRACE
    slow, fast = collector(store, clock, ids=Ids("slow")), collector(store, clock, ids=Ids("fast"))
    old = slow.compute()
    loaded = slow.apply(old)
    assert fast.run().deleted == 1
    writer.append()
    writer.upload(fragment(30, 40, "second"))
    clock.now += GRACE
    newer = fast.compute()
    slow.delete(old, loaded)
    assert load_garbage(store, PATH).etag == newer.etag
    assert fast.delete(newer, fast.apply(newer)).deleted == 1
    assert present(store) == live_of(store)


def test_a_collector_that_is_overtaken_all_the_time_gives_way_and_deletes_nothing(store, clock):
    writer = Writer(store).filled(1)
    writer.upload(fragment(10, 20, "orphan"))
    clock.now += GRACE

    def interfere(request):
        if request.kind == "replace" and request.key == PATH.root:
            writer.append()

    with pytest.raises(OvertakenError, match="try again later"):
        collector(FaultStore(store, before=interfere), clock).run()
    assert len(present(store)) == 1 + 1 + 4
    assert live_of(store) < present(store)


def test_a_stale_cached_manifest_neither_deletes_nor_names(store, clock):
    """Whoever decides by an old root is refused, be it the collector or the writer."""
    writer = Writer(store).filled(2)
    writer.upload(fragment(20, 30, "orphan"))
    clock.now += GRACE
    collecting = collector(store, clock)
    stale = collecting.compute()
    writer.append()
    with pytest.raises(OvertakenError):
        collecting.apply(stale)
    assert live_of(store) < present(store)


def test_a_folded_history_is_walked_whole(store, clock):
    writer = Writer(store).filled(60)
    assert writer.root.snapshots
    before = live_of(store)
    clock.now += 2 * GRACE
    collected = collector(store, clock).run()  # snapshots that were rolled up into larger ones
    assert collected.deleted > 0
    assert present(store) == live_of(store) == before
    assert collector(store, clock).run().deleted == 0


def test_a_later_start_takes_what_lies_below_it_at_once(store, clock):
    writer = Writer(store).filled(40)
    before = writer.root
    collected = collector(store, clock).run(start=305)
    root = writer.root
    assert (root.start, root.end) == (305, 400)
    assert collected.deleted >= 30
    assert root.setsum + root.collected == before.setsum + before.collected
    assert [each.base for each in writer.file.fragments(root)] == list(range(300, 400, 10))
    clock.now += GRACE
    collector(store, clock).run()
    assert present(store) == live_of(store)


@pytest.mark.parametrize("start", [0, 1, 9, 10, 11, 19, 20, 29, 30])
def test_what_goes_ends_exactly_at_the_start_or_below(store, clock, start):
    writer = Writer(store).filled(3)
    collector(store, clock).run(start=start)
    assert writer.root.start == start
    assert [each.base for each in writer.file.fragments(writer.root)] == [b for b in (0, 10, 20) if b + 10 > start]
    assert present(store) == live_of(store)


def test_the_start_never_goes_back(store, clock):
    Writer(store).filled(3)
    collector(store, clock).run(start=20)
    assert collector(store, clock).run(start=10).loaded.root.start == 20


def test_a_partition_with_nothing_left_goes_on_where_it_ended(store, clock):
    """After everything was collected the root still knows the offset, the epochs, the claim and the sum."""
    writer = Writer(store).filled(30)
    before = writer.root
    collector(store, clock).run(start=300)
    clock.now += GRACE
    collector(store, clock).run()
    root = writer.root
    assert present(store) == set()
    assert (root.start, root.end, root.claims) == (300, 300, before.claims)
    assert root.epochs == ((1, 0),)
    assert (bool(root.setsum), root.collected) == (False, before.setsum)
    assert writer.append().root.end == 310
    assert present(store) == live_of(store)


def test_what_merging_replaced_goes_after_the_grace_period(store, clock):
    writer = Writer(store).filled(6)
    writer.merge(1, 4)
    assert len(present(store)) == 7
    clock.now += GRACE
    assert collector(store, clock).run().deleted == 4
    assert present(store) == live_of(store)


def test_nothing_is_deleted_that_the_manifest_has_not_let_go_of(store, clock):
    """A collector that dies between its phases leaves a partition that can be read, written and collected."""
    for phases in range(3):
        path = PATH._replace(partition=phases)
        writer = Writer(store, path).filled(30)
        dying = collector(store, clock, path, Ids(f"d{phases}"))
        collection = dying.compute(start=155)
        if phases:
            loaded = dying.apply(collection)
        if phases == 2:
            dying.delete(collection, loaded)
        assert live_of(store, path) <= present(store, path)
        writer.append()
        clock.now += GRACE
        collector(store, clock, path).run(start=155)
        assert writer.root.start == 155
        assert present(store, path) == live_of(store, path)


@pytest.mark.parametrize("moment", ["before the root", "after the root"])
def test_a_snapshot_that_is_made_during_a_collection_is_not_garbage(store, clock, moment):
    """The fold of a writer and the rewriting of a later start meet: one is refused, and the sum stays right."""
    writer = Writer(store).filled(18)
    assert not writer.root.snapshots
    total = writer.root.setsum
    collecting = collector(store, clock)
    collection = collecting.compute(start=35)
    if moment == "before the root":
        total += writer.append().root.fragments[-1].setsum
        with pytest.raises(OvertakenError):
            collecting.apply(collection)
        collecting.run(start=35)
    else:
        loaded = collecting.apply(collection)
        for _ in range(9):
            total += writer.append().root.fragments[-1].setsum
        collecting.delete(collection, loaded)
    root = writer.root
    assert root.snapshots
    assert root.setsum + root.collected == total
    assert live_of(store) <= present(store)
    clock.now += GRACE
    collector(store, clock).run()
    assert present(store) == live_of(store)


def test_a_snapshot_of_a_commit_that_is_stalled_past_the_collection_is_never_named(store, clock):
    """The writer has made a snapshot and dies, or sleeps, before it swaps the root."""
    writer = Writer(store).filled(18)
    faulty = FaultStore(store)
    stalled = Writer(faulty, ids=Ids("stalled"))

    def stall(request):
        if request.kind == "replace" and request.key == PATH.root:
            faulty.before = None
            assert present(store, kinds=["snapshots"])
            clock.now += GRACE
            assert collector(store, clock).run().deleted == 2

    faulty.before = stall
    with pytest.raises(OvertakenError):
        stalled.append()
    assert present(store) == live_of(store)
    assert writer.append().root.snapshots
    assert live_of(store) <= present(store)
