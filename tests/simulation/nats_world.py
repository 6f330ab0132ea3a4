"""The simulated shell at a model of nats-server: plain messages, and the gaps that tell of those that are missing.

`python -m simulation.nats_world SEED` runs one seed and prints what it came to.

What must hold, beside what holds of the shell:

said     a plain message that a NATS server took while its stream was listened to, or had been, is stored, or lies in a
         gap of its partition that every node lists; of messages that are all alike as many are stored as were taken
once     it is stored once, or lies in such a gap, or in the time of a change of servers that says so
order    what one publisher handed to one server is stored in its order, but for what lies in such times
cause    a gap is there for a reason: something went wrong within it; one that ends where it begins tells nothing
deaf     a partition's leader hears NATS, if any in-sync replica does, within `DEAF_US`
short    a gap begins at most `BEFORE_US` before something went wrong, and ends at most `AFTER_US` after it was over;
         where a route fell silent it begins as long before as servers may take to notice

Clocks are stepped; what a gap tells is held against the clock of who wrote it down. After that its length is not looked
at: who goes on with a gap of another node takes its times by his own clock.

A message's time is when its server took it, up to `ROUTE_US` later, which it may need to the server where a node
listens. Nodes that listen there have asked it since whether they have everything, and that is all that they can know.
Not held against them, as they cannot know it:

- what a server that stood still takes as it wakes, before it has read who listens elsewhere now, if it wakes so soon
  after that was subscribed that it is not found asleep, or if it is about to end;
- what one that is about to end takes after it has lost its routes: it is not named any more, so nobody says so;
- what is published while a route has fallen silent, if the node that led has ended, or listens to another server,
  before a server has noticed, or its own connection falls silent before that, and ends; or if the server where it is
  published has ended, or is about to, before its loss is told.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from liftpy_envelope.partitioner import partition_of
from liftpy_server.gaps.partition_gaps import PartitionGaps
from liftpy_server.handover import giving, server_change, taking
from liftpy_server.handover.held import Holding
from liftpy_server.partition.partition import Partition
from liftpy_server.settings.limits import ROUTE_GRACE_S, ROUTE_SILENT_S_MAX
from simulation.model import ViolationError
from simulation.nats_clients import AckedPublisher, PlainPublisher, TickPublisher
from simulation.nats_faults import FAULTS, NatsFaults
from simulation.nats_node import NatsNode
from simulation.nats_server import NatsServer, NatsServers, NatsSettings
from simulation.nats_wire import Wires
from simulation.scheduler import MS, S
from simulation.shell_faults import InjectedError
from simulation.shell_model import records_in
from simulation.shell_world import ShellWorld, command, run_world

if TYPE_CHECKING:
    from contextlib import ExitStack

    from liftpy_server.gaps.gap import Gap
    from simulation.nats_server import Message
    from simulation.shell_faults import ShellFaults
    from simulation.shell_world import ShellPublisher, ShellResult

__all__ = ["NatsResult", "NatsWorld", "run_nats"]

ROUTE_US = 20 * MS
BEFORE_US = 4 * S
AFTER_US = 4 * S
DEAF_US = 4 * S
CHANGE_US = 15 * S  # at most, for a change of servers
ASLEEP_US = 700 * MS  # until a server that stands still is found asleep
_SAMPLE_US = 10 * MS
_SUBJECTS = 9


class NatsWorld(ShellWorld):
    """See the module. Its arguments are those of `ShellWorld`, a queue group of the stream, and by how much routes lag.

    Attributes:
        lost: how many plain messages are not stored.
        gaps: how many there are, but for those from before anything was published.
        taken: of each plain message when which servers took it.
        has_jumped: a clock was stepped.
    """

    def __init__(self, seed: int, *, group: str | None = None, lag_us: int = 0, **how: Any) -> None:
        super().__init__(seed, **how)
        self._route_us = ROUTE_US + lag_us
        self._group = group
        self.has_keys = False  # what is compacted looks as if it were missing
        rng = self.rng
        self.subjects = rng.choice(("s", "s", "s\u200b"))  # NATS writes the last in another way than we do
        self.plain_every_us = rng.choice((30, 80)) * MS
        self.wires = Wires(self.scheduler, rng)
        self.wires.room_bytes = rng.choice((4_000, 64_000))
        settings = NatsSettings(
            max_pending=rng.choice((10_000, 10_000_000)),
            write_deadline_us=rng.choice((1, 10)) * S,
            lame_duck_us=2 * S + 40 * lag_us,
            route_stale_us=rng.choice((200 * MS, 3 * S)),
        )
        self.nats = NatsServers(self.scheduler, rng, self.wires, ["n1", "n2", "n3"], settings)
        self.nats.on_published, self.nats.lag_us = self._taken, lag_us
        self.lost = self.gaps = 0
        self.plain: list[PlainPublisher] = []
        self.taken: dict[int, list[Taken]] = {}
        self.has_jumped = self._appends_held = False
        self._changes_began_us: list[int] = []  # of servers
        self._unsteady_us: list[tuple[int, int]] = []  # when such a change may have stored messages twice
        self._cuts: list[tuple[int, frozenset[str]]] = []
        self._changes_us: list[list[int]] = [[] for _ in range(self.partitions)]  # of leaders' connections
        self._hearing: list[Any] = [None] * self.partitions
        self._heard_by: list[list[Any]] = [[] for _ in range(self.partitions)]  # connections that stand still
        self._paused_us: dict[str, list[list[int]]] = {}  # first and last of each time in which servers stood still
        self._runs: dict[str, tuple[int, bool]] = {}  # of servers, and whether it is about to end, by name
        self._ends_us: dict[str, list[int]] = {}  # when those changed
        self._silent_since_us: dict[Any, int] = {}  # of connections
        self._forgot_us: list[list[int]] = [[] for _ in range(self.partitions)]  # when one of them was no more
        self._offsets_ns: dict[tuple[str, int], set[int]] = {}  # of clocks, by gap and its begin
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
        self.plain += [PlainPublisher(self, number, self._subjects) for number in range(3)]
        if not self.nats.lag_us:  # else who comes from which server can not be told of messages that are all alike
            self.plain.append(TickPublisher(self, 3, self._subjects))
        self.scheduler.after(0, self._sample)
        return [
            AckedPublisher(self, has_ids=True, window=1, first=10),
            AckedPublisher(self, has_ids=True, window=8, first=11),
        ]

    @property
    def _subjects(self) -> list[bytes]:
        return [f"{self.subjects}.{number}".encode() for number in range(_SUBJECTS)]

    def _patch(self, stack: ExitStack) -> None:
        super()._patch(stack)
        keep, append, append_read = PartitionGaps._keep, Partition.append, Partition.append_incoming
        append_held = Holding.append

        def kept(gaps: Any, gap: Gap) -> None:
            self._offsets_ns.setdefault(_key_of(gap), set()).add(gaps._clock._node.clock_offset_ns)
            keep(gaps, gap)

        def appended(partition: Any, *args: Any) -> None:
            self._may_fail(partition)
            append(partition, *args)

        def appended_read(partition: Any, *args: Any) -> None:
            self._may_fail(partition)
            append_read(partition, *args)

        def appended_held(holding: Any, partition: Any, *args: Any) -> None:
            self._appends_held = True
            try:
                append_held(holding, partition, *args)
            finally:
                self._appends_held = False

        stack.enter_context(patch.object(Holding, "append", appended_held))
        stack.enter_context(patch.object(PartitionGaps, "_keep", kept))
        stack.enter_context(patch.object(Partition, "append", appended))
        stack.enter_context(patch.object(Partition, "append_incoming", appended_read))
        stack.enter_context(patch.object(server_change.logger, "warning", self._change_was_unsteady))
        for module in (giving, server_change, taking):
            stack.enter_context(patch.object(module, "secrets", self))

    def token_hex(self, size: int) -> str:
        """As `secrets` has it, and yet the same again with the same seed."""
        return self.rng.randbytes(size).hex()

    def _may_fail(self, partition: Any) -> None:
        for node in self.nodes.values():
            if node.disk is partition.log._disk and (node.fails_append or (node.fails_held and self._appends_held)):
                node.fails_append = node.fails_held = False
                self.seen["error in a handover" if self._appends_held else "error in delivery"] += 1
                self.trouble()
                raise InjectedError("append")

    def offsets_ns_of(self, gap: Gap) -> tuple[int, int]:
        """By how much the clocks of those who wrote down a gap were ahead, at least and at most."""
        known = self._offsets_ns.get(_key_of(gap))
        offsets = set().union(*self._offsets_ns.values()) if known is None else known  # of gaps that were joined
        return min(offsets), max(offsets)

    # -- what was published

    def _taken(self, server: NatsServer, message: Message) -> None:
        """A server took a message."""
        is_cut_off = server.is_lame and (
            any(server.name in pair for pair in self.nats.cut)
            or self.scheduler.now_us - server.woke_us < self._route_us
        )
        if message.reply or not message.subject.startswith(self.subjects.encode()) or is_cut_off:
            return
        has_woken = self.scheduler.now_us - server.woke_us < self._route_us
        number = int(message.payload.partition(b"|")[0])
        partition = partition_of(message.subject, self.partitions) if self.partitions > 1 else 0
        self.taken.setdefault(number, []).append(
            Taken(self.scheduler.now_us, server.name, server.run, partition, has_woken)
        )

    # -- what was wrong when

    def trouble(self) -> None:
        """Something happens that may cost any partition messages."""
        for times in self._troubles_us:
            times.append(self.scheduler.now_us)

    def change_began(self) -> None:
        """A node leaves a server for another."""
        self.seen["change of servers"] += 1
        self._changes_began_us.append(self.scheduler.now_us)

    def _change_was_unsteady(self, *_: Any) -> None:
        """A node says that messages may be stored twice."""
        self.seen["unsteady change of servers"] += 1
        now_us = self.scheduler.now_us
        first_us = min(began_us for began_us in self._changes_began_us if now_us - began_us < CHANGE_US)
        self._unsteady_us.append((first_us - self._route_us, now_us + S))

    def cut_off(self, pair: frozenset[str]) -> None:
        """A route falls silent."""
        self._cuts.append((self.scheduler.now_us, pair))

    def _is_unknowable(self, taken: Taken) -> bool:
        """Whether something had fallen silent, and nobody had noticed it when somebody else listened."""
        if taken.has_woken and self._has_changed(taken, taken.at_us - ASLEEP_US, taken.at_us):
            return True
        stale_us = self.nats.all[taken.server].settings.route_stale_us
        lost_us = [*self._forgot_us[taken.partition], *self._ends_us.get(taken.server, ())]
        for cut_us, pair in self._cuts:
            until_us = cut_us + stale_us
            for name in pair:  # one that stands still notices when it wakes
                until_us = max([until_us, *(last for first, last in self._paused_us.get(name, ()) if first < until_us)])
            is_cut = taken.server in pair and cut_us <= taken.at_us <= until_us
            if is_cut and any(cut_us <= each_us <= until_us + S for each_us in lost_us):
                return True
        return False

    def _has_changed(self, taken: Taken, first_us: int, last_us: int) -> bool:
        """Whether somebody else began to listen for a message's partition, or to another server."""
        return any(first_us <= changed_us <= last_us for changed_us in self._changes_us[taken.partition])

    def _sample(self) -> None:
        self.scheduler.after(_SAMPLE_US, self._sample)
        for number, times in enumerate(self._troubles_us):
            self._check_deaf(number)
            epoch = self.infos[number].leader_epoch
            if epoch != self._epochs[number] or not self._is_heard(number):
                times.append(self.scheduler.now_us)
            self._epochs[number] = epoch
            leader = self.nodes.get(self.infos[number].leader or "")
            hearing = None if leader is None or leader.ingest is None else leader.ingest.hearing
            if hearing is not self._hearing[number]:
                self._hearing[number] = hearing
                self._changes_us[number].append(self.scheduler.now_us)
                self._heard_by[number] += [] if hearing is None or hearing in self._heard_by[number] else [hearing]
            standing = [each.ingest.hearing for each in self.nodes.values() if each.ingest is not None]
            ended = [each for each in self._heard_by[number] if each not in standing]
            self._forgot_us[number] += [self._silent_since_us.get(each, self.scheduler.now_us) for each in ended]
            self._heard_by[number] = [each for each in self._heard_by[number] if each in standing]
        self._note_silent()
        for name, server in self.nats.all.items():
            if server.is_paused and server.is_up:
                pauses = self._paused_us.setdefault(name, [[0, 0]])
                if self.scheduler.now_us - pauses[-1][1] > 2 * _SAMPLE_US:
                    pauses.append([self.scheduler.now_us, 0])
                pauses[-1][1] = self.scheduler.now_us
            if self._runs.get(name) != (run := (server.run, server.is_lame)):
                self._runs[name] = run
                self._ends_us.setdefault(name, []).append(self.scheduler.now_us)

    def _note_silent(self) -> None:
        """A connection that ends in a silence has heard nothing since that began."""
        silent: dict[Any, int] = {}
        for node in self.nodes.values():
            hearing = None if node.ingest is None else node.ingest.hearing
            server = None if hearing is None else hearing.connection.address.host
            if frozenset((node.node_id, server)) in self.wires.silent:
                silent[hearing] = self._silent_since_us.get(hearing, self.scheduler.now_us)
        self._silent_since_us = silent

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
        subject = self._subjects[0]
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
        if any(until is None for gaps in told for _, until, _ in gaps):
            return False
        partitions = [node.partition(number) for node in self.nodes.values() for number in range(self.partitions)]
        return all(each is None or each.gaps.are_recorded for each in partitions)

    def _run(self) -> ShellResult:
        result = super()._run()
        self._advance(1 * S)  # what was published last has come
        self._until(self._is_committed, "what came last is committed")
        self._check_gaps()
        return result

    def _is_committed(self) -> bool:
        """Whether nothing is left that a leader has appended, and that waits for a slow disk."""
        leaders = [self.nodes[info.leader or ""].partition(number) for number, info in enumerate(self.infos)]
        return all(each is not None and each.high_watermark == each.log.log_end for each in leaders)

    def _stored(self, number: int) -> list[int]:
        leader = self.infos[number].leader
        assert leader is not None
        node = self.nodes[leader]
        partition = node.partition(number)
        assert partition is not None
        found: list[int] = []
        for segment in partition.log.segments:
            data = node.disk.content(segment.path)[: segment.size]
            found += [record.number for offset, record in records_in(data) if offset < partition.high_watermark]
        return found

    def _check_gaps(self) -> None:
        stored = [self._stored(number) for number in range(self.partitions)]
        counts = Counter(message for numbers in stored for message in numbers)
        self.lost = sum(max(0, len(taken) - counts[message]) for message, taken in self.taken.items())
        for node in self.nodes.values():
            gaps = [node.gaps(number) for number in range(self.partitions)]
            for message, taken in self.taken.items():
                number, off = taken[0].partition, len(taken) - counts[message]
                if off > sum(self._is_covered(gaps[number], each.at_us) or self._is_unknowable(each) for each in taken):
                    raise ViolationError(
                        f"said: message {message} of partition {number}, {taken[-5:]}, is missing {off} times, and "
                        f"no gap of {gaps[number]} on {node.node_id} tells of it"
                    )
                if -off > sum(self._is_unsteady(gaps[number], each.at_us) for each in taken):
                    raise ViolationError(
                        f"once: message {message} of partition {number}, {taken[-5:]}, is stored {-off} times too "
                        f"often, and no gap of {gaps[number]} tells of it"
                    )
        for number, told in enumerate(gaps):
            self._check_order(stored[number], told)
        self.gaps = sum(until is None or until > self._ready_us for told in gaps for _, until, _ in told)
        for number, told in enumerate(gaps):
            for span in _spans(told, self._route_us):
                self._check_cause(number, *span)

    def _is_covered(self, gaps: list[tuple[int, int | None, str]], at_us: int) -> bool:
        return any(_covers(gap, at_us, self._route_us) for gap in gaps)

    def _is_unsteady(self, gaps: list[tuple[int, int | None, str]], at_us: int) -> bool:
        """Whether a message may be stored twice."""
        return self._is_covered(gaps, at_us) or any(first <= at_us <= last for first, last in self._unsteady_us)

    def _check_order(self, stored: list[int], gaps: list[tuple[int, int | None, str]]) -> None:
        """Of what each publisher handed to a server, but for what may be there twice."""
        last: dict[Any, int] = {}
        for message in stored:
            taken = self.taken.get(message)
            if taken is None or len(taken) > 1 or self._is_unsteady(gaps, taken[0].at_us):
                continue
            place = self._owners[message], taken[0].server, taken[0].run
            if message < last.get(place, 0):
                raise ViolationError(f"order: {message} {taken} is stored behind {last[place]}")
            last[place] = message

    def _check_cause(self, number: int, since: int, until: int | None, cause: str) -> None:
        assert until is not None, "waited for"
        troubles = self._troubles_us[number]
        what = f"the gap {since}..{until} ({cause}) of partition {number}"
        if until <= self._ready_us:
            return
        if since == until:
            return  # who led before told of it, not knowing that; the leader had heard everything, and ended it
        if since > until:
            raise ViolationError(f"cause: {what} ends before it begins")
        if self.has_jumped:
            return
        if since < self._created_us:
            raise ViolationError(f"short: {what} begins before the stream was there")
        first = bisect_left(troubles, since - self._route_us)
        last = bisect_right(troubles, until + self._route_us) - 1
        if first > last:
            raise ViolationError(f"cause: nothing was wrong in {what}")
        is_of_route = "route" in cause or "several causes" in cause
        before_us = BEFORE_US + (int(ROUTE_SILENT_S_MAX * S) if is_of_route else 0)
        after_us = AFTER_US + (int(ROUTE_GRACE_S * S) if is_of_route or "stood still" in cause else 0)
        if troubles[first] - since > before_us:
            raise ViolationError(f"short: {what} begins before {troubles[first]}, when something was wrong")
        if until - troubles[last] > after_us:
            raise ViolationError(f"short: {what} goes on after {troubles[last]}, when nothing was wrong any more")


def _covers(gap: tuple[int, int | None, str], taken_us: int, route_us: int) -> bool:
    since, until, _ = gap
    return since - route_us <= taken_us and (until is None or taken_us <= until + route_us)


def _spans(gaps: list[tuple[int, int | None, str]], route_us: int) -> list[tuple[int, int | None, str]]:
    """Gaps of which one begins where, or before, another ends are one time in which something was wrong."""
    spans: list[tuple[int, int | None, str]] = []
    for since, until, cause in sorted(gaps, key=lambda gap: gap[0]):
        last = spans[-1] if spans else None
        if last is None or last[1] is None or until is None or since > last[1] + route_us:
            spans.append((since, until, cause))
        else:
            spans[-1] = last[0], max(last[1], until), f"{last[2]}; {cause}"
    return spans


def _key_of(gap: Gap) -> tuple[str, int]:
    return gap.id, gap.since_ns


class Taken(NamedTuple):
    """When which process of which server took a message, and for which partition; and whether it had just woken."""

    at_us: int
    server: str
    run: int
    partition: int
    has_woken: bool


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
    return NatsResult(result, sum(map(len, world.taken.values())), world.lost, world.gaps)


if __name__ == "__main__":
    command(run_nats, FAULTS)
