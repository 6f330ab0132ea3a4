"""A scrub by Spark finds what a scrub on one machine finds, and says the same of it."""

from __future__ import annotations

import os
import pickle
import re
from dataclasses import replace
from functools import partial

import msgpack
import pytest

from liftpy_bucket.errors import ManifestCorruptError
from liftpy_bucket.manifest.json import Row
from liftpy_bucket.reading.cache import ReadingCache
from liftpy_bucket.upkeep.scrubbing import scrub as scrub_here
from liftpy_spark.jobs import scrubbing, tasks
from liftpy_spark.jobs.access import store_of
from liftpy_spark.jobs.scrubbing import plan_scrub, scrub
from liftpy_spark.jobs.tasks import JobFailedError, run_tasks
from support.by_value import by_value
from support.job_bucket import JobBucket
from support.tier_rows import plain_records

SMALL = 1_000


@pytest.fixture
def bucket(s3):
    """Three partitions: two with objects of their own, and all with what they share."""
    made = JobBucket(s3, 3)
    for partition in range(2):
        for base in range(0, 400, 100):
            made.append(plain_records(100, base=base), partition, row_group_bytes=4_000)
    made.share({0: plain_records(50, base=400), 1: plain_records(20, base=400), 2: plain_records(30)})
    return made


def both(spark, bucket):
    """What Spark finds, which is the same as what is found here."""
    there = scrub(spark, bucket.settings, bucket.paths, task_bytes=SMALL)
    here = [scrub_here(bucket.store, path) for path in bucket.paths]
    assert [report.problems for report in there] == [report.problems for report in here]
    assert there == here
    return [{(problem.kind, problem.key) for problem in report.problems} for report in there]


def test_all_is_well(spark, bucket):
    seen = []
    reports = scrub(
        spark,
        bucket.settings,
        bucket.paths,
        task_bytes=SMALL,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert [(report.problems, report.orphans) for report in reports] == [([], [])] * 3
    assert [(report.end, report.records) for report in reports] == [(450, 450), (420, 420), (30, 30)]
    plan = plan_scrub(bucket.settings, bucket.paths, task_bytes=SMALL)
    assert plan.tasks == plan.objects == 11
    assert seen[-1] == (11, 11)
    assert plan_scrub(bucket.settings, bucket.paths).tasks == 1


def test_whatever_is_damaged_is_named(spark, bucket):
    root = bucket.root(0)
    keys = [bucket.paths[0].fragment(each.name) for each in root.fragments]
    bucket.damage(keys[0], 0)
    bucket.damage(keys[1], 700)
    bucket.store.delete([keys[2]])
    one, two = (bucket.store.get(bucket.paths[1].fragment(each.name)).body for each in bucket.root(1).fragments[1:3])
    bucket.rewrite(bucket.paths[1].fragment(bucket.root(1).fragments[1].name), two)
    bucket.rewrite(bucket.paths[1].fragment(bucket.root(1).fragments[2].name), one)
    (shared,) = (entry.key for entry in bucket.store.list("sets/n1/objects/"))
    (member,) = ReadingCache(bucket.store).set_part("n1", bucket.paths[0]).objects[0].members
    bucket.damage(shared, member.extent.start + 100)
    first, second, third = both(spark, bucket)
    assert first == {("corrupt", keys[0]), ("corrupt", keys[1]), ("missing", keys[2]), ("corrupt", shared)}
    assert {key for _, key in second} >= {bucket.paths[1].fragment(each.name) for each in bucket.root(1).fragments[1:3]}
    assert third == set(), "of what is shared another's share is damaged"


def test_a_root_that_can_not_be_read_leaves_the_others(spark, bucket):
    bucket.rewrite(bucket.paths[1].root, b"{}")
    first, second, third = both(spark, bucket)
    assert (first, third) == (set(), set())
    assert second == {("manifest", bucket.paths[1].root)}


def test_nothing_there(spark, s3):
    made = JobBucket(s3)
    (report,) = scrub(spark, made.settings, made.paths)
    assert (report.problems, report.objects, report.end) == ([], 0, 0)


def _dies_once(marker, number):
    if number == 1 and not marker.exists():
        marker.write_text("")
        os._exit(1)
    return number * 10


def test_a_worker_that_dies_is_replaced(spark, tmp_path):
    work = partial(by_value(_dies_once), tmp_path / "died")
    assert run_tasks(spark, [0, 1, 2], work, what="counting", read=int) == [0, 10, 20]
    assert (tmp_path / "died").exists()


def _fails(number):
    if number == 1:
        raise ValueError("one is no good")
    return number


def test_a_task_that_always_fails_is_told_in_words(spark):
    with pytest.raises(JobFailedError, match=r"^counting: Spark gave up: ValueError: one is no good$"):
        run_tasks(spark, [0, 1, 2], by_value(_fails), what="counting", read=int)


def test_a_bucket_that_can_not_be_reached_is_told_in_words(spark, bucket):
    with pytest.raises(JobFailedError, match=r"^asking: "):
        run_tasks(spark, [bucket.settings], by_value(_asks_nobody), what="asking", read=str)


def _asks_nobody(settings):
    nobody = replace(settings, endpoint="http://127.0.0.1:9", attempts_max=1)
    return store_of(nobody).head("catalog.json")


class _Hostile:
    """Whoever unpickles it writes a file."""

    def __init__(self, marker):
        self._marker = marker

    def __reduce__(self):
        return (self._marker.write_text, ("was here",))


def _answers(body, work, value):
    """What a worker sends that is not one of ours."""
    return body


def _echo(value):
    return value


CANNOT = r"^counting: what a task gave back can not be read: .*{}.*; do executors have the liftpy of the driver\?$"


def test_a_pickle_is_never_loaded(spark, tmp_path, monkeypatch):
    marker = tmp_path / "marker"
    body = pickle.dumps(_Hostile(marker))
    monkeypatch.setattr(tasks, "packed", partial(by_value(_answers), body))
    with pytest.raises(JobFailedError, match=CANNOT.format("it is not msgpack")):
        run_tasks(spark, [0, 1], by_value(_echo), what="counting", read=int)
    assert not marker.exists()
    pickle.loads(body)
    assert marker.exists(), "it would have been seen"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "it is not msgpack"),
        (msgpack.packb({"result": 1})[:-1], "it is not msgpack"),
        (msgpack.packb({"result": 1}) + b"\0", "it is not msgpack"),
        (b"\x81\x90\x01", "it is not msgpack"),
        (msgpack.packb(1), "neither a result nor a failure"),
        (msgpack.packb({}), "neither a result nor a failure"),
        (msgpack.packb({"result": 1, "failure": ["x", True]}), "neither a result nor a failure"),
        (msgpack.packb({"failure": ["x", 1]}), "neither a result nor a failure"),
        (msgpack.packb({"failure": [1, True]}), "neither a result nor a failure"),
        (msgpack.packb({"failure": ["x"]}), "neither a result nor a failure"),
    ],
)
def test_what_is_no_reply_is_told_in_words(body, why):
    with pytest.raises(JobFailedError, match=CANNOT.format(why)):
        tasks._reply_of(body, "counting")


def test_what_can_not_be_read_names_the_job(spark):
    def pair(plain):
        row = Row("pair", "result", plain, 2)
        return row.number(0), row.number(1)

    given = [(1, 2), (3, 4)]
    assert run_tasks(spark, given, by_value(_echo), what="counting", read=pair) == given
    with pytest.raises(JobFailedError, match=CANNOT.format(r"result\[1\] is not an integer")):
        run_tasks(spark, [(1, 2), (1, "2")], by_value(_echo), what="counting", read=pair)
    with pytest.raises(JobFailedError, match=CANNOT.format("invalid literal")):
        run_tasks(spark, ["x"], by_value(_echo), what="counting", read=int)


FOUND = [1, "missing", "a/key", 3, 5, "it is gone"]


def test_what_a_scrub_found_is_checked():
    (found,) = scrubbing._read_found([FOUND], [0, 1])
    assert found == tuple(FOUND)
    for wrong in ([2, *FOUND[1:]], [0, "gap", *FOUND[2:]], [*FOUND[:4], 2, "x"], FOUND[:5], [*FOUND[:5], None], None):
        with pytest.raises((ManifestCorruptError, ValueError), match=r"result|partition"):
            scrubbing._read_found([wrong], [0, 1])
    with pytest.raises(ManifestCorruptError, match=re.escape("result[found] is not a list")):
        scrubbing._read_found({}, [0])
