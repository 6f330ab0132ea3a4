"""Where the history of partitions ends in the bucket, and that nobody moves that end once it is fenced."""

from __future__ import annotations

import threading

import pytest

from liftpy_bucket.errors import LineageError, OvertakenError, StoreUnavailableError
from liftpy_bucket.layout import PartitionPath, set_root_key
from liftpy_bucket.manifest.root.changes import seal
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_server.tier.jobs.restores.restoring import EPOCH_GAP, Bucket, PartitionPlan
from support.tier_bucket import Bucket as Left
from support.tier_bucket import stream

A, B, C = (letter * 32 for letter in "abc")


@pytest.fixture
def left():
    return Left()


def look(left, *places):
    return Bucket(left.store, new_id=left.new_id).look([PartitionPath(*place) for place in places])


def fence(left, *places, node="new"):
    return Bucket(left.store, new_id=left.new_id).fence([PartitionPath(*place) for place in places], node)


def test_a_partition_ends_where_its_sets_do(left):
    left.claim(A, epoch=3, start=0)
    left.fragment(A, 50, [(2, 0), (3, 20)])
    left.sets([(A, 0, 3, 50, 60), (B, 0, 1, 0, 9)])
    left.sets([(A, 0, 3, 60, 75)])
    (plan,) = look(left, (A, 0))
    assert plan == PartitionPlan(
        uuid=A, partition=0, end=75, last_epoch=3, record_epoch=3, records=75, stored_bytes=500, newest_ns=74
    )
    assert plan.marks == {"leader_epoch": 3 + EPOCH_GAP, "log_start": 0, "local_start": 75, "newest_ns": 74}
    assert PartitionPlan.from_plain(plan.to_plain()) == plan


def test_a_claim_without_a_record_counts_for_the_epoch(left):
    left.claim(A, epoch=3, start=5)
    left.claim(A, epoch=9, start=5)
    (plan,) = look(left, (A, 0))
    assert (plan.start, plan.end, plan.last_epoch, plan.records, plan.newest_ns) == (5, 5, 9, 0, 0)
    assert plan.record_epoch == -1


def test_a_claim_without_a_record_is_not_the_epoch_of_the_last_one(left):
    left.claim(A, epoch=3, start=0)
    left.fragment(A, 50, [(2, 0), (3, 20)])
    left.claim(A, epoch=9, start=50)
    (plan,) = look(left, (A, 0))
    assert (plan.last_epoch, plan.record_epoch) == (9, 3)


def test_what_is_not_there_begins_at_nothing(left):
    assert look(left, (A, 3)) == [PartitionPlan(uuid=A, partition=3)]


def test_what_a_deposed_leader_added_does_not_count(left):
    left.claim(A, epoch=3, start=0)
    left.sets([(A, 0, 3, 0, 10)])
    left.claim(A, epoch=4, start=10, node="n2")
    left.sets([(A, 0, 3, 10, 30)])
    left.sets([(A, 0, 4, 10, 12)], node="n2")
    (plan,) = look(left, (A, 0))
    assert (plan.end, plan.last_epoch, plan.problem) == (12, 4, "")


def test_a_gap_ends_the_history_and_is_told(left):
    left.claim(A, epoch=3, start=0)
    left.sets([(A, 0, 3, 0, 10)])
    left.sets([(A, 0, 3, 12, 30)])
    (plan,) = look(left, (A, 0))
    assert (plan.end, "nothing from offset 10 to 12" in plan.problem, plan.is_readable) == (10, True, True)


def test_sets_are_read_again_when_a_claim_is_younger_than_they(left):
    left.claim(A, epoch=3, start=0)
    left.claim(B, epoch=3, start=0)
    bucket = Bucket(left.store, new_id=left.new_id)
    assert bucket.look([PartitionPath(A, 0)])[0].end == 0  # there were no sets yet
    left.sets([(B, 0, 3, 0, 40)])
    left.claim(B, epoch=4, start=40, node="n2")
    assert bucket.look([PartitionPath(B, 0)])[0].end == 40


def test_a_root_that_makes_no_sense_is_told_and_no_reason_to_stop(left):
    left.claim(A, epoch=3, start=0)
    left.claim(B, epoch=3, start=2)
    key = PartitionPath(A, 0).root
    left.store.replace(key, b"{", left.store.head(key).etag, "x")
    for plans in (look(left, (A, 0), (B, 0)), fence(left, (A, 0), (B, 0))):
        assert [plan.is_readable for plan in plans] == [False, True]
        assert key in plans[0].problem


def objects(left):
    return {entry.key for entry in left.store.list("")}


@pytest.mark.parametrize("held", ["own", "shared"])
def test_a_root_that_was_deleted_is_told_and_none_is_begun_over_what_it_named(left, held):
    left.claim(A, epoch=3, start=0)
    if held == "own":
        key = PartitionPath(A, 0).fragment(f"{0:020d}-3-n.parquet")
        left.store.create(key, b"records", "n")
    else:
        left.sets([(B, 0, 1, 0, 9), (A, 0, 3, 0, 10)])
        key = f"sets/n1/objects/{1:020d}-"
    left.store.delete([PartitionPath(A, 0).root])
    before = objects(left)
    for plans in (look(left, (A, 0)), fence(left, (A, 0))):
        assert [plan.is_readable for plan in plans] == [False]
        assert f"there is no object {PartitionPath(A, 0).root}, and there was one" in plans[0].problem
        assert key in plans[0].problem
    assert objects(left) == before
    assert look(left, (C, 0)) == [PartitionPlan(uuid=C, partition=0)]


def test_what_strangers_put_beside_it_is_no_trace_of_a_root(left):
    for name in ("notes.txt", "fragments/", "fragments/notes.parquet", "pins/reader.json"):
        left.store.create(PartitionPath(A, 0).directory + name, b"theirs", "n")
    left.store.create("sets/README", b"theirs", "n")
    assert look(left, (A, 0)) == [PartitionPlan(uuid=A, partition=0)]


def test_a_set_manifest_that_was_deleted_is_told_and_the_history_is_not_cut_there(left):
    left.claim(A, epoch=3, start=0)
    left.claim(B, epoch=3, start=0, node="n2")
    left.sets([(A, 0, 3, 0, 10)])
    left.store.create(f"sets/n1/objects/{1:020d}-n.parquet", b"records", "n")
    left.store.delete([set_root_key("n1")])
    version = left.root(A).version
    for plans in (look(left, (A, 0), (B, 0)), fence(left, (A, 0), (B, 0))):
        assert [plan.is_readable for plan in plans] == [False, True]
        assert f"there is no object {set_root_key('n1')}, and there was one" in plans[0].problem
    assert left.root(A).version == version


def test_a_node_that_died_before_its_first_set_manifest_had_none(left):
    left.claim(A, epoch=3, start=0)
    left.store.create(f"sets/n1/objects/{0:020d}-n.parquet", b"records", "n")
    (plan,) = look(left, (A, 0))
    assert (plan.end, plan.problem, plan.is_readable) == (0, "", True)


def test_a_bucket_that_is_away_is_an_error(left):
    def away(_key):
        raise StoreUnavailableError("away")

    left.store.get = away
    with pytest.raises(StoreUnavailableError):
        look(left, (A, 0))


def test_the_plan_names_all_streams_but_those_that_were_deleted(left):
    left.claim(A, 1, epoch=3, start=0)
    left.fragment(A, 50, [(3, 0)], 1)
    left.sets([(A, 1, 3, 50, 60)])
    left.put_catalog(**{A: stream("orders", 2), B: stream("gone", deleted_ns=5), C: stream("local", tier=False)})
    told = []
    plan = Bucket(left.store, new_id=left.new_id).plan(left.catalog(), lambda *done: told.append(done))
    assert [(each.uuid, each.stream.name, len(each.partitions)) for each in plan.streams] == [
        (C, "local", 1),
        (A, "orders", 2),
    ]
    assert (told[-1], plan.newest_ns) == ((3, 3), 59)
    assert [each.end for each in plan.partitions] == [0, 0, 60]
    (problem,) = plan.problems
    assert "tier = false" in problem.problem


def test_nobody_adds_anything_that_counts_to_what_is_fenced(left):
    left.claim(A, epoch=3, start=0)
    left.fragment(A, 50, [(3, 0)])
    left.sets([(A, 0, 3, 50, 60)])
    (plan,) = fence(left, (A, 0))
    assert (plan.end, plan.last_epoch) == (60, 3 + EPOCH_GAP)
    left.sets([(A, 0, 3, 60, 90)])
    assert look(left, (A, 0))[0].end == 60
    with pytest.raises(LineageError):
        left.claim(A, epoch=4, start=90)
    left.claim(A, epoch=plan.marks["leader_epoch"], start=60)  # of the restored cluster


def test_fencing_again_only_moves_the_epoch(left):
    left.claim(A, epoch=3, start=0)
    left.fragment(A, 50, [(3, 0)])
    (first,) = fence(left, (A, 0))
    (second,) = fence(left, (A, 0), node="another")
    assert (second.end, second.records, second.last_epoch) == (50, 50, first.last_epoch + EPOCH_GAP)


def test_what_never_reached_the_bucket_is_fenced_too(left):
    (plan,) = fence(left, (A, 0))
    assert (plan.end, plan.last_epoch) == (0, EPOCH_GAP)
    with pytest.raises(LineageError):
        left.claim(A, epoch=7, start=0)


def test_a_sealed_partition_is_as_it_is(left):
    left.claim(A, epoch=3, start=0)
    file = left.file(A)
    loaded = file.load()
    file.commit(loaded, seal(loaded.root))
    version = left.root(A).version
    (plan,) = fence(left, (A, 0))
    assert (left.root(A).version, plan.last_epoch, "sealed" in plan.problem) == (version, 3, True)


def test_a_leader_that_was_quicker_is_fenced_behind_what_it_wrote(left, monkeypatch):
    left.claim(A, epoch=3, start=0)
    commit, is_first = RootFile.commit, threading.Event()

    def slow(self, loaded, change):
        if not is_first.is_set():
            is_first.set()
            left.fragment(A, 50, [(3, 0)])
        return commit(self, loaded, change)

    monkeypatch.setattr(RootFile, "commit", slow)
    (plan,) = fence(left, (A, 0))
    assert (plan.end, left.root(A).claims[-1].start) == (50, 50)


def test_one_who_goes_on_writing_is_told_of(left, monkeypatch):
    left.claim(A, epoch=3, start=0)

    def overtaken(*_):
        raise OvertakenError("again")

    monkeypatch.setattr(RootFile, "commit", overtaken)
    with pytest.raises(OvertakenError, match="stop its nodes"):
        fence(left, (A, 0))


def test_a_thousand_partitions_read_a_set_manifest_once(left):
    left.sets([(A, number, 3, 0, 5) for number in range(100)])
    for number in range(100):
        left.claim(A, number, epoch=3, start=0)
    reads = []
    get = left.store.get
    left.store.get = lambda key: (reads.append(key), get(key))[1]
    plans = look(left, *((A, number) for number in range(100)))
    assert {plan.end for plan in plans} == {5}
    assert reads.count(set_root_key("n1")) <= 16  # once, but for those that begin at the same time
