"""What key compaction of a whole history by Spark takes: `liftpy spark compact`, in a session that is there already.

The driver is a process of its own: `python -m bench.spark_compact compact JSON-ARGUMENTS`; its figures come last.
"""

from __future__ import annotations

import json
import sys
import time

from bench.load import say
from bench.rig import finish, run_client, spawn
from bench.row import Row
from bench.tier_rig import tier_rig

__all__ = ["SPARK_COMPACT_WORKLOADS"]

_ROWS = 3_000  # of a batch
_SIZE = 100
_PARTITIONS = 2
_AGE_S = 1.0
_SHARED_BYTES = 65_536  # only what a partition has of its own is compacted
_OBJECT_BYTES = 256 << 20
_TIMEOUT_S = 1_800


def compaction(home, plan):
    """Overwrite a space of keys, and let Spark take from the bucket what newer records supersede."""
    name = f"{plan.compacted:,} records, {plan.compacted_keys:,} keys"
    row = Row(f"spark, key compaction, {name}", "-", "s", smaller_is_better=True, is_absolute=True)
    fill = {"keys": plan.compacted_keys, "count": plan.compacted, "rows": _ROWS, "size": _SIZE}
    with tier_rig(home) as (bucket, start):
        node = start("compact", upload_age_s=_AGE_S, set_member_bytes_max=_SHARED_BYTES)
        for run in range(plan.runs):
            stream = f"keyed{run}"
            node.create(stream, stream, partitions=_PARTITIONS, sync="interval")  # no leader compacts it
            run_client("publish_keys", url=node.url, subject=stream, **fill)
            node.wait_tiered(_TIMEOUT_S)
            uuid = node.info(stream)["uuid"].replace("-", "")
            where = bucket.settings("compact") | {"uuid": uuid, "home": str(home / "spark")}
            with bucket.in_environment():
                process = spawn("spark_compact", "compact", where)
            try:
                found = finish(process, _TIMEOUT_S)
            finally:
                process.kill()
                process.wait()
            row.add("liftpy", found["seconds"])
            sizes = f"{found['bytes_before'] / 2**20:,.0f} MiB became {found['bytes_after'] / 2**20:,.0f} MiB"
            row.note = f"{found['dropped']:,} records went, {sizes}; {found['cpu_s']:.1f} s of CPU in the last run"
    yield row


def compact(home, url, endpoint, uuid):
    """One pass over the history of a stream, by a session that has done something before."""
    from bench.spark_session import cpu_by_process, session, spent  # noqa: PLC0415 - it needs pyspark
    from liftpy_bucket.layout import PartitionPath  # noqa: PLC0415
    from liftpy_bucket.store.s3_settings import S3Settings  # noqa: PLC0415
    from liftpy_spark.jobs.compact.driver import compact as run_compact  # noqa: PLC0415
    from liftpy_spark.jobs.compact.driver import config_of, plan_compact  # noqa: PLC0415

    settings = S3Settings(url=url, endpoint=endpoint)
    paths = [PartitionPath(uuid, number) for number in range(_PARTITIONS)]
    stream = {"name": "keyed", "subject": "keyed", "compact": True}
    config = config_of("keyed", stream, object_bytes=_OBJECT_BYTES)
    with session(home) as spark:
        spark.range(1).toArrow()
        before, began = cpu_by_process(), time.perf_counter()
        done = run_compact(spark, settings, plan_compact(settings, paths, config), config, alone=False)
        elapsed_s = time.perf_counter() - began
        cpu = spent(before)
    if not done.dropped:
        raise RuntimeError("there was nothing to compact")
    say(seconds=elapsed_s, cpu_s=sum(cpu.values()), **done._asdict())


SPARK_COMPACT_WORKLOADS = {"spark-compact": compaction}


if __name__ == "__main__":
    globals()[sys.argv[1]](**json.loads(sys.argv[2]))
