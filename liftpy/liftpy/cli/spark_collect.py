"""`liftpy spark collect`: what nobody names any more is found by tasks, shown, and deleted where that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.markup import escape

from liftpy.cli.run import JsonFlag, print_json, stderr, stdout
from liftpy.cli.spark_bucket import which_bucket
from liftpy.cli.spark_options import Conf, Master, SomeStream, conf_of, needs_spark, seconds_of
from liftpy.cli.tier_bucket import BucketUrl, Endpoint, OpenBucket, PartitionOption, Region, Where, with_bucket
from liftpy.cli.tier_progress import show_progress
from liftpy.cli.tier_tables import count_of
from liftpy.cli.units import show_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy.cli.tier_bucket import Place
    from liftpy_spark.jobs.collecting import Collected

__all__ = ["collect"]

_FOUND_EXIT: Final = 1


def collect(
    ctx: typer.Context,
    stream: SomeStream = None,
    partition: PartitionOption = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete it; otherwise it is only shown.", show_default=False)
    ] = False,
    grace: Annotated[str, typer.Option(help="What nothing ever named stays for so long.")] = "1h",
    staging_grace: Annotated[
        str, typer.Option(help="What the Spark sink staged stays for so long: more than a batch ever takes.")
    ] = "7d",
    bucket: BucketUrl = None,
    endpoint: Endpoint = None,
    region: Region = None,
    master: Master = "local[*]",
    conf: Conf = None,
    as_json: JsonFlag = False,
) -> None:
    """Find what no manifest and no pin names, and what the Spark sink left behind; with --delete, delete it.

    By the rules of liftpy tier gc, in parallel, also beside a running cluster. Ends with 1 when a partition could not
    be looked at.
    """
    grace_s = seconds_of("--grace", grace, as_json=as_json)
    staging_grace_s = seconds_of("--staging-grace", staging_grace, as_json=as_json)
    where = which_bucket(ctx, Where(bucket, endpoint, region), as_json=as_json)

    def work(opened: OpenBucket) -> int:
        with needs_spark():
            from liftpy_spark.jobs.collecting import collect as run_collect
            from liftpy_spark.jobs.collecting import collect_staged, plan_collect
            from liftpy_spark.jobs.sessions import session

        settings = opened.settings
        places = opened.places(stream, partition)
        paths = [place.path for place in places]
        uuid = opened.stream(stream).uuid if stream else None
        with session(master, conf_of(conf)) as spark:
            with show_progress("collecting" if delete else "looking") as move:
                run = run_collect if delete else plan_collect
                found = run(spark, settings, paths, grace_s=grace_s, progress=move)
            staged = None
            if partition is None:  # what is staged is of a stream
                staged = collect_staged(spark, settings, uuid=uuid, older_than_s=staging_grace_s, deletes=delete)
        return _tell(opened, places, found, staged, delete=delete, as_json=as_json)

    if with_bucket(where, work, as_json=as_json):
        raise typer.Exit(_FOUND_EXIT)


def _tell(
    bucket: OpenBucket,
    places: Sequence[Place],
    found: Sequence[Collected],
    staged: Collected | None,
    *,
    delete: bool,
    as_json: bool,
) -> int:
    """Tell what was found, or deleted; gives the number of problems."""
    pairs = list(zip(places, found, strict=True))
    if as_json:
        rows = [{"partition": place.label} | each._asdict() for place, each in pairs]
        left = None if staged is None else {"objects": staged.objects, "size": staged.size}
        print_json({"bucket": bucket.shown, "deleted": delete, "partitions": rows, "staged": left})
    else:
        _show(pairs, staged, delete=delete)
    problems = [(place, each.problem) for place, each in pairs if each.problem]
    for place, problem in () if as_json else problems:
        stderr.print(f"[bold red]{escape(place.label)}[/]: {escape(problem)}")
    return len(problems)


def _show(pairs: Sequence[tuple[Place, Collected]], staged: Collected | None, *, delete: bool) -> None:
    done = " deleted" if delete else ""
    shown = [(place.label, each) for place, each in pairs]
    if staged is not None:
        shown.append(("left behind by the sink", staged))
    for label, each in shown:
        if each.objects:
            of = f" of {each.listed:,}" if each.listed else ""
            stdout.print(escape(f"{label}: {count_of(each.objects, 'object')}{of}{done}, {show_bytes(each.size)}"))
    objects, size = sum(each.objects for _, each in shown), sum(each.size for _, each in shown)
    total = f"{count_of(objects, 'object')}{done}, {show_bytes(size)}"
    hint = "; nothing was deleted (--delete does it)" if objects and not delete else ""
    stdout.print(f"{total}, in {count_of(len(pairs), 'partition')}{hint}")
