"""Commits of roots: one of two writers wins, and whoever won knows it, whatever becomes of the answers."""

import dataclasses
import random
from itertools import pairwise

import pytest

from liftpy_bucket.errors import (
    LineageError,
    ManifestCorruptError,
    ObjectMissingError,
    OutcomeUnknownError,
    OvertakenError,
    StoreDeniedError,
    StoreUnavailableError,
)
from liftpy_bucket.manifest.root.changes import advance_start, append, claim, create, fork, replace
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.manifest.root.folding import POINTERS_MAX
from liftpy_bucket.manifest.root.format import COMMIT_IDS
from liftpy_bucket.objects.setsum import NO_RECORDS
from liftpy_bucket.store.counting import CountingStore
from liftpy_bucket.store.memory import MemoryStore
from support.fault_store import Crash, Fault, FaultStore, crash_at, plan_at, plan_random
from support.manifest_kit import OTHER_PATH, PATH, edited, fragment, ids, sum_of


def written(store, fragments, path=PATH, new_id=None):
    """A root with so many fragments of ten offsets, and its file."""
    file = RootFile(store, path, new_id=new_id or ids("written"))
    loaded = file.commit(None, create(path, epoch=1, node="node-1", start=0))
    for number in range(fragments):
        loaded = file.commit(loaded, appended(loaded, number))
    return file, loaded


def appended(loaded, number, epoch=1, nonce="n"):
    piece = fragment(10 * number, 10 * number + 10, epoch=epoch, nonce=nonce)
    return append(loaded.root, piece, epoch=epoch, epochs=[(1, 0)])


def test_what_is_committed_is_loaded():
    store = MemoryStore()
    file, loaded = written(store, 3)
    other = RootFile(store, PATH, new_id=ids("other"))
    assert other.load() == loaded
    assert other.load_newer(loaded) is None
    newer = file.commit(loaded, appended(loaded, 3))
    assert other.load_newer(loaded) == newer
    assert RootFile(store, OTHER_PATH, new_id=ids()).load() is None
    store.delete([PATH.root])
    with pytest.raises(ObjectMissingError):
        other.load_newer(loaded)


def test_the_last_commits_are_known_by_their_ids():
    new_id, given = ids("given"), []

    def noted():
        given.append(new_id())
        return given[-1]

    _, loaded = written(MemoryStore(), COMMIT_IDS + 5, new_id=noted)
    assert loaded.root.commits == tuple(given[-COMMIT_IDS:])


def test_a_commit_costs_one_request_and_opening_for_writing_two():
    store = CountingStore(MemoryStore())
    file, loaded = written(store, 5)
    before = dict(store.counts)
    file.commit(loaded, appended(loaded, 5))
    assert {kind: store.counts[kind] - before[kind] for kind in before if store.counts[kind] != before[kind]} == {
        "replace": 1
    }
    opened = RootFile(store, PATH, new_id=ids("opened"))
    before = dict(store.counts)
    opened.commit(loaded := opened.load(), claim(loaded.root, epoch=2, node="node-2", start=loaded.root.end))
    assert store.counts["get"] - before["get"] == 1
    assert store.counts["replace"] - before["replace"] == 1


def test_of_two_writers_one_wins_and_the_other_is_told():
    store = MemoryStore()
    file, loaded = written(store, 2)
    other = RootFile(store, PATH, new_id=ids("other"))
    won = other.commit(loaded, appended(loaded, 2, nonce="other"))
    with pytest.raises(OvertakenError, match="written by somebody else"):
        file.commit(loaded, appended(loaded, 2))
    assert file.load() == won
    with pytest.raises(OvertakenError):
        file.commit(None, create(PATH, epoch=1, node="node-1", start=0))


def test_an_old_leader_that_wakes_up_after_the_new_one_claimed_adds_nothing():
    store = MemoryStore()
    old, loaded = written(store, 2)
    asleep = appended(loaded, 2)
    new = RootFile(store, PATH, new_id=ids("new"))
    claimed = new.commit(loaded, claim(loaded.root, epoch=2, node="node-2", start=20))
    with pytest.raises(OvertakenError):
        old.commit(loaded, asleep)
    with pytest.raises(LineageError, match="node-2 with leader epoch 2"):
        appended(old.load(), 2)
    assert old.load() == claimed


ANSWERS = [Fault.LOST, Fault.TWICE, Fault.REFUSED_AFTER, Fault.NOT_DONE, Fault.LATE, Fault.UNAVAILABLE]


@pytest.mark.parametrize("fault", ANSWERS)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_commit_knows_itself_whatever_the_answer(fault, is_first):
    store = MemoryStore()
    loaded = None if is_first else written(store, 2)[1]
    faulty = FaultStore(store, plan_at({1: fault}))
    file = RootFile(faulty, PATH, new_id=ids("faulty"))
    change = create(PATH, epoch=1, node="node-1", start=0) if is_first else appended(loaded, 2)
    committed = file.commit(loaded, change)
    faulty.deliver_late()
    assert [met for _, met in faulty.faults] == [fault]
    assert RootFile(store, PATH, new_id=ids()).load() == committed
    assert dataclasses.replace(committed.root, commits=change.root.commits) == change.root


@pytest.mark.parametrize("fault", ANSWERS)
def test_a_commit_with_snapshots_knows_itself_whatever_the_answers(fault):
    store = MemoryStore()
    _, loaded = written(store, POINTERS_MAX)
    faulty = FaultStore(store, plan_at({1: fault, 2: fault, 3: fault, 5: fault}))
    file = RootFile(faulty, PATH, new_id=ids("faulty"))
    committed = file.commit(loaded, appended(loaded, POINTERS_MAX))
    faulty.deliver_late()
    fresh = RootFile(store, PATH, new_id=ids())
    assert fresh.load() == committed
    assert len(committed.root.snapshots) == 1
    assert [each.base for each in fresh.fragments(committed.root)] == [*range(0, 10 * POINTERS_MAX + 10, 10)]


def test_somebody_elses_commit_on_top_of_ours_does_not_hide_ours():
    store = MemoryStore()
    _, loaded = written(store, 2)
    other = RootFile(store, PATH, new_id=ids("other"))

    def meanwhile(request):
        if request.number == 2:  # our write has happened, we are about to look
            seen = other.load()
            other.commit(seen, appended(seen, 3))

    file = RootFile(FaultStore(store, plan_at({1: Fault.LOST}), before=meanwhile), PATH, new_id=ids("ours"))
    committed = file.commit(loaded, appended(loaded, 2))
    assert committed == other.load()
    assert committed.root.end == 40


def test_a_commit_that_came_between_ours_and_the_answer_is_not_taken_for_ours():
    store = MemoryStore()
    _, loaded = written(store, 2)
    other = RootFile(store, PATH, new_id=ids("other"))

    def meanwhile(request):
        if request.number == 2:
            other.commit(loaded, appended(loaded, 2, nonce="other"))

    file = RootFile(FaultStore(store, plan_at({1: Fault.NOT_DONE}), before=meanwhile), PATH, new_id=ids("ours"))
    with pytest.raises(OvertakenError):
        file.commit(loaded, appended(loaded, 2))
    assert other.load().root.fragments[-1].name.endswith("-other.parquet")


def test_when_nothing_can_be_told_that_is_said():
    store = MemoryStore()
    _, loaded = written(store, 2)
    unknown = RootFile(FaultStore(store, plan_at(dict.fromkeys(range(1, 20), Fault.NOT_DONE))), PATH, new_id=ids("u"))
    with pytest.raises(OutcomeUnknownError, match="4 attempts"):
        unknown.commit(loaded, appended(loaded, 2))
    away = RootFile(FaultStore(store, plan_at(dict.fromkeys(range(1, 20), Fault.UNAVAILABLE))), PATH, new_id=ids("a"))
    with pytest.raises(StoreUnavailableError):
        away.commit(loaded, appended(loaded, 2))
    assert RootFile(store, PATH, new_id=ids()).load() == loaded


def test_a_refusal_that_is_none_of_ours_is_passed_on():
    store = MemoryStore()
    _, loaded = written(store, 2)

    def denied(request):
        raise StoreDeniedError("no")

    file = RootFile(FaultStore(store, before=denied), PATH, new_id=ids("denied"))
    with pytest.raises(StoreDeniedError):
        file.commit(loaded, appended(loaded, 2))


def test_a_root_that_is_gone_is_not_written_anew():
    store = MemoryStore()
    file, loaded = written(store, 2)
    store.delete([PATH.root])
    with pytest.raises(OvertakenError, match="is gone"):
        file.commit(loaded, appended(loaded, 2))


def test_a_crash_at_any_point_leaves_the_root_before_or_after():
    for number in range(1, 10):
        store = MemoryStore()
        _, loaded = written(store, POINTERS_MAX)
        change = appended(loaded, POINTERS_MAX)
        crashing = FaultStore(store, before=crash_at(number))
        done = False
        try:
            RootFile(crashing, PATH, new_id=ids("crashed")).commit(loaded, change)
            done = True
        except Crash:
            pass
        file = RootFile(store, PATH, new_id=ids("after"))
        found = file.load()
        assert found.root.end == change.root.end if done else found == loaded
        if not done:  # the next leader does the same again, under other names
            found = file.commit(found, appended(found, POINTERS_MAX, nonce="again"))
        assert [each.base for each in file.fragments(found.root)] == [*range(0, 10 * POINTERS_MAX + 10, 10)]
        if done:
            assert number == 3  # a snapshot and the root
            return
    raise AssertionError("it never got through")


def test_no_two_attempts_write_the_same_name():
    store = MemoryStore()
    _, loaded = written(store, POINTERS_MAX)
    change = appended(loaded, POINTERS_MAX)
    for nonce in ("one", "two"):
        with pytest.raises(Crash):
            RootFile(FaultStore(store, before=crash_at(2)), PATH, new_id=ids(nonce)).commit(loaded, change)
    assert len([*store.list(f"{PATH.directory}snapshots/")]) == 2


def test_fragments_and_snapshots_are_found_by_offset():
    store = CountingStore(MemoryStore())
    written(store, 200)
    file = RootFile(store, PATH, new_id=ids("reader"))
    root = file.load().root
    assert [each.base for each in file.fragments(root, 95, 121)] == [90, 100, 110, 120]
    assert [each.base for each in file.fragments(root, 1990)] == [1990]
    assert [each.base for each in file.fragments(root, 0, 1)] == [0]
    assert file.find(root, 2000) is None
    assert all(file.find(root, offset).base == offset // 10 * 10 for offset in range(0, 2000, 7))
    wanted = file.snapshots(root, 0, 5)
    assert [*wanted] == [root.snapshots[0].digest]
    assert file.snapshots(root, 1999) == {}
    assert len(file.snapshots(root)) == len(root.snapshots)


def test_a_damaged_snapshot_is_noticed():
    store = MemoryStore()
    _, loaded = written(store, POINTERS_MAX + 1)
    key = PATH.snapshot(loaded.root.snapshots[0].digest)
    body = store.get(key).body
    store.delete([key])
    file = RootFile(store, PATH, new_id=ids("reader"))
    with pytest.raises(ObjectMissingError):
        file.find(loaded.root, 0)
    store.create(key, edited(body, lambda plain: plain["fragments"].pop()), "edited")
    with pytest.raises(ManifestCorruptError, match="SHA-256"):
        file.find(loaded.root, 0)


def test_merging_and_retention_go_through_snapshots():
    store = MemoryStore()
    file, loaded = written(store, 150)
    old = [*file.fragments(loaded.root, 300, 700)]
    merged = fragment(300, 700, nonce="merged")
    change = replace(loaded.root, old, [merged], collected=NO_RECORDS, snapshots=file.snapshots(loaded.root, 300, 700))
    loaded = file.commit(loaded, change)
    assert file.find(loaded.root, 555) == merged
    assert len([*file.fragments(loaded.root)]) == 111
    loaded = file.commit(loaded, advance_start(loaded.root, 705, snapshots=file.snapshots(loaded.root, end=705)))
    assert [each.base for each in file.fragments(loaded.root)] == [*range(700, 1500, 10)]


def test_a_fork_reads_and_goes_on_where_the_other_is():
    store = MemoryStore()
    source, loaded = written(store, 100)
    target = RootFile(store, OTHER_PATH, new_id=ids("fork"))
    forked = target.commit(None, fork(loaded.root, OTHER_PATH, epoch=1, node="node-2"))
    for number in range(100, 200):
        forked = target.commit(forked, appended(forked, number))
    found = [*RootFile(store, OTHER_PATH, new_id=ids()).fragments(forked.root)]
    assert [each.base for each in found] == [*range(0, 2000, 10)]
    assert {each.home for each in found[:100]} == {PATH.home}
    assert {each.home for each in found[100:]} == {""}
    assert [each.base for each in source.fragments(source.load().root)] == [*range(0, 1000, 10)]


@pytest.mark.parametrize("seed", range(12))
def test_appends_get_through_a_store_that_fails_all_the_time(seed):
    store = MemoryStore()
    faulty = FaultStore(store)
    file = RootFile(faulty, PATH, new_id=ids(f"seed {seed}"))
    loaded = file.commit(None, create(PATH, epoch=1, node="node-1", start=0))
    faulty.plan = plan_random(random.Random(seed), 0.4)
    number = 0
    for _ in range(400):
        try:
            loaded = file.commit(loaded, appended(loaded, number))
        except (OutcomeUnknownError, StoreUnavailableError, OvertakenError):
            faulty.deliver_late()
            loaded = RootFile(store, PATH, new_id=ids()).load()
        number = loaded.root.end // 10
        if number == 100:
            break
    found = [*RootFile(store, PATH, new_id=ids()).fragments(loaded.root)]
    assert [(each.base, each.end) for each in found] == [(base, base + 10) for base in range(0, 1000, 10)]
    assert faulty.faults


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(8))
def test_two_writers_that_get_in_each_others_way_lose_and_double_nothing(seed):
    """Between any two requests of one the other may commit: merges against appends, over a store that fails."""
    store, rng, new_id = MemoryStore(), random.Random(seed), ids(f"two {seed}")
    written(store, 1)
    merger = RootFile(store, PATH, new_id=new_id)

    def merge(_request):
        if rng.random() < 0.3:
            loaded = merger.load()
            old = [*merger.fragments(loaded.root)][:2]
            merged = fragment(old[0].base, old[-1].end, nonce=new_id())
            snapshots = merger.snapshots(loaded.root, old[0].base, old[-1].end)
            change = replace(loaded.root, old, [merged], collected=NO_RECORDS, snapshots=snapshots)
            merger.commit(loaded, change)

    plan = plan_random(rng, 0.2, [Fault.LOST, Fault.TWICE, Fault.REFUSED_AFTER, Fault.NOT_DONE, Fault.LATE])
    file = RootFile(FaultStore(store, plan, before=merge), PATH, new_id=new_id)
    overtaken = 0
    for _ in range(300):
        seen = merger.load()
        try:
            file.commit(seen, appended(seen, seen.root.end // 10, nonce=new_id()))
        except OvertakenError:
            overtaken += 1
        except (OutcomeUnknownError, StoreUnavailableError):
            continue
    assert overtaken > 20
    root = merger.load().root
    found = [*merger.fragments(root)]
    assert (found[0].base, found[-1].end, root.end) == (0, root.end, root.end)
    assert all(one.end == other.base for one, other in pairwise(found))
    assert root.setsum == sum_of(range(root.end))
    assert root.end > 500
