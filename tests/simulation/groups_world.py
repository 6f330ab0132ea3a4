"""A simulated group: clients, a network that delays, loses, repeats and reorders, coordinators that come and go.

A log stands behind the coordinators. What one appends is committed a little later, in order; when it is replaced, some
of what is not committed yet is lost with it. It may live on for a while without knowing, and answer who asks it.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from liftpy_envelope.group_offsets import CommitOffset, CommitRequest, CommitStream
from liftpy_envelope.groups import HeartbeatRequest
from liftpy_envelope.pull import PartitionKey
from liftpy_server.groups.core import coordinator as coordinating
from liftpy_server.groups.core.assignment import StreamShape
from liftpy_server.groups.core.inputs import GroupTick, Now, StreamsChanged
from liftpy_server.groups.core.member import GroupImage
from liftpy_server.groups.core.records import RecordKind, decode_offset
from liftpy_server.groups.core.replay import GroupsReplay
from simulation.groups_client import Client

if TYPE_CHECKING:
    from collections.abc import Callable

STREAM_NAMES = ("s", "t", "u")
Batch = list[tuple[bytes, bytes | None]]


class ViolationError(Exception):
    """A promise was broken."""


class Node:
    """A coordinator and what a node does around it."""

    def __init__(self, world: GroupsWorld, log: list[Batch]) -> None:
        self.world = world
        self.log = log
        self.committed = world.committed
        self.is_alive = True
        self.is_leader = True
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._parked: dict[str, tuple[HeartbeatRequest, Callable[[Any], None]]] = {}
        replay = GroupsReplay()
        for batch in log:
            replay.apply([key for key, _ in batch], [value for _, value in batch])
        self.coordinator = replay.coordinator("g")

    def take(self, given: Any, reply: Callable[[Any], None], *, may_park: bool = True) -> None:
        if not self.is_alive:
            return
        world = self.world
        effects = self.coordinator.step(given, Now(world.now_s, int(world.now_s * 1e9) + 1))
        if effects.records:
            self.log.append([tuple(record) for record in effects.records])
            if self.is_leader:
                world.after(world.rng.choice([0.002, 0.002, 0.01, 0.1]), world.commit)
        self._waiting.append((len(self.log), lambda: self._finish(given, effects, reply, may_park)))
        self.answer()
        if self.is_leader:
            world.check_coordinator(self.coordinator)

    def answer(self) -> None:
        while self.is_alive and self._waiting and self._waiting[0][0] <= self.committed:
            self._waiting.popleft()[1]()

    def _finish(self, given: Any, effects: Any, reply: Callable[[Any], None], may_park: bool) -> None:
        for member_id in effects.told:
            if member_id in self._parked:
                request, parked_reply = self._parked.pop(member_id)
                self.take(request, parked_reply, may_park=False)
        is_news = not isinstance(given, HeartbeatRequest) or effects.answer.assignment is not None
        if is_news or effects.answer.error or not may_park:
            reply(effects.answer)
            return
        self._parked[given.member_id] = (given, reply)

        def waited() -> None:
            if self._parked.get(given.member_id) == (given, reply):
                del self._parked[given.member_id]
                reply(effects.answer)

        self.world.after(given.wait_ms_max / 1000, waited)


class GroupsWorld:
    """See the module. Everything follows from the seed."""

    def __init__(self, seed: int, *, is_calm: bool = False, clients: int = 4) -> None:
        self.rng = random.Random(seed)
        self.now_s = 0.0
        self.is_calm = is_calm
        self.seen: Counter[str] = Counter()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._events = 0
        self.committed = 0
        self._durable: dict[bytes, tuple[tuple[int, int], int]] = {}
        self._acked: dict[PartitionKey, int] = {}
        self._generation = 0
        self.revision = 1
        self.streams = {name: StreamShape(self.rng.randbytes(16), self.rng.randint(1, 6)) for name in ("s", "t")}
        self.leader = Node(self, [])
        self._tell(self.leader)
        self.previous: Node | None = None
        self.clients: list[Client] = []
        for _ in range(clients):
            self.start_client()
        self.after(0.2, self._tick)

    def start_client(self, instance_id: str | None = None) -> Client:
        if instance_id is None:
            instance_id = self.rng.choice(["", f"i{len(self.clients)}"])
        names = STREAM_NAMES if self.rng.random() < 0.7 else (self.rng.choice(STREAM_NAMES),)
        client = Client(self, f"c{len(self.clients)}", instance_id, names)
        self.clients.append(client)
        return client

    @property
    def living(self) -> list[Client]:
        return [client for client in self.clients if client.is_alive]

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._events += 1
        heapq.heappush(self._queue, (self.now_s + delay_s, self._events, action))

    def run_until(self, end_s: float) -> None:
        while self._queue and self._queue[0][0] <= end_s:
            self.now_s, _, action = heapq.heappop(self._queue)
            action()
        self.now_s = end_s

    def send(self, node: Node, request: Any, on_answer: Callable[[Any], None]) -> None:
        """Over the network there and back; each way may be lost, and the request may arrive twice, much later."""
        self.seen[type(request).__name__] += 1

        def reply(answer: Any) -> None:
            self.seen[answer.error.name] += 1
            for refusal in getattr(answer, "refusals", ()):
                self.seen[refusal.error.name] += 1
            if not self._is_lost():
                self.after(self._delay_s(), lambda: on_answer(answer))

        if not self._is_lost():
            self.after(self._delay_s(), lambda: node.take(request, reply))
        if not self.is_calm and self.rng.random() < 0.05:
            self.seen["repeated"] += 1
            late_s = self.rng.uniform(0, 4)
            self.after(late_s, lambda: self.rng.choice([node, self.leader]).take(request, lambda _answer: None))

    def _is_lost(self) -> bool:
        return not self.is_calm and self.rng.random() < 0.05

    def _delay_s(self) -> float:
        return self.rng.uniform(0.001, 0.02) if self.is_calm or self.rng.random() < 0.9 else self.rng.uniform(0, 1)

    def _tick(self) -> None:
        self.after(0.2, self._tick)
        self.leader.take(GroupTick(), lambda _answer: None)

    def _tell(self, node: Node) -> None:
        given = StreamsChanged(self.revision, dict(self.streams))
        node.take(given, lambda _answer: None)

    def commit(self) -> None:
        """The oldest of what the leader appended is committed."""
        leader = self.leader
        if self.committed < len(leader.log):
            for key, value in leader.log[self.committed]:
                self._check_record(key, value)
            self.committed += 1
            leader.committed = self.committed
            leader.answer()

    def fail_over(self) -> None:
        """Another node leads; what is not committed yet may be lost, all or from some point on."""
        self.seen["failover"] += 1
        self.previous = old = self.leader
        old.is_leader = False
        old.is_alive = self.rng.random() < 0.7
        self.after(self.rng.uniform(0, 6), lambda: setattr(old, "is_alive", False))
        survivors = self.rng.randint(self.committed, len(old.log))
        self.leader = Node(self, old.log[:survivors])
        for number in range(survivors - self.committed):
            self.after(0.05 * (number + 1), self.commit)
        if self.rng.random() < 0.3 and not self.is_calm:  # told by somebody who knows little
            self.leader.take(StreamsChanged(self.revision - 1, {}), lambda _answer: None)
        self.after(self.rng.uniform(0, 0.3), lambda leader=self.leader: self._tell(leader))

    def change_streams(self) -> None:
        """A stream is created, deleted, or created again."""
        self.seen["streams"] += 1
        name = self.rng.choice(STREAM_NAMES)
        self.revision += 1
        if name in self.streams and self.rng.random() < 0.4:
            del self.streams[name]
        else:
            self.streams[name] = StreamShape(self.rng.randbytes(16), self.rng.randint(1, 6))
        self._tell(self.leader)

    def disturb(self) -> None:
        """Something goes wrong, or somebody comes or goes."""
        what = self.rng.choice(["freeze", "freeze", "crash", "start", "leave", "fail_over", "streams", "subscribe"])
        self.seen[what] += 1
        client = self.rng.choice(self.living) if self.living else self.start_client()
        if what == "freeze":
            client.freeze(self.rng.uniform(0.5, 6))
        elif what == "crash":
            client.is_alive = False
            if client.instance_id or self.rng.random() < 0.5:
                self.after(self.rng.uniform(0, 4), lambda: self.start_client(client.instance_id))
        elif what == "start" and len(self.living) < 7:
            twin = client.instance_id if self.rng.random() < 0.2 else None
            self.start_client(twin)
        elif what == "leave" and len(self.living) > 1:
            client.leave()
        elif what == "fail_over":
            self.fail_over()
        elif what == "streams":
            self.change_streams()
        elif what == "subscribe" and not client.is_frozen:
            count = self.rng.randint(1, 3)
            client.subscribe(tuple(self.rng.sample(STREAM_NAMES, count)))

    def acknowledged(self, _client: Client, positions: dict[PartitionKey, int]) -> None:
        """A client was told that this is committed."""
        for key, position in positions.items():
            suffix = key.uuid + key.partition.to_bytes(4, "big")
            if suffix not in self._durable or self._durable[suffix][1] < position:
                raise ViolationError(
                    f"{key}: commit of {position} acknowledged, {self._durable.get(suffix)} in the log"
                )

    def _check_record(self, key: bytes, value: bytes | None) -> None:
        if key[0] == RecordKind.GROUP and value is not None:
            image = GroupImage.from_value(value)
            if image.generation < self._generation:
                raise ViolationError(f"generation {image.generation} after {self._generation}")
            self._generation = image.generation
        elif key[0] == RecordKind.OFFSET and value is not None:
            found = decode_offset(value)
            token = (found.generation, found.sequence)
            before = self._durable.get(key[1:21])
            if before is not None and (token <= before[0] or found.offset < before[1]):
                raise ViolationError(f"{found} committed after {before}")
            self._durable[key[1:21]] = (token, found.offset)

    def check_coordinator(self, coordinator: Any) -> None:
        """No two members may commit one partition: ask for each whether it might."""
        if coordinator.generation < self._generation:
            raise ViolationError(f"generation {coordinator.generation} after {self._generation}")
        if self.rng.random() > 0.2:
            return
        shapes = self.streams.values()
        streams = tuple(
            CommitStream(shape.uuid, "s", tuple(CommitOffset(number, 0) for number in range(shape.partition_count)))
            for shape in shapes
        )
        owners: dict[bytes, str] = {}
        for member_id, member in coordinator.members.items():
            for generation in {member.generation, member.generation - 1}:
                request = CommitRequest("g", member_id, "", generation, 2**60, streams)
                records, _ = coordinating.commit_as_member(member, request, coordinator._table, 1)
                for record in records:
                    if owners.setdefault(record.key, member_id) != member_id:
                        raise ViolationError(f"{owners[record.key]} and {member_id} may both commit {record.key!r}")

    def check_client(self, client: Client) -> None:
        """What a client believes to own, the coordinator has given to nobody else."""
        member = self.leader.coordinator.members.get(client.member_id)
        if member is not None and not client.owned.keys() <= member.held.keys():
            raise ViolationError(
                f"{client.name} reads {client.owned.keys() - member.held.keys()}, which it was not given"
            )

    def check_fenced(self, client: Client) -> None:
        """Who is a member is not fenced."""
        if client.nonce in {member.nonce for member in self.leader.coordinator.members.values()}:
            raise ViolationError(f"{client.name} is fenced, and nobody took its place")

    def check_settled(self) -> None:
        """Every partition is read by exactly one member, and nobody has too much."""
        living = self.living
        readers = Counter(key for client in living for key, position in client.owned.items() if position is not None)
        wanted = {name for client in living for name in client.subscriptions}
        expected = {
            PartitionKey(shape.uuid, number)
            for name, shape in self.streams.items()
            if name in wanted
            for number in range(shape.partition_count)
        }
        if readers != dict.fromkeys(expected, 1):
            raise ViolationError(f"read: {dict(readers)}, expected: {sorted(expected)}")
        if {client.member_id for client in living} != set(self.leader.coordinator.members):
            raise ViolationError("the coordinator has other members than there are")
        for one in living:
            for other in living:
                if set(one.subscriptions) == set(other.subscriptions) and len(one.owned) > len(other.owned) + 1:
                    raise ViolationError(f"{one.name} has {len(one.owned)}, {other.name} has {len(other.owned)}")


TROUBLE_S = 12.0
SETTLED_S = 12.0  # a session, a hand-over that fails and one that does not, and a few lost heartbeats


def run(seed: int) -> Counter[str]:
    """Trouble, then peace; what happened how often.

    Raises:
        ViolationError: a promise was broken.
    """
    world = GroupsWorld(seed, clients=2 + seed % 4)
    while world.now_s < TROUBLE_S:
        world.run_until(world.now_s + world.rng.expovariate(1.5))
        world.disturb()
    world.is_calm = True
    world.run_until(world.now_s + 6)  # whoever is frozen wakes, whoever is to be started again starts
    if not world.living:
        world.start_client()
    world.run_until(world.now_s + SETTLED_S)
    world.check_settled()
    for client in world.living:
        world.check_client(client)
    return world.seen
