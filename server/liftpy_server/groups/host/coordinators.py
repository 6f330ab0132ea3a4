"""The coordinators of one partition of the stream of the groups: made when they are needed, ticked when it is time.

Pure: the log and the clock are the caller's. Groups without members stay in the replay until somebody asks for them,
so that many idle groups cost little more than what they have committed.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Final

from liftpy_envelope.group_offsets import METADATA_BYTES_MAX, CommitRequest, OffsetFetchRequest
from liftpy_envelope.groups import GroupError, HeartbeatRequest, JoinRequest, LeaveRequest
from liftpy_server.groups.core.coordinator import refused
from liftpy_server.groups.core.inputs import DeleteGroup, Effects, GroupTick, StreamsChanged
from liftpy_server.groups.host.quota import GroupQuota
from liftpy_server.settings.groups import GroupsConfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from liftpy_server.groups.core.coordinator import GroupCoordinator
    from liftpy_server.groups.core.inputs import Input, Now
    from liftpy_server.groups.core.records import GroupRecord
    from liftpy_server.groups.core.replay import GroupsReplay

__all__ = ["Coordinators"]

_OFFSET_BYTES_MAX: Final = METADATA_BYTES_MAX + 200
_GROUP_BYTES: Final = 500  # that a group takes, about, beside offsets and members
_NEVER: Final = float("inf")
_MAKES_NONE: Final = (LeaveRequest, HeartbeatRequest, OffsetFetchRequest, DeleteGroup)


class Coordinators:
    """Makes the coordinators of one partition of `__consumer_offsets` on demand, and ticks them.

    Args:
        replay: Has taken the partition's log.
        streams: The streams that there are, from the leader of the metadata.
        quota: Quota of the node; one of its own by default.
    """

    def __init__(self, replay: GroupsReplay, streams: StreamsChanged, quota: GroupQuota | None = None) -> None:
        self._replay = replay
        self._streams = streams
        self._quota = quota or GroupQuota(GroupsConfig())
        self.table = replay.table
        self._made: dict[str, GroupCoordinator] = {}
        self._untold = dict.fromkeys(replay.groups_with_members)
        self._sizes = {group: self._size_of(group) for group in replay.groups}
        self._clients: dict[str, str] = {}  # that made a group, by group
        self._quota.change(len(self._sizes), sum(self._sizes.values()))
        self._due: list[tuple[float, str]] = []
        self._due_s: dict[str, float] = {}

    @property
    def groups(self) -> list[str]:
        """Names of all groups, in order."""
        return sorted(self._made.keys() | set(self._replay.groups))

    @property
    def next_s(self) -> float:
        """When a tick is due at the earliest, monotonic; infinite when there is nothing to wait for."""
        return self._due[0][0] if self._due else _NEVER

    @property
    def is_untold(self) -> bool:
        """Whether there are groups that have yet to be told of the streams."""
        return bool(self._untold)

    def find(self, group: str) -> GroupCoordinator | None:
        """The coordinator of a group that somebody asked for, or that has members."""
        return self._made.get(group)

    def knows(self, group: str) -> bool:
        """Whether there is such a group."""
        return group in self._made or self._replay.knows(group)

    def generation(self, group: str) -> int:
        """Generation of the group's newest assignment; 0 if it never had any."""
        made = self._made.get(group)
        return self._replay.generation(group) if made is None else made.generation

    def close(self) -> None:
        """The node coordinates these groups no more."""
        for group in list(self._sizes):
            self._remove(group)

    def step(self, group: str, given: Input, now: Now, client: str = "") -> Effects:
        """Give an input to the coordinator of a group.

        Args:
            group: Name of the group.
            given: The input.
            now: Current time in seconds.
            client: The address of who asks; "" for the node itself.
        """
        if group not in self._sizes:
            why = "" if isinstance(given, _MAKES_NONE) else self._quota.refuses_group(client)
            if why:
                return Effects(answer=refused(given, GroupError.GROUP_FULL, why))
            self._sizes[group] = self._size_of(group)
            self._clients[group] = client
            self._quota.change(1, self._sizes[group], client)
        coordinator, records, told = self._coordinator(group, now)
        why = self._refuses_growth(coordinator, given)
        if why:
            effects = Effects(answer=refused(given, GroupError.GROUP_FULL, why))
        else:
            before = self.table.size_bytes(group)
            effects = coordinator.step(given, now)
            if isinstance(given, CommitRequest):
                self._grow(group, self.table.size_bytes(group) - before)
            elif not isinstance(given, (HeartbeatRequest, OffsetFetchRequest)):
                self._grow(group, self._size_of(group) - self._sizes[group])
        if not isinstance(given, (CommitRequest, OffsetFetchRequest)):
            self._schedule(coordinator)
        self._release(coordinator, given, effects)
        return Effects((*records, *effects.records), effects.answer, (*told, *effects.told)) if records else effects

    def _coordinator(self, group: str, now: Now) -> tuple[GroupCoordinator, tuple[GroupRecord, ...], tuple[str, ...]]:
        """The group's coordinator, and what came of telling it of the streams if that was not done before."""
        made = self._made.get(group)
        if made is not None and group not in self._untold:
            return made, (), ()
        self._untold.pop(group, None)
        if made is None:
            made = self._made[group] = self._replay.coordinator(group)
            self._grow(group, made.members_bytes)  # of members from the log, not counted until now
        effects = made.step(self._streams, now)
        self._schedule(made)
        return made, effects.records, effects.told

    def _release(self, coordinator: GroupCoordinator, given: Input, effects: Effects) -> None:
        """Forget a group that nothing is known of: whoever only asks for one does not make it."""
        if coordinator.members:
            return
        is_deleted = isinstance(given, DeleteGroup) and bool(effects.records)
        if is_deleted or (coordinator.generation == 0 and not self.table.has(coordinator.group)):
            self._remove(coordinator.group)

    def _remove(self, group: str) -> None:
        self._made.pop(group, None)
        self._quota.change(-1, -self._sizes.pop(group), self._clients.pop(group, ""))

    def _refuses_growth(self, coordinator: GroupCoordinator, given: Input) -> str:
        if not isinstance(given, (CommitRequest, JoinRequest)):
            return ""
        group = coordinator.group
        client = self._clients.get(group, "")
        if isinstance(given, CommitRequest):
            most = sum([len(stream.offsets) * (_OFFSET_BYTES_MAX + len(stream.name)) for stream in given.streams])
            if not self._quota.refuses_bytes(
                group, self._sizes[group], most, client
            ):  # as it is mostly, and costs least
                return ""
        return self._quota.refuses_bytes(group, self._sizes[group], coordinator.growth_bytes(given), client)

    def _size_of(self, group: str) -> int:
        made = self._made.get(group)
        return _GROUP_BYTES + len(group) + self.table.size_bytes(group) + (0 if made is None else made.members_bytes)

    def size_bytes(self, group: str) -> int:
        """What a group takes."""
        return self._sizes.get(group, 0)

    def _grow(self, group: str, more_bytes: int) -> None:
        if more_bytes:
            self._sizes[group] += more_bytes
            self._quota.change(0, more_bytes, self._clients.get(group, ""))

    def _schedule(self, coordinator: GroupCoordinator) -> None:
        next_s, group = coordinator.next_s, coordinator.group
        if next_s < self._due_s.get(group, _NEVER):
            self._due_s[group] = next_s
            heappush(self._due, (next_s, group))

    def streams_changed(self, streams: StreamsChanged) -> None:
        """There are other streams now; `tell` hands it on. What is no newer than what is known changes nothing."""
        if streams.revision <= self._streams.revision:
            return
        self._streams = streams
        self._untold.update(dict.fromkeys(self._made))

    def tell(self, now: Now, count: int) -> Iterator[tuple[str, Effects]]:
        """Tell up to `count` groups of the streams. Yields what came of it."""
        for group in list(islice(self._untold, count)):
            if group in self._untold:
                _, records, told = self._coordinator(group, now)
                yield group, Effects(records, None, told)

    def tick(self, now: Now, paused_s: float) -> Iterator[tuple[str, Effects]]:
        """Tick the groups that are due, or all when the node stood still. Yields what came of it."""
        if paused_s > 0:
            for group, coordinator in list(self._made.items()):
                if coordinator.members:
                    yield group, self.step(group, GroupTick(paused_s), now)
            return
        while self._due and self._due[0][0] <= now.s:
            due_s, group = heappop(self._due)
            if self._due_s.get(group) != due_s:
                continue  # another entry took its place
            del self._due_s[group]
            due = self._made.get(group)
            if due is None or not due.members:
                continue
            if due.next_s <= now.s:
                yield group, self.step(group, GroupTick(), now)
            else:
                self._schedule(due)

    def is_idle(self, group: str, until_ns: int) -> bool:
        """Whether a group has no members, and committed nothing since a time."""
        made = self._made.get(group)
        return not (made is not None and made.members) and (self.table.newest_ns(group) or 0) <= until_ns

    def forget_streams(self, group: str, uuids: AbstractSet[bytes]) -> list[GroupRecord]:
        """Forget what a group has committed for streams that are no more. Returns the records that say so."""
        records = self.table.tombstones_of_streams(group, uuids)
        self.table.apply_many(records)
        if group in self._sizes:
            self._grow(group, self._size_of(group) - self._sizes[group])
            if self.generation(group) == 0 and not self.table.has(group):
                self._remove(group)
        return records
