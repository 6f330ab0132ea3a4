"""`liftpy stream ...`: add, look at, change and remove streams."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from liftpy.cli.run import Force, JsonFlag, confirm, fail, open_admin, open_lift, print_json, run, stdout, tell_warnings
from liftpy.cli.stream.messages import GET_EXAMPLES, get, subjects, view
from liftpy.cli.stream.options import CREATE_ONLY, parsed, stream_options
from liftpy.cli.stream.reassign import reassign
from liftpy.cli.stream.recover import recover
from liftpy.cli.stream.replicas import end_of
from liftpy.cli.stream.tables import (
    gaps_table,
    partition_table,
    partitions_table,
    quarantine_table,
    replicas_table,
    settings_table,
    show_setting,
    state_table,
    streams_table,
)
from liftpy.cli.units import show_count
from liftpy_client.errors import UsageError
from liftpy_envelope.stream_config import StreamConfig

if TYPE_CHECKING:
    from liftpy_client.admin.admin import Admin
    from liftpy_client.admin.details import StreamDetails
    from liftpy_client.admin.recovery import QuarantineDetails

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Add, inspect, change and remove streams.")
app.command("reassign")(reassign)
app.command("recover")(recover)
app.command("get", epilog=GET_EXAMPLES)(get)
app.command("view")(view)
app.command("subjects")(subjects)

Name = Annotated[str, typer.Argument(help="Name of the stream.", show_default=False)]

_NO_STREAMS = "No streams yet: liftpy stream add NAME --subject SUBJECT"


def _show(stream: StreamDetails, quarantine: QuarantineDetails | None = None, *, as_json: bool) -> None:
    if as_json:
        aside = {} if quarantine is None else {"quarantine": quarantine.raw}
        print_json(stream.raw | {"warnings": list(stream.warnings)} | aside)
        return
    stdout.print(settings_table(stream))
    stdout.print(partitions_table(stream, stdout.width))
    table_aside = None if quarantine is None else quarantine_table(quarantine, stdout.width)
    for table in (replicas_table(stream), gaps_table(stream), table_aside):
        if table is not None:
            stdout.print(table)
    tell_warnings(stream.warnings)


def _tell(stream: StreamDetails, lines: list[str], *, as_json: bool) -> None:
    """Say what a command changed; liftpy stream info has the rest."""
    if as_json:
        _show(stream, as_json=True)
        return
    stdout.print("\n".join(lines))
    tell_warnings(stream.warnings)


def _settings_lines(settings: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """What settings are, and what they were where that is known."""
    return [
        f"  {name}: {show_setting(name, value)}"
        + (f" (was {show_setting(name, before[name])})" if before.get(name, value) != value else "")
        for name, value in settings.items()
    ]


def _accepting(stream: StreamDetails) -> str:
    """Whether the stream accepts messages, and what to do if it does not."""
    name = stream.name
    causes = []
    if stream.paused:
        causes.append(("paused", f"liftpy stream resume {name}"))
    if stream.read_only:
        causes.append(("read-only", f"liftpy stream readonly {name} --off"))
    if not causes:
        return f"stream {name} accepts messages"
    states, ends = zip(*causes, strict=True)
    return f"stream {name} is {' and '.join(states)} and refuses messages; to accept them again: {'; '.join(ends)}"


@app.command("add")
@stream_options("subject")
def add(
    ctx: typer.Context,
    name: Name,
    subject: Annotated[str, typer.Option("--subject", help="NATS subject to store, wildcards included.")],
    given: dict[str, Any],
    as_json: JsonFlag = False,
) -> None:
    """Create a stream. Succeeds if it exists with the same settings."""

    async def work() -> None:
        settings = parsed(given)
        async with open_admin(ctx) as lift:
            stream = await lift.create_stream(name, subject=subject, **settings)
        copies = f"partitions: {len(stream.partitions)}, replicas: {stream.config.replicas}"
        lines = [f"stream {name} stores {escape(subject)}; {copies}"]
        usual = StreamConfig(name=name, subject=subject).to_plain()
        chosen = {setting: value for setting, value in settings.items() if value != usual[setting]}
        for told in ("partitions", "replicas"):
            chosen.pop(told, None)
        _tell(stream, lines + _settings_lines(chosen, {}), as_json=as_json)

    run(work(), as_json=as_json)


@app.command("edit")
@stream_options(*CREATE_ONLY)
def edit(ctx: typer.Context, name: Name, given: dict[str, Any], as_json: JsonFlag = False) -> None:
    """Change settings of a stream."""

    async def work() -> None:
        changes = parsed(given)
        if changes.get("group") == "":
            changes["group"] = None
        if not changes:
            raise UsageError("nothing to change: name a setting, see liftpy stream edit --help")
        async with open_admin(ctx) as lift:
            before = (await lift.stream_info(name)).config.to_plain()
            stream = await lift.update_stream(name, **changes)
        after = {setting: stream.config.to_plain()[setting] for setting in changes}
        _tell(stream, [f"stream {name} is changed", *_settings_lines(after, before)], as_json=as_json)

    run(work(), as_json=as_json)


@app.command("list", hidden=True)
@app.command("ls")
def ls(
    ctx: typer.Context,
    names: Annotated[bool, typer.Option("--names", "-n", help="Print names only.")] = False,
    internal: Annotated[
        bool, typer.Option("--all", "-a", "--internal", help="Include liftpy's internal streams.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """List the streams."""

    async def work() -> None:
        async with open_admin(ctx) as lift:
            streams = [stream async for stream in lift.streams(internal=internal)]
        if as_json:
            print_json([stream.name if names else stream.raw for stream in streams])
        elif names:
            for stream in streams:
                stdout.print(stream.name)
        elif streams:
            stdout.print(streams_table(streams, width=stdout.width))
        else:
            stdout.print(_NO_STREAMS)

    run(work(), as_json=as_json)


@app.command("report")
def report(ctx: typer.Context, as_json: JsonFlag = False) -> None:
    """All streams, with their partitions."""

    async def work() -> None:
        async with open_admin(ctx) as lift:
            streams = [stream async for stream in lift.streams()]
        if as_json:
            print_json([stream.raw for stream in streams])
            return
        if not streams:
            stdout.print(_NO_STREAMS)
            return
        stdout.print(streams_table(streams, width=stdout.width))
        for stream in streams:
            table = partitions_table(stream, stdout.width)
            table.title = f"Partitions of {stream.name}"
            stdout.print(table)

    run(work(), as_json=as_json)


@app.command("describe", hidden=True)
@app.command("info")
def info(
    ctx: typer.Context,
    name: Name,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Show all of this partition instead.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show a stream: settings, counts, partitions, replicas, gaps and quarantine."""

    async def work() -> None:
        async with open_admin(ctx) as lift:
            if partition is not None:
                _show_partition(await lift.stream_info(name), partition, as_json=as_json)
                return
            stream, quarantine = await asyncio.gather(lift.stream_info(name), lift.quarantine(name))
            _show(stream, quarantine, as_json=as_json)

    run(work(), as_json=as_json)


def _show_partition(stream: StreamDetails, number: int, *, as_json: bool) -> None:
    if number >= len(stream.partitions):
        raise UsageError(f"stream {stream.name} has partitions 0 to {len(stream.partitions) - 1}, not {number}")
    if as_json:
        print_json(stream.raw["partitions"][number])
        return
    stdout.print(partition_table(stream, number))
    for table in (replicas_table(stream, number), gaps_table(stream, number)):
        if table is not None:
            stdout.print(table)


@app.command("state")
def state(ctx: typer.Context, name: Name, as_json: JsonFlag = False) -> None:
    """Show what a stream holds, without its settings: counts, partitions and gaps."""

    async def work() -> None:
        async with open_admin(ctx) as lift:
            stream = await lift.stream_info(name)
        if as_json:
            print_json({name: value for name, value in stream.raw.items() if name != "config"})
            return
        for table in (state_table(stream), partitions_table(stream, stdout.width), gaps_table(stream)):
            if table is not None:
                stdout.print(table)

    run(work(), as_json=as_json)


@app.command("find")
def find(
    ctx: typer.Context,
    subject: Annotated[str, typer.Argument(help="A subject, wildcards allowed.", show_default=False)],
    as_json: JsonFlag = False,
) -> None:
    """List the streams that store a subject, or any of a pattern."""

    async def work() -> None:
        async with open_admin(ctx) as lift:
            names = await lift.find_streams(subject)
        if as_json:
            print_json(names)
        else:
            stdout.print("\n".join(names) if names else f"no stream stores {subject}", markup=False)

    run(work(), as_json=as_json)


@app.command("rm")
def rm(ctx: typer.Context, name: Name, force: Force = False, as_json: JsonFlag = False) -> None:
    """Delete a stream with all of its records."""
    confirm(f"Delete stream {name} and everything in it?", force=force)

    async def work() -> None:
        async with open_admin(ctx) as lift:
            await lift.delete_stream(name)
        if as_json:
            print_json({"deleted": name})
        else:
            stdout.print(f"stream {name} is deleted")

    run(work(), as_json=as_json)


@app.command("purge")
def purge(
    ctx: typer.Context,
    name: Name,
    offset: Annotated[int | None, typer.Option(help="First offset to keep; by default no record is kept.")] = None,
    keep: Annotated[
        int | None, typer.Option(min=1, help="Keep the last this many offsets of each partition.", show_default=False)
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")] = None,
    subject: Annotated[
        str | None,
        typer.Option(
            help="Delete the keys whose last message is on this subject, wildcards included, by tombstones; for "
            "streams that are compacted by key."
        ),
    ] = None,
    force: Force = False,
    as_json: JsonFlag = False,
) -> None:
    """Delete records of a stream: the oldest ones, or keys."""
    if keep is not None and offset is not None:
        fail(UsageError("--offset and --keep exclude each other"), as_json=as_json)
    if subject is not None:
        if (offset, keep, partition) != (None, None, None):
            fail(UsageError("--subject deletes keys: leave --offset, --keep and --partition out"), as_json=as_json)
        confirm(f"Delete the keys of stream {name} whose last message is on {subject}?", force=force)
        run(_purge_keys(ctx, name, subject, as_json=as_json), as_json=as_json)
        return
    confirm(f"Delete records of stream {name}?", force=force)

    async def work() -> None:
        async with open_admin(ctx) as lift:
            if keep is None:
                stream = await lift.purge_stream(name, partition=partition, offset=offset)
            else:
                stream = await _purge_but(lift, name, keep, partition)
        _tell(stream, [f"stream {name} is purged: {show_count(stream.messages)} messages are left"], as_json=as_json)

    run(work(), as_json=as_json)


async def _purge_keys(ctx: typer.Context, name: str, subject: str, *, as_json: bool) -> None:
    """Publish a tombstone for each key whose last message is on a subject."""
    from liftpy.cli.stream.finding import keys_on

    async with open_lift(ctx) as lift:
        if not (await lift.stream_info(name)).config.compact:
            raise UsageError(
                f"stream {name} is not compacted by key, so single messages cannot be deleted: without --subject, the "
                "oldest ones are"
            )
        keys = await keys_on(lift, name, subject)
        async with lift.publisher(stream=name, envelope=False) as publisher:
            for key, of_key in keys:
                await publisher.publish(of_key, None, key=key)
    if as_json:
        print_json({"stream": name, "deleted_keys": len(keys)})
    else:
        stdout.print(f"stream {name}: {show_count(len(keys))} keys are deleted; compaction removes their messages")


async def _purge_but(lift: Admin, name: str, keep: int, partition: int | None) -> StreamDetails:
    """Purge all but the last offsets of each partition; of one where that is named."""
    stream = await lift.stream_info(name)
    if partition is not None and partition >= len(stream.partitions):
        raise UsageError(f"stream {name} has partitions 0 to {len(stream.partitions) - 1}, not {partition}")
    wanted = [part for part in stream.partitions if partition in {None, part.partition}]
    offsets = {part.partition: end_of(name, part) - keep for part in wanted}  # all are known before the first is purged
    for part in wanted:
        if part.log_start is not None and part.log_start < offsets[part.partition]:
            stream = await lift.purge_stream(name, partition=part.partition, offset=offsets[part.partition])
    return stream


@app.command("pause")
def pause(ctx: typer.Context, name: Name, as_json: JsonFlag = False) -> None:
    """Refuse messages until the stream is resumed."""

    async def work() -> None:
        async with open_admin(ctx) as lift:
            stream = await lift.pause_stream(name)
        _tell(stream, [_accepting(stream)], as_json=as_json)

    run(work(), as_json=as_json)


@app.command("resume")
def resume(ctx: typer.Context, name: Name, as_json: JsonFlag = False) -> None:
    """Accept messages again."""

    async def work() -> None:
        async with open_admin(ctx) as lift:
            stream = await lift.resume_stream(name)
        _tell(stream, [_accepting(stream)], as_json=as_json)

    run(work(), as_json=as_json)


@app.command("readonly")
def readonly(
    ctx: typer.Context,
    name: Name,
    off: Annotated[bool, typer.Option("--off", help="Accept messages again.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Make a stream read-only: it refuses messages, and serves those that it has."""

    async def work() -> None:
        async with open_admin(ctx) as lift:
            stream = await lift.set_read_only(name, read_only=not off)
        _tell(stream, [_accepting(stream)], as_json=as_json)

    run(work(), as_json=as_json)
