"""A member of a simulated group: joins, heartbeats, reads, commits, lets go; and freezes, dies and starts again.

The library's own `GroupMember` says what to ask and what the answers mean. Nothing protects the group from it: when it
wakes it commits at once, before anybody looks at the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_client.errors import GroupFencedError
from liftpy_client.group.member import GroupMember, JoinOptions
from liftpy_envelope.group_offsets import CommitOffset, OffsetFetchRequest
from liftpy_envelope.groups import GroupError, HeartbeatRequest

if TYPE_CHECKING:
    from liftpy_client.group.member import Assignment, Lost
    from liftpy_envelope.pull import PartitionKey
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
        self.nonce = world.rng.randbytes(16)
        times_ms = int(SESSION_S * 1000), int(REBALANCE_S * 1000)
        join_options = JoinOptions("g", instance_id, name, "", *times_ms, subscriptions)
        self.member = GroupMember(join_options, self.nonce, world.now_s)
        self.positions: dict[PartitionKey, int] = {}  # next record to read, once it was fetched
        self.is_alive = True
        self.wakes_s = 0.0
        self._asked_s = -9.0
        self._adopting: Assignment | None = None
        world.after(0.0, self.tick)

    @property
    def subscriptions(self) -> tuple[str, ...]:
        return self.member.join_options.subscriptions

    @subscriptions.setter
    def subscriptions(self, subscriptions: tuple[str, ...]) -> None:
        self.member.join_options = self.member.join_options._replace(subscriptions=subscriptions)

    @property
    def owned(self) -> dict[PartitionKey, int | None]:
        if not self.is_alive:
            return {}
        return {key: None if key in self.member.unfetched else self.positions[key] for key in self.member.owned}

    @property
    def member_id(self) -> str:
        return self.member.member_id

    @property
    def generation(self) -> int:
        return self.member.generation

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
        self.member.revision += 1
        self._ask()

    def leave(self) -> None:
        self.is_alive = False
        request = self.member.leave()
        if request is not None:
            self._send(request, lambda _answer: None)

    def tick(self) -> None:
        if not self.is_alive:
            return
        self.world.after(self.world.rng.uniform(0.15, 0.35), self.tick)
        if self.is_frozen:
            return
        self._note(self.member.beat(self.world.now_s))
        if self.world.now_s - self._asked_s > (HEARTBEAT_S if self.member.is_joined else RETRY_S):
            self._ask()
        self._read_and_commit(0.4)

    def _send(self, request, on_answer) -> None:
        def arrived(answer) -> None:
            if not self.is_alive:
                return
            if self.is_frozen:
                self.world.after(self.wakes_s - self.world.now_s, lambda: arrived(answer))
                return
            try:
                on_answer(answer)
            except GroupFencedError:
                self._fenced()

        # One that would have to write could answer nobody from then on: who only asks is the more dangerous.
        previous, is_asking = self.world.previous, isinstance(request, (HeartbeatRequest, OffsetFetchRequest))
        is_misled = previous is not None and previous.is_alive and is_asking and self.world.rng.random() < 0.5
        self.world.send(previous if is_misled else self.world.leader, request, arrived)

    def _ask(self) -> None:
        self._asked_s = sent_s = self.world.now_s
        request = self.member.request(400)

        def answered(answer) -> None:
            self._note(self.member.answered(request, answer, sent_s))
            self._follow()

        self._send(request, answered)

    def _note(self, lost: Lost | None) -> None:
        if lost is not None:
            self.world.seen["lost"] += 1
            self._ask()

    def _follow(self) -> None:
        pending = self.member.pending
        if pending is None or pending == self._adopting:
            return
        self._adopting = pending

        def adopt() -> None:
            if self.is_frozen:
                self.world.after(self.wakes_s - self.world.now_s, adopt)
            elif self.is_alive and self._adopting == pending:
                self._commit(self.owned.keys() - pending.keys)
                if self.member.adopt(pending):
                    self.world.check_client(self)
                    self._ask()

        lost = self.member.owned.keys() - pending.keys
        self.world.after(self.world.rng.uniform(0, RELEASE_S) if lost else 0.0, adopt)

    def _fenced(self) -> None:
        self.is_alive = False
        self.world.check_fenced(self)

    def _read_and_commit(self, commits: float) -> None:
        self._fetch()
        for key, position in self.owned.items():
            if position is not None:
                self.positions[key] = position + self.world.rng.randrange(4)
        if self.world.rng.random() < commits:
            self._commit(self.owned)

    def _fetch(self) -> None:
        request = self.member.fetch()
        if request is None:
            return

        def fetched(answer) -> None:
            found, lost = self.member.fetched(request, answer)
            self._note(lost)
            for key, row in found.items():
                self.positions[key] = 0 if row is None else row.offset
                self.member.begin(key)

        self._send(request, fetched)

    def _commit(self, keys) -> None:
        positions = {key: self.owned[key] for key in sorted(keys) if self.owned[key] is not None}
        offsets = {key: CommitOffset(key.partition, at, 0, self.name.encode()) for key, at in positions.items()}
        request = self.member.commit(offsets)
        if request is None:
            return

        def committed(answer) -> None:
            is_current = self.member.is_current(request)
            self._note(self.member.committed(request, answer))
            if is_current and answer.error is GroupError.NONE:
                refused = {row.key for row in answer.refusals}
                self.world.acknowledged(self, {key: at for key, at in positions.items() if key not in refused})

        self._send(request, committed)
