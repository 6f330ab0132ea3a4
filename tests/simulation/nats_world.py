"""The simulated shell at a model of nats-server: plain messages, and the gaps that tell of those that are missing.

`python -m simulation.nats_world SEED` runs one seed and prints what it came to.

What must hold, beside what holds of the shell:

said     a plain message that a NATS server took while its stream was listened to, or had been, is stored, or lies in a
         gap of its partition that every node lists
cause    a gap is there for a reason: something went wrong within it
deaf     a partition's leader hears NATS, if any in-sync replica does, within `DEAF_US`
short    a gap begins at most `BEFORE_US` before something went wrong, and ends at most `AFTER_US` after it was over;
         where a route fell silent it begins as long before as servers may take to notice

A message's time is when its server took it, up to `ROUTE_US` later, which it may need to the server where a node
listens. Nodes that listen there have asked it since whether they have everything, and that is all that they can know.
Not held against them is what a server that stood still takes as it wakes, before it has read who listens elsewhere now.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple

from liftpy_envelope.partitioner import partition_of
from liftpy_server.limits import ROUTE_GRACE_S, ROUTE_SILENT_S_MAX
from simulation.model import ViolationError
from simulation.nats_clients import AckedPublisher, PlainPublisher
from simulation.nats_faults import FAULTS, NatsFaults
from simulation.nats_node import NatsNode
from simulation.nats_server import NatsServer, NatsServers, NatsSettings
from simulation.nats_wire import Wires
from simulation.scheduler import MS, S
from simulation.shell_model import records_in
from simulation.shell_world import ShellWorld, command, run_world

if TYPE_CHECKING:
    from simulation.nats_server import Message
    from simulation.shell_faults import ShellFaults
    from simulation.shell_world import ShellPublisher, ShellResult

__all__ = ["NatsResult", "NatsWorld", "run_nats"]

ROUTE_US = 20 * MS
BEFORE_US = 4 * S
AFTER_US = 4 * S
DEAF_US = 4 * S
_SAMPLE_US = 10 * MS
_SUBJECTS = [b"s.%d" % number for number in range(9)]


class NatsWorld(ShellWorld):
    """See the module. Its arguments are those of `ShellWorld`, and a queue group of the stream.

    Attributes:
        lost: how many plain messages are not stored.
        gaps: how many there are.
        taken_us: of each plain message, when which server took it, and for which partition.
    """

    def __init__(self, seed: int, *, group: str | None = None, **how: Any) -> None:
        super().__init__(seed, **how)
        self._group = group
        self.has_keys = False  # what is compacted looks as if it were missing
        rng = self.rng
        self.plain_every_us = rng.choice((30, 80)) * MS
        self.wires = Wires(self.scheduler, rng)
        self.wires.room_bytes = rng.choice((4_000, 64_000))
        settings = NatsSettings(
            max_pending=rng.choice((10_000, 10_000_000)),
            write_deadline_us=rng.choice((1, 10)) * S,
            lame_duck_us=2 * S,
            route_stale_us=rng.choice((200 * MS, 3 * S)),
        )
        self.nats = NatsServers(self.scheduler, rng, self.wires, ["n1", "n2", "n3"], settings)
        self.nats.on_published = self._taken
        self.lost = self.gaps = 0
        self.plain: list[PlainPublisher] = []
        self.taken_us: dict[int, tuple[int, str, int]] = {}
        self._troubles_us: list[list[int]] = [[] for _ in range(self.partitions)]  # when something was wrong with it
        self._epochs = [0] * self.partitions
        self._deaf_since_us = [0] * self.partitions
        self._ready_us = self._created_us = -1
        for name in self.nats.all:
            self.nats.start(name)

    nodes: dict[str, NatsNode]  # type: ignore[assignment]

    def _make_node(self, name: str) -> NatsNode:
        return NatsNode(self, name)

    def _make_faults(self) -> ShellFaults:
        return NatsFaults(self)

    def _create_stream(self, **config: Any) -> None:
        self._created_us = self.scheduler.now_us
        super()._create_stream(group=self._group, **config)

    def _make_publishers(self) -> list[ShellPublisher]:
        self._until(lambda: all(map(self._is_heard, range(self.partitions))), "all are listened to")
        self._advance(100 * MS)
        self._ready_us = self.scheduler.now_us
        self.plain += [PlainPublisher(self, number, _SUBJECTS) for number in range(3)]
        self.scheduler.after(0, self._sample)
        return [
            AckedPublisher(self, has_ids=True, window=1, first=10),
            AckedPublisher(self, has_ids=True, window=8, first=11),
        ]

    # -- what was published

    def _taken(self, server: NatsServer, message: Message) -> None:
        """A server took a message."""
        has_woken = self.scheduler.now_us - server.woke_us < ROUTE_US
        if message.reply or message.subject.startswith(b"_INBOX") or has_woken:
            return
        number = int(message.payload.partition(b"|")[0])
        partition = partition_of(message.subject, self.partitions) if self.partitions > 1 else 0
        self.taken_us[number] = self.scheduler.now_us, server.name, partition

    # -- what was wrong when

    def trouble(self) -> None:
        """Something happens that may cost any partition messages."""
        for times in self._troubles_us:
            times.append(self.scheduler.now_us)

    def _sample(self) -> None:
        self.scheduler.after(_SAMPLE_US, self._sample)
        for number, times in enumerate(self._troubles_us):
            self._check_deaf(number)
            epoch = self.infos[number].leader_epoch
            if epoch != self._epochs[number] or not self._is_heard(number):
                times.append(self.scheduler.now_us)
            self._epochs[number] = epoch

    def _check_deaf(self, number: int) -> None:
        """A leader that does not hear NATS lets another lead that does, where nothing else is wrong."""
        info, now_us = self.infos[number], self.scheduler.now_us
        leader = None if info.leader is None else self.nodes[info.leader]
        isr = [self.nodes[name] for name in info.isr]
        is_calm = not self.network.cut and not self.metadata.is_down
        is_calm = is_calm and all(node.is_up and not node.is_paused and node.ingest is not None for node in isr)
        is_deaf = leader is not None and not leader.hears and any(node.hears for node in isr)
        if not (is_calm and is_deaf):
            self._deaf_since_us[number] = now_us
        elif now_us - self._deaf_since_us[number] > DEAF_US:
            raise ViolationError(f"deaf: {info.leader} has led partition {number} for {DEAF_US} us without NATS")

    def _is_heard(self, number: int) -> bool:
        """Whether what anybody publishes now reaches the partition's leader, and nodes can know that it does.

        While a server is away they can not: nobody tells them whether it is down, or goes on without the others.
        """
        info = self.infos[number]
        node = None if info.leader is None else self.nodes[info.leader]
        if node is None or not node.is_up or node.is_paused:
            return False
        partition = node.partition(number)
        if partition is None or not partition.is_leading or partition.epoch != info.leader_epoch:
            return False
        subject = _SUBJECTS[0]
        servers = list(self.nats.all.values())
        near = next((server for server in servers if server.is_heard_by(node.node_id, subject)), None)
        if near is None or any(server.is_paused or not server.is_up for server in servers):
            return False
        if frozenset((node.node_id, near.name)) in self.wires.silent:
            return False
        return all(server is near or self.nats.reaches(server, near, subject) for server in servers)

    # -- in the end

    def _is_well(self) -> bool:
        if not super()._is_well():
            return False
        if not all(map(self._is_heard, range(self.partitions))):
            return False
        told = [node.gaps(number) for node in self.nodes.values() for number in range(self.partitions)]
        return all(until is not None for gaps in told for _, until, _ in gaps)

    def _run(self) -> ShellResult:
        result = super()._run()
        self._advance(1 * S)  # what was published last is committed
        self._check_gaps()
        return result

    def _stored(self, number: int) -> set[int]:
        leader = self.infos[number].leader
        assert leader is not None
        node = self.nodes[leader]
        partition = node.partition(number)
        assert partition is not None
        found: set[int] = set()
        for segment in partition.log.segments:
            data = node.disk.content(segment.path)[: segment.size]
            found |= {record.number for offset, record in records_in(data) if offset < partition.high_watermark}
        return found

    def _check_gaps(self) -> None:
        stored = [self._stored(number) for number in range(self.partitions)]
        missing = [
            (message, *taken)
            for message, taken in self.taken_us.items()
            if taken[0] >= self._ready_us and message not in stored[taken[-1]]
        ]
        self.lost = len(missing)
        for node in self.nodes.values():
            gaps = [node.gaps(number) for number in range(self.partitions)]
            for message, taken_us, server, number in missing:
                if not any(_covers(gap, taken_us) for gap in gaps[number]):
                    raise ViolationError(
                        f"said: message {message} of partition {number}, taken by {server} at {taken_us}, is not "
                        f"stored, and no gap of {gaps[number]} on {node.node_id} tells of it"
                    )
        self.gaps = sum(map(len, gaps))
        for number, told in enumerate(gaps):
            for gap in told:
                self._check_cause(number, *gap)

    def _check_cause(self, number: int, since: int, until: int | None, cause: str) -> None:
        assert until is not None, "waited for"
        troubles = self._troubles_us[number]
        what = f"the gap {since}..{until} ({cause}) of partition {number}"
        if until <= self._ready_us:
            return
        if since < self._created_us:
            raise ViolationError(f"short: {what} begins before the stream was there")
        if since > until:
            raise ViolationError(f"cause: {what} ends before it begins")
        first = bisect_left(troubles, since - ROUTE_US)
        last = bisect_right(troubles, until + ROUTE_US) - 1
        if first > last:
            raise ViolationError(f"cause: nothing was wrong in {what}")
        is_of_route = "route" in cause or cause == "several causes"
        before_us = BEFORE_US + (int(ROUTE_SILENT_S_MAX * S) if is_of_route else 0)
        after_us = AFTER_US + (int(ROUTE_GRACE_S * S) if is_of_route else 0)
        if troubles[first] - since > before_us:
            raise ViolationError(f"short: {what} begins before {troubles[first]}, when something was wrong")
        if until - troubles[last] > after_us:
            raise ViolationError(f"short: {what} goes on after {troubles[last]}, when nothing was wrong any more")


def _covers(gap: tuple[int, int | None, str], taken_us: int) -> bool:
    since, until, _ = gap
    return since - ROUTE_US <= taken_us and (until is None or taken_us <= until + ROUTE_US)


class NatsResult(NamedTuple):
    """What a run came to.

    Attributes:
        shell: what it came to as one of the shell.
        plain: messages that servers took.
        lost: those of them that are not stored.
        gaps: at its end.
    """

    shell: ShellResult
    plain: int
    lost: int
    gaps: int


def run_nats(seed: int, **how: Any) -> NatsResult:
    """One run; a failure says how to have it again."""
    world = NatsWorld(seed, **how)
    result = run_world(world, seed, "nats_world")
    return NatsResult(result, len(world.taken_us), world.lost, world.gaps)


if __name__ == "__main__":
    command(run_nats, FAULTS)
