"""What consumer groups have committed: read it, and set it for a group that has no members."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_client.consumer.options import ConsumeOptions
from liftpy_client.consumer.positions import check_partitions
from liftpy_client.consumer.start_finder import StartFinder
from liftpy_client.errors import CommitRefusedError, GroupRefusedError, UsageError
from liftpy_client.group.link import GroupLink
from liftpy_client.group.options import check_group_name
from liftpy_envelope.group_offsets import (
    NO_MEMBER,
    OFFSETS_MAX,
    CommitOffset,
    CommitRequest,
    CommitStream,
    OffsetFetchRequest,
)
from liftpy_envelope.groups import GroupError
from liftpy_envelope.names import check_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from liftpy_client.connection.cluster import StreamPlace
    from liftpy_client.connection.session import Session
    from liftpy_envelope.group_offsets import CommitRefusal

__all__ = ["Bounds", "Committed", "check_offset", "committed", "find_bounds", "refusal_error", "reset_group"]

_TIMEOUT_S: Final = 15.0
_NO_GENERATION: Final = -1
_I64_END: Final = 2**63


class Committed(NamedTuple):
    """What a group has committed for a partition.

    Attributes:
        offset: The next message to read.
        epoch: Leader epoch of the record before it; -1 for unknown.
        metadata: What was committed with it.
    """

    offset: int
    epoch: int
    metadata: bytes


class Bounds(NamedTuple):
    """What there is of a partition: from `log_start` to before `end`."""

    log_start: int
    end: int


async def find_bounds(session: Session, stream: str, partitions: list[int]) -> tuple[StreamPlace, dict[int, Bounds]]:
    """Where a stream is, and what there is of these partitions of it.

    Raises:
        NoStreamError: there is no such stream.
        UsageError: it has no such partition.
        NodeUnavailableError, PullError: a leader cannot be found or asked.
    """
    check_partitions(partitions)
    finder = StartFinder(session, "earliest", "latest", partitions, ConsumeOptions())
    place, positions = await finder.find(stream)
    return place, {number: Bounds(at.offset, at.high_watermark) for number, at in positions.items()}


async def committed(session: Session, group: str, stream: str) -> dict[int, Committed]:
    """What a group has committed, by partition; partitions for which it has committed nothing are left out.

    Raises:
        NoStreamError: there is no such stream.
        UsageError: the name cannot be that of a group.
        CoordinatorUnavailableError: nobody can tell now.
    """
    check_group_name(group)
    place = await session.cluster.stream(check_name(stream), fresh=True)
    link = GroupLink(session, group)
    found: dict[int, Committed] = {}
    try:
        for first in range(0, place.config.partitions, OFFSETS_MAX):
            numbers = range(first, min(first + OFFSETS_MAX, place.config.partitions))
            keys = tuple(place.key(number) for number in numbers)
            request = OffsetFetchRequest(group, NO_MEMBER, "", _NO_GENERATION, keys)
            result = await link.insist(request, _until_s())
            assert result is not None, "the answer is wanted all the time"
            if result.error is not GroupError.NONE:
                raise GroupRefusedError(result.error, result.message)
            found |= {row.key.partition: Committed(*row[1:]) for row in result.offsets}
    finally:
        link.close()
    return found


async def reset_group(session: Session, name: str, offsets: Mapping[str, Mapping[int, int]]) -> None:
    """Have a group that has no members go on from these offsets.

    Args:
        session: Connections and the cluster's metadata.
        name: Name of the group, which need not exist yet.
        offsets: The next message to read, by stream and partition; what is not named stays as it is.

    Raises:
        CommitRefusedError: there is no such offset; it says what there is. Nothing was changed.
        GroupRefusedError: the group has members (`GROUP_NOT_EMPTY`), or a stream was created anew meanwhile.
        NoStreamError, UsageError: a stream or partition does not exist.
        CoordinatorUnavailableError: nobody could be asked; it may have been done in part, and may be repeated.
    """
    check_group_name(name)
    streams = [await _checked(session, check_name(stream), wanted) for stream, wanted in offsets.items() if wanted]
    link = GroupLink(session, name)
    try:
        for stream in streams:
            rows = iter(stream.offsets)
            while chunk := tuple(islice(rows, OFFSETS_MAX)):
                request = CommitRequest(name, NO_MEMBER, "", _NO_GENERATION, 0, (stream._replace(offsets=chunk),))
                result = await link.insist(request, _until_s())
                assert result is not None, "the answer is wanted all the time"
                if result.error is not GroupError.NONE:
                    raise GroupRefusedError(result.error, result.message)
                if result.refusals:
                    raise refusal_error(name, stream.name, result.refusals[0])
    finally:
        link.close()


async def _checked(session: Session, stream: str, wanted: Mapping[int, int]) -> CommitStream:
    for number, offset in wanted.items():
        check_offset(stream, number, offset)
    place, bounds = await find_bounds(session, stream, list(wanted))
    for number, offset in wanted.items():
        log_start, end = bounds[number]
        if not log_start <= offset <= end:
            raise CommitRefusedError(
                f"stream {stream} partition {number}: offset {offset} is out of range; choose {log_start} to {end}"
            )
    rows = tuple(CommitOffset(number, offset) for number, offset in sorted(wanted.items()))
    return CommitStream(place.uuid, stream, rows)


def check_offset(stream: str, partition: int, offset: object) -> None:
    """Refuse what cannot be an offset.

    Raises:
        UsageError: it is none.
    """
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < _I64_END:
        raise UsageError(
            f"stream {stream} partition {partition}: {offset!r} is not an offset (a whole number from 0 on)"
        )


def refusal_error(group: str, stream: str, refusal: CommitRefusal) -> GroupRefusedError:
    """The error for an offset that a coordinator did not commit."""
    why = {
        GroupError.INVALID_REQUEST: "there is no such partition or offset",
        GroupError.UNKNOWN_STREAM: "there is no such stream",
        GroupError.STREAM_RECREATED: "the stream was deleted and created again",
        GroupError.NOT_ASSIGNED: "the partition is another member's by now",
        GroupError.STALE_GENERATION: "the group is being rebalanced",
    }.get(refusal.error, refusal.error.name.lower().replace("_", " "))
    text = f"group {group!r}: stream {stream} partition {refusal.key.partition} was not committed: {why}"
    return GroupRefusedError(refusal.error, text)


def _until_s() -> float:
    return asyncio.get_running_loop().time() + _TIMEOUT_S
