"""Collecting stream-set objects: one goes when none of its members counts for anybody."""

from contextlib import suppress

import pytest

from liftpy_bucket.errors import LineageError, OvertakenError
from liftpy_bucket.layout import PartitionPath, set_object_key, set_root_key
from liftpy_bucket.manifest import boundary
from liftpy_bucket.manifest.pins.held import Pins
from liftpy_bucket.manifest.root.changes import append, claim
from liftpy_bucket.manifest.stream_sets import changes as set_changes
from liftpy_bucket.manifest.stream_sets.file import SetManifestFile
from liftpy_bucket.objects.pointers import Extent, SetMember, SetObjectPointer
from liftpy_bucket.objects.setsum import Setsum
from liftpy_bucket.store.memory import MemoryStore
from liftpy_bucket.upkeep.collecting import Collector
from liftpy_bucket.upkeep.collecting_stream_sets import SetCollector
from support.fault_store import Crash, FaultStore, crash_at
from support.garbage_kit import GRACE, Clock, Ids, Writer, digest_of, fragment

NODE = "node1"
PATHS = [PartitionPath(f"{number:032x}", 0) for number in range(1, 4)]


class Sets:
    """A node that uploads stream sets."""

    def __init__(self, store, incarnation=1):
        self.store, self.incarnation, self.ids = store, incarnation, Ids("s")
        self.file = SetManifestFile(store, NODE, new_id=self.ids)
        self.writers = {path: Writer(store, path, Ids(path.uuid[-2:])) for path in PATHS}

    def claim(self):
        for writer in self.writers.values():
            writer.claim()
        return self

    @property
    def manifest(self):
        loaded = self.file.load()
        return loaded.manifest if loaded else set_changes.empty(NODE, self.incarnation)

    def object(self, base, end, paths=PATHS):
        name = f"{self.manifest.sequence:020d}-{self.ids()}.parquet"
        body = name.encode()
        members = tuple(
            SetMember(
                uuid=path.uuid,
                partition=path.partition,
                tier_epoch=1,
                base=base,
                end=end,
                records=end - base,
                extent=Extent(10, 5, "ab" * 32, start=10 * number),
                epochs=((1, base),),
                first_timestamp=base,
                last_timestamp=end - 1,
                setsum=Setsum.total(digest_of(offset) for offset in range(base, end)),
            )
            for number, path in enumerate(paths)
        )
        self.store.create(set_object_key(NODE, name), body, name)
        return SetObjectPointer(name=name, size=len(body), footer=1, digest="ab" * 32, members=members)

    def add(self, pointer):
        loaded = self.file.load()
        manifest = loaded.manifest if loaded else set_changes.empty(NODE, self.incarnation)
        return self.file.commit(loaded, set_changes.add(manifest, pointer))

    def move(self, path, end):
        """Into a stream object."""
        writer = self.writers[path]
        loaded = writer.file.load()
        made = fragment(loaded.root.end, end, writer.ids())
        writer.upload(made)
        writer.file.commit(loaded, append(loaded.root, made.pointer, epoch=1, epochs=[(1, 0)]))

    def collector(self, clock, store=None, incarnation=1, ids="c"):
        return SetCollector(store or self.store, NODE, incarnation, new_id=Ids(ids), now_ns=clock, grace_ns=GRACE)

    def present(self):
        return {entry.key for entry in self.store.list(f"sets/{NODE}/objects/")}

    def named(self):
        return {set_object_key(NODE, each.name) for each in self.manifest.objects}


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def sets(clock):
    return Sets(MemoryStore(clock)).claim()


def test_a_node_without_sets_has_nothing_to_collect(sets, clock):
    assert sets.collector(clock).run().loaded is None


def test_an_object_goes_when_its_last_member_was_moved(sets, clock):
    sets.add(sets.object(0, 10))
    sets.add(sets.object(10, 20))
    total = sets.manifest.setsum
    for path in PATHS[:2]:
        sets.move(path, 10)
        assert sets.collector(clock).run().dropped == 0
    sets.move(PATHS[2], 10)
    collected = sets.collector(clock).run()
    assert (collected.dropped, collected.deleted) == (1, 1)
    assert sets.present() == sets.named()
    assert len(sets.named()) == 1
    assert sets.manifest.setsum + sets.manifest.collected == total


@pytest.mark.parametrize(("end", "dropped"), [(9, 0), (10, 1), (11, 1)])
def test_the_boundary_of_a_member_is_exact(sets, clock, end, dropped):
    sets.add(sets.object(0, 10, PATHS[:1]))
    sets.move(PATHS[0], end)
    assert sets.collector(clock).run().dropped == dropped


def test_what_lies_below_the_start_does_not_count(sets, clock):
    sets.add(sets.object(0, 10, PATHS[:1]))
    Collector(sets.store, PATHS[0], new_id=Ids("g"), now_ns=clock, grace_ns=GRACE).run(start=10)
    assert sets.collector(clock).run().deleted == 1


def test_what_a_deposed_leader_added_goes(sets, clock):
    sets.add(sets.object(0, 10, PATHS[:1]))
    loaded = sets.writers[PATHS[0]].file.load()
    Writer(sets.store, PATHS[0], Ids("n"), epoch=2).file.commit(
        loaded, claim(loaded.root, epoch=2, node="node2", start=10)
    )
    sets.add(sets.object(10, 20, PATHS[:1]))
    assert sets.collector(clock).run().dropped == 1
    assert [each.members[0].base for each in sets.file.pointers(sets.manifest)] == [0]


def test_without_a_root_nothing_can_be_said(sets, clock):
    sets.add(sets.object(0, 10, [PartitionPath("f" * 32, 0)]))
    assert sets.collector(clock).run().dropped == 0


def test_a_pinned_version_holds_the_sets_it_reads(sets, clock):
    sets.add(sets.object(0, 10, PATHS[:1]))
    pins = Pins(sets.store, PATHS[0], new_id=Ids("p"), now_ns=clock)
    pin = pins.hold_version("read", ttl_ns=None)
    sets.move(PATHS[0], 10)
    assert sets.collector(clock).run().dropped == 0
    pins.release(pin)
    assert sets.collector(clock).run().dropped == 1


def test_orphans_go_after_the_grace_period_and_can_not_be_named_then(sets, clock):
    sets.add(sets.object(0, 10))
    born = sets.manifest.version
    known = sets.file.load()
    stalled = sets.object(10, 20)
    clock.now += GRACE - 1
    assert sets.collector(clock).run().deleted == 0
    clock.now += 1
    assert sets.collector(clock).run().deleted == 1
    with pytest.raises(OvertakenError):
        sets.file.commit(known, set_changes.add(known.manifest, stalled))
    with pytest.raises(OvertakenError, match="written anew"):
        boundary.check(sets.store, f"sets/{NODE}/", stalled.name, born)
    assert sets.present() == sets.named()


def test_an_incarnation_that_is_over_collects_nothing(sets, clock):
    sets.incarnation = 3
    sets.add(sets.object(0, 10, PATHS[:1]))
    sets.move(PATHS[0], 10)
    with pytest.raises(LineageError):
        sets.collector(clock, incarnation=2).run()
    assert len(sets.present()) == 1
    assert sets.collector(clock, incarnation=4).run().deleted == 1


@pytest.mark.parametrize("kind", ["before", "after"])
def test_a_crash_at_any_request_leaves_nothing_named_missing(clock, kind):
    for number in range(1, 200):
        sets = Sets(MemoryStore(clock)).claim()
        for base in (0, 10, 20):
            sets.add(sets.object(base, base + 10))
        for path in PATHS:
            sets.move(path, 20)
        sets.object(30, 40)
        clock.now += GRACE
        faulty = FaultStore(sets.store, **{kind: crash_at(number)})
        with suppress(Crash):
            sets.collector(clock, faulty).run()
        assert sets.named() <= sets.present()
        sets.collector(clock, ids="d").run()
        assert sets.named() == sets.present()
        assert [each.members[0].base for each in sets.file.pointers(sets.manifest)] == [20]
        if number > len(faulty.requests):
            break
    assert 8 < number < 200


@pytest.mark.parametrize("at", range(1, 16))
def test_an_upload_at_any_moment_is_kept_or_refused(clock, at):
    sets = Sets(MemoryStore(clock)).claim()
    sets.add(sets.object(0, 10))
    known, late = sets.file.load(), sets.object(10, 20)
    clock.now += GRACE
    for path in PATHS:
        sets.move(path, 10)

    def work(request):
        if request.number == at:
            with suppress(OvertakenError):
                sets.file.commit(known, set_changes.add(known.manifest, late))

    sets.collector(clock, FaultStore(sets.store, before=work)).run()
    sets.collector(clock, ids="d").run()
    assert sets.named() == sets.present()
    assert set_root_key(NODE) in {entry.key for entry in sets.store.list("sets/")}
