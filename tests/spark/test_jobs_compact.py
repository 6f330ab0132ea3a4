"""Key compaction by Spark: what Spark brings together is what a node finds by itself, and what fails ends in words."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from liftpy_bucket.errors import StoreUnavailableError
from liftpy_bucket.manifest.catalog import Catalog, CatalogFile, CatalogStream
from liftpy_bucket.upkeep.compaction import HistoryCompactionConfig
from liftpy_envelope.stream_config import StreamConfig
from liftpy_spark.jobs.compact import frames
from liftpy_spark.jobs.compact.driver import compact, plan_compact
from liftpy_spark.jobs.tasks import JobFailedError
from support.by_value import by_value
from support.cli import Cli
from support.compact_kit import assert_same, assert_sound, compact_node, expected, fill, fragments
from support.job_bucket import STREAM, JobBucket, new_id
from support.tier_rows import plain_records

SMALL = HistoryCompactionConfig(min_dirty_ratio=0.0, object_bytes=50_000)


def compact_spark(spark, bucket, **options):
    plans = plan_compact(bucket.settings, bucket.paths, SMALL)
    return compact(spark, bucket.settings, plans, SMALL, alone=True, task_bytes=30_000, **options)


def test_the_same_stays_as_when_a_node_does_it(spark, s3, monkeypatch):
    bucket, other = JobBucket(s3), JobBucket(s3)
    tasks, original = [], frames._rewritten

    def noted(*arguments):
        frame = original(*arguments)
        tasks.append((len(arguments[-1]), frame.rdd.getNumPartitions()))
        return frame

    monkeypatch.setattr(frames, "_rewritten", noted)
    for seed in range(2):
        fill([bucket, other], seed, objects=8)
        before, root, seen = bucket.records(), bucket.root(), []
        done = compact_spark(spark, bucket, progress=lambda *said, seen=seen: seen.append(said))
        compact_node(other, SMALL)
        assert bucket.records() == expected(before)
        assert done.dropped == len(before) - len(bucket.records()) > 0
        assert done.replaced > done.made > 1
        assert bucket.root().version == root.version + 1, "one commit"
        assert_same(bucket, other)
        assert_sound(bucket, root.setsum + root.collected)
        assert seen[-1][0] == seen[-1][1]
    assert all(rewrites == partitions for rewrites, partitions in tasks), "small ones run in parallel, too"


@pytest.fixture
def bucket(s3):
    made = JobBucket(s3)
    fill([made], 10, objects=8)
    return made


def _fails(original, work, given, superseded):
    """Fail for all but the first rewrite, after the object is there."""
    plain = original(work, given, superseded)
    if given.places.start > 0:
        raise ValueError("the task fails")
    return plain


def test_a_task_that_fails(spark, bucket, monkeypatch):
    before, root = bucket.records(), bucket.root()
    with monkeypatch.context() as patched:
        patched.setattr(frames, "rewrite", partial(by_value(_fails), frames.rewrite))
        with pytest.raises(JobFailedError, match="the task fails"):
            compact_spark(spark, bucket)
    assert bucket.root() == root
    compact_spark(spark, bucket)
    assert bucket.records() == expected(before)
    assert_sound(bucket, root.setsum + root.collected)


def _unavailable_once(original, directory, work, given, superseded):
    """The store does not answer the first time that a rewrite is tried."""
    try:
        Path(directory, str(given.places.start)).touch(exist_ok=False)
    except FileExistsError:
        return original(work, given, superseded)
    raise StoreUnavailableError("the store does not answer")


def test_a_store_that_did_not_answer_is_asked_again(spark, bucket, monkeypatch, tmp_path):
    before = bucket.records()
    patched = partial(by_value(_unavailable_once), frames.rewrite, str(tmp_path))
    monkeypatch.setattr(frames, "rewrite", patched)
    compact_spark(spark, bucket)
    assert bucket.records() == expected(before)
    assert len(list(tmp_path.iterdir())) > 1


def test_a_damaged_object_is_named_and_stays(spark, bucket):
    root = bucket.root()
    key = bucket.paths[0].fragment(fragments(bucket)[3].name)
    bucket.damage(key, 300)
    with pytest.raises(JobFailedError, match=key):
        compact_spark(spark, bucket)
    assert bucket.root() == root


def set_compact(bucket):
    """Have the catalog say that the stream is compacted."""
    file = CatalogFile(bucket.store, new_id=new_id)
    loaded = file.load()
    config = StreamConfig(name=STREAM, subject=f"{STREAM}.>", compact=True).to_plain()
    stream = CatalogStream(name=STREAM, config=config, partitions=1, created_ns=1)
    catalog = loaded.catalog
    file.commit(loaded, Catalog(cluster_id=catalog.cluster_id, version=2, streams={bucket.uuid: stream}))


def test_the_command(spark, s3, tmp_path):
    bucket = JobBucket(s3)
    for base in (0, 100):
        bucket.append(plain_records(100, base=base, key=lambda place: b"%d" % (place % 10)))
    where = {"LIFTPY_TIER_URL": bucket.url, "LIFTPY_TIER_ENDPOINT": bucket.settings.endpoint}
    cli = Cli(None, tmp_path, **where, **s3.environment)
    command = ("spark", "compact", STREAM)
    said = cli.error(*command)
    assert "stream orders keeps all records of a key (compact = false), so nothing was done" in said
    assert "liftpy stream edit orders --compact" in said
    set_compact(bucket)
    assert "the bucket has no stream 'order'" in cli.error("spark", "compact", "order")
    assert "stream orders has partitions 0 to 0" in cli.error(*command, "--partition", "1", code=2)
    planned = cli.json(*command, "--dry-run")
    assert (planned["dry_run"], planned["objects"], planned["partitions"]) == (True, 2, 1)
    assert planned["bytes"] == planned["new_bytes"] == sum(each.size for each in fragments(bucket))
    assert "2 objects of 1 partition" in cli.out(*command, "--dry-run")
    assert len(bucket.records()) == 200
    done = cli.json(*command)
    assert (done["dropped"], done["replaced"], done["made"], done["dry_run"]) == (190, 2, 1, False)
    assert [record.offset for record in bucket.records()] == list(range(190, 200))
    assert cli.out(*command) == "nothing is new\n"
    assert cli.json(*command)["dropped"] == 0
