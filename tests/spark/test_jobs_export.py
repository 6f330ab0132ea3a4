"""An export holds every record once, whatever it was killed by, and however often it is repeated."""

from __future__ import annotations

import os
from functools import partial
from io import BytesIO
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from liftpy_bucket.errors import ManifestCorruptError
from liftpy_bucket.manifest.pins.held import load_pins
from liftpy_bucket.manifest.pins.pin import is_in_force
from liftpy_spark.jobs.export import driver
from liftpy_spark.jobs.export.delta_target import DeltaError, DeltaTarget
from liftpy_spark.jobs.export.driver import ExportRefusedError, export, plan_export
from liftpy_spark.jobs.export.files import ExportPlaceError, place_of
from liftpy_spark.jobs.export.parquet_directory import ParquetDirectory
from liftpy_spark.jobs.export.task import ExportedFile, MissingPiece, export_range, read_exported
from liftpy_spark.jobs.tasks import JobFailedError
from liftpy_spark.reading.schema import arrow_schema, source_schema
from support.by_value import by_value
from support.job_bucket import STREAM, JobBucket, new_id
from support.tier_rows import plain_records

SMALL = 1_000
KINDS = ("parquet", "delta")


@pytest.fixture
def bucket(s3):
    """Two partitions with objects of their own and a shared one."""
    made = JobBucket(s3, 2)
    for partition in range(2):
        for base in range(0, 300, 100):
            made.append(plain_records(100, base=base, seed=base, key=key_of), partition, row_group_bytes=4_000)
    made.share({0: plain_records(50, base=300), 1: plain_records(20, base=300)})
    return made


def key_of(number):
    return b"%d" % (number % 7) if number % 3 else None


def target_of(kind, url, bucket, *, creates=True):
    place = place_of(str(url), endpoint=bucket.settings.endpoint, region=None)
    return ParquetDirectory(place) if kind == "parquet" else DeltaTarget(place, include_headers=False, creates=creates)


def run(spark, bucket, kind, url, **options):
    options = {"task_bytes": SMALL} | options
    return export(spark, bucket.settings, STREAM, bucket.paths, target_of(kind, url, bucket), **options)


def rows_of(kind, url):
    """What a reader of the target sees, ordered by partition and offset."""
    table = deltalake.DeltaTable(str(url)).to_pyarrow_table() if kind == "delta" else pq.read_table(str(url))
    return table.sort_by([("partition", "ascending"), ("offset", "ascending")])


def assert_whole(found, bucket):
    """Column by column what the library reads."""
    expected = [(partition, record) for partition in range(2) for record in bucket.records(partition)]
    assert found["partition"].to_pylist() == [partition for partition, _ in expected]
    for column in ("offset", "key", "value"):
        assert found[column].to_pylist() == [getattr(record, column) for _, record in expected], column
    assert found["subject"].to_pylist() == [record.subject.decode() for _, record in expected]
    times = [record.timestamp // 1_000 for _, record in expected]
    assert found["timestamp"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist() == times
    assert set(found["topic"].to_pylist()) == {STREAM}
    assert set(found["timestampType"].to_pylist()) == {1}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_local", [True, False])
def test_parquet_and_delta_do_not_share_a_place(spark, s3, bucket, tmp_path, kind, is_local):
    """Who reads the directory as Parquet would get every record twice."""
    url = tmp_path / "out" if is_local else s3.url(f"exports/{kind}/{tmp_path.name}")
    (other,) = {*KINDS} - {kind}
    run(spark, bucket, other, url)
    with pytest.raises(ExportPlaceError, match=f"say --format {other}, or export to a place of its own"):
        target_of(kind, url, bucket)
    assert run(spark, bucket, other, url).files == 0


def test_a_place_in_the_bucket_of_the_cluster_is_refused(spark, s3, bucket):
    """Nodes refuse a bucket with objects that are not theirs."""
    before = {entry.key for entry in bucket.store.list("")}
    for url in (bucket.url, f"{bucket.url}/export/x"):
        for work in (partial(run, spark), plan):
            with pytest.raises(ExportPlaceError, match="where only liftpy may write"):
                work(bucket, "parquet", url)
    assert {entry.key for entry in bucket.store.list("")} == before
    assert run(spark, bucket, "parquet", f"{bucket.url}-export").records


def plan(bucket, kind, url):
    return plan_export(bucket.settings, bucket.paths, target_of(kind, url, bucket))


def pins(bucket):
    return [pin for path in bucket.paths for pin in load_pins(bucket.store, path) if is_in_force(pin, 0)]


@pytest.mark.parametrize("kind", KINDS)
def test_all_of_it_once_and_then_what_is_new(spark, bucket, tmp_path, kind):
    plan = plan_export(
        bucket.settings, bucket.paths, target_of(kind, tmp_path / "x", bucket, creates=False), task_bytes=SMALL
    )
    assert plan.files == 8
    assert not (tmp_path / "x").exists()
    done = run(spark, bucket, kind, tmp_path / "x")
    assert (done.files, done.records) == (8, 670)
    assert_whole(rows_of(kind, tmp_path / "x"), bucket)
    assert run(spark, bucket, kind, tmp_path / "x") == (0, 0, 0)
    bucket.share({0: plain_records(10, base=350)})
    assert run(spark, bucket, kind, tmp_path / "x").records == 10
    assert_whole(rows_of(kind, tmp_path / "x"), bucket)
    assert pins(bucket) == []
    spark_rows = spark.read.parquet(str(tmp_path / "x"))
    assert spark_rows.count() == 680


@pytest.mark.parametrize("kind", KINDS)
def test_to_a_bucket(spark, bucket, s3, kind):
    url = f"{bucket.url}-export/{kind}"
    assert run(spark, bucket, kind, url).records == 670
    target = target_of(kind, url, bucket)
    assert [target.covered(path)[-1][1] for path in bucket.paths] == [350, 320]
    assert run(spark, bucket, kind, url) == (0, 0, 0)


def _fails_in(number, when, task):
    """Export a range, but for one, of which the task fails before or after the file is there."""
    if task.start == number and when == "before":
        raise ValueError("the task fails")
    written = export_range(task)
    if task.start == number:
        raise ValueError("the task fails")
    return written


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_task_that_fails(spark, bucket, tmp_path, monkeypatch, kind, when):
    with monkeypatch.context() as patched:
        patched.setattr(driver, "export_range", partial(by_value(_fails_in), 100, when))
        with pytest.raises(JobFailedError, match="the task fails"):
            run(spark, bucket, kind, tmp_path / "x")
    assert pins(bucket) == []
    run(spark, bucket, kind, tmp_path / "x")
    assert_whole(rows_of(kind, tmp_path / "x"), bucket)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_driver_that_dies(spark, bucket, tmp_path, monkeypatch, kind, when):
    monkeypatch.setattr(driver, "_WAVE_TASKS", 3)
    commits = []

    def dies(commit, ranges, files):
        commits.append(len(files))
        if when == "after":
            commit(ranges, files)
        if len(commits) == 2:
            raise KeyboardInterrupt
        if when == "before":
            commit(ranges, files)

    target = target_of(kind, tmp_path / "x", bucket)
    monkeypatch.setattr(target, "commit", partial(dies, target.commit))
    with pytest.raises(KeyboardInterrupt):
        export(spark, bucket.settings, STREAM, bucket.paths, target, task_bytes=SMALL)
    # What was merged meanwhile is cut elsewhere.
    assert run(spark, bucket, kind, tmp_path / "x", task_bytes=2 * 10**6).files <= 4
    assert_whole(rows_of(kind, tmp_path / "x"), bucket)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_killed_within_a_file_leaves_nothing_for_good(spark, bucket, tmp_path, kind):
    target = target_of(kind, tmp_path / "out", bucket)
    target.place.put(target.file_name(bucket.paths[0], 0, 10), BytesIO(b"half a file"), new_id())
    (whole,) = (tmp_path / "out").glob("*.parquet")
    left = [whole.with_name(f".{whole.name}.{new_id()}") for _ in range(2)]
    whole.rename(left[0])
    left[1].touch()
    other = whole.with_name(".somebody-elses.parquet")
    other.touch()
    for old in (left[0], other):
        os.utime(old, (1, 1))
    run(spark, bucket, kind, tmp_path / "out")
    assert not left[0].exists()
    assert left[1].exists(), "it may be one that is being written"
    assert other.exists()
    assert rows_of(kind, tmp_path / "out").num_rows == 670


def test_two_at_the_same_time_do_not_both_commit(spark, bucket, tmp_path):
    late = target_of("delta", tmp_path / "x", bucket)
    run(spark, bucket, "delta", tmp_path / "x")
    with pytest.raises(DeltaError, match="could not be written"):
        export(spark, bucket.settings, STREAM, bucket.paths, late, task_bytes=SMALL)
    assert_whole(rows_of("delta", tmp_path / "x"), bucket)


def test_what_is_shared_may_move_meanwhile(spark, bucket, tmp_path, monkeypatch):
    ranges = driver._ranges

    def then_moves(version, *arguments):
        yield from ranges(version, *arguments)
        if version.path.partition == 1:
            for partition, base in ((0, 300), (1, 300)):
                count = 50 if partition == 0 else 20
                bucket.append(plain_records(count, base=base), partition)
            (shared,) = [entry.key for entry in bucket.store.list("sets/n1/objects/")]
            bucket.store.delete([shared])

    monkeypatch.setattr(driver, "_ranges", then_moves)
    assert run(spark, bucket, "parquet", tmp_path / "x").records == 670
    assert_whole(rows_of("parquet", tmp_path / "x"), bucket)


def test_an_object_that_is_lost_is_named(spark, bucket, tmp_path):
    key = bucket.paths[0].fragment(bucket.root().fragments[1].name)
    bucket.store.delete([key])
    with pytest.raises(Exception, match=f"there is no object {key}"):
        run(spark, bucket, "parquet", tmp_path / "x")


def test_a_target_that_has_more_is_refused(spark, bucket, tmp_path):
    place = Path(tmp_path / "x")
    place.mkdir()
    target = target_of("parquet", place, bucket)
    (place / target.file_name(bucket.paths[0], 0, 1_000)).write_bytes(b"")
    with pytest.raises(ExportRefusedError, match="restored from an older state"):
        run(spark, bucket, "parquet", place)


def test_a_table_with_other_columns_is_refused(bucket, tmp_path):
    deltalake.write_deltalake(tmp_path / "x", pa.table({"a": [1]}))
    with pytest.raises(DeltaError, match="has the columns a; an export has key, value"):
        target_of("delta", tmp_path / "x", bucket)


def test_a_table_with_columns_of_other_types_is_refused(bucket, tmp_path):
    of_export = arrow_schema(source_schema(False))
    text = pa.schema([field.with_type(pa.string()) if field.name == "value" else field for field in of_export])
    deltalake.write_deltalake(tmp_path / "x", text.empty_table())
    with pytest.raises(DeltaError, match="of other types: value is string and not binary; export to a table"):
        target_of("delta", tmp_path / "x", bucket)


def test_a_table_that_can_not_be_read_is_told_in_one_line(bucket, tmp_path):
    log = tmp_path / "x" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text("garbage")
    with pytest.raises(DeltaError, match="could not be opened: ") as refused:
        target_of("delta", tmp_path / "x", bucket)
    with pytest.raises(DeltaError, match="could not be opened: ") as unreachable:
        target_of("delta", "s3://no-such-bucket/x", bucket)
    for text in (str(refused.value), str(unreachable.value)):
        assert text.isprintable(), text
        assert "unknown" not in text


def test_what_a_task_exported_is_checked():
    assert read_exported(["a.parquet", 5, 2, '{"numRecords": 2}']) == ExportedFile(
        "a.parquet", 5, 2, '{"numRecords": 2}'
    )
    assert read_exported(["", 0, 0, ""]) == ExportedFile("", 0, 0, "")
    assert read_exported(["sets/n1/objects/x"]) == MissingPiece("sets/n1/objects/x")
    for wrong in (
        *(None, [], {}, [1], [""], ["x", 1, 1], ["../x", 5, 2, "{}"], ["x", -1, 2, "{}"], ["x", 1, True, "{}"]),
        *(["x", 5, 2, "{"], ["x", 5, 2, "[]"], ["", 5, 2, "{}"], ["x", 5, 2, b"{}"]),
    ):
        with pytest.raises((ManifestCorruptError, ValueError)):
            read_exported(wrong)
