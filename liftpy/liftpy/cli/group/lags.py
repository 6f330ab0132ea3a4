"""How far consumer groups are behind, from what they have committed and from what their streams have. Pure.

Offsets are counted: of a compacted stream there may be fewer messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from liftpy_client.admin.details import PartitionDetails, StreamDetails
    from liftpy_client.admin.groups import GroupDetails, GroupMember, GroupOffset

__all__ = ["PartitionLag", "lags_of", "streams_of", "total_lag"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """How far a group is in one partition.

    Attributes:
        member: Member that reads it; None while nobody does.
        committed: The next offset to read; None while nothing is committed.
        committed_ns: When that was committed, since the epoch; None likewise.
        log_start: First offset there is; None when nobody tells.
        end: Offset after the last one that may be read; None when nobody tells.
        lag: How many offsets are left to read; None when that cannot be told.
        note: What is particular about it; "" for nothing.
        is_gone: The stream was deleted, and nothing of this counts any more.
    """

    stream: str
    uuid: str
    partition: int
    member: GroupMember | None
    committed: int | None
    committed_ns: int | None
    log_start: int | None
    end: int | None
    lag: int | None
    note: str = ""
    is_gone: bool = False

    def to_plain(self) -> dict[str, Any]:
        """For scripts."""
        names = ("stream", "uuid", "partition", "committed", "committed_ns", "log_start", "end", "lag", "note")
        return {name: getattr(self, name) for name in names} | {
            "member_id": None if self.member is None else self.member.member_id
        }


def streams_of(group: GroupDetails) -> list[str]:
    """The streams that a group reads or has read, by name."""
    names = {offset.stream for offset in group.offsets}
    for member in group.members:
        names |= {*member.subscriptions, *member.assigned}
    return sorted(names)


def lags_of(group: GroupDetails, streams: Mapping[str, StreamDetails]) -> list[PartitionLag]:
    """Every partition of the streams that a group reads or has committed something for, by stream and number.

    Where nothing is committed the group begins at the earliest message: another beginning is committed first.

    Args:
        group: Group to look at.
        streams: Those of its streams that there are, by name.
    """
    found: list[PartitionLag] = []
    committed: dict[tuple[str, int], GroupOffset] = {}
    for offset in group.offsets:
        stream = streams.get(offset.stream)
        if stream is not None and stream.uuid == offset.uuid:
            committed[offset.stream, offset.partition] = offset
        else:
            found.append(_of_gone(offset, "the stream is deleted" if stream is None else "of a deleted stream"))
    members = {
        (stream, number): member
        for member in group.members
        for stream, numbers in member.assigned.items()
        for number in numbers
    }
    read = {name for name, _ in (*committed, *members)} | {
        name for member in group.members for name in member.subscriptions
    }
    for name in read & streams.keys():
        for part in streams[name].partitions:
            place = name, part.partition
            found.append(_of_partition(streams[name], part, members.get(place), committed.get(place)))
    return sorted(found, key=lambda row: (row.stream, row.uuid, row.partition))


def _of_gone(offset: GroupOffset, note: str) -> PartitionLag:
    return PartitionLag(
        stream=offset.stream,
        uuid=offset.uuid,
        partition=offset.partition,
        member=None,
        committed=offset.offset,
        committed_ns=offset.committed_ns,
        log_start=None,
        end=None,
        lag=None,
        note=note,
        is_gone=True,
    )


def _of_partition(
    stream: StreamDetails, part: PartitionDetails, member: GroupMember | None, committed: GroupOffset | None
) -> PartitionLag:
    start, end = part.log_start, part.high_watermark
    lag, note = None, ""
    if start is None or end is None:
        note = "its leader does not answer"
    else:
        place = start if committed is None else committed.offset
        lag = max(0, end - max(place, start))
        if place < start:
            note = f"{start - place} offsets were removed unread"
        elif place > end:
            note = f"{place - end} beyond the end"
    return PartitionLag(
        stream=stream.name,
        uuid=stream.uuid,
        partition=part.partition,
        member=member,
        committed=None if committed is None else committed.offset,
        committed_ns=None if committed is None else committed.committed_ns,
        log_start=start,
        end=end,
        lag=lag,
        note=note,
    )


def total_lag(rows: Iterable[PartitionLag]) -> int:
    """Of all partitions whose lag can be told."""
    return sum(row.lag or 0 for row in rows)
