"""Key compaction by tasks: the same records stay as when a node does it, whatever it is killed by or crossed by.

The tasks run here, one after the other; what Spark itself has to do with it is tested where there is Spark.
"""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import msgpack
import numpy as np
import pyarrow as pa
import pytest

from liftpy_bucket.errors import ObjectCorruptError, OvertakenError
from liftpy_bucket.manifest.pins.cursors import Cursor
from liftpy_bucket.manifest.root import changes as root_changes
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.objects.setsum import NO_RECORDS, Setsum
from liftpy_bucket.store.memory import MemoryStore
from liftpy_bucket.upkeep.collecting import Collector
from liftpy_bucket.upkeep.compaction import HistoryCompactionConfig
from liftpy_bucket.upkeep.scrubbing import scrub
from liftpy_server.tier.jobs.upkeep.compact import compact as compact_here
from liftpy_server.tier.jobs.upkeep.merge import merge as merge_here
from liftpy_server.tier.requests import CompactJob, MergeJob
from liftpy_spark.jobs.compact import commit as compact_commit
from liftpy_spark.jobs.compact import driver
from liftpy_spark.jobs.compact import task as compact_task
from liftpy_spark.jobs.compact.driver import NotCompactedError, compact, config_of, plan_compact
from liftpy_spark.jobs.compact.frames import Superseded, checked, runs_of
from liftpy_spark.jobs.compact.keys import superseded_within
from liftpy_spark.jobs.compact.plan import Rewrite, RewriteSource
from liftpy_spark.jobs.compact.task import Made, read_keys, read_made, rewrite
from liftpy_spark.jobs.tasks import JobFailedError
from support.compact_kit import (
    CONFIG,
    assert_same,
    assert_sound,
    compact_node,
    context_of,
    expected,
    fill,
    fragments,
    random_records,
)
from support.job_bucket import JobBucket, new_id
from support.plain_worker import plainly
from support.tier_rows import Record

DAY_NS = 86_400 * 10**9
SMALL = HistoryCompactionConfig(min_dirty_ratio=0.0, object_bytes=15_000)


class Memory:
    """Stands for an S3 server: buckets in memory, whose settings are their prefix."""

    def __init__(self):
        self.stores = {}

    def url(self, prefix):
        return f"memory://{prefix}"

    def settings(self, prefix):
        return prefix

    def store(self, prefix):
        return self.stores.setdefault(prefix, MemoryStore(time.time_ns))


def travelled(plain):
    return msgpack.unpackb(msgpack.packb(plain))


def here(spark, given, work, *, what, read, progress):
    return moved([read(travelled(work(each))) for each in given], progress)


def moved(results, progress):
    if progress is not None:
        progress(len(results), len(results))
    return results


@contextmanager
def superseded_here(spark, work, bins, progress):
    """As Spark would find it."""
    rows = [row for places in bins for batch in read_keys(work, places) for row in batch.to_pylist()]
    newest = {}
    moved(bins, progress)
    for row in rows:
        if row["is_new"]:
            key = row["high"], row["low"]
            newest[key] = max(newest.get(key, -1), row["offset"])
    gone = [(row["place"], row["offset"]) for row in rows if newest.get((row["high"], row["low"]), -1) > row["offset"]]
    yield Superseded(sorted(gone), frozenset(place for place, _ in gone))


def rewritten_here(spark, found, work, rewrites, progress):
    made = []
    for given in rewrites:
        offsets = np.array([offset for place, offset in found.frame if place in given.places], np.int64)
        pieces = iter(np.array_split(offsets, 3))
        made.append(read_made(travelled(rewrite(work, given, pieces))))
    return moved(made, progress)


@pytest.fixture
def memory(monkeypatch):
    made = Memory()
    monkeypatch.setattr(compact_commit, "store_of", made.store)
    monkeypatch.setattr(compact_task, "store_of", made.store)
    monkeypatch.setattr(driver, "run_tasks", here)
    monkeypatch.setattr(driver, "find_superseded", superseded_here)
    monkeypatch.setattr(driver, "run_rewrites", rewritten_here)
    return made


def compact_tasks(bucket, config=CONFIG, *, alone=True, **options):
    plans = plan_compact(bucket.settings, bucket.paths, config)
    return compact(None, bucket.settings, plans, config, alone=alone, task_bytes=8_000, **options)


def noted(seen, *said):
    seen.append(said)


@pytest.mark.parametrize("object_bytes", [2**28, 20_000])
def test_the_same_stays_as_when_a_node_does_it(memory, object_bytes):
    config = HistoryCompactionConfig(min_dirty_ratio=0.0, object_bytes=object_bytes)
    bucket, other = JobBucket(memory), JobBucket(memory)
    for seed in range(2):
        fill([bucket, other], seed)
        before, root = bucket.records(), bucket.root()
        seen = []
        done = compact_tasks(bucket, config, progress=partial(noted, seen))
        compact_node(other, config)
        assert bucket.records() == expected(before)
        assert done.dropped == len(before) - len(bucket.records()) > 0
        assert done.replaced > done.made > 0
        assert bucket.root().version == root.version + 1, "one commit"
        assert_same(bucket, other)
        assert_sound(bucket, root.setsum + root.collected)
        assert seen[-1][0] == seen[-1][1]
    assert plan_compact(bucket.settings, bucket.paths, config) == []


def test_an_object_that_is_partly_clean(memory):
    """After a merge an object may begin below and end above what was compacted."""
    bucket, other = JobBucket(memory), JobBucket(memory)
    fill([bucket, other], 3)
    compact_tasks(bucket)
    compact_node(other)
    fill([bucket, other], 4, objects=3)
    for each in (bucket, other):
        assert plainly(MergeJob, merge_here)(context_of(each), {"uuid": each.uuid, "partition": 0, "epoch": 0})[
            "merged"
        ]
    straddling = [each for each in fragments(bucket) if each.base < bucket.root().compacted_end < each.end]
    assert straddling
    before = bucket.records()
    compact_tasks(bucket)
    compact_node(other)
    assert bucket.records() == expected(before)
    assert_same(bucket, other)


def tombstones(bucket):
    return [record for record in bucket.records() if record.key is not None and record.value is None]


def test_tombstones_go_when_it_is_time_and_no_node_is_there(memory):
    config = HistoryCompactionConfig(min_dirty_ratio=0.0, delete_retention_ns=DAY_NS)
    bucket, other = JobBucket(memory), JobBucket(memory)
    fill([bucket, other], 5)
    compact_tasks(bucket, config)
    compact_node(other, config)
    there = tombstones(bucket)
    assert there
    fill([bucket, other], 6, objects=1)
    compact_tasks(bucket, config)
    compact_node(other, config)
    assert_same(bucket, other)
    assert bucket.root().delete_horizon == 0
    config = HistoryCompactionConfig(min_dirty_ratio=0.0, delete_retention_ns=0)
    fill([bucket, other], 7, objects=1)
    before, end = bucket.records(), bucket.root().compacted_end
    old = {record.offset for record in tombstones(bucket) if record.offset < end}
    compact_tasks(bucket, config, alone=False)
    assert bucket.records() == expected(before)
    assert bucket.root().delete_horizon == 0
    assert {record.offset for record in tombstones(bucket)} & old
    end = bucket.root().compacted_end
    for each in (bucket, other):
        compact_node(other, config)
        fill([each], 8, objects=1)
    compact_tasks(bucket, config)
    compact_node(other, config)
    assert bucket.records() == other.records()
    assert not [record for record in tombstones(bucket) if record.offset < end]
    assert bucket.root().delete_horizon == other.root().delete_horizon > 0


def test_what_is_held_and_what_is_young_stays(memory):
    config = HistoryCompactionConfig(min_dirty_ratio=0.0, min_lag_ns=DAY_NS)
    bucket, other = JobBucket(memory), JobBucket(memory)
    fill([bucket, other], 9)
    held = fragments(bucket)[7].base
    young = [Record(bucket.root().end, time.time_ns(), b"orders.1", key=record.key) for record in bucket.records()[:1]]
    for each in (bucket, other):
        each.append(young)
        Cursor(each.store, each.paths[0], "slow", new_id=new_id).advance(held, None)
    before = bucket.records()
    compact_tasks(bucket, config)
    compact_node(other, config)
    assert bucket.root().compacted_end == held
    assert [each for each in bucket.records() if each.offset >= held] == [
        each for each in before if each.offset >= held
    ]
    assert len(bucket.records()) < len(before)
    assert_same(bucket, other)


def test_partitions_have_keys_of_their_own(memory):
    bucket = JobBucket(memory, 2)
    for partition in range(2):
        bucket.append([Record(0, 1, b"a", b"k", None, b"%d" % partition)], partition)
        bucket.append([Record(1, 1, b"a", b"k", None, b"new")], partition)
    done = compact_tasks(bucket)
    assert (done.dropped, done.replaced, done.made) == (2, 2, 0), "nothing is left of an object, so there is none"
    assert [[record.offset for record in bucket.records(partition)] for partition in range(2)] == [[1], [1]]


@pytest.fixture
def bucket(memory):
    made = JobBucket(memory)
    fill([made], 10)
    return made


@pytest.mark.parametrize("commits", [0, 1, 2])
def test_a_driver_that_dies(bucket, monkeypatch, commits):
    """Between the writing and the commit, and between commits; what nothing names is collected."""
    before, root, left, commit = bucket.records(), bucket.root(), [None] * commits, driver.commit

    def dies(*arguments):
        if not left:
            raise KeyboardInterrupt
        commit(*arguments)
        left.pop()

    monkeypatch.setattr(driver, "_REWRITES_PER_COMMIT", 1)
    with monkeypatch.context() as patched:
        patched.setattr(driver, "commit", dies)
        with pytest.raises(KeyboardInterrupt):
            compact_tasks(bucket, SMALL)
    assert bucket.root().version == root.version + commits
    there = bucket.records()
    assert expected(there) == expected(before)
    assert (len(there) < len(before)) == bool(commits)
    assert bucket.root().compacted_end == 0
    assert_sound(bucket, root.setsum + root.collected)
    compact_tasks(bucket, SMALL)
    assert bucket.records() == expected(before)
    assert_sound(bucket, root.setsum + root.collected)
    later_ns = time.time_ns() + DAY_NS
    collector = Collector(bucket.store, bucket.paths[0], new_id=new_id, now_ns=lambda: later_ns, grace_ns=1)
    while collector.run().more:
        pass
    keys = {found.key for found in bucket.store.list(f"{bucket.paths[0].directory}fragments/")}
    assert keys == {bucket.paths[0].fragment(each.name) for each in fragments(bucket)}
    assert bucket.records() == expected(before)


def meanwhile(monkeypatch, act, times=1):
    """Have something done just before a commit, so many times."""
    commit, left = driver.commit, [None] * times

    def late(*arguments):
        if left:
            left.pop()
            act()
        commit(*arguments)

    monkeypatch.setattr(driver, "commit", late)


def test_what_is_appended_meanwhile_stays(bucket, monkeypatch):
    before, total = bucket.records(), bucket.root().setsum
    late = []

    def act():
        root = bucket.root()
        late.extend(random_records(random.Random(1), root.end, 50, 60))
        bucket.append(late)

    meanwhile(monkeypatch, act)
    compact_tasks(bucket)
    assert bucket.records() == [*expected(before), *late]
    root = bucket.root()
    assert root.setsum + root.collected == total + fragments(bucket)[-1].setsum
    assert root.compacted_end == before[-1].offset + 1
    compact_tasks(bucket)
    assert bucket.records() == expected([*before, *late])


@pytest.mark.parametrize("what", ["merge", "compact"])
def test_a_leader_that_was_faster_is_followed(bucket, monkeypatch, what):
    before, root = bucket.records(), bucket.root()

    def act():
        if what == "compact":
            compact_node(bucket)
            bucket.append([Record(bucket.root().end, 1, b"a", value=b"so that there is something new")])
        else:
            plainly(MergeJob, merge_here)(context_of(bucket), {"uuid": bucket.uuid, "partition": 0, "epoch": 0})

    meanwhile(monkeypatch, act)
    compact_tasks(bucket)
    added = 1 if what == "compact" else 0
    assert bucket.records()[: -added or None] == expected(before)
    assert bucket.root().compacted_end == bucket.root().end
    assert scrub(bucket.store, bucket.paths[0]).problems == []
    if not added:
        assert_sound(bucket, root.setsum + root.collected)


def test_a_leader_that_comes_second_looks_again(bucket):
    """What it knew of the root is of before; it goes on all the same."""
    context, before = context_of(bucket), bucket.records()
    arguments = {"uuid": bucket.uuid, "partition": 0, "epoch": 0}
    settings = {"min_compaction_lag_ns": 0, "delete_retention_ns": DAY_NS, "clean_end": 2**40}
    RootFile(bucket.store, bucket.paths[0], new_id=new_id)
    context.roots.keep(bucket.paths[0], RootFile(bucket.store, bucket.paths[0], new_id=new_id).load())
    compact_tasks(bucket, SMALL)
    assert plainly(CompactJob, compact_here)(context, arguments | settings)["compacted_end"] == bucket.root().end
    assert plainly(MergeJob, merge_here)(context, arguments)["merged"]
    assert bucket.records() == expected(before)


def test_it_gives_up_loudly_when_others_are_faster_each_time(bucket, monkeypatch):
    before = bucket.records()

    def act():
        first = fragments(bucket)[0]
        file = RootFile(bucket.store, bucket.paths[0], new_id=new_id)
        loaded, body = file.load(), bucket.store.get(bucket.paths[0].fragment(first.name)).body
        nonce = new_id()
        other = renamed(first, nonce)
        bucket.store.create(bucket.paths[0].fragment(other.name), body, nonce)
        snapshots = file.snapshots(loaded.root, first.base, first.end)
        change = root_changes.replace(loaded.root, [first], [other], collected=NO_RECORDS, snapshots=snapshots)
        file.commit(loaded, change)

    meanwhile(monkeypatch, act, times=9)
    with pytest.raises(OvertakenError, match="names other objects by now than those that were compacted"):
        compact_tasks(bucket)
    assert bucket.records() == before


def renamed(pointer, nonce):
    """A pointer to the same bytes by another name."""
    return replace(pointer, name=f"{pointer.base:020d}-0-{nonce}.parquet")


def test_what_is_pinned_meanwhile_is_not_touched(bucket, monkeypatch):
    before, base = bucket.records(), fragments(bucket)[6].base
    meanwhile(monkeypatch, lambda: Cursor(bucket.store, bucket.paths[0], "new", new_id=new_id).advance(base, None))
    compact_tasks(bucket)
    assert [each for each in bucket.records() if each.offset >= base] == [
        each for each in before if each.offset >= base
    ]
    assert len(bucket.records()) < len(before)
    assert bucket.root().compacted_end == base


def test_a_damaged_object_is_named_and_stays(bucket):
    root = bucket.root()
    key = bucket.paths[0].fragment(fragments(bucket)[3].name)
    bucket.damage(key, 300)
    with pytest.raises(ObjectCorruptError, match=key):
        compact_tasks(bucket)
    assert bucket.root() == root


def test_only_what_is_to_be_compacted_is():
    plain = {"name": "orders", "subject": "orders.>", "compact": False}
    with pytest.raises(NotCompactedError, match="liftpy stream edit orders --compact"):
        config_of("orders", plain, object_bytes=1)
    config = config_of("orders", plain | {"compact": True, "min_compaction_lag_s": 2.0}, object_bytes=7)
    assert (config.min_lag_ns, config.delete_retention_ns) == (2 * 10**9, DAY_NS)
    assert (config.min_dirty_ratio, config.object_bytes) == (0.0, 7)


def test_the_last_row_of_each_key_is_told_from_the_others():
    rng = np.random.default_rng(1)
    for first in (0, 20, 60):
        hashes = rng.integers(0, 4, (60, 2)).astype(np.uint64)
        keys = [tuple(each) for each in hashes.tolist()]
        gone = [place >= first and keys[place] in keys[place + 1 :] for place in range(60)]
        assert superseded_within(hashes, first).tolist() == gone


def test_what_a_task_says_it_made_is_not_believed(bucket):
    before = bucket.records()
    given = plan_compact(bucket.settings, bucket.paths, CONFIG)[0].history.pointers
    sources = tuple(RewriteSource(pointer, is_expired=False) for pointer in given)
    work = Rewrite(range(len(given)), sources, 0, keeps_replies=False)
    total = Setsum.total(each.setsum for each in given)
    whole = replace(given[0], end=given[-1].end, setsum=total)
    assert checked(work, Made(whole, NO_RECORDS, 0, 0)).pointer == whole
    assert checked(work, Made(None, total, 0, 0)).pointer is None
    for wrong in (
        Made(replace(whole, end=whole.end + 1), NO_RECORDS, 0, 0),
        Made(whole, given[0].setsum, 0, 0),
        Made(None, NO_RECORDS, 0, 0),
    ):
        with pytest.raises(JobFailedError, match="has not the records that it was to have"):
            checked(work, wrong)
    assert bucket.records() == before


def test_offsets_of_a_task_come_in_pieces():
    def batch(rows):
        columns = [pa.array([row[0] for row in rows], pa.int32()), pa.array([row[1] for row in rows], pa.int64())]
        return pa.RecordBatch.from_arrays(columns, ["task", "offset"])

    batches = [batch([]), batch([(1, -1), (1, 7), (2, -1)]), batch([(2, 8)]), batch([(4, -1)])]
    found = [(task, offsets.tolist()) for task, offsets in runs_of(iter(batches))]
    assert found == [(1, [-1, 7]), (2, [-1]), (2, [8]), (4, [-1])]
