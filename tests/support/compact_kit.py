"""Histories with keys, and what must be left of them: for key compaction by tasks."""

from __future__ import annotations

import random
import time
from typing import Final

from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.upkeep.compaction import HistoryCompactionConfig
from liftpy_bucket.upkeep.scrubbing import scrub
from liftpy_server.tier.jobs.parts.context import Context
from liftpy_server.tier.jobs.upkeep.compact import compact as compact_here
from liftpy_server.tier.requests import CompactJob
from support.job_bucket import new_id
from support.plain_worker import plainly
from support.tier_rows import Record

__all__ = [
    "CONFIG",
    "assert_same",
    "assert_sound",
    "compact_node",
    "context_of",
    "expected",
    "fill",
    "fragments",
    "random_records",
]

CONFIG: Final = HistoryCompactionConfig(min_dirty_ratio=0.0)


def random_records(rng, base, count, keys):
    """With nulls of every kind, tombstones, keys that are empty or long, records without a key, and gaps."""
    records, offset = [], base
    for _ in range(count):
        key = rng.choice([None, b"", b"k%d" % rng.randrange(keys), b"k%d" % rng.randrange(keys), b"long" * 90])
        value = rng.choice([None, b"", rng.randbytes(rng.randrange(40))])
        headers = rng.choice([None, b"NATS/1.0\r\nA: b\r\n\r\n"])
        records.append(Record(offset, offset + 1, b"orders.%d" % rng.randrange(3), key, headers, value))
        offset += rng.choice([1, 1, 1, 3])
    return records


def fill(buckets, seed, objects=12):
    """Append the same random records to each of some buckets."""
    rng = random.Random(seed)
    for _ in range(objects):
        records = random_records(rng, buckets[0].root().end, rng.randrange(1, 120), 60)
        for bucket in buckets:
            bucket.append(records, row_group_bytes=1_500)


def fragments(bucket, partition=0):
    return list(RootFile(bucket.store, bucket.paths[partition], new_id=new_id).fragments(bucket.root(partition)))


def compact_node(bucket, config=CONFIG):
    context = context_of(bucket, config.object_bytes)
    arguments = {
        "uuid": bucket.uuid,
        "partition": 0,
        "epoch": 0,
        "min_compaction_lag_ns": config.min_lag_ns,
        "delete_retention_ns": config.delete_retention_ns,
        "clean_end": bucket.root().end,
    }
    return plainly(CompactJob, compact_here)(context, arguments)


def context_of(bucket, object_bytes=2**28):
    return Context(
        bucket.store,
        new_id=new_id,
        now_ns=time.time_ns,
        memory_bytes_max=2**28,
        object_bytes=object_bytes,
    )


def expected(before):
    """What stays of records when nothing is pinned or young: the last of each key, and those without a key."""
    last = {record.key: record for record in before}
    return [record for record in before if record.key is None or last[record.key] is record]


def assert_sound(bucket, total):
    root = bucket.root()
    assert root.setsum + root.collected == total
    assert scrub(bucket.store, bucket.paths[0]).problems == []


def assert_same(bucket, other):
    """By record, by object and by mark."""
    assert bucket.records() == other.records()
    mine, its = bucket.root(), other.root()
    assert (mine.setsum, mine.collected) == (its.setsum, its.collected)
    assert (mine.delete_horizon, mine.compacted_end, mine.end) == (its.delete_horizon, its.compacted_end, its.end)
    shapes = [
        [(each.base, each.end, each.records, each.setsum) for each in fragments(each)] for each in (bucket, other)
    ]
    assert shapes[0] == shapes[1]
