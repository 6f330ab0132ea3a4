"""`liftpy tier ...`: look after what is in the bucket."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from liftpy.cli.option_values import bytes_of, seconds_of
from liftpy.cli.run import Force, JsonFlag, confirm, fail, open_admin, print_json, run, stderr, stdout, tell_warnings
from liftpy.cli.tier.bucket import (
    ANYWHERE,
    Alone,
    ObjectBytes,
    OpenBucket,
    PartitionOption,
    Where,
    at_bucket,
    with_bucket,
)
from liftpy.cli.tier.cursor import app as cursor_app
from liftpy.cli.tier.tables import count_of, has_alarm, partitions_table, status_table
from liftpy.cli.units import show_bytes, show_count
from liftpy_client.errors import UsageError
from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from liftpy.cli.tier.fork import ForkedStream

__all__ = ["app"]

_FOUND_EXIT = 1
_PARTITIONS_MAX = 1_000

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Inspect and maintain the bucket.")
app.add_typer(cursor_app, name="cursor")

Stream = Annotated[str, typer.Argument(help="Name of the stream, or its uuid.", show_default=False)]
SomeStream = Annotated[
    str | None, typer.Argument(help="Name of the stream, or its uuid; by default, all.", show_default=False)
]


@app.command("status")
def status(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option(min=0, max=_PARTITIONS_MAX, help="Number of partitions to show.")] = 20,
    as_json: JsonFlag = False,
) -> None:
    """Show the state of the bucket and what is not uploaded yet. Exits with 1 while an alarm is active."""

    async def work() -> bool:
        async with open_admin(ctx) as lift:
            found = await lift.tier_status(limit=limit)
        if as_json:
            print_json(found.raw)
        elif found.url is None:
            stdout.print("There is no bucket: start the nodes with --tier-url s3://bucket/prefix")
            tell_warnings(f"node {node} did not answer" for node in found.unreachable)
        else:
            stdout.print(status_table(found))
            table = partitions_table(found, stdout.width)
            if table is not None:
                stdout.print(table)
        return has_alarm(found)

    if run(work(), as_json=as_json):
        raise typer.Exit(_FOUND_EXIT)


def _check(where: Where, stream: str | None, partition: int | None, *, reads_all: bool, as_json: bool) -> None:
    def work(bucket: OpenBucket) -> int:
        from liftpy.cli.tier.checks import check, tell_checked

        problems = 0
        all_checked = []
        for checked in check(bucket, bucket.places(stream, partition), reads_all=reads_all):
            problems += len(checked.report.problems)
            if as_json:
                all_checked.append(checked.to_plain())
            else:
                tell_checked(checked)
        if as_json:
            print_json({"bucket": bucket.shown, "problems": problems, "partitions": all_checked})
        elif problems:
            stderr.print(f"[bold red]{count_of(problems, 'problem')}[/] in {escape(bucket.shown)}")
        return problems

    if with_bucket(where, work, as_json=as_json):
        raise typer.Exit(_FOUND_EXIT)


def _prove(where: Where, stream: str | None, partition: int, digest: str, *, as_json: bool) -> None:
    def work(bucket: OpenBucket) -> None:
        from liftpy.cli.tier.progress import show_progress
        from liftpy_bucket.upkeep.proving import prove

        (place,) = bucket.places(stream, partition)
        with show_progress(f"proving {place.label}") as move:
            proof = prove(bucket.store, place.path, digest, move)
        if as_json:
            print_json({"bucket": bucket.shown, "stream": stream, "partition": partition} | proof._asdict())
        else:
            stdout.print(
                f"{place.label}: ROOT {digest} vouches for offsets {proof.start} to {proof.end}, "
                f"{count_of(proof.records, 'record')} in {count_of(proof.objects, 'object')}: all of it is as it was",
                markup=False,
            )

    with_bucket(where, work, as_json=as_json)


@app.command("verify")
@at_bucket
def verify(
    stream: SomeStream = None,
    partition: PartitionOption = None,
    digest: Annotated[
        str | None,
        typer.Option("--from", help="SHA-256 of the partition's ROOT: prove its history, down to the records."),
    ] = None,
    where: Where = ANYWHERE,
    as_json: JsonFlag = False,
) -> None:
    """Check manifests, object sizes and setsums, without reading data.

    With --from it reads the whole history of one partition, and proves by digests that it is the one of that ROOT.

    Exits with 1 if a check fails. Needs no node.
    """
    if digest is not None:
        if stream is None:
            fail(UsageError("--from is the SHA-256 of one partition's ROOT: name the stream"), as_json=as_json)
        _prove(where, stream, partition or 0, digest.lower(), as_json=as_json)
        return
    _check(where, stream, partition, reads_all=False, as_json=as_json)


@app.command("scrub")
@at_bucket
def scrub(
    stream: SomeStream = None,
    partition: PartitionOption = None,
    deleted: Annotated[
        bool, typer.Option("--deleted", help="Look for deleted records instead, in all objects of the bucket.")
    ] = False,
    where: Where = ANYWHERE,
    as_json: JsonFlag = False,
) -> None:
    """Verify, and also read every byte and recompute the setsums.

    Exits with 1 if a check fails. Needs no node. Downloads the whole history.
    """
    if deleted:
        if stream is not None or partition is not None:
            fail(UsageError("--deleted looks at the whole bucket, not at one stream"), as_json=as_json)
        _look_whole(where, "remains", as_json=as_json)
        return
    _check(where, stream, partition, reads_all=True, as_json=as_json)


@app.command("audit")
@at_bucket
def audit(
    where: Where = ANYWHERE,
    as_json: JsonFlag = False,
) -> None:
    """List what nothing names in the bucket, with its age. Needs no node, and changes nothing.

    Work in progress is among it, and what is deleted after the grace period.
    """
    _look_whole(where, "audit", as_json=as_json)


def _look_whole(where: Where, what: str, *, as_json: bool) -> None:
    found = False

    def work(opened: OpenBucket) -> None:
        nonlocal found
        from liftpy.cli.tier import whole

        found = whole.tell_remains(opened, as_json=as_json) if what == "remains" else False
        if what == "audit":
            whole.tell_audit(opened, as_json=as_json)

    with_bucket(where, work, as_json=as_json)
    if found:
        raise typer.Exit(_FOUND_EXIT)


@app.command("export-list")
@at_bucket
def export_list(
    stream: Stream,
    partition: PartitionOption = None,
    urls: Annotated[
        bool, typer.Option("--urls", help="Print only the URLs, if every row of the objects is of the stream.")
    ] = False,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print a view for DuckDB that has the stream's rows only.")
    ] = False,
    where: Where = ANYWHERE,
    as_json: JsonFlag = False,
) -> None:
    """List the Parquet objects of a stream, for DuckDB, Polars or Spark. Needs no node.

    Where row groups or offsets are listed, only those belong to the stream.
    """
    if urls + sql + as_json > 1:
        fail(UsageError("--urls, --sql and --json exclude each other"), as_json=as_json)

    def work(opened: OpenBucket) -> None:
        from liftpy.cli.tier.checks import export, tell_exported, tell_nothing, tell_urls
        from liftpy.cli.tier.duckdb_view import view_of

        prefix = f"{(where.url or '').rstrip('/')}/"
        places = opened.places(stream, partition)
        exported = {place: export(opened, place) for place in places}
        found = [each for each in exported.values() if each is not None]
        if as_json:
            print_json({"bucket": opened.shown, "partitions": [each.to_plain(prefix) for each in found]})
            return
        for place, each in exported.items():
            if each is None:
                tell_nothing(place)
            elif not urls and not sql:
                tell_exported(each, prefix)
        if urls:
            tell_urls(found, prefix)
        elif sql and (view := view_of(stream, found, prefix)):
            stdout.print(view, markup=False, highlight=False, soft_wrap=True)

    with_bucket(where, work, as_json=as_json)


@app.command("gc")
@at_bucket
def gc(
    stream: SomeStream = None,
    partition: PartitionOption = None,
    grace: Annotated[str, typer.Option(help="Keep objects that were never referenced for this long.")] = "1h",
    where: Where = ANYWHERE,
    as_json: JsonFlag = False,
) -> None:
    """Delete objects that no manifest or pin references.

    Leaders do this every tier.gc_interval_s. The command is safe beside a running cluster. Stream-set objects are left
    to the nodes that wrote them.
    """
    grace_s = seconds_of("--grace", grace, as_json=as_json)

    def work(opened: OpenBucket) -> None:
        from liftpy.cli.tier.upkeep import collect_place

        rows: list[dict[str, Any]] = []
        for place in opened.places(stream, partition):
            collected = collect_place(opened, place, grace_s)
            rows.append({"partition": place.label} | collected._asdict())
            if not as_json:
                freed = show_bytes(collected.freed)
                stdout.print(f"{escape(place.label)}: {count_of(collected.deleted, 'object')} deleted, {freed}")
        if as_json:
            print_json({"bucket": opened.shown, "partitions": rows})

    with_bucket(where, work, as_json=as_json)


@app.command("merge")
@at_bucket
def merge(
    stream: Stream,
    partition: PartitionOption = None,
    object_bytes: ObjectBytes = "256MiB",
    alone: Alone = False,
    where: Where = ANYWHERE,
    as_json: JsonFlag = False,
) -> None:
    """Merge small objects of a stream that no leader merges: of a sealed stream or a lost cluster."""
    size = bytes_of("--object-bytes", object_bytes, as_json=as_json)

    def work(opened: OpenBucket) -> None:
        from liftpy.cli.tier.upkeep import merge_place

        if not size:
            raise UsageError("--object-bytes: objects of no size hold nothing; say a size such as 256MiB")
        rows: list[dict[str, Any]] = []
        for place in opened.places(stream, partition):
            merged = merge_place(opened, place, size, alone=alone)
            rows.append({"partition": place.label, "merged": merged})
            if not as_json:
                stdout.print(f"{escape(place.label)}: {count_of(merged, 'object')} became larger ones")
        if as_json:
            print_json({"bucket": opened.shown, "partitions": rows})

    with_bucket(where, work, as_json=as_json)


@app.command("seal")
@at_bucket
def seal(
    stream: Stream,
    partition: PartitionOption = None,
    force: Force = False,
    where: Where = ANYWHERE,
    as_json: JsonFlag = False,
) -> None:
    """End uploads of a stream to the bucket, permanently. New records stay on disk."""

    def work(opened: OpenBucket) -> None:
        from liftpy.cli.tier.upkeep import check_readable, seal_place

        rows: list[dict[str, Any]] = []
        places = opened.places(stream, partition)
        check_readable(opened, places)
        confirm(f"Seal the history of stream {stream}? This cannot be undone.", force=force)
        for place in places:
            end = seal_place(opened, place)
            rows.append({"partition": place.label, "end": end})
            if not as_json:
                stdout.print(f"{escape(place.label)} is sealed at offset {end}")
        if as_json:
            print_json({"bucket": opened.shown, "partitions": rows})

    with_bucket(where, work, as_json=as_json)


@app.command("fork")
@at_bucket
def fork(
    ctx: typer.Context,
    stream: Stream,
    name: Annotated[str, typer.Argument(help="Name of the new stream.", show_default=False)],
    subject: Annotated[str, typer.Option("--subject", help="NATS subject that the new stream stores.")],
    bucket_only: Annotated[
        bool,
        typer.Option(
            "--bucket-only", help="Create the fork in the bucket only, not in the cluster.", show_default=False
        ),
    ] = False,
    where: Where = ANYWHERE,
    as_json: JsonFlag = False,
) -> None:
    """Create a stream that starts with the history of another one.

    Both reference the same stream objects. The fork is created in the bucket, and then in the cluster of the bucket.
    """

    def work(opened: OpenBucket) -> ForkedStream:
        from liftpy.cli.tier.fork import fork_stream

        return fork_stream(opened, stream, name, subject)

    if not bucket_only:
        run(_check_cluster(ctx, where), as_json=as_json)
    forked = with_bucket(where, work, as_json=as_json)
    if not as_json:
        for each in forked.partitions:
            stdout.print(f"{escape(name)}/{each.partition} goes on at offset {each.end} of {escape(forked.source)}")
        copied = sum(each.copied for each in forked.partitions)
        if copied:
            stdout.print(f"{show_count(copied)} records were in objects that streams share, and were copied")
    if not bucket_only:
        run(_bring_in(ctx, forked.uuid), as_json=as_json)
    if as_json:
        print_json(forked.to_plain() | {"in_cluster": not bucket_only})
    elif bucket_only:
        stdout.print(f"{escape(name)} is in the bucket; liftpy restore brings it into the cluster")
    else:
        stdout.print(f"stream {escape(name)} is there")


async def _check_cluster(ctx: typer.Context, where: Where) -> None:
    async with open_admin(ctx) as lift:
        found = await lift.tier_status(limit=0)
    if where.url is None:
        raise UsageError("which bucket? Say --bucket s3://bucket/prefix, or set LIFTPY_TIER_URL")
    if found.url is None or found.url.rstrip("/") != where.url.rstrip("/"):
        has = f"has the bucket {found.url}" if found.url else "has no bucket"
        raise LiftError(f"the cluster {has}, not {where.url}: use that, or --bucket-only")


async def _bring_in(ctx: typer.Context, uuid: str) -> None:
    async with open_admin(ctx) as lift:
        plan = await lift.restore_plan()
        mine = replace(plan, streams=tuple(each for each in plan.streams if each.uuid == uuid))
        if plan.cluster_id != plan.own_cluster_id:
            raise LiftError("the bucket is another cluster's: the fork is in it, and liftpy restore brings it back")
        problems = [each.problem for each in await lift.restore(mine) if each.problem]
    if problems:
        raise LiftError(f"the fork is in the bucket, but not in the cluster: {'; '.join(problems)}")
