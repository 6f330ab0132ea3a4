"""The coordinator of one consumer group: inputs and the time go in, records and answers come out.

The state runs ahead of the log, and answers wait for it: what anybody was ever told is in the log, and a coordinator
made from the log has at least that. It knows all that it must not contradict: who holds what, since which generation,
and what was committed. What it does not know is when members were last heard, so it gives each a whole timeout.

A member that knows of a generation that this coordinator does not was told so by a later coordinator: this one is
none any more, whether or not its node knows already, and answers NOT_LEADER.

Rebalancing is cooperative: see `roster`. Nobody waits for anybody but the new owner of a partition for the old one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from liftpy_envelope.group_offsets import (
    NO_MEMBER,
    CommitRequest,
    CommitResult,
    FetchedOffset,
    OffsetFetchRequest,
    OffsetFetchResult,
)
from liftpy_envelope.groups import (
    AssignedStream,
    GroupError,
    HeartbeatRequest,
    JoinRequest,
    LeaveRequest,
    MembershipResult,
)
from liftpy_server.groups.core.committing import commit_as_member, commit_without_member
from liftpy_server.groups.core.inputs import DeleteGroup, Effects, GroupTick, StreamsChanged
from liftpy_server.groups.core.member import GroupImage, Member, joined_generation, size_of_join_options
from liftpy_server.groups.core.records import OFFSET_HEAD, OFFSET_SUFFIX, GroupRecord, group_key
from liftpy_server.groups.core.roster import Roster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from liftpy_envelope.pull import PartitionKey
    from liftpy_server.groups.core.assignment import StreamShape
    from liftpy_server.groups.core.inputs import Answer, Input, Now
    from liftpy_server.groups.core.offset_table import OffsetTable
    from liftpy_server.groups.core.records import CommittedOffset

__all__ = ["MEMBERS_MAX", "GroupCoordinator", "refused"]

MEMBERS_MAX: Final = 1_000


class GroupCoordinator:
    """Coordinates one group: `step` takes every input. A group that the log does not know begins empty.

    Args:
        group: Name of the group.
        table: What the groups of this partition have committed; the coordinator keeps its group's part of it.
        image: What the log knows of the group.
        members: Members that the log knows.
    """

    def __init__(
        self,
        group: str,
        table: OffsetTable,
        image: GroupImage | None = None,
        members: Iterable[Member] = (),
    ) -> None:
        self.group = group
        self._name = group.encode()
        self._table = table
        self._roster = Roster(group, image or GroupImage(), members)
        self._streams: Mapping[str, StreamShape] | None = None
        self._revision = self._roster.image.revision
        self._seen: dict[str, tuple[bytes, int]] = {}
        self._names: dict[bytes, str] = {}

    @property
    def generation(self) -> int:
        """The newest one of any member."""
        return self._roster.generation

    @property
    def members(self) -> Mapping[str, Member]:
        """Members of the group, by id."""
        return self._roster.members

    @property
    def members_bytes(self) -> int:
        """What its members asked for, in bytes."""
        return sum(member.size_bytes for member in self.members.values())

    def growth_bytes(self, request: JoinRequest | CommitRequest) -> int:
        """How many bytes the group would grow by; at least: what is refused for another reason is counted as well."""
        if isinstance(request, CommitRequest):
            sizes = (
                (
                    OFFSET_SUFFIX.pack(stream.uuid, row.partition),
                    OFFSET_HEAD.size + len(stream.name) + len(row.metadata),
                )
                for stream in request.streams
                for row in stream.offsets
            )
            return self._table.growth(self.group, sizes)
        known = self._roster.by_nonce(request.nonce) or self._roster.by_instance(request.instance_id)
        return size_of_join_options(request) - (0 if known is None else known.size_bytes)

    @property
    def next_s(self) -> float:
        """When a tick is due, monotonic; infinite when there is nothing to wait for."""
        if self._streams is None:
            return float("inf")
        return min((min(m.deadline_s, m.revoke_deadline_s) for m in self.members.values()), default=float("inf"))

    def step(self, given: Input, now: Now) -> Effects:
        """Process one input, and return the effects."""
        self._roster.begin(now.s)
        handle = self._HANDLERS[type(given)]
        if self._streams is None and not isinstance(given, (StreamsChanged, GroupTick)):
            return Effects(answer=refused(given, GroupError.NOT_AVAILABLE, "the coordinator starts; ask again"))
        records: list[GroupRecord] = []
        answer = handle(self, given, now, records)
        written, told = self._roster.written()
        return Effects((*written, *records), answer, told)

    def _joined(self, request: JoinRequest, now: Now, _records: list[GroupRecord]) -> Answer:
        member = self._roster.by_nonce(request.nonce)
        if member is None:
            predecessor = self._roster.by_instance(request.instance_id)
            if predecessor is not None and request.nonce in predecessor.fenced:
                return refused(request, GroupError.FENCED_MEMBER, self._fenced_message(request.instance_id))
            if predecessor is None and len(self.members) >= MEMBERS_MAX:
                message = f"group {self.group!r} has {MEMBERS_MAX} members and takes no more"
                return refused(request, GroupError.GROUP_FULL, message)
            member = Member.joining(self._roster.new_generation(), request)
            if predecessor is None:
                self._roster.add(member)
            else:
                self._roster.replace(predecessor, member)
            self._retarget()
        elif request.revision > member.revision:
            member.change(request)
            self._roster.renew(member)
            self._retarget()
        member.heard(now.s)
        return self._membership(member, adopted=-1)

    def _heartbeat(self, request: HeartbeatRequest, now: Now, _records: list[GroupRecord]) -> Answer:
        member = self._member(request)
        if not isinstance(member, Member):
            return refused(request, *member)
        member.heard(now.s)
        self._roster.release(member, request.generation)
        return self._membership(member, request.generation)

    def _left(self, request: LeaveRequest, now: Now, _records: list[GroupRecord]) -> Answer:
        member = self.members.get(request.member_id)
        if member is not None:
            self._roster.remove(member, now.ns)
            self._retarget()
        return MembershipResult(GroupError.NONE, member_id=request.member_id)

    def _committed(self, request: CommitRequest, now: Now, records: list[GroupRecord]) -> Answer:
        if request.member_id == NO_MEMBER:
            if self.members:
                message = f"group {self.group!r} has members: only they commit"
                return refused(request, GroupError.GROUP_NOT_EMPTY, message)
            made, refusals = commit_without_member(request, self._streams or {}, self.generation, now.ns)
        else:
            member = self._member(request)
            if not isinstance(member, Member):
                return refused(request, *member)
            made, refusals = commit_as_member(member, request, self._table, now.ns)
        self._table.apply_many(made)
        records += made
        return CommitResult(GroupError.NONE, "", tuple(refusals))

    def _fetched(self, request: OffsetFetchRequest, _now: Now, _records: list[GroupRecord]) -> Answer:
        if request.member_id != NO_MEMBER:
            member = self._member(request)
            if not isinstance(member, Member):
                return refused(request, *member)
        found = []
        for key in request.keys:
            committed = self._table.find(self._name, key)
            if committed is not None:
                epoch = self._epoch_of(key, committed)
                found.append(FetchedOffset(key, committed.offset, epoch, committed.metadata))
        return OffsetFetchResult(GroupError.NONE, "", tuple(found))

    def _epoch_of(self, key: PartitionKey, committed: CommittedOffset) -> int:
        """Leader epoch of what was committed.

        Where it is not known (the end of what was read had been left out by a filter, or a user set the offset), but
        lies beyond what the partition was restored with, it is one from before: so the consumer learns that what it
        has read was lost, and does not skip what came there since.
        """
        stream = (self._streams or {}).get(committed.stream)
        if committed.epoch >= 0 or stream is None or stream.uuid != key.uuid:
            return committed.epoch
        recovery = stream.recovery(key.partition)
        if recovery is None or committed.commit_time_ns >= recovery.time_ns or committed.offset <= recovery.end:
            return committed.epoch
        return recovery.epoch - 1

    def _streams_changed(self, given: StreamsChanged, now: Now, _records: list[GroupRecord]) -> None:
        if given.revision < self._revision:
            return  # somebody knew more already; until as much is known here nothing may be taken from anybody
        is_first = self._streams is None
        if is_first:  # until now nobody could be heard
            for member in self.members.values():
                member.restart(now.s)
        self._streams = given.streams
        self._revision = given.revision
        if is_first or self._shapes() != self._seen:
            self._retarget()

    def _tick(self, given: GroupTick, now: Now, _records: list[GroupRecord]) -> None:
        if self._streams is None:
            return
        members = list(self.members.values())
        for member in members:
            member.deadline_s += given.paused_s
            member.revoke_deadline_s += given.paused_s
        late = [member for member in members if min(member.deadline_s, member.revoke_deadline_s) <= now.s]
        for member in late:
            self._roster.remove(member, now.ns)
        if late:
            self._retarget()

    def _deleted(self, given: DeleteGroup, now: Now, records: list[GroupRecord]) -> Answer:
        if self.members:
            return MembershipResult(GroupError.GROUP_NOT_EMPTY, f"group {self.group!r} has members: stop them first")
        used_ns = max(self._table.newest_ns(self.group) or 0, self._roster.image.emptied_ns)
        if used_ns + given.idle_ns > now.ns:
            return MembershipResult(GroupError.GROUP_NOT_EMPTY, f"group {self.group!r} was in use a short while ago")
        made = self._table.tombstones(self.group)
        self._table.apply_many(made)
        records += [*made, GroupRecord(group_key(self.group), None)]
        return MembershipResult(GroupError.NONE)

    def _retarget(self) -> None:
        assert self._streams is not None
        self._roster.retarget(self._streams, self._revision)
        self._seen = self._shapes()
        self._names = {uuid: name for name, (uuid, _count) in self._seen.items()}

    def _shapes(self) -> dict[str, tuple[bytes, int]]:
        """What of the streams matters to this group."""
        streams = self._streams or {}
        wanted = {name for member in self.members.values() for name in member.subscriptions} & streams.keys()
        return {name: streams[name][:2] for name in wanted}

    def _member(
        self, request: HeartbeatRequest | CommitRequest | OffsetFetchRequest
    ) -> Member | tuple[GroupError, str]:
        """The member that asks, or why it may not."""
        member = self.members.get(request.member_id)
        joined = joined_generation(request.member_id)
        known = self.generation if member is None else member.generation
        if max(request.generation, joined) > known:
            return GroupError.NOT_LEADER, "another node coordinates the group by now; look it up again"
        if member is not None:
            return member
        successor = self._roster.by_instance(request.instance_id)
        is_same = successor is not None and request.member_id.endswith(successor.nonce.hex())
        if successor is not None and not is_same and joined < joined_generation(successor.member_id):
            return GroupError.FENCED_MEMBER, self._fenced_message(request.instance_id)
        message = f"group {self.group!r} has no member {request.member_id!r}: its session ended; join again"
        return GroupError.UNKNOWN_MEMBER, message

    def _fenced_message(self, instance_id: str) -> str:
        return f"another process took the place of member {instance_id!r} of group {self.group!r}; stop this one"

    def _membership(self, member: Member, adopted: int) -> MembershipResult:
        assignment = None
        if adopted != member.generation:
            numbers: dict[bytes, list[int]] = {}
            for uuid, number in member.assigned:
                numbers.setdefault(uuid, []).append(number)
            assignment = tuple(AssignedStream(uuid, self._names[uuid], tuple(rows)) for uuid, rows in numbers.items())
        return MembershipResult(GroupError.NONE, "", member.member_id, member.generation, assignment)

    _HANDLERS: ClassVar[dict[type, Callable[[GroupCoordinator, Any, Now, list[GroupRecord]], Answer | None]]] = {
        JoinRequest: _joined,
        HeartbeatRequest: _heartbeat,
        LeaveRequest: _left,
        CommitRequest: _committed,
        OffsetFetchRequest: _fetched,
        StreamsChanged: _streams_changed,
        GroupTick: _tick,
        DeleteGroup: _deleted,
    }


def refused(given: object, error: GroupError, message: str) -> Answer:
    """The answer to an input that refuses it as a whole."""
    if isinstance(given, CommitRequest):
        return CommitResult(error, message)
    if isinstance(given, OffsetFetchRequest):
        return OffsetFetchResult(error, message)
    return MembershipResult(error, message)
