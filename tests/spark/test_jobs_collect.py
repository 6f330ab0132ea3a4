"""Collecting by Spark: what nobody names goes, whatever tasks and driver are killed by, and a node may be at work."""

from __future__ import annotations

import os
from functools import partial

import pytest

from liftpy_bucket.manifest.pins.held import Pins
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.upkeep.scrubbing import scrub
from liftpy_spark.jobs.collect import driver
from liftpy_spark.jobs.collect import task as collect_task
from liftpy_spark.jobs.collect.driver import collect, collect_staged, plan_collect
from liftpy_spark.jobs.merging import merge, plan_merge
from liftpy_spark.jobs.tasks import JobFailedError
from liftpy_spark.sink.decision import SinkBatch
from liftpy_spark.sink.directory import DirectoryPlace, prepare
from support.by_value import by_value
from support.cli import Cli
from support.job_bucket import STREAM, JobBucket, new_id
from support.tier_rows import plain_records

COUNT = 20
OBJECTS = 24
ORPHANS = 5


@pytest.fixture
def bucket(s3):
    """Two partitions with a folded history, and objects that nobody names."""
    made = JobBucket(s3, 2)
    for partition in range(2):
        for base in range(0, OBJECTS * COUNT, COUNT):
            made.append(plain_records(COUNT, base=base), partition)
    assert made.root().snapshots
    for partition in range(2):
        for number in range(ORPHANS):
            orphan(made, partition, 100 * number)
    return made


def orphan(bucket, partition, base):
    key = bucket.paths[partition].fragment(f"{base:020d}-0-{new_id()}.parquet")
    bucket.store.create(key, b"orphan", "n")
    return key


def run(spark, bucket, **options):
    return collect(spark, bucket.settings, bucket.paths, **{"grace_s": 0.0} | options)


def plan(spark, bucket, **options):
    return plan_collect(spark, bucket.settings, bucket.paths, **{"grace_s": 0.0} | options)


def objects(bucket, kind="fragments"):
    return {entry.key for path in bucket.paths for entry in bucket.store.list(f"{path.directory}{kind}/")}


def assert_whole(bucket, before):
    """Every record is there, and nothing that nobody names."""
    assert [bucket.records(partition) for partition in range(2)] == before
    for path in bucket.paths:
        report = scrub(bucket.store, path)
        assert (report.problems, report.orphans) == ([], [])


def records(bucket):
    return [bucket.records(partition) for partition in range(2)]


def test_what_nobody_names_is_shown_and_then_deleted(spark, bucket, monkeypatch):
    monkeypatch.setattr(driver, "_RANGE_OBJECTS", 12)
    before, there = records(bucket), objects(bucket)
    assert [each.objects for each in plan(spark, bucket, grace_s=3_600.0)] == [0, 0]
    assert [each.objects for each in run(spark, bucket, grace_s=3_600.0)] == [0, 0]
    planned = plan(spark, bucket)
    assert objects(bucket) == there
    assert all(each.objects >= ORPHANS and each.listed > OBJECTS + ORPHANS for each in planned)
    seen = []
    done = run(spark, bucket, progress=lambda *said: seen.append(said))
    assert [(each.objects, each.size) for each in done] == [(each.objects, each.size) for each in planned]
    assert seen[-1][0] == seen[-1][1] > 4
    assert len(objects(bucket)) == 2 * OBJECTS
    assert_whole(bucket, before)
    assert [each.objects for each in run(spark, bucket)] == [0, 0]


def test_what_merging_left_goes_when_no_pin_holds_it(spark, bucket):
    before = records(bucket)
    pins = Pins(bucket.store, bucket.paths[0], new_id=new_id, now_ns=lambda: 1)
    pin = pins.hold_version("reader", None)
    merge(spark, bucket.settings, plan_merge(bucket.settings, bucket.paths, object_bytes=2**28, alone=True))
    first, second = run(spark, bucket)
    assert first.objects < OBJECTS < second.objects
    assert len(objects(bucket)) == OBJECTS + 2
    pins.release(pin)
    assert run(spark, bucket)[0].objects > OBJECTS
    assert len(objects(bucket)) == 2
    assert_whole(bucket, before)


def _dies(marker, when, take, task):
    """The worker is gone at its first attempt, before or after it has deleted."""
    is_first = not marker.exists()
    marker.write_text("")
    if is_first and when == "before":
        os._exit(1)
    taken = take(task)
    if is_first:
        os._exit(1)
    return taken


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_worker_that_dies_is_replaced(spark, bucket, monkeypatch, tmp_path, when):
    before = records(bucket)
    monkeypatch.setattr(driver, "take", partial(by_value(_dies), tmp_path / "died", when, collect_task.take))
    assert [each.problem for each in run(spark, bucket)] == ["", ""]
    assert_whole(bucket, before)


def _fails(work, task):
    work(task)
    raise ValueError("the task fails")


@pytest.mark.parametrize("what", ["look", "take"])
def test_a_task_that_fails_is_told_and_the_same_again_ends_it(spark, bucket, monkeypatch, what):
    before = records(bucket)
    with monkeypatch.context() as patched:
        patched.setattr(driver, what, partial(by_value(_fails), getattr(collect_task, what)))
        with pytest.raises(JobFailedError, match=r"^collecting: Spark gave up: ValueError: the task fails$"):
            run(spark, bucket)
    assert records(bucket) == before
    run(spark, bucket)
    assert_whole(bucket, before)


def test_a_driver_that_dies_between_leaves_garbage_and_nothing_worse(spark, bucket, monkeypatch):
    before = records(bucket)
    with monkeypatch.context() as patched:
        patched.setattr(driver, "_WAVE_TASKS", 1)
        patched.setattr(driver, "_RANGE_OBJECTS", 9)
        taken, waves = driver._taken, []

        def dies(*arguments):
            waves.append(len(arguments[2]))
            if len(waves) == 3:
                raise KeyboardInterrupt
            return taken(*arguments)

        patched.setattr(driver, "_taken", dies)
        with pytest.raises(KeyboardInterrupt):
            run(spark, bucket)
    assert records(bucket) == before
    assert len(objects(bucket)) < 2 * (OBJECTS + ORPHANS)
    run(spark, bucket)
    assert_whole(bucket, before)


def test_what_a_leader_names_between_looking_and_deleting_stays(spark, bucket, monkeypatch):
    """It was uploaded long ago by a leader that was stalled, and is named when it was taken for a candidate."""
    path, file = bucket.paths[0], RootFile(bucket.store, bucket.paths[0], new_id=new_id)
    late = []

    def leader(*arguments):
        if not late:
            late.append(bucket.append(plain_records(COUNT, base=OBJECTS * COUNT)))
            named = list(file.fragments(bucket.root()))[-1]
            # the candidates were found before: the newest object of the history is one of them
            share = next(each for each in arguments[2] if each.path == path)
            more = (f"fragments/{named.name}", named.size, 0)
            arguments = (*arguments[:2], [share._replace(candidates=(*share.candidates, more))], *arguments[3:])
        return taken(*arguments)

    taken = driver._taken
    monkeypatch.setattr(driver, "_taken", leader)
    done = run(spark, bucket)
    assert done[0].objects >= ORPHANS
    assert late[0] in objects(bucket)
    assert len(bucket.records()) == (OBJECTS + 1) * COUNT
    assert scrub(bucket.store, path).problems == []


def test_what_the_sink_left_goes_by_its_own_rule(spark, bucket):
    batch = SinkBatch(stream=STREAM, uuid=bucket.uuid, application="app", number=7)
    pending = SinkBatch(stream=STREAM, uuid=bucket.uuid, application="app", number=8)
    for each in (batch, pending):
        bucket.store.create(f"{each.staging_prefix}0-a", b"12345", "n")
    bucket.store.create(pending.decision_key, b"{}", "n")

    def staged(**options):
        return collect_staged(spark, bucket.settings, **{"older_than_s": -5.0} | options)[:2]

    assert staged(deletes=True, older_than_s=3_600.0) == (0, 0)
    assert staged(deletes=False) == (1, 5)
    assert staged(deletes=True, uuid="e" * 32) == (0, 0)
    assert staged(deletes=True, uuid=bucket.uuid) == (1, 5)
    assert [entry.key for entry in bucket.store.list("spark/staging/")] == [f"{pending.staging_prefix}0-a"]


@pytest.fixture
def cli(bucket, tmp_path):
    aws = {name: text for name, text in os.environ.items() if name.startswith("AWS_")}
    return Cli(None, tmp_path, LIFTPY_TIER_URL=bucket.url, LIFTPY_TIER_ENDPOINT=bucket.settings.endpoint, **aws)


def test_the_command(spark, bucket, cli):
    before, there = records(bucket), objects(bucket)
    assert cli.out("spark", "collect") == "0 objects, 0 B, in 2 partitions\n"
    said = cli.out("spark", "collect", "--grace", "0s")
    assert "orders/0: " in said
    assert "; nothing was deleted (--delete does it)" in said
    assert objects(bucket) == there
    plain = cli.json("spark", "collect", STREAM, "--grace", "0s")
    assert (plain["deleted"], plain["staged"]) == (False, {"objects": 0, "size": 0})
    (one,) = cli.json("spark", "collect", STREAM, "--grace", "0s", "-p", "1", "--delete")["partitions"]
    assert one == plain["partitions"][1]
    assert f"{one['objects']} objects of {one['listed']} deleted" in cli.out(
        "spark", "collect", STREAM, "--grace", "0s", "--delete"
    )
    assert_whole(bucket, before)


def test_the_command_tells_what_is_wrong(spark, bucket, cli):
    bucket.rewrite(bucket.paths[1].root, b"{}")
    result = cli.run("spark", "collect", "--grace", "0s", "--delete", code=1)
    assert "orders/0: " in result.stdout
    assert f"orders/1: object {bucket.paths[1].root} is damaged" in result.stderr.replace("\n", " ")
    assert "'soon' is not a time span" in cli.error("spark", "collect", "--grace", "soon", code=2)


def test_the_command_looks_at_a_staging_directory(spark, bucket, cli, tmp_path):
    place = DirectoryPlace(str(tmp_path / "staging"))
    (tmp_path / "staging").mkdir()
    prepare(place.directory)
    left, pending = (SinkBatch(stream=STREAM, uuid=bucket.uuid, application="app", number=number) for number in (7, 8))
    bucket.store.create(pending.decision_key, b"{}", "n")
    keys = [f"{each.staging_prefix}00000-{'0' * 32}.arrows" for each in (left, pending)]
    for key in (*keys, keys[0].replace(bucket.uuid, "e" * 32)):
        place.create(key, [b"12345"], "0" * 32)

    def staged(*more):
        asked = ("spark", "collect", "--staging-directory", place.directory, *more)
        return cli.json(*asked)["staged_files"]

    assert staged("--delete") == {"objects": 0, "size": 0}, "they are young"
    assert staged("--staging-grace", "0s") == {"objects": 1, "size": 5}
    said = cli.out(
        "spark", "collect", STREAM, "--staging-directory", place.directory, "--staging-grace", "0s", "--delete"
    )
    assert "left behind by the sink in its directory: 1 file deleted, 5 B" in said
    assert [entry.key for entry in place.entries("")] == sorted((keys[1], keys[0].replace(bucket.uuid, "e" * 32)))
