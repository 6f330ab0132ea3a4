"""Who gets which partition: balanced, sticky, and the same for the same question.

Three passes. Every member keeps what it had and may still have. What nobody has goes to the least loaded of those who
subscribe to its stream, streams with the fewest subscribers first, for their partitions have the least choice. Then
single partitions move from a member to one that has at least two fewer, until none can; each such move is needed,
so that between members with equal subscriptions no fewer moves give a difference of at most one.

Racks decide only between what is equal otherwise: which of the least loaded members gets a partition, and which
partition of a member moves. A member that has what it needs never gives anything up for its rack.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from liftpy_envelope.pull import PartitionKey

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Assigned", "RestoredPartition", "StreamShape", "Subscriber", "assign"]


class RestoredPartition(NamedTuple):
    """That a partition was restored from the bucket, which did not have all that consumers may have read.

    Attributes:
        time_ns: When, since the epoch.
        end: Offset up to which the bucket had it.
        epoch: The leader epoch that it began with then; none before was as late.
    """

    time_ns: int
    end: int
    epoch: int


class StreamShape(NamedTuple):
    """What an assignment needs to know of a stream.

    Attributes:
        uuid: 16 bytes.
        partition_count: How many it has.
        racks: Racks of the replicas, partition by partition; empty when they are not known.
        recoveries: (number, what is known of it) of those that were restored; few clusters ever are.
    """

    uuid: bytes
    partition_count: int
    racks: tuple[frozenset[str], ...] = ()
    recoveries: tuple[tuple[int, RestoredPartition], ...] = ()

    def recovery(self, partition: int) -> RestoredPartition | None:
        """When and how a partition was restored, if it ever was."""
        return next((recovery for number, recovery in self.recoveries if number == partition), None)

    def racks_of(self, partition: int) -> frozenset[str]:
        """Racks with a replica of a partition."""
        return self.racks[partition] if partition < len(self.racks) else frozenset()


class Subscriber(NamedTuple):
    """A member as an assignment sees it.

    Attributes:
        subscriptions: Names of streams.
        rack: "" for none.
        had: Partitions of its target so far.
    """

    subscriptions: tuple[str, ...]
    rack: str = ""
    had: frozenset[PartitionKey] = frozenset()


Assigned = dict[str, frozenset[PartitionKey]]
"""Partitions by member id."""


def assign(members: Mapping[str, Subscriber], streams: Mapping[str, StreamShape]) -> Assigned:
    """Assign every partition that somebody subscribes to.

    Args:
        members: Members by id.
        streams: Streams by name; subscriptions to others wait until they exist.
    """
    return _Assignment(members, streams).solve()


class _Assignment:
    def __init__(self, members: Mapping[str, Subscriber], streams: Mapping[str, StreamShape]) -> None:
        self._members = members
        wanted = {name for member in members.values() for name in member.subscriptions}
        self._streams = {name: streams[name] for name in sorted(wanted & streams.keys())}
        self._subscribers: dict[str, list[str]] = {name: [] for name in self._streams}
        for member_id in sorted(members):
            for name in members[member_id].subscriptions:
                if name in self._streams:
                    self._subscribers[name].append(member_id)
        self._loads = dict.fromkeys(sorted(members), 0)
        # Of every member: partition numbers by stream.
        self._has: dict[str, dict[str, set[int]]] = {member_id: {} for member_id in self._loads}

    def solve(self) -> Assigned:
        self._keep()
        self._fill()
        while self._level():
            pass
        return {
            member_id: frozenset(
                PartitionKey(self._streams[name].uuid, number) for name, numbers in has.items() for number in numbers
            )
            for member_id, has in self._has.items()
        }

    def _give(self, member_id: str, name: str, number: int) -> None:
        self._has[member_id].setdefault(name, set()).add(number)
        self._loads[member_id] += 1

    def _keep(self) -> None:
        names = {stream.uuid: name for name, stream in self._streams.items()}
        taken: set[PartitionKey] = set()
        for member_id in self._loads:
            member = self._members[member_id]
            for key in sorted(member.had - taken):
                name = names.get(key.uuid)
                if (
                    name is not None
                    and name in member.subscriptions
                    and key.partition < self._streams[name].partition_count
                ):
                    taken.add(key)
                    self._give(member_id, name, key.partition)

    def _fill(self) -> None:
        for name in sorted(self._streams, key=lambda name: (len(self._subscribers[name]), name)):
            stream = self._streams[name]
            had = {number for member_id in self._subscribers[name] for number in self._has[member_id].get(name, ())}
            free = [number for number in range(stream.partition_count) if number not in had]
            if free:
                self._fill_stream(name, stream, free)

    def _fill_stream(self, name: str, stream: StreamShape, free: list[int]) -> None:
        least = _LeastLoaded(self._loads, self._subscribers[name])
        by_rack: dict[str, _LeastLoaded] = {}
        if stream.racks:
            for rack in {self._members[member_id].rack for member_id in self._subscribers[name]} - {""}:
                there = [member_id for member_id in self._subscribers[name] if self._members[member_id].rack == rack]
                by_rack[rack] = _LeastLoaded(self._loads, there)
        for number in free:
            chosen = least.member()
            for rack in sorted(stream.racks_of(number) & by_rack.keys()):
                near = by_rack[rack].member()
                if self._loads[near] == self._loads[chosen]:
                    chosen = near
                    break
            self._give(chosen, name, number)

    def _level(self) -> bool:
        """Move partitions to the members with the fewest; whether any moved."""
        is_moved = False
        by_load = sorted(self._loads, key=lambda member_id: (self._loads[member_id], member_id))
        heaviest = max(self._loads.values(), default=0)  # of those that give; within a pass it only falls
        least: int | None = None  # of those that got something in this pass
        for receiver in by_load:
            if least is not None and least < self._loads[receiver]:
                break  # they come first again: what this one got above its share would move once more
            while self._loads[receiver] + 2 <= heaviest and (giver := self._giver_for(receiver)) is not None:
                name, number = self._choose(giver, receiver)
                self._has[giver][name].remove(number)
                self._loads[giver] -= 1
                self._give(receiver, name, number)
                is_moved = True
                least = self._loads[receiver] if least is None else min(least, self._loads[receiver])
                if self._is_behind(receiver):
                    break  # the next pass goes on with whoever has fewest by then
        return is_moved

    def _is_behind(self, receiver: str) -> bool:
        """Whether somebody has fewer by now than this one, which has just got something."""
        return min(self._loads.values()) < self._loads[receiver]

    def _giver_for(self, receiver: str) -> str | None:
        floor = self._loads[receiver] + 2
        best = None
        for member_id, load in self._loads.items():
            if (
                load >= floor
                and (best is None or load > self._loads[best])
                and any(self._has[member_id].get(name) for name in self._members[receiver].subscriptions)
            ):
                best = member_id
        return best

    def _choose(self, giver: str, receiver: str) -> tuple[str, int]:
        """The partition that moves: of the stream the giver has most of; near the receiver rather than the giver."""
        shared = [name for name in self._members[receiver].subscriptions if self._has[giver].get(name)]
        name = max(sorted(shared), key=lambda name: len(self._has[giver][name]))
        numbers = self._has[giver][name]
        stream = self._streams[name]
        if not stream.racks:
            return name, max(numbers)
        to_rack, from_rack = self._members[receiver].rack, self._members[giver].rack

        def gain(number: int) -> tuple[int, int]:
            racks = stream.racks_of(number)
            return (to_rack in racks) - (from_rack in racks), number

        return name, max(numbers, key=gain)


class _LeastLoaded:
    """The member with the fewest partitions, the first by id of those. Loads only grow while it is in use."""

    def __init__(self, loads: dict[str, int], members: list[str]) -> None:
        self._loads = loads
        self._heap = [(loads[member_id], member_id) for member_id in members]
        heapify(self._heap)

    def member(self) -> str:
        while self._heap[0][0] != self._loads[self._heap[0][1]]:
            _, member_id = heappop(self._heap)
            heappush(self._heap, (self._loads[member_id], member_id))
        return self._heap[0][1]
