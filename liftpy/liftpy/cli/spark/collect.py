"""`liftpy spark collect`: what nobody names any more is found by tasks, shown, and deleted where that is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.markup import escape

from liftpy.cli.run import JsonFlag, fail, print_json, stderr, stdout
from liftpy.cli.spark.options import Conf, Master, SomeStream, conf_of, needs_spark, seconds_of, which_bucket
from liftpy.cli.tier.bucket import BucketUrl, Endpoint, OpenBucket, PartitionOption, Region, Where, with_bucket
from liftpy.cli.tier.progress import show_progress
from liftpy.cli.tier.tables import count_of
from liftpy.cli.units import show_bytes
from liftpy_client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from liftpy.cli.tier.bucket import Place
    from liftpy_spark.jobs.collect.driver import CollectResult

__all__ = ["collect"]

_FOUND_EXIT: Final = 1
_STAGED: Final = "staged"
_FILES: Final = "staged_files"
_SHOWN: Final = {_STAGED: "left behind by the sink", _FILES: "left behind by the sink in its directory"}


def collect(
    ctx: typer.Context,
    stream: SomeStream = None,
    partition: PartitionOption = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the objects; by default they are only listed.", show_default=False)
    ] = False,
    grace: Annotated[str, typer.Option(help="Keep objects that were never referenced for this long.")] = "1h",
    staging_grace: Annotated[
        str, typer.Option(help="Keep staged files of the Spark sink for this long: longer than any batch runs.")
    ] = "7d",
    staging_directory: Annotated[
        str | None,
        typer.Option(help="Also collect files that the Spark sink staged in this local directory.", show_default=False),
    ] = None,
    bucket: BucketUrl = None,
    endpoint: Endpoint = None,
    region: Region = None,
    master: Master = "local[*]",
    conf: Conf = None,
    as_json: JsonFlag = False,
) -> None:
    """Find objects that no manifest or pin references, and leftovers of the Spark sink.

    By the rules of liftpy tier gc, in parallel, also beside a running cluster. Ends with 1 when a partition could not
    be looked at.
    """
    grace_s = seconds_of("--grace", grace, as_json=as_json)
    staging_grace_s = seconds_of("--staging-grace", staging_grace, as_json=as_json)
    if staging_directory is not None:
        _check_directory(staging_directory, partition, as_json=as_json)
    where = which_bucket(ctx, Where(bucket, endpoint, region), as_json=as_json)

    def work(opened: OpenBucket) -> int:
        with needs_spark():
            from liftpy_spark.jobs.collect.directory import collect_directory
            from liftpy_spark.jobs.collect.driver import collect as run_collect
            from liftpy_spark.jobs.collect.driver import collect_staged, plan_collect
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
        files = None
        if staging_directory is not None:
            files = collect_directory(
                opened.store,
                str(Path(staging_directory)),
                opened.loaded.catalog.streams,
                only=uuid,
                older_than_s=staging_grace_s,
                deletes=delete,
            )
        return _tell(opened, places, found, {_STAGED: staged, _FILES: files}, delete=delete, as_json=as_json)

    if with_bucket(where, work, as_json=as_json):
        raise typer.Exit(_FOUND_EXIT)


def _check_directory(path: str, partition: int | None, *, as_json: bool) -> None:
    """See that what was staged in a directory can be looked at before all else is done."""
    problem = ""
    if not Path(path).is_absolute():
        problem = f"{path!r:.200} is no absolute path"
    elif not Path(path).is_dir():
        problem = f"there is no directory {path} on this machine"
    elif partition is not None:
        problem = "what is staged is of a stream, so leave --partition out"
    if problem:
        fail(UsageError(f"--staging-directory: {problem}"), as_json=as_json)


def _tell(
    bucket: OpenBucket,
    places: Sequence[Place],
    found: Sequence[CollectResult],
    staged: Mapping[str, CollectResult | None],
    *,
    delete: bool,
    as_json: bool,
) -> int:
    """Tell what was found, or deleted; gives the number of problems."""
    pairs = list(zip(places, found, strict=True))
    if as_json:
        rows = [{"partition": place.label} | each._asdict() for place, each in pairs]
        left = {
            name: None if each is None else {"objects": each.objects, "size": each.size}
            for name, each in staged.items()
        }
        print_json({"bucket": bucket.shown, "deleted": delete, "partitions": rows} | left)
    else:
        _show(pairs, staged, delete=delete)
    problems = [(place, each.problem) for place, each in pairs if each.problem]
    for place, problem in () if as_json else problems:
        stderr.print(f"[bold red]{escape(place.label)}[/]: {escape(problem)}")
    return len(problems)


def _show(
    pairs: Sequence[tuple[Place, CollectResult]], staged: Mapping[str, CollectResult | None], *, delete: bool
) -> None:
    done = " deleted" if delete else ""
    shown = [(place.label, each) for place, each in pairs]
    shown += [(_SHOWN[name], each) for name, each in staged.items() if each is not None]
    for label, each in shown:
        if each.objects:
            of = f" of {each.listed:,}" if each.listed else ""
            what = "file" if label == _SHOWN[_FILES] else "object"
            stdout.print(escape(f"{label}: {count_of(each.objects, what)}{of}{done}, {show_bytes(each.size)}"))
    objects, size = sum(each.objects for _, each in shown), sum(each.size for _, each in shown)
    total = f"{count_of(objects, 'object')}{done}, {show_bytes(size)}"
    hint = "; nothing was deleted (--delete does it)" if objects and not delete else ""
    stdout.print(f"{total}, in {count_of(len(pairs), 'partition')}{hint}")
