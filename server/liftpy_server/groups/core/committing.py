"""Which offsets of a commit stand.

A member may commit what it holds, from the generation on that gave it the partition until it says that it let go. So
of two members only one may commit a partition at any time; and since generations grow with every change of hands, and
sequence numbers with every commit of a process, commits that were delayed or sent twice are told from newer ones by
their token, also after the coordinator changed: it is in the log with the offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from liftpy_envelope.group_offsets import CommitRefusal
from liftpy_envelope.groups import GroupError
from liftpy_envelope.pull import PartitionKey
from liftpy_server.groups.core.offset_table import CommitToken
from liftpy_server.groups.core.records import (
    OFFSET_HEAD,
    OFFSET_SUFFIX,
    OFFSET_VERSION,
    CommittedOffset,
    GroupRecord,
    encode_offset,
    offset_key,
    offset_suffix,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from liftpy_envelope.group_offsets import CommitRequest, CommitStream
    from liftpy_server.groups.core.assignment import StreamShape
    from liftpy_server.groups.core.member import Member
    from liftpy_server.groups.core.offset_table import OffsetTable

__all__ = ["commit_as_member", "commit_without_member"]

_Outcome = tuple[list[GroupRecord], list[CommitRefusal]]
_Generations = dict[tuple[bytes, int], int]

_pack_suffix, _pack_head = OFFSET_SUFFIX.pack, OFFSET_HEAD.pack


def commit_as_member(member: Member, request: CommitRequest, table: OffsetTable, now_ns: int) -> _Outcome:
    """The records of what a member may commit, and what it may not.

    This is what a commit costs most: keys are plain tuples, which are equal to the named ones and cost a tenth of them,
    and values are packed here.
    """
    records: list[GroupRecord] = []
    refusals: list[CommitRefusal] = []
    group = request.group.encode()
    generation, sequence = token = CommitToken(request.generation, request.sequence)
    held, revoking = cast("_Generations", member.held), cast("_Generations", member.revoking)
    for uuid, stream, offsets in request.streams:
        name = stream.encode()
        name_length = len(name)
        for partition, offset, epoch, metadata in offsets:
            key = (uuid, partition)
            since = held.get(key)
            if since is None or (key in revoking and revoking[key] <= generation):
                refusals.append(CommitRefusal(PartitionKey(*key), GroupError.NOT_ASSIGNED))
                continue
            suffix = _pack_suffix(uuid, partition)
            last = table.token(group, suffix)
            if generation < since or (last is not None and token < last):
                refusals.append(CommitRefusal(PartitionKey(*key), GroupError.STALE_GENERATION))
            elif token != last:
                head = _pack_head(OFFSET_VERSION, name_length, 0, epoch, offset, now_ns, generation, sequence)
                records.append(GroupRecord(offset_key(group, suffix), head + name + metadata))
    return records, refusals


def commit_without_member(
    request: CommitRequest, streams: Mapping[str, StreamShape], generation: int, now_ns: int
) -> _Outcome:
    """The records of what is committed for a group without members: the last word counts.

    Args:
        request: The commit.
        streams: Streams that there are, by name.
        generation: Generation of the group; the next member's commits have a greater one.
        now_ns: Time, ns since the epoch.
    """
    records: list[GroupRecord] = []
    refusals: list[CommitRefusal] = []
    group = request.group.encode()
    for stream in request.streams:
        error = _stream_error(stream, streams.get(stream.name))
        count = streams[stream.name].partition_count if error is GroupError.NONE else 0
        for partition, offset, epoch, metadata in stream.offsets:
            key = PartitionKey(stream.uuid, partition)
            if partition >= count:
                refusals.append(CommitRefusal(key, error or GroupError.INVALID_REQUEST))
                continue
            committed = CommittedOffset(offset, epoch, now_ns, generation, 0, stream.name, metadata)
            records.append(GroupRecord(offset_key(group, offset_suffix(key)), encode_offset(committed)))
    return records, refusals


def _stream_error(asked: CommitStream, there: StreamShape | None) -> GroupError:
    if there is None:
        return GroupError.UNKNOWN_STREAM
    return GroupError.NONE if there.uuid == asked.uuid else GroupError.STREAM_RECREATED
