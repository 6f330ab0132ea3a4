"""`liftpy group reset`: change the committed offsets of a consumer group."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from liftpy.cli.group.streams import find_streams
from liftpy.cli.run import Force, JsonFlag, confirm, open_lift, print_json, run, stdout, tell_warnings
from liftpy.cli.tables import Column, make_table
from liftpy.cli.text import show_text
from liftpy.cli.units import parse_offset_or_time, show_count
from liftpy_client.consumer.positions import offset_of
from liftpy_client.errors import (
    AdminError,
    CommitRefusedError,
    GroupRefusedError,
    NodeUnavailableError,
    NoStreamError,
    UsageError,
)
from liftpy_client.group.options import check_group_name
from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.groups import GroupError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from liftpy_client.admin.details import PartitionDetails, StreamDetails
    from liftpy_client.admin.groups import GroupDetails
    from liftpy_client.client import Lift

__all__ = ["RESET_EXAMPLES", "Plan", "make_plan", "offsets_of", "parse_place", "reset"]

RESET_EXAMPLES: Final = """Examples:

liftpy group reset billing --to 2h --dry-run

liftpy group reset billing --to 1200 --stream orders --partition 3"""

Place = int | str | datetime
_WORDS: Final = ("earliest", "latest", "new")


class _Step(NamedTuple):
    """Where the group is to go on in one partition.

    Attributes:
        before: Where it would have gone on; None where it had committed nothing.
        to: The next offset to read.
        end: Offset after the last one there is.
    """

    stream: str
    partition: int
    before: int | None
    to: int
    end: int

    def to_plain(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "partition": self.partition,
            "from": self.before,
            "to": self.to,
            "lag": self.end - self.to,
        }


class Plan(NamedTuple):
    """What is to be done, and the group as it is; None when there is none yet."""

    steps: list[_Step]
    group: GroupDetails | None


def reset(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the group.", show_default=False)],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="earliest|latest|new|OFFSET|TIME",
            help="earliest, latest (the last message), new (existing messages are skipped), an offset, an ISO time, or "
            "a time span before now such as 1h.",
            show_default=False,
        ),
    ],
    stream: Annotated[
        list[str] | None,
        typer.Option("--stream", help="Only this stream; by default all that the group reads. Repeatable."),
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", min=0, help="Only this partition, of one stream. Repeatable.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the old and new offsets without changing them.")
    ] = False,
    force: Force = False,
    as_json: JsonFlag = False,
) -> None:
    """Change a group's committed offsets. The group must have no members."""

    async def prepare() -> Plan:
        check_group_name(name)
        place = parse_place(to)
        async with open_lift(ctx) as lift:
            return await make_plan(lift, name, place, stream or [], partition or [], is_dry=dry_run)

    async def apply() -> None:
        async with open_lift(ctx) as lift:
            await lift.reset_group(name, offsets_of(plan))

    plan = run(prepare(), as_json=as_json)
    if not as_json:
        stdout.print(_table(name, plan.steps, stdout.width, dry_run=dry_run))
        tell_warnings(_warnings(name, plan))
    if not dry_run:
        confirm(f"Move group {name}?", force=force)
        run(apply(), as_json=as_json)
    if as_json:
        print_json({"group": name, "dry_run": dry_run, "partitions": [step.to_plain() for step in plan.steps]})
    elif not dry_run:
        stdout.print(f"group {show_text(name)} goes on there")


def parse_place(to: str) -> Place:
    """Read where a group is to go on: `earliest`, `latest`, an offset, a time, or a span before now.

    Raises:
        UsageError: It is none of these, or a time in the future.
    """
    place = parse_offset_or_time(to, _WORDS, "--to")
    if isinstance(place, datetime) and place > datetime.now(UTC):
        raise UsageError(f"--to: {to} is in the future; to leave out what is there now, --to new")
    return place


def _check_no_members(name: str, group: GroupDetails | None) -> None:
    if group is None or not group.members:
        return
    count = len(group.members)
    text = f"group {name!r} has {count} member{'s' if count > 1 else ''}: stop them first"
    if any(member.instance_id for member in group.members):
        seconds = max(member.session_timeout_ms for member in group.members) / 1000
        text += f"; one with an instance id stays for {seconds:g} s after its end"
    raise GroupRefusedError(GroupError.GROUP_NOT_EMPTY, f"{text}. liftpy group describe shows them")


def _warnings(name: str, plan: Plan) -> list[str]:
    """What one should know before."""
    if plan.group is None:
        return [f"there is no group {name!r} yet; it begins with this"]
    if plan.group.members:
        return [f"group {name!r} has {len(plan.group.members)} members, and cannot be moved before they are stopped"]
    return []


def offsets_of(plan: Plan) -> dict[str, dict[int, int]]:
    """What to commit, by stream and partition."""
    offsets: dict[str, dict[int, int]] = {}
    for step in plan.steps:
        offsets.setdefault(step.stream, {})[step.partition] = step.to
    return offsets


async def make_plan(
    lift: Lift, name: str, place: Place, streams: list[str], partitions: list[int], *, is_dry: bool
) -> Plan:
    """Find out what a reset would change.

    Args:
        lift: Whom to ask.
        name: Of the group.
        place: Where it is to go on.
        streams: Of it; none for all that it has read.
        partitions: Of one stream; none for all.
        is_dry: Nothing is to be changed, so the group may have members.

    Raises:
        LiftError: The group has members, or it can not go on there.
    """
    group = await _find_group(lift, name)
    if not is_dry:
        _check_no_members(name, group)
    names = list(dict.fromkeys(streams)) or ([] if group is None else sorted({row.stream for row in group.offsets}))
    if not names:
        what = "there is no group" if group is None else "nothing is committed yet by group"
        raise UsageError(f"{what} {name!r}; to have it begin somewhere, say in which --stream")
    found = await find_streams(lift, names)
    for missing in (each for each in streams if each not in found):
        raise NoStreamError(f"there is no stream {missing!r}")
    if not found:
        raise NoStreamError(f"the streams that group {name!r} has read are deleted: {', '.join(names)}")
    if partitions and len(found) > 1:
        raise UsageError(f"--partition: of which --stream? There are {', '.join(found)}")
    committed = {} if group is None else {(row.uuid, row.partition): row.offset for row in group.offsets}
    steps: list[_Step] = []
    for details in found.values():
        parts = _parts(details, partitions)
        offsets = await _offsets(lift, details.name, place, parts)
        for part in parts:
            before = committed.get((details.uuid, part.partition))
            steps.append(_step(details.name, part, before, offsets[part.partition]))
    return Plan(steps, group)


async def _find_group(lift: Lift, name: str) -> GroupDetails | None:
    try:
        return await lift.group(name)
    except AdminError as error:
        if error.code is not ErrorCode.UNKNOWN_GROUP:
            raise
        return None


def _parts(stream: StreamDetails, numbers: list[int]) -> list[PartitionDetails]:
    count = len(stream.partitions)
    for number in numbers:
        if number >= count:
            raise UsageError(f"--partition: stream {stream.name} has partitions 0 to {count - 1}, not {number}")
    parts = [part for part in stream.partitions if not numbers or part.partition in numbers]
    for part in parts:
        if part.log_start is None or part.high_watermark is None:
            text = f"the leader of stream {stream.name} partition {part.partition} does not answer; try again"
            raise NodeUnavailableError(text)
    return parts


async def _offsets(lift: Lift, stream: str, place: Place, parts: Sequence[PartitionDetails]) -> dict[int, int]:
    """Where that is in each partition; an offset need not be there."""
    if isinstance(place, datetime):
        numbers = [part.partition for part in parts]
        async with lift.consume(stream, start=place, partitions=numbers) as consumer:
            return {number: consumer.position(number) for number in numbers}
    return {part.partition: place if isinstance(place, int) else _offset_of(place, part) for part in parts}


def _offset_of(word: str, part: PartitionDetails) -> int:
    start, end = part.log_start, part.high_watermark
    assert start is not None and end is not None  # noqa: PT018 - its leader told
    return offset_of(word, start, end)


def _step(stream: str, part: PartitionDetails, before: int | None, to: int) -> _Step:
    start, end = part.log_start, part.high_watermark
    assert start is not None and end is not None  # noqa: PT018 - its leader told
    if not start <= to <= end:
        raise CommitRefusedError(
            f"stream {stream} partition {part.partition}: offset {to} is out of range; choose {start} to {end}, or "
            "name the partitions to move with --stream and --partition"
        )
    return _Step(stream, part.partition, before, to, end)


def _table(name: str, steps: list[_Step], width: int, *, dry_run: bool) -> Table:
    columns = (
        Column("Stream"),
        Column("#", right=True),
        Column("From", right=True),
        Column("To", right=True),
        Column("Moved by", right=True, from_width=80),
        Column("Lag then", right=True, from_width=60),
    )
    rows = (
        {
            "Stream": step.stream,
            "#": str(step.partition),
            "From": "-" if step.before is None else show_count(step.before),
            "To": show_count(step.to),
            "Moved by": "-" if step.before is None else f"{step.to - step.before:+,}",
            "Lag then": show_count(step.end - step.to),
        }
        for step in steps
    )
    title = f"Group {show_text(name)} {'would go' if dry_run else 'goes'} on"
    return make_table(title, columns, rows, width)
