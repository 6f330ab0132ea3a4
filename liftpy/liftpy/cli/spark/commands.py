"""`liftpy spark ...`: work on all of a bucket, by Spark. Where the bucket is named, it needs no node and no NATS."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from liftpy.cli.run import JsonFlag, fail, print_json, stdout
from liftpy.cli.spark.collect import collect
from liftpy.cli.spark.compact import compact
from liftpy.cli.spark.options import (
    Conf,
    DryRun,
    Master,
    Stream,
    TaskBytes,
    bytes_of,
    conf_of,
    needs_spark,
    seconds_of,
    tell,
    which_bucket,
)
from liftpy.cli.spark.restore import restore
from liftpy.cli.spark.scrub import scrub
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
from liftpy_client.errors import UsageError
from liftpy_envelope.errors import LiftError
from liftpy_envelope.no_pandas import let_pandas_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from liftpy_spark.jobs.export.driver import ExportTarget
    from liftpy_spark.jobs.export.files import ExportPlace

__all__ = ["app"]

_SIGNALLED_EXIT: Final = 128

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Run jobs over a whole bucket with Spark.")
app.callback()(let_pandas_in)  # Spark's driver does not run without it
app.command("compact")(compact)
app.command("restore")(restore)
app.command("scrub")(scrub)


class Format(StrEnum):
    """What an export writes."""

    PARQUET = "parquet"
    DELTA = "delta"


@app.command("export")
def export(
    ctx: typer.Context,
    stream: Stream,
    target: Annotated[
        str, typer.Argument(help="Directory that all machines share, or s3://bucket/prefix.", show_default=False)
    ],
    kind: Annotated[
        Format, typer.Option("--format", help="parquet for plain files, or delta for a Delta table.")
    ] = Format.PARQUET,
    headers: Annotated[
        bool, typer.Option("--headers", help="Include a column of headers.", show_default=False)
    ] = False,
    target_endpoint: Annotated[
        str | None, typer.Option(help="Endpoint URL of the target's store; by default --endpoint.", show_default=False)
    ] = None,
    hold: Annotated[
        str, typer.Option(help="Pin source objects for at most this long, if the command is killed.")
    ] = "6h",
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
    """Export a stream from the bucket to Parquet files or a Delta table.

    The columns are those of the Spark source. You can run it again, also after it was killed: it writes only what is
    missing.
    """
    size = bytes_of("--task-bytes", task_bytes, as_json=as_json)
    hold_s = seconds_of("--hold", hold, as_json=as_json)
    where = which_bucket(ctx, Where(bucket, endpoint, region), as_json=as_json)

    def work(opened: OpenBucket) -> None:
        with needs_spark():
            from liftpy_spark.jobs.export.driver import export as run_export
            from liftpy_spark.jobs.export.driver import plan_export
            from liftpy_spark.jobs.export.files import check_apart, place_of
            from liftpy_spark.jobs.sessions import session

        settings = opened.settings
        paths = [place.path for place in opened.places(stream, partition)]
        place = place_of(target, endpoint=target_endpoint or where.endpoint, region=where.region)
        check_apart(place, settings)
        into = _target(place, kind, headers=headers, creates=not dry_run)
        if dry_run:
            plan = plan_export(settings, paths, into, task_bytes=size)
            said = f"{count_of(plan.files, 'file')} of {show_bytes(plan.size)} in the bucket"
            tell(opened, plan._asdict() | {"target": into.place.url}, said, dry_run=True, as_json=as_json)
            return
        with session(master, conf_of(conf)) as spark, show_progress("exporting") as move:
            done = run_export(
                *(spark, settings, opened.stream(stream).stream.name, paths, into),
                include_headers=headers,
                progress=move,
                task_bytes=size,
                hold_s=hold_s,
            )
        held = f"{count_of(done.records, 'record')} in {count_of(done.files, 'file')}, {show_bytes(done.size)}"
        text = f"{into.place.url}: {held}" if done.files else "nothing is new"
        tell(opened, {"target": into.place.url} | done._asdict(), text, dry_run=False, as_json=as_json)

    with_bucket(where, work, as_json=as_json)


def _target(place: ExportPlace, kind: Format, *, headers: bool, creates: bool) -> ExportTarget:
    from liftpy_spark.jobs.export.delta_target import DeltaTarget
    from liftpy_spark.jobs.export.parquet_directory import ParquetDirectory

    if kind is Format.PARQUET:
        return ParquetDirectory(place)
    return DeltaTarget(place, include_headers=headers, creates=creates)


@app.command("merge")
def merge(
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
    dry_run: DryRun = False,
    as_json: JsonFlag = False,
) -> None:
    """Merge small objects of a stream that no leader merges: of a sealed stream or a lost cluster."""
    size = bytes_of("--object-bytes", object_bytes, as_json=as_json)
    where = which_bucket(ctx, Where(bucket, endpoint, region), alone=alone, as_json=as_json)

    def work(opened: OpenBucket) -> None:
        with needs_spark():
            from liftpy_spark.jobs.merging import merge as run_merge
            from liftpy_spark.jobs.merging import plan_merge
            from liftpy_spark.jobs.sessions import session

        settings, labels = opened.settings, {place.path: place.label for place in opened.places(stream, partition)}
        runs = plan_merge(settings, [*labels], object_bytes=size, alone=alone, labels=labels)
        planned = {"merged": sum(len(run.pointers) for run in runs), "made": len(runs)}
        said = f"{count_of(planned['merged'], 'object')} merged into {show_count(planned['made'])}"
        if runs and not dry_run:
            with session(master, conf_of(conf)) as spark, show_progress("merging") as move:
                run_merge(spark, settings, runs, progress=move)
        tell(opened, planned, said, dry_run=dry_run, as_json=as_json)

    with_bucket(where, work, as_json=as_json)


app.command("collect")(collect)


@app.command("submit", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
def submit(
    script: Annotated[str, typer.Argument(help="Python file to run.", show_default=False)],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.", show_default=False)] = None,
    master: Master = "local[*]",
    archive: Annotated[
        str | None,
        typer.Option(help="Packed environment for executors, made with venv-pack.", show_default=False),
    ] = None,
    py_files: Annotated[
        list[str] | None, typer.Option("--py-files", help="Module for executors. Repeatable.", show_default=False)
    ] = None,
    conf: Conf = None,
    dry_run: DryRun = False,
    as_json: JsonFlag = False,
) -> None:
    """Run your script with spark-submit, with this Python on the driver and liftpy on the executors.

    Put options of this command before the script. Exits with the code of the script.
    """
    try:
        with needs_spark():
            from liftpy_spark.jobs.sessions import submission

        for path in (script, *((archive,) if archive else ())):
            if not Path(path).is_file():
                raise UsageError(f"there is no file {path}")
        call = submission(
            *(script, arguments or ()), master=master, archive=archive, py_files=py_files or (), settings=conf_of(conf)
        )
        if dry_run and as_json:
            print_json(call._asdict())
            return
        if dry_run:
            shown = [*(f"{name}={value}" for name, value in call.environment.items()), *call.command]
            stdout.print(" ".join(shown), markup=False)
            return
        with _linked(call.link):
            code = _run_to_its_end(call.command, os.environ | call.environment)
    except (LiftError, OSError) as error:
        fail(error, as_json=as_json)
    raise typer.Exit(code)


def _run_to_its_end(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command that decides by itself what signals mean; gives its exit code, as shells count it.

    Ctrl-C at a terminal goes to it as well as to us, SIGTERM only to us. In either case it may have much to put away.
    """
    with subprocess.Popen(command, env=environment) as process:  # noqa: S603 (the user's own script)
        before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            while True:
                try:
                    code = process.wait()
                except KeyboardInterrupt:
                    continue
                return code if code >= 0 else _SIGNALLED_EXIT - code
        finally:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _linked(name: str | None) -> Iterator[None]:
    """The driver plans with a Python of the same relative path as the one that executors unpack."""
    if name is None or Path(name).exists():
        yield
        return
    Path(name).symlink_to(sys.prefix)
    try:
        yield
    finally:
        Path(name).unlink(missing_ok=True)
