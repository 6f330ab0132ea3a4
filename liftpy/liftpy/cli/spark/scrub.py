"""`liftpy spark scrub`: what is in the bucket is read, to the byte, and compared with what its manifests say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import typer
from rich.markup import escape

from liftpy.cli.run import JsonFlag, print_json, stderr
from liftpy.cli.spark.options import (
    Conf,
    DryRun,
    Master,
    SomeStream,
    TaskBytes,
    bytes_of,
    conf_of,
    needs_spark,
    tell,
    which_bucket,
)
from liftpy.cli.tier.bucket import BucketUrl, Endpoint, OpenBucket, PartitionOption, Region, Where, with_bucket
from liftpy.cli.tier.progress import show_progress
from liftpy.cli.tier.tables import count_of
from liftpy.cli.units import show_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from liftpy.cli.tier.bucket import Place
    from liftpy_bucket.upkeep.verifying import Report

__all__ = ["scrub", "scrub_all"]

_FOUND_EXIT: Final = 1


def scrub(
    ctx: typer.Context,
    stream: SomeStream = None,
    partition: PartitionOption = None,
    bucket: BucketUrl = None,
    endpoint: Endpoint = None,
    region: Region = None,
    master: Master = "local[*]",
    conf: Conf = None,
    task_bytes: TaskBytes = "64MiB",
    dry_run: DryRun = False,
    as_json: JsonFlag = False,
) -> None:
    """Scrub the bucket in parallel: verify, read every byte and recompute the setsums.

    Only reads. Exits with 1 if a check fails.
    """
    size = bytes_of("--task-bytes", task_bytes, as_json=as_json)
    where = which_bucket(ctx, Where(bucket, endpoint, region), as_json=as_json)
    if scrub_all(where, stream, partition, master, conf, size, dry_run=dry_run, as_json=as_json):
        raise typer.Exit(_FOUND_EXIT)


def scrub_all(
    where: Where,
    stream: str | None,
    partition: int | None,
    master: str,
    conf: Sequence[str] | None,
    task_bytes: int,
    *,
    dry_run: bool,
    as_json: bool,
    say: Callable[[dict[str, Any]], None] = print_json,
) -> int:
    """What `liftpy spark scrub` does; gives the number of problems.

    Args:
        where: The bucket.
        stream: Name of the stream, or its UUID; None for all.
        partition: Number of the partition; None for all.
        master: Where tasks run.
        conf: Settings of Spark.
        task_bytes: About how much a task reads.
        dry_run: Nothing is read but manifests.
        as_json: Whether to print JSON, for programs.
        say: Called with what they are told.
    """

    def work(opened: OpenBucket) -> int:
        with needs_spark():
            from liftpy_spark.jobs.scrubbing import plan_scrub
            from liftpy_spark.jobs.scrubbing import scrub as run_scrub
            from liftpy_spark.jobs.sessions import session

        settings = opened.settings
        places = opened.places(stream, partition)
        paths = [place.path for place in places]
        if dry_run:
            plan = plan_scrub(settings, paths, task_bytes=task_bytes)
            held = f"{count_of(plan.objects, 'object')} of {count_of(len(paths), 'partition')}, {show_bytes(plan.size)}"
            text = f"{held}, by {count_of(plan.tasks, 'task')}"
            tell(opened, plan._asdict(), text, dry_run=True, as_json=as_json, say=say)
            return 0
        with session(master, conf_of(conf)) as spark, show_progress("scrubbing") as move:
            reports = run_scrub(spark, settings, paths, progress=move, task_bytes=task_bytes)
        return _tell_reports(opened, places, reports, say if as_json else None)

    return with_bucket(where, work, as_json=as_json)


def _tell_reports(
    bucket: OpenBucket,
    places: Sequence[Place],
    reports: Sequence[Report],
    say: Callable[[dict[str, Any]], None] | None,
) -> int:
    """Tell what was found; gives the number of problems."""
    from liftpy.cli.tier.checks import judged, tell_checked

    problems = 0
    all_checked = []
    for place, report in zip(places, reports, strict=True):
        checked = judged(bucket.store, place, report)
        all_checked.append(checked.to_plain())
        problems += len(report.problems)
        if say is None:
            tell_checked(checked)
    if say is not None:
        say({"bucket": bucket.shown, "problems": problems, "partitions": all_checked})
    elif problems:
        stderr.print(f"[bold red]{count_of(problems, 'problem')}[/] in {escape(bucket.shown)}")
    return problems
