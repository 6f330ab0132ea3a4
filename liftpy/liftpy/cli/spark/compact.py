"""`liftpy spark compact`: of every key the last record stays in the bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer  # noqa: TC002 (it reads the annotations)

from liftpy.cli.run import JsonFlag  # noqa: TC001 (as above)
from liftpy.cli.spark.options import (
    Conf,
    DryRun,
    Master,
    Stream,
    TaskBytes,
    bytes_of,
    conf_of,
    needs_spark,
    tell,
    which_bucket,
)
from liftpy.cli.tier.bucket import (
    Alone,
    BucketUrl,
    Endpoint,
    ObjectBytes,
    OpenBucket,
    PartitionOption,
    Region,
    Where,
    with_bucket,
)
from liftpy.cli.tier.progress import show_progress
from liftpy.cli.tier.tables import count_of
from liftpy.cli.units import show_bytes, show_count

if TYPE_CHECKING:
    from liftpy_spark.jobs.compact.driver import CompactPlan, CompactResult

__all__ = ["compact"]


def compact(
    ctx: typer.Context,
    stream: Stream,
    partition: PartitionOption = None,
    object_bytes: ObjectBytes = "256MiB",
    alone: Alone = False,
    bucket: BucketUrl = None,
    endpoint: Endpoint = None,
    region: Region = None,
    master: Master = "local[*]",
    conf: Conf = None,
    task_bytes: TaskBytes = "64MiB",
    dry_run: DryRun = False,
    as_json: JsonFlag = False,
) -> None:
    """Compact a stream in the bucket: remove records that newer ones with the same key replace.

    Leaders do this too. You can run it again, also after it was killed and beside a running cluster. With --alone it
    also removes tombstones that are old enough.
    """
    size = bytes_of("--task-bytes", task_bytes, as_json=as_json)
    object_size = bytes_of("--object-bytes", object_bytes, as_json=as_json)
    where = which_bucket(ctx, Where(bucket, endpoint, region), alone=alone, as_json=as_json)

    def work(opened: OpenBucket) -> None:
        with needs_spark():
            from liftpy_spark.jobs.compact.driver import compact as run_compact
            from liftpy_spark.jobs.compact.driver import config_of, plan_compact, shared_records
            from liftpy_spark.jobs.sessions import session

        settings = opened.settings
        paths = [place.path for place in opened.places(stream, partition)]
        found = opened.stream(stream).stream
        config = config_of(found.name, found.config, object_bytes=object_size)
        plans = plan_compact(settings, paths, config)
        nothing = "" if plans else _nothing(shared_records(settings, paths))
        if dry_run:
            plain, text = _planned(plans, nothing)
            tell(opened, plain, text, dry_run=True, as_json=as_json)
            return
        if not plans:
            tell(opened, _plain_done(None), nothing, dry_run=False, as_json=as_json)
            return
        with session(master, conf_of(conf)) as spark, show_progress("compacting") as move:
            done = run_compact(spark, settings, plans, config, alone=alone, progress=move, task_bytes=size)
        text = (
            f"{count_of(done.dropped, 'record')} went; {count_of(done.replaced, 'object')} of "
            f"{show_bytes(done.bytes_before)} became {show_count(done.made)} of {show_bytes(done.bytes_after)}"
        )
        tell(opened, _plain_done(done), text, dry_run=False, as_json=as_json)

    with_bucket(where, work, as_json=as_json)


def _nothing(shared: int) -> str:
    if not shared:
        return "nothing is new"
    they_are = "record is" if shared == 1 else "records are"
    return (
        f"nothing is new in the stream's own objects; {shared:,} {they_are} in objects that streams share, and take "
        "part when the leader has moved them (liftpy tier merge --alone does that where no node runs)"
    )


def _planned(plans: list[CompactPlan], nothing: str) -> tuple[dict[str, int], str]:
    plain = {
        "partitions": len(plans),
        "objects": sum(plan.objects for plan in plans),
        "bytes": sum(plan.size for plan in plans),
        "new_bytes": sum(plan.new_bytes for plan in plans),
    }
    if not plans:
        return plain, nothing
    return plain, (
        f"{count_of(plain['objects'], 'object')} of {count_of(plain['partitions'], 'partition')}, "
        f"{show_bytes(plain['bytes'])}, of which {show_bytes(plain['new_bytes'])} came since it was compacted last"
    )


def _plain_done(done: CompactResult | None) -> dict[str, int]:
    names = ("dropped", "replaced", "made", "bytes_before", "bytes_after")
    return dict.fromkeys(names, 0) if done is None else done._asdict()
