"""One node: a process that can be stopped, killed and started, around the replica under test.

This is what a shell must do: carry out effects in order, report what became of them, and let nothing of an earlier
process reach a later one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from liftpy_server.replication import effects as fx
from liftpy_server.replication import inputs
from liftpy_server.replication.replica import Replica
from liftpy_server.replication.view import PartitionView
from simulation.metadata import META, UUID
from simulation.proposals import command_of
from simulation.scheduler import MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_server.metadata.commands import Outcome
    from liftpy_server.metadata.state import MetadataState
    from liftpy_server.replication.messages import FetchAnswer
    from simulation.clients import Consumer
    from simulation.disk import SimDisk
    from simulation.world import World

TICK_US = 250 * MS
FETCH_WAIT_US = 400 * MS
HEARTBEAT_US = 500 * MS
FETCH_RECORDS_MAX = 8


class SimNode:
    """See the module."""

    def __init__(self, world: World, node_id: str, disk: SimDisk) -> None:
        self.node_id = node_id
        self.disk = disk
        self.is_up = False
        self.is_paused = False
        self.clock_offset_ns = 0
        self.replica: Replica | None = None
        self.world = world
        self._run = 0
        self._registrations = 0
        self._state: MetadataState | None = None
        self._inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._parked: dict[str, tuple[FetchAnswer, int]] = {}
        self._waiting: deque[tuple[int, int, int]] = deque()  # (offset, epoch, value) of what waits for its ack
        self._is_syncing = False
        self._proposals = 0

    # -- the process

    def start(self) -> None:
        self.is_up = True
        self._run += 1
        self._become_new()
        self._soon(1 + self.world.rng.randrange(TICK_US), self._tick)
        self._soon(HEARTBEAT_US, self._heartbeat)

    def kill(self) -> None:
        """Kill -9, or a power loss: what was not synced may be gone."""
        self.is_up = self.is_paused = False
        self._run += 1
        self._inbox.clear()
        self.replica = None
        self.disk.lose_power(self.world.rng)

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        inbox, self._inbox = self._inbox, []
        for act, args in inbox:
            self._enter(self._run, act, *args)

    def wall_ns(self) -> int:
        return self.world.scheduler.now_us * 1_000 + self.clock_offset_ns

    def _become_new(self) -> None:
        """Another incarnation: of a process that starts, or of one that learns that its session is over."""
        self.replica = None
        self._parked.clear()
        self._waiting.clear()
        self._is_syncing = False
        self._registrations += 1
        self._register(self._registrations)

    def _enter(self, run: int, act: Callable[..., None], *args: Any) -> None:
        if run != self._run or not self.is_up:
            return
        if self.is_paused:
            self._inbox.append((act, args))
        else:
            act(*args)

    def _soon(self, delay_us: int, act: Callable[..., None], *args: Any) -> None:
        self.world.scheduler.after(delay_us, self._enter, self._run, act, *args)

    # -- the metadata

    def _register(self, registration: int) -> None:
        if registration != self._registrations or self.replica is not None:
            return
        is_proven = not self.disk.is_doubtful or self.world.has_bug("keep_unproven")
        node = {"node_id": self.node_id, "pull_host": "h", "pull_port": 1}
        self._propose(
            "register_node",
            f"register-{self.node_id}-{self._run}-{registration}",
            lambda outcome: self._registered(registration, outcome),
            node=node,
            is_log_proven=is_proven,
        )
        self._soon(400 * MS, self._register, registration)

    def _registered(self, registration: int, outcome: Outcome) -> None:
        if registration != self._registrations or self.replica is not None:
            return
        self.disk.is_doubtful = False
        self.replica = Replica(self.node_id, outcome.value, UUID, self.disk.marks(), self.world.times)
        self._viewed()

    def _propose(self, op: str, command_id: str, answer: Callable[[Outcome], None] | None, **args: Any) -> None:
        run = self._run
        heard = None if answer is None else lambda outcome: self._enter(run, answer, outcome)
        self.world.metadata.propose(self, op, command_id, heard, args)

    def _heartbeat(self) -> None:
        self._soon(HEARTBEAT_US, self._heartbeat)
        if self.replica is not None:
            metadata = self.world.metadata
            self.world.network.send(self.node_id, META, metadata.heartbeat, self, self.replica.incarnation)

    def metadata_changed(self, state: MetadataState) -> None:
        self._enter(self._run, self._learned, state)

    def _learned(self, state: MetadataState) -> None:
        if self._state is None or state.revision > self._state.revision:
            self._state = state
            self._viewed()

    def _viewed(self) -> None:
        if self._state is None or self.replica is None:
            return
        me = self._state.nodes.get(self.node_id)
        if me is not None and (
            me.incarnation > self.replica.incarnation or (me.expired and me.incarnation == self.replica.incarnation)
        ):
            self._become_new()
            return
        view = PartitionView.of(self._state, "s", 0)
        if view is not None:
            self._step(inputs.ViewChanged(view=view))

    # -- the replica

    def _tick(self) -> None:
        self._soon(TICK_US, self._tick)
        self._step(inputs.Tick())
        now = self.world.scheduler.now_us
        for follower, (answer, deadline) in list(self._parked.items()):
            if deadline <= now:
                del self._parked[follower]
                self._answer(answer)
        if self.replica is not None:
            self._retain(self.replica)

    def _retain(self, replica: Replica) -> None:
        """Retention: at times a node drops committed records that every consumer has read."""
        if self.world.rng.random() < self.world.retention_chance:
            start = min([replica.log.high_watermark - 5, *(reader.position for reader in self.world.consumers)])
            if start > self.disk.start:
                self.disk.drop_below(start)
                self._step(inputs.StartAdvanced(start=start))

    def receive(self, message: inputs.Input) -> None:
        """From another replica."""
        self._enter(self._run, self._step, message)

    def _step(self, given: inputs.Input) -> None:
        waiting = deque([given])
        while waiting:
            replica = self.replica
            if replica is None:
                return
            for effect in replica.step(waiting.popleft(), self.world.scheduler.now_us / 1e6):
                waiting += self._carry_out(replica, effect)
        self._sync()

    def _carry_out(self, replica: Replica, effect: fx.Effect) -> list[inputs.Input]:
        self.world.seen[type(effect).__name__] += 1
        match effect:
            case fx.AdvanceHighWatermark():
                self._advanced(replica, effect.offset)
            case fx.AnswerFetch():
                self._parked.pop(effect.answer.node_id, None)
                self._answer_or_park(effect.answer)
            case fx.AnswerEpochEnd():
                self._send(effect.answer.node_id, effect.answer)
            case fx.AskEpochEnd():
                self._send(effect.leader, effect.question)
            case fx.Fetch():
                self._send(effect.leader, effect.request)
            case fx.Append():
                self.world.model.appending(self.node_id, effect.answer.records)
                if not self.disk.append(effect.answer.records):
                    self.world.seen["AppendFailed"] += 1
                    return [inputs.AppendFailed()]
                return [inputs.Appended(ranges=effect.answer.ranges)]
            case fx.Truncate():
                self.world.model.truncating(self.node_id, effect.end)
                self._soon(self.disk.sync_us, self._truncated, replica, effect.end)
            case fx.Rebuild():
                self.world.model.truncating(self.node_id, effect.start)
                self._soon(self.disk.sync_us, self._rebuilt, replica, effect.start)
            case fx.LeadershipBegan() | fx.LeadershipEnded():
                self.world.trace.append((self.world.scheduler.now_us, self.node_id, effect))
                self._parked.clear()
                self._waiting.clear()
            case fx.AcceptingChanged():
                if not effect.accepting:
                    self._waiting.clear()  # their publishers are told that the outcome is unknown
            case _:
                self._propose_effect(replica, effect)
        return []

    def _propose_effect(self, replica: Replica, effect: fx.Effect) -> None:
        self._proposals += 1
        op, command_id, args = command_of(effect, replica, f"{self.node_id}-{self._run}-{self._proposals}")
        heard = None
        if isinstance(effect, fx.ProposeIsr):
            heard = lambda outcome: self._isr_decided(effect.version, outcome)
        self._propose(op, command_id, heard, **args)

    def _isr_decided(self, version: int, outcome: Outcome) -> None:
        if outcome.error:
            self._step(inputs.IsrRefused(version=version))

    def _send(self, target: str, message: inputs.Input) -> None:
        self.world.network.send(self.node_id, target, self.world.nodes[target].receive, message)

    # -- the log

    def _truncated(self, replica: Replica, end: int) -> None:
        if self.replica is replica:
            self.disk.truncate(end)
            self._step(inputs.Truncated(end=end))

    def _rebuilt(self, replica: Replica, start: int) -> None:
        if self.replica is replica:
            self.disk.rebuild(start)
            self._step(inputs.Rebuilt(start=start))

    def _sync(self) -> None:
        if not self._is_syncing and self.replica is not None and self.disk.synced_end < self.disk.end:
            self._is_syncing = True
            delay = self.disk.sync_us + int(self.world.rng.random() * self.disk.sync_us)
            self._soon(delay, self._synced, self._registrations, self.disk.end, self.disk.cuts)

    def _synced(self, registration: int, end: int, cuts: int) -> None:
        if registration != self._registrations:
            return
        self._is_syncing = False
        if cuts == self.disk.cuts and self.replica is not None:
            self.disk.synced_end = max(self.disk.synced_end, end)
            self.disk.checkpoint = max(self.disk.checkpoint, min(self.replica.log.high_watermark, end))
            self._step(inputs.Durable(end=end))
        else:
            self._sync()

    # -- as a leader

    def _answer_or_park(self, answer: FetchAnswer) -> None:
        if answer.refusal is None and self.disk.end == answer.offset and not self._has_news(answer):
            self._parked[answer.node_id] = (answer, self.world.scheduler.now_us + FETCH_WAIT_US)
        else:
            self._answer(answer)

    def _has_news(self, answer: FetchAnswer) -> bool:
        assert self.replica is not None
        return self.replica.log.high_watermark > answer.high_watermark

    def _answer(self, answer: FetchAnswer) -> None:
        assert self.replica is not None
        if answer.refusal is None:
            end = min(self.disk.end, answer.offset + FETCH_RECORDS_MAX)
            answer = replace(
                answer,
                high_watermark=self.replica.log.high_watermark,
                ranges=self.disk.ranges(answer.offset, end),
                records=self.disk.read(answer.offset, end),
            )
        self._send(answer.node_id, answer)

    def _wake(self) -> None:
        for follower, (answer, _) in list(self._parked.items()):
            if self.disk.end > answer.offset or self._has_news(answer):
                del self._parked[follower]
                self._answer(answer)

    def _advanced(self, replica: Replica, offset: int) -> None:
        leader = replica.leader
        epoch = None if leader is None else leader.view.leader_epoch
        self.world.model.advanced(self.node_id, offset, epoch)
        self.world.trace.append((self.world.scheduler.now_us, self.node_id, offset))
        while self._waiting and self._waiting[0][0] < offset:
            acked, acked_epoch, value = self._waiting.popleft()
            self.world.model.acknowledged(value, acked_epoch, acked)
            self.world.first_ack_us.setdefault(acked_epoch, self.world.scheduler.now_us)
        self._wake()

    def published(self, values: tuple[int, ...]) -> None:
        """From NATS."""
        self._enter(self._run, self._ingest, values)

    def _ingest(self, values: tuple[int, ...]) -> None:
        leader = None if self.replica is None else self.replica.leader
        if leader is None or not leader.is_accepting:
            return
        epoch = leader.view.leader_epoch
        base = self.disk.end
        records = [(epoch, value) for value in values]
        self.world.model.appending(self.node_id, records)
        if not self.disk.append(records):
            return
        self._waiting += [(base + number, epoch, value) for number, value in enumerate(values)]
        self._step(inputs.Appended(ranges=self.disk.ranges(base, self.disk.end)))
        self._wake()

    def consumed(self, consumer: Consumer, position: int, floor: int, epoch: int) -> None:
        """From a consumer."""
        self._enter(self._run, self._serve, consumer, position, floor, epoch)

    def _serve(self, consumer: Consumer, position: int, floor: int, floor_epoch: int) -> None:
        replica = self.replica
        if replica is None or replica.role is None or position < self.disk.start:
            return
        end = min(replica.log.high_watermark, position + FETCH_RECORDS_MAX)
        records = self.disk.read(position, end) if end > position else []
        leader = replica.leader
        latest = replica.log.high_watermark if leader is not None and leader.is_caught_up else None
        epoch = replica.role.view.leader_epoch
        args = (epoch, position, records, latest, floor, floor_epoch)
        self.world.network.send(self.node_id, "client", consumer.answered, *args)
