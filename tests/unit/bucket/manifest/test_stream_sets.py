"""Set manifests: what may become of them, and who may write them."""

import dataclasses

import pytest

from liftpy_bucket.errors import LineageError, ManifestCorruptError, ObjectMissingError, OvertakenError
from liftpy_bucket.manifest.root.format import COMMIT_IDS
from liftpy_bucket.manifest.stream_sets.changes import add, adopt, begin, drop, empty, replace
from liftpy_bucket.manifest.stream_sets.file import SetManifestFile, page_cache
from liftpy_bucket.objects.setsum import NO_RECORDS
from liftpy_bucket.store.counting import CountingStore
from liftpy_bucket.store.memory import MemoryStore
from support.fault_store import Fault, FaultStore, plan_at
from support.manifest_kit import OTHER_PATH, ids, member, set_object, sum_of


def begun(incarnation=1):
    """One whose first object has sequence 0, so that sequences are counts."""
    return dataclasses.replace(empty("node-1", incarnation), sequence=0)


def filled(objects, incarnation=1):
    manifest = begun(incarnation)
    for sequence in range(objects):
        base = 10 * sequence
        manifest = add(
            manifest, set_object(sequence, member(base, base + 10), member(base, base + 10, path=OTHER_PATH))
        )
    return manifest


def test_what_is_added_is_summed_up():
    manifest = filled(3)
    assert (manifest.version, manifest.sequence, len(manifest.objects)) == (3, 3, 3)
    assert manifest.setsum == sum_of(range(30)) + sum_of(range(30))


def test_the_first_version_names_nothing_and_leaves_out_the_sequence_of_older_programs():
    first = begin("node-1", 7)
    assert (first.version, first.sequence, first.objects, first.incarnation) == (1, 1, (), 7)
    assert add(first, set_object(1, member(0, 10))).sequence == 2
    with pytest.raises(OvertakenError, match="gives out sequence 1 next"):
        add(first, set_object(0, member(0, 10)))


def test_a_sequence_is_given_out_once():
    with pytest.raises(OvertakenError, match="gives out sequence 3 next"):
        add(filled(3), set_object(2, member(30, 40)))
    assert add(filled(3), set_object(7, member(30, 40))).sequence == 8


def test_what_is_dropped_moves_into_collected():
    manifest = drop(filled(3), {filled(3).objects[1].name}, 4)
    gone = sum_of(range(10, 20)) + sum_of(range(10, 20))
    assert (manifest.collected, manifest.setsum + gone) == (gone, filled(3).setsum)
    assert (manifest.incarnation, manifest.sequence, len(manifest.objects)) == (4, 3, 2)
    with pytest.raises(OvertakenError, match="does not name"):
        drop(manifest, {filled(3).objects[1].name}, 4)
    with pytest.raises(LineageError, match="incarnation 3 is over"):
        drop(manifest, {manifest.objects[0].name}, 3)


def test_merging_conserves_the_sum_and_the_place():
    manifest = filled(4)
    merged = set_object(4, member(10, 30), member(10, 30, path=OTHER_PATH), nonce="merged")
    names = [each.name for each in manifest.objects[1:3]]
    after = replace(manifest, names, [merged])
    named = [each.name for each in after.objects]
    assert named == [manifest.objects[0].name, merged.name, manifest.objects[3].name]
    assert {each.name for each in after.added} == {*named}
    assert (after.setsum, after.collected, after.sequence) == (manifest.setsum, NO_RECORDS, 5)
    half = set_object(4, member(10, 30))
    after = replace(manifest, names, [half], collected=sum_of(range(10, 30)))
    assert after.setsum + after.collected == manifest.setsum
    with pytest.raises(ManifestCorruptError, match="conserve"):
        replace(manifest, names, [half])
    with pytest.raises(OvertakenError, match="gives out sequence"):
        replace(manifest, names, [set_object(3, member(10, 30), member(10, 30, path=OTHER_PATH))])
    with pytest.raises(OvertakenError, match="does not name"):
        replace(after, names, [merged])


def test_a_round_costs_two_requests():
    store = CountingStore(MemoryStore())
    file = SetManifestFile(store, "node-1", new_id=ids(), pages=page_cache())
    loaded = file.commit(None, filled(1))
    file.commit(loaded, add(loaded.manifest, set_object(1, member(10, 20))))
    assert {kind: count for kind, count in store.counts.items() if count} == {"create": 3, "replace": 1}


def test_what_is_committed_is_loaded():
    store = MemoryStore()
    file, other = (SetManifestFile(store, "node-1", new_id=ids(name)) for name in ("a", "b"))
    assert file.load() is None
    loaded = file.commit(None, filled(1))
    assert other.load() == loaded
    assert other.load_newer(loaded) is None
    for sequence in range(1, COMMIT_IDS + 3):
        loaded = file.commit(loaded, add(loaded.manifest, set_object(sequence, member(sequence, sequence + 1))))
    assert other.load() == loaded
    assert len(loaded.manifest.commits) == COMMIT_IDS
    store.delete(["sets/node-1/ROOT"])
    with pytest.raises(ObjectMissingError):
        other.load_newer(loaded)


def test_a_process_that_is_over_writes_no_more():
    store = MemoryStore()
    old, new = (SetManifestFile(store, "node-1", new_id=ids(name)) for name in ("old", "new"))
    asleep = old.commit(None, filled(1, incarnation=1))
    late = add(asleep.manifest, set_object(1, member(10, 20)))
    seen = new.load()
    standing = new.commit(seen, add(adopt(seen.manifest, 2), set_object(1, member(10, 20), nonce="new")))
    with pytest.raises(LineageError, match="incarnation 1 is over"):
        old.commit(asleep, late)
    with pytest.raises(LineageError, match="incarnation 1 is over"):
        adopt(old.load().manifest, 1)
    with pytest.raises(LineageError):
        old.commit(
            old.load(),
            add(filled(1, incarnation=1), set_object(1, member(10, 20))).__class__(
                node="node-1", incarnation=1, version=standing.manifest.version + 1, sequence=5
            ),
        )
    assert new.load() == standing


def test_two_writers_of_one_incarnation_take_turns():
    store = MemoryStore()
    one, two = (SetManifestFile(store, "node-1", new_id=ids(name)) for name in ("one", "two"))
    loaded = one.commit(None, filled(1))
    two.commit(loaded, add(loaded.manifest, set_object(1, member(10, 20), nonce="two")))
    with pytest.raises(OvertakenError):
        one.commit(loaded, add(loaded.manifest, set_object(1, member(10, 20), nonce="one")))


@pytest.mark.parametrize(
    "fault", [Fault.LOST, Fault.TWICE, Fault.REFUSED_AFTER, Fault.NOT_DONE, Fault.LATE, Fault.UNAVAILABLE]
)
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("written", ["pack", "root"])
def test_a_commit_knows_itself_whatever_the_answer(fault, is_first, written):
    store = MemoryStore()
    loaded = None if is_first else SetManifestFile(store, "node-1", new_id=ids("before")).commit(None, filled(1))
    before = 0 if is_first else 1  # the page that changes is read
    faulty = FaultStore(store, plan_at({before + {"pack": 1, "root": 2}[written]: fault}))
    file = SetManifestFile(faulty, "node-1", new_id=ids("ours"))
    manifest = filled(1) if is_first else add(loaded.manifest, set_object(1, member(10, 20)))
    committed = file.commit(loaded, manifest)
    faulty.deliver_late()
    assert SetManifestFile(store, "node-1", new_id=ids()).load() == committed
    assert committed.manifest.objects == manifest.objects
    assert {each.name for each in file.pointers(committed.manifest)} == {each.name for each in manifest.objects}


def test_a_thousand_quiet_partitions_fit_into_many_rounds():
    """What a node may have before it must merge: 40 rounds of 1,000 members."""
    members = [member(0, 1, path=OTHER_PATH._replace(partition=number)) for number in range(1000)]
    manifest = begun()
    for sequence in range(40):
        manifest = add(manifest, set_object(sequence, *members))
    file = SetManifestFile(MemoryStore(), "node-1", new_id=ids())
    committed = file.commit(None, dataclasses.replace(manifest, version=1)).manifest
    assert len(committed.objects) == 40
    assert [len(each.members) for each in file.pointers(committed)] == [1000] * 40
