"""`liftpy spark restore`: bring a large history from a backup, or check it, before a cluster is restored from it."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.markup import escape

from liftpy.cli.run import JsonFlag, fail, print_json, stdout, tell_warnings
from liftpy.cli.spark.options import (
    Conf,
    DryRun,
    Master,
    TaskBytes,
    bytes_of,
    conf_of,
    needs_spark,
    seconds_of,
    which_bucket,
)
from liftpy.cli.spark.scrub import scrub_all
from liftpy.cli.tier.bucket import BucketUrl, Endpoint, OpenBucket, Region, Where, with_bucket
from liftpy.cli.tier.progress import show_progress
from liftpy.cli.tier.restore import restore_all
from liftpy.cli.tier.tables import count_of
from liftpy.cli.units import show_bytes, show_count
from liftpy_client.errors import UsageError
from liftpy_envelope.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from liftpy.cli.run import Connection
    from liftpy_bucket.store.s3_settings import S3Settings
    from liftpy_spark.jobs.copy.driver import CopyPlan, CopyResult, CopyStream

__all__ = ["restore"]

_AMISS_EXIT: Final = 1

SourceProfile = Annotated[
    str | None,
    typer.Option("--from-profile", metavar="NAME", help="AWS profile with credentials for --from.", show_default=False),
]


def restore(
    ctx: typer.Context,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="S3://...", help="Copy histories from this bucket first.", show_default=False),
    ] = None,
    stream: Annotated[
        list[str] | None,
        typer.Option("--stream", help="Copy only this stream, by name or uuid; by default all.", show_default=False),
    ] = None,
    source_endpoint: Annotated[
        str | None,
        typer.Option("--from-endpoint", help="Endpoint of --from; by default --endpoint.", show_default=False),
    ] = None,
    source_region: Annotated[
        str | None, typer.Option("--from-region", help="Region of --from; by default --region.", show_default=False)
    ] = None,
    source_profile: SourceProfile = None,
    hold: Annotated[str, typer.Option(help="Pin objects of --from for this long if this is killed.")] = "24h",
    copy_only: Annotated[
        bool, typer.Option("--copy-only", help="Copy or check only; do not restore the cluster.", show_default=False)
    ] = False,
    servers: Annotated[
        str | None, typer.Option(help="NATS address of the cluster; same as -s before the command.", show_default=False)
    ] = None,
    replicas_max: Annotated[
        int | None,
        typer.Option(min=1, max=7, help="Limit of replicas, for a cluster with fewer nodes.", show_default=False),
    ] = None,
    bucket: BucketUrl = None,
    endpoint: Endpoint = None,
    region: Region = None,
    master: Master = "local[*]",
    conf: Conf = None,
    task_bytes: TaskBytes = "64MiB",
    dry_run: DryRun = False,
    as_json: JsonFlag = False,
) -> None:
    """Copy or check the histories in a bucket, then restore a cluster from it.

    Every record is compared. You can run it again, also after it was killed. Exits with 1 if a check fails.
    """
    if servers is not None:
        connection: Connection = ctx.find_root().obj
        connection.options["url"] = servers
    if source is None:
        _check_without_source(stream, source_profile, as_json=as_json)
    size = bytes_of("--task-bytes", task_bytes, as_json=as_json)
    hold_s = seconds_of("--hold", hold, as_json=as_json)
    where = which_bucket(ctx, Where(bucket, endpoint, region), as_json=as_json)
    with _one_document(as_json=as_json) as document:
        if source is None:
            say = partial(document.__setitem__, "scrub")
            problems = scrub_all(where, None, None, master, conf, size, dry_run=dry_run, as_json=as_json, say=say)
            if problems:
                raise typer.Exit(_AMISS_EXIT)
        else:

            def work(opened: OpenBucket) -> None:
                options = {"names": stream or (), "task_bytes": size, "hold_s": hold_s}
                plain = _copy(opened, where, options, master, conf_of(conf), dry_run=dry_run, as_json=as_json)
                document["copy"] = plain

            given = Where(source, source_endpoint, source_region, source_profile)
            with_bucket(_source(given, where, as_json=as_json), work, as_json=as_json)
        if not copy_only and not dry_run:
            say = partial(document.__setitem__, "restore")
            if restore_all(ctx, where.url, dry_run=False, replicas_max=replicas_max, as_json=as_json, say=say):
                raise typer.Exit(_AMISS_EXIT)


def _check_without_source(stream: list[str] | None, profile: str | None, *, as_json: bool) -> None:
    """See that nothing is said of a source that there is not; a mistake ends the command."""
    if profile is not None:
        fail(UsageError("--from-profile: say --from; the credentials of --bucket are AWS_PROFILE"), as_json=as_json)
    if stream:
        fail(UsageError("--stream: say --from; a restore brings back all that the bucket has"), as_json=as_json)


@contextmanager
def _one_document(*, as_json: bool) -> Iterator[dict[str, Any]]:
    """What the steps say; told at the end as one document, also where one of them fails that is not the first."""
    document: dict[str, Any] = {"copy": None, "scrub": None, "restore": None}
    try:
        yield document
    finally:
        if as_json and any(step is not None for step in document.values()):
            print_json(document)


def _source(said: Where, where: Where, *, as_json: bool) -> Where:
    """Where histories are: what is not said of it is as at the destination, but for credentials."""
    from liftpy_bucket.store.s3_settings import S3Settings

    given = said._replace(endpoint=said.endpoint or where.endpoint, region=said.region or where.region)
    try:
        _settings(S3Settings(url="s3://any"), given, "--from", "--from-")
    except ConfigError as error:
        fail(error, as_json=as_json)
    return given


def _copy(
    opened: OpenBucket,
    where: Where,
    options: dict[str, Any],
    master: str,
    conf: dict[str, str],
    *,
    dry_run: bool,
    as_json: bool,
) -> dict[str, Any]:
    with needs_spark():
        from liftpy_spark.jobs.copy.driver import copy_history, plan_copy
        from liftpy_spark.jobs.sessions import session

    target = _settings(opened.settings, where, "--bucket", "--")
    shown = {"from": opened.shown, "bucket": target.shown, "dry_run": dry_run}
    if dry_run:
        plan, done = plan_copy(opened.settings, target, options["names"]), None
    else:
        with session(master, conf) as spark, show_progress("copying") as move:
            done = copy_history(spark, opened.settings, target, **options, progress=move)
        plan = done.plan
    if not as_json:
        _show(plan, _text(plan, done, target.shown))
    return shown | _plain(plan, done)


def _show(plan: CopyPlan, text: str) -> None:
    for each in plan.streams:
        held = f"{count_of(each.objects, 'object')}, {count_of(each.records, 'record')}"
        stdout.print(f"{escape(each.name)}: {count_of(each.partitions, 'partition')}, {held}, {_size_of(each)}")
    tell_warnings(plan.notes)
    stdout.print(escape(text))


def _size_of(stream: CopyStream) -> str:
    """What objects of its own take; objects that streams share have their size for all of them together."""
    own = show_bytes(stream.size)
    if not stream.shared_records:
        return own
    if stream.shared_records == stream.records:
        return "all in shared objects"
    return f"{own} and {count_of(stream.shared_records, 'record')} in shared objects"


def _settings(like: S3Settings, where: Where, named: str, prefix: str) -> S3Settings:
    """How another place is reached: as the one that is known, but for what says which it is."""
    assert where.url is not None, "there is no command without a bucket"
    try:
        return replace(like, **{**where._asdict(), "endpoint": where.endpoint or None, "region": where.region or None})
    except ConfigError as error:
        field = named if error.field == "url" else f"{prefix}{error.field}"
        raise ConfigError(field, str(error).removeprefix(f"{error.field}: ")) from None


def _plain(plan: CopyPlan, done: CopyResult | None) -> dict[str, Any]:
    outcome = {} if done is None else {"copied": done.copied, "there": done.there, "bytes": done.size}
    return {"streams": [each._asdict() for each in plan.streams], "notes": list(plan.notes)} | outcome


def _text(plan: CopyPlan, done: CopyResult | None, shown: str) -> str:
    if done is None:
        objects = sum(each.objects for each in plan.streams)
        return f"{count_of(objects, 'object')} would be at {shown}; nothing was done (--dry-run)"
    there = f", {show_count(done.there)} were there" if done.there else ""
    return f"{count_of(done.copied, 'object')} copied, {show_bytes(done.size)}{there}: {shown} has all of it"
