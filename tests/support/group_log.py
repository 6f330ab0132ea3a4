"""What the log of the stream of the groups says of one group: who held what, and what was committed, in its order."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from liftpy_envelope.batch import HEADER_SIZE, decode_records
from liftpy_envelope.group_routing import GROUPS_STREAM
from liftpy_envelope.pull import PartitionKey
from liftpy_server.groups.core.member import Member
from liftpy_server.groups.core.records import OFFSET_KEY_AT, RecordKind, decode_offset, split_member_key
from support.segments import batches, segment_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


class Holding(NamedTuple):
    """A partition that a member may read, and the generation that gave it to it."""

    member_id: str
    generation: int


class CommitRow(NamedTuple):
    """A commit of one partition."""

    at_s: float
    partition: int
    offset: int
    generation: int
    sequence: int


class HoldersRow(NamedTuple):
    """Who holds what from here on, by partition; a partition may wrongly have several."""

    holders: Mapping[int, frozenset[Holding]]


Row = CommitRow | HoldersRow


def read_records(data: Path, partition: int) -> Iterator[tuple[bytes, bytes | None]]:
    """Keys and values of all records of a partition of the stream of the groups, from a node that has stopped."""
    for path in segment_files(data, GROUPS_STREAM, partition):
        content = path.read_bytes()
        for position, header in batches(path):
            records = decode_records(header, content[position + HEADER_SIZE : position + header.length])
            yield from zip(records.column("key").to_pylist(), records.column("value").to_pylist(), strict=True)


def read_group(data: Path, partition: int, group: str, uuid: bytes) -> list[Row]:
    """What there is of a group and one stream.

    Of one step of a coordinator the record of the group comes first, and those of members follow, in any order; so who
    holds what is known where the next step begins.
    """
    members: dict[str, Member] = {}
    rows: list[Row] = []
    known: Mapping[int, frozenset[Holding]] = {}

    def settle() -> None:
        nonlocal known
        found = _holders(members, uuid)
        if found != known:
            known = found
            rows.append(HoldersRow(found))

    for key, value in read_records(data, partition):
        if key[0] == RecordKind.MEMBER:
            name, member_id = split_member_key(key)
            if name == group and value is not None:
                members[member_id] = Member.from_value(member_id, value)
            elif name == group:
                members.pop(member_id, None)
            continue
        settle()
        if key[0] == RecordKind.OFFSET and key[OFFSET_KEY_AT:].decode() == group and value is not None:
            place = PartitionKey(key[1:17], int.from_bytes(key[17:OFFSET_KEY_AT], "big"))
            committed = decode_offset(value)
            if place.uuid == uuid:
                token = (committed.generation, committed.sequence)
                at_s = committed.commit_time_ns / 1e9
                rows.append(CommitRow(at_s, place.partition, committed.offset, *token))
    settle()
    return rows


def _holders(members: Mapping[str, Member], uuid: bytes) -> dict[int, frozenset[Holding]]:
    found: dict[int, set[Holding]] = {}
    for member_id, member in members.items():
        for key, generation in member.held.items():
            if key.uuid == uuid:
                found.setdefault(key.partition, set()).add(Holding(member_id, generation))
    return {number: frozenset(holdings) for number, holdings in found.items()}
