"""A member of a simulated group: joins, heartbeats, reads, commits, lets go; and freezes, dies and starts again.

It does what a client has to do, and nothing to protect the group from itself: when it wakes it commits at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_envelope.group_offsets import CommitOffset, CommitRequest, CommitStream, OffsetFetchRequest
from liftpy_envelope.groups import GroupError, HeartbeatRequest, JoinRequest, LeaveRequest
from liftpy_envelope.pull import PartitionKey

if TYPE_CHECKING:
    from simulation.groups_world import GroupsWorld

SESSION_S = 3.0
REBALANCE_S = 4.0
HEARTBEAT_S = 0.5
RETRY_S = 1.0
RELEASE_S = 0.8


class Client:
    """See the module."""

    def __init__(self, world: GroupsWorld, name: str, instance_id: str, subscriptions: tuple[str, ...]) -> None:
        self.world = world
        self.name = name
        self.instance_id = instance_id
        self.subscriptions = subscriptions
        self.nonce = world.rng.randbytes(16)
        self.revision = 0
        self.joined_revision = -1  # the newest that the coordinator is known to have
        self.member_id = ""
        self.generation = 0  # adopted
        self.heard_s = 0.0  # when a coordinator last took it for a member
        self.told = 0  # newest generation heard of
        self.owned: dict[PartitionKey, int | None] = {}  # next record to read; None until it was fetched
        self.names: dict[bytes, str] = {}
        self.sequence = 0
        self.gains: dict[PartitionKey, int] = {}
        self.is_alive = True
        self.is_fenced = False
        self.wakes_s = 0.0
        self._asked_s = -9.0
        world.after(0.0, self.tick)

    @property
    def is_frozen(self) -> bool:
        return self.world.now_s < self.wakes_s

    def freeze(self, duration_s: float) -> None:
        self.wakes_s = max(self.wakes_s, self.world.now_s + duration_s)
        self.world.after(duration_s, self._wake)

    def _wake(self) -> None:
        if self.is_alive and not self.is_frozen:
            self._read_and_commit(1.0)

    def subscribe(self, subscriptions: tuple[str, ...]) -> None:
        self.subscriptions = subscriptions
        self.revision += 1
        self._join()

    def leave(self) -> None:
        self.is_alive = False
        self.owned.clear()
        if self.member_id:
            self._send(LeaveRequest("g", self.member_id, self.instance_id), lambda _answer: None)

    def tick(self) -> None:
        if not self.is_alive:
            return
        self.world.after(self.world.rng.uniform(0.15, 0.35), self.tick)
        if self.is_frozen:
            return
        if self.member_id and self.world.now_s - self.heard_s > 2 * SESSION_S:
            self._start_anew()
        is_joined = self.member_id and self.joined_revision == self.revision
        if self.world.now_s - self._asked_s > (HEARTBEAT_S if is_joined else RETRY_S):
            if is_joined:
                self._heartbeat()
            else:
                self._join()
        self._read_and_commit(0.4)

    def _send(self, request, on_answer) -> None:
        def arrived(answer) -> None:
            if not self.is_alive:
                return
            if self.is_frozen:
                self.world.after(self.wakes_s - self.world.now_s, lambda: arrived(answer))
            elif answer.error is not GroupError.NOT_LEADER:
                on_answer(answer)

        # One that would have to write could answer nobody from then on: who only asks is the more dangerous.
        previous, is_asking = self.world.previous, isinstance(request, (HeartbeatRequest, OffsetFetchRequest))
        is_misled = previous is not None and previous.is_alive and is_asking and self.world.rng.random() < 0.5
        self.world.send(previous if is_misled else self.world.leader, request, arrived)

    def _join(self) -> None:
        self._asked_s = self.world.now_s
        request = JoinRequest(
            *("g", self.nonce, self.revision, self.instance_id, self.name, ""),
            *(int(SESSION_S * 1000), int(REBALANCE_S * 1000), self.subscriptions),
        )
        had, revision = self.member_id, self.revision
        self._send(request, lambda answer: self._joined(answer, had, revision))

    def _joined(self, answer, had: str, revision: int) -> None:
        if answer.error is GroupError.FENCED_MEMBER:
            self._fenced()
        elif answer.error is GroupError.NONE and self.member_id == had:
            self.joined_revision = max(revision, self.joined_revision)
            if not had:
                self.member_id, self.generation, self.told = answer.member_id, 0, 0
            self._membership(answer)

    def _heartbeat(self) -> None:
        self._asked_s = self.world.now_s
        member_id = self.member_id
        request = HeartbeatRequest("g", member_id, self.instance_id, self.generation, 400)
        self._send(request, lambda answer: member_id == self.member_id and self._membership(answer))

    def _membership(self, answer) -> None:
        if self._is_out(answer) or answer.error is not GroupError.NONE or answer.member_id != self.member_id:
            return
        self.heard_s = self.world.now_s
        if answer.assignment is None or answer.generation <= self.told:
            return
        self.told = generation = answer.generation
        self.names.update({stream.uuid: stream.name for stream in answer.assignment})
        target = {PartitionKey(stream.uuid, number) for stream in answer.assignment for number in stream.partitions}
        member_id = self.member_id

        def adopt() -> None:
            if self.is_frozen:
                self.world.after(self.wakes_s - self.world.now_s, adopt)
            elif self.is_alive and self.told == generation and self.member_id == member_id:
                self._adopt(generation, target)

        self.world.after(self.world.rng.uniform(0, RELEASE_S) if self.owned.keys() - target else 0.0, adopt)

    def _adopt(self, generation: int, target: set[PartitionKey]) -> None:
        lost = self.owned.keys() - target
        self._commit(lost)
        for key in lost:
            del self.owned[key]
        self.generation = generation
        for key in target - self.owned.keys():
            self.owned[key] = None
            self.gains[key] = self.gains.get(key, 0) + 1
        self.world.check_client(self)
        self._heartbeat()

    def _is_out(self, answer) -> bool:
        if answer.error is GroupError.UNKNOWN_MEMBER:
            self._start_anew()
            self._join()
        elif answer.error is GroupError.FENCED_MEMBER:
            self._fenced()
        return answer.error in {GroupError.UNKNOWN_MEMBER, GroupError.FENCED_MEMBER}

    def _start_anew(self) -> None:
        self.member_id = ""
        self.revision += 1
        self.owned.clear()

    def _fenced(self) -> None:
        self.is_alive = False
        self.is_fenced = True
        self.owned.clear()
        self.world.check_fenced(self)

    def _read_and_commit(self, commits: float) -> None:
        missing = [key for key, position in self.owned.items() if position is None]
        if missing:
            self._fetch(missing)
        for key, position in self.owned.items():
            if position is not None:
                self.owned[key] = position + self.world.rng.randrange(4)
        if self.world.rng.random() < commits:
            self._commit(self.owned)

    def _fetch(self, keys: list[PartitionKey]) -> None:
        member_id = self.member_id
        gains = {key: self.gains[key] for key in keys}

        def fetched(answer) -> None:
            if member_id != self.member_id or self._is_out(answer) or answer.error is not GroupError.NONE:
                return
            offsets = {row.key: row.offset for row in answer.offsets}
            for key in keys:
                if key in self.owned and self.owned[key] is None and self.gains[key] == gains[key]:
                    self.owned[key] = offsets.get(key, 0)

        self._send(OffsetFetchRequest("g", member_id, self.instance_id, self.generation, tuple(keys)), fetched)

    def _commit(self, keys) -> None:
        positions = {key: self.owned[key] for key in sorted(keys) if self.owned[key] is not None}
        if not positions:
            return
        self.sequence += 1
        streams: dict[bytes, list[CommitOffset]] = {}
        for key, position in positions.items():
            streams.setdefault(key.uuid, []).append(CommitOffset(key.partition, position, 0, self.name.encode()))
        rows = tuple(CommitStream(uuid, self.names[uuid], tuple(offsets)) for uuid, offsets in streams.items())
        member_id = self.member_id
        request = CommitRequest("g", member_id, self.instance_id, self.generation, self.sequence, rows)

        def committed(answer) -> None:
            if member_id == self.member_id and not self._is_out(answer) and answer.error is GroupError.NONE:
                refused = {row.key for row in answer.refusals}
                self.world.acknowledged(self, {key: at for key, at in positions.items() if key not in refused})

        self._send(request, committed)
