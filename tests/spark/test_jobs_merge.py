"""Merging by Spark: the same records in fewer objects, with the same sum, whatever it is killed by."""

from __future__ import annotations

from functools import partial

import pytest

from liftpy_bucket.errors import ManifestCorruptError, OvertakenError
from liftpy_bucket.manifest.pointer_format import fragment_plain
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.upkeep.scrubbing import scrub
from liftpy_server.tier.jobs.parts.context import Context
from liftpy_server.tier.jobs.upkeep.merge import merge as merge_here
from liftpy_server.tier.requests import MergeJob
from liftpy_spark.jobs import merging
from liftpy_spark.jobs.merging import LeaderAtWorkError, merge, plan_merge
from liftpy_spark.jobs.tasks import JobFailedError
from support.by_value import by_value
from support.job_bucket import JobBucket, new_id
from support.plain_worker import plainly
from support.tier_rows import plain_records

OBJECTS = 30
COUNT = 40


def made(s3, partitions=1):
    """So many objects that most of them are named by snapshots."""
    bucket = JobBucket(s3, partitions)
    for partition in range(partitions):
        for base in range(0, OBJECTS * COUNT, COUNT):
            bucket.append(plain_records(COUNT, base=base), partition)
    assert bucket.root().snapshots
    return bucket


@pytest.fixture
def bucket(s3):
    return made(s3)


def size_for(bucket, objects):
    return objects * max(each.size for each in fragments(bucket))


def fragments(bucket, partition=0):
    return list(RootFile(bucket.store, bucket.paths[partition], new_id=new_id).fragments(bucket.root(partition)))


def plan(bucket, objects=10):
    return plan_merge(bucket.settings, bucket.paths, object_bytes=size_for(bucket, objects), alone=True)


def assert_whole(bucket, before, setsum):
    for partition in range(len(bucket.paths)):
        assert bucket.records(partition) == before
        assert bucket.root(partition).setsum == setsum
        assert scrub(bucket.store, bucket.paths[partition]).problems == []


def test_the_same_records_in_fewer_objects(spark, s3):
    bucket, other = made(s3, 2), made(s3)
    before, setsum = bucket.records(), bucket.root().setsum
    runs, version = plan(bucket), bucket.root().version
    seen = []
    assert merge(spark, bucket.settings, runs, progress=lambda *said: seen.append(said)) == 2 * OBJECTS
    assert seen[-1] == (len(runs), len(runs))
    assert [len(fragments(bucket, number)) for number in range(2)] == [3, 3]
    assert bucket.root().version == version + 1, "one commit"
    assert_whole(bucket, before, setsum)
    context = Context(other.store, new_id=new_id, now_ns=lambda: 1, memory_bytes_max=2**28, object_bytes=2**28)
    assert plainly(MergeJob, merge_here)(context, {"uuid": other.uuid, "partition": 0, "epoch": 0})["merged"]
    assert other.records() == bucket.records()
    assert other.root().setsum == bucket.root().setsum
    later = size_for(bucket, 1)
    assert plan_merge(bucket.settings, bucket.paths, object_bytes=later, alone=True) == []


def test_only_where_no_leader_is(bucket):
    with pytest.raises(LeaderAtWorkError, match="is tiered by node n1"):
        plan_merge(bucket.settings, bucket.paths, object_bytes=2**20, alone=False)


def _fails(when, task):
    """Fail for the second of the runs, before or after the object is there."""
    second = task.run.pointers[0].base > 0
    if second and when == "before":
        raise ValueError("the task fails")
    pointer = merging._merge_run(task)
    if second:
        raise ValueError("the task fails")
    return pointer


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_task_that_fails(spark, bucket, monkeypatch, when):
    before, root = bucket.records(), bucket.root()
    with monkeypatch.context() as patched:
        patched.setattr(merging, "_merge_run", partial(by_value(_fails), when))
        with pytest.raises(JobFailedError, match="the task fails"):
            merge(spark, bucket.settings, plan(bucket))
    assert bucket.root() == root
    merge(spark, bucket.settings, plan(bucket))
    assert_whole(bucket, before, root.setsum)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_driver_that_dies(spark, bucket, monkeypatch, when):
    before, setsum, commit = bucket.records(), bucket.root().setsum, merging._commit

    def dies(*arguments):
        if when == "after":
            commit(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(merging, "_commit", dies)
        with pytest.raises(KeyboardInterrupt):
            merge(spark, bucket.settings, plan(bucket))
    assert_whole(bucket, before, setsum)
    assert len(fragments(bucket)) == (3 if when == "after" else OBJECTS)
    merge(spark, bucket.settings, plan(bucket))
    assert_whole(bucket, before, setsum)


def test_what_is_appended_meanwhile_stays(spark, bucket):
    runs = plan(bucket)
    bucket.append(plain_records(COUNT, base=OBJECTS * COUNT))
    before, setsum = bucket.records(), bucket.root().setsum
    merge(spark, bucket.settings, runs)
    assert_whole(bucket, before, setsum)
    assert len(fragments(bucket)) == 4


def test_who_merges_the_same_is_refused(spark, bucket):
    before, setsum = bucket.records(), bucket.root().setsum
    late = plan(bucket, 5)
    merge(spark, bucket.settings, plan(bucket))
    with pytest.raises(OvertakenError, match="names other objects by now"):
        merge(spark, bucket.settings, late)
    assert_whole(bucket, before, setsum)


def test_a_damaged_object_is_named_and_stays(spark, bucket):
    root = bucket.root()
    key = bucket.paths[0].fragment(fragments(bucket)[3].name)
    bucket.damage(key, 300)
    with pytest.raises(JobFailedError, match=key):
        merge(spark, bucket.settings, plan(bucket))
    assert bucket.root() == root


def test_what_a_task_merged_is_checked(bucket):
    pointer = fragments(bucket)[0]
    plain = fragment_plain(pointer)
    assert merging._read_pointer(plain) == pointer
    for wrong in (
        None,
        [],
        plain | {"name": "../ROOT"},
        plain | {"setsum": "0"},
        plain | {"more": 1},
        plain | {"end": 0},
    ):
        with pytest.raises(ManifestCorruptError, match=r"result\[merged\]"):
            merging._read_pointer(wrong)


def _writes_less(task):
    """Write the object of a run without its last object, and say that it is all of it."""
    less = task._replace(run=task.run._replace(pointers=task.run.pointers[:-1]))
    return merging._merge_run(less) | {"end": task.run.pointers[-1].end}


def test_an_object_that_has_not_all_records_is_refused(spark, bucket, monkeypatch):
    root = bucket.root()
    monkeypatch.setattr(merging, "_merge_run", by_value(_writes_less))
    with pytest.raises(JobFailedError, match="has not the records that it was to have"):
        merge(spark, bucket.settings, plan(bucket))
    assert bucket.root() == root
