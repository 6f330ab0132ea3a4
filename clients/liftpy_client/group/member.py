"""A member of a consumer group as a state machine: answers and the time go in, requests and losses come out. Pure.

It joins with a nonce and then heartbeats. The newest assignment is `pending` until the caller has stopped every
partition that is not in it, has committed what was processed of them, and calls `adopt`. Partitions that an assignment
adds are `unfetched` until their committed offsets are known. A commit carries the adopted generation and a growing
sequence, so that the coordinator can tell late commits from newer ones.

All partitions are lost at once when the coordinator does not know the member, when the coordinator was unreachable for
too long, or when the process stood still for longer than its session: other members may have the partitions then. The
member joins again with a greater revision. An answer counts from the time at which its request was sent, because it
may have waited here to be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_client.errors import GroupFencedError, GroupRefusedError
from liftpy_envelope.group_offsets import OFFSETS_MAX, CommitRequest, CommitStream, OffsetFetchRequest
from liftpy_envelope.groups import GroupError, HeartbeatRequest, JoinRequest, LeaveRequest
from liftpy_envelope.pull import PartitionKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from liftpy_envelope.group_offsets import CommitOffset, CommitResult, FetchedOffset, OffsetFetchResult
    from liftpy_envelope.groups import MembershipResult

__all__ = ["Assignment", "GroupMember", "JoinOptions", "Lost"]

_STILL_PER_SESSION: Final = 4


class JoinOptions(NamedTuple):
    """What a process says when it joins; see `JoinRequest`."""

    group: str
    instance_id: str
    client_id: str
    rack: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    subscriptions: tuple[str, ...]


class Assignment(NamedTuple):
    """What a member is to have from a generation on."""

    member_id: str
    generation: int
    keys: frozenset[PartitionKey]


class Lost(NamedTuple):
    """All that a member had is lost."""

    keys: frozenset[PartitionKey]
    reason: str


class GroupMember:
    """The membership of one process in one group. All times are seconds of one monotonic clock.

    Args:
        join_options: Fields of the join request.
        nonce: 16 random bytes that identify this process.
        now_s: The time.

    Attributes:
        member_id: Id from the coordinator. "" while it is no member.
        generation: Adopted generation.
        owned: Partitions that it may read, each with the generation that assigned it.
        unfetched: Owned partitions whose committed offset is not known yet.
        names: Names of all streams in its assignments so far, by uuid.
        pending: An assignment that it has to adopt.
        beat_s: When somebody last looked at the time.
        stall_s: Not to look for so long is to stand still.
    """

    def __init__(self, join_options: JoinOptions, nonce: bytes, now_s: float) -> None:
        self.join_options = join_options
        self.revision = 0
        self.member_id = ""
        self.generation = 0
        self.owned: dict[PartitionKey, int] = {}
        self.unfetched: set[PartitionKey] = set()
        self.names: dict[bytes, str] = {}
        self.pending: Assignment | None = None
        self.beat_s = now_s
        self._nonce = nonce
        self._joined_revision = -1  # the newest that the coordinator is known to have
        self._told = 0
        self._sequence = 0
        self._heard_s = now_s
        self._session_s = join_options.session_timeout_ms / 1000
        self._silence_s_max = max(2 * self._session_s, join_options.rebalance_timeout_ms / 1000)
        self.stall_s = self._session_s / _STILL_PER_SESSION

    @property
    def is_joined(self) -> bool:
        """Whether the coordinator knows the member and its newest join_options."""
        return bool(self.member_id) and self._joined_revision == self.revision

    # -- membership

    def request(self, wait_ms_max: int) -> JoinRequest | HeartbeatRequest:
        """What to ask the coordinator now.

        Args:
            wait_ms_max: How long it may wait for news before it answers a heartbeat.
        """
        if self.is_joined:
            wait_ms = 0 if self.pending else wait_ms_max
            return HeartbeatRequest(
                self.join_options.group, self.member_id, self.join_options.instance_id, self.generation, wait_ms
            )
        return JoinRequest(self.join_options.group, self._nonce, self.revision, *self.join_options[1:])

    def answered(self, request: JoinRequest | HeartbeatRequest, result: MembershipResult, sent_s: float) -> Lost | None:
        """Take the answer to a request that was sent at `sent_s`.

        Raises:
            GroupFencedError: another process has this one's place.
            GroupRefusedError: the group does not take it.
        """
        if isinstance(request, JoinRequest):
            is_stale = request.revision != self.revision
        else:
            is_stale = request.member_id != self.member_id
        if is_stale or result.error.retriable:
            return None
        lost = self._refused(result.error, result.message)
        if lost is None and result.error is GroupError.NONE:
            if isinstance(request, JoinRequest):
                self._joined(request, result)
            if result.member_id == self.member_id:
                self._heard_s = max(self._heard_s, sent_s)
                self._take(result)
        return lost

    def _joined(self, request: JoinRequest, result: MembershipResult) -> None:
        self._joined_revision = request.revision
        if not self.member_id:
            self.member_id, self.generation, self._told, self.pending = result.member_id, 0, 0, None

    def _take(self, result: MembershipResult) -> None:
        if result.assignment is None or result.generation <= self._told:
            return
        self._told = result.generation
        self.names.update({stream.uuid: stream.name for stream in result.assignment})
        keys = frozenset(
            PartitionKey(stream.uuid, number) for stream in result.assignment for number in stream.partitions
        )
        self.pending = Assignment(self.member_id, result.generation, keys)

    def _refused(self, error: GroupError, message: str) -> Lost | None:
        if error is GroupError.UNKNOWN_MEMBER:
            return self._start_anew(message or "the group's coordinator does not know this member any more")
        if error is GroupError.FENCED_MEMBER:
            raise GroupFencedError(error, message)
        if error is not GroupError.NONE and not error.retriable:
            raise GroupRefusedError(error, message)
        return None

    def subscribe(self, names: tuple[str, ...]) -> bool:
        """Subscribe to these streams instead. Return whether that is a change, which the next join tells."""
        if set(names) == set(self.join_options.subscriptions):
            return False
        self.join_options = self.join_options._replace(subscriptions=names)
        self.revision += 1
        return True

    def adopt(self, assignment: Assignment) -> bool:
        """All that is not in the assignment has been stopped; whether it is still this member's.

        The next heartbeat says so, and is due at once.
        """
        if assignment.member_id != self.member_id or assignment.generation <= self.generation:
            return False
        self.owned = {key: since for key, since in self.owned.items() if key in assignment.keys}
        self.unfetched &= self.owned.keys()
        self.generation = assignment.generation
        gained = assignment.keys - self.owned.keys()
        self.owned |= dict.fromkeys(sorted(gained), self.generation)
        self.unfetched |= gained
        if self.pending is not None and self.pending.generation <= self.generation:
            self.pending = None
        return True

    def beat(self, now_s: float) -> Lost | None:
        """The time is looked at: often, and before anything is done for which one must be a member."""
        still_s, self.beat_s = now_s - self.beat_s, now_s
        silent_s = now_s - self._heard_s
        if not self.member_id:
            return None
        if silent_s > self._session_s and still_s > self.stall_s:
            return self._start_anew(f"this process stood still, and was not heard of for {silent_s:.1f} s")
        if silent_s > self._silence_s_max:
            return self._start_anew(f"the group's coordinator could not be reached for {silent_s:.1f} s")
        return None

    def _start_anew(self, reason: str) -> Lost:
        lost = Lost(frozenset(self.owned), reason)
        self.member_id = ""
        self.pending = None
        self.revision += 1
        self.owned = {}
        self.unfetched = set()
        return lost

    def give_back(self, reason: str) -> tuple[LeaveRequest, Lost] | None:
        """Leave for a while: the request that says so, and what is lost by it; None while it is no member."""
        request = self.leave()
        return None if request is None else (request, self._start_anew(reason))

    def leave(self) -> LeaveRequest | None:
        """The request with which it goes for good; None when there is nothing to leave."""
        if not self.member_id:
            return None
        return LeaveRequest(self.join_options.group, self.member_id, self.join_options.instance_id)

    # -- offsets

    def fetch(self) -> OffsetFetchRequest | None:
        """Ask for the offsets of what is unfetched, or the first of it; None when nothing is."""
        if not self.unfetched:
            return None
        keys = tuple(sorted(self.unfetched)[:OFFSETS_MAX])
        return OffsetFetchRequest(
            self.join_options.group, self.member_id, self.join_options.instance_id, self.generation, keys
        )

    def fetched(
        self, request: OffsetFetchRequest, result: OffsetFetchResult
    ) -> tuple[dict[PartitionKey, FetchedOffset | None], Lost | None]:
        """What is committed for partitions that wait for it; None for those without.

        They stay unfetched until `begin` says that they are read.

        Raises:
            GroupFencedError, GroupRefusedError: as for `answered`.
        """
        if request.member_id != self.member_id or result.error.retriable:
            return {}, None
        lost = self._refused(result.error, result.message)
        if lost is not None:
            return {}, lost
        found = {row.key: row for row in result.offsets}
        return {key: found.get(key) for key in request.keys if self.is_waiting(key, request.generation)}, None

    def is_waiting(self, key: PartitionKey, generation: int) -> bool:
        """Whether a partition is still unfetched, and had come by this generation."""
        return key in self.unfetched and self.owned[key] <= generation

    def begin(self, key: PartitionKey) -> None:
        """The offset of a partition is known; from now on it can be committed."""
        self.unfetched.discard(key)

    def commit(self, offsets: Mapping[PartitionKey, CommitOffset], *, unread: bool = False) -> CommitRequest | None:
        """Commit these offsets, up to `OFFSETS_MAX` of them, as far as the partitions are this member's.

        Args:
            offsets: Offsets by partition.
            unread: Whether to commit where to begin in partitions that are unfetched.

        Returns:
            The request, to be repeated as it is until it is answered; None when nothing is left to commit.
        """
        streams: dict[bytes, list[CommitOffset]] = {}
        for key in sorted(offsets):
            if key in self.owned and (unread or key not in self.unfetched):
                streams.setdefault(key.uuid, []).append(offsets[key])
        if not streams:
            return None
        self._sequence += 1
        rows = tuple(CommitStream(uuid, self.names[uuid], tuple(row)) for uuid, row in streams.items())
        who = (self.join_options.group, self.member_id, self.join_options.instance_id)
        return CommitRequest(*who, self.generation, self._sequence, rows)

    def is_current(self, request: CommitRequest | OffsetFetchRequest) -> bool:
        """Whether it is still the member that asked."""
        return request.member_id == self.member_id

    def committed(self, request: CommitRequest, result: CommitResult) -> Lost | None:
        """Take the answer to a commit; what it refuses for single partitions is the caller's to see.

        Raises:
            GroupFencedError, GroupRefusedError: as for `answered`.
        """
        return self._refused(result.error, result.message) if self.is_current(request) else None
