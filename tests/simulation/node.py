"""One node: a process that can be stopped, killed and started, around the replica under test.

This is what a shell must do: carry out effects in order, report what became of them, tick whoever is not quiet, and
let nothing of an earlier process reach a later one. How it serves others is in `serving`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from liftpy_server.replication.core import effects as fx
from liftpy_server.replication.core import inputs
from liftpy_server.replication.core.replica import Replica
from liftpy_server.replication.core.view import PartitionView
from simulation.metadata import KEY, META, UUID
from simulation.proposals import command_of
from simulation.scheduler import MS
from simulation.serving import Serving
from simulation.sessions import Link

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_server.metadata.commands import Outcome
    from liftpy_server.metadata.state import MetadataState, PartitionInfo
    from simulation.disk import SimDisk
    from simulation.world import World

TICK_US = 200 * MS
HEARTBEAT_US = 500 * MS


class SimNode(Serving):
    """See the module."""

    def __init__(self, world: World, node_id: str, disk: SimDisk) -> None:
        super().__init__(world, node_id, disk)
        self.clock_offset_ns = 0
        self._incarnation = 0
        self._registrations = 0
        self._state: MetadataState | None = None
        self._links: dict[str, Link] = {}
        self._ticked_us = 0
        self._sweep_us = 0
        self._is_syncing = False
        self._proposals = 0

    # -- the process

    def start(self) -> None:
        self._begun()
        self.disk.is_broken = False
        self._links.clear()
        self._become_new()
        first_us = 1 + self.world.rng.randrange(TICK_US)
        self._ticked_us = self.world.scheduler.now_us + first_us - TICK_US
        self._soon(first_us, self._tick)
        self._soon(HEARTBEAT_US, self._heartbeat)

    def kill(self) -> None:
        """Kill -9, or, unless the disk is lazy, a power loss: what was not synced may be gone."""
        self._ended()
        self.replica = None
        self.hang_up()
        if not self.disk.is_lazy:
            self.disk.lose_power(self.world.rng)

    def wall_ns(self) -> int:
        return self.world.scheduler.now_us * 1_000 + self.clock_offset_ns

    def _become_new(self) -> None:
        """Another incarnation: of a process that starts, or of one that learns that its session is over."""
        self._close()
        self._incarnation = 0
        self._registrations += 1
        self._register(self._registrations)

    def _close(self) -> None:
        """The replica ends."""
        self.replica = None
        self._is_syncing = False
        for link in self._links.values():
            link.drop()
        self.forget()

    def _soon(self, delay_us: int, act: Callable[..., None], *args: Any) -> None:
        self.world.scheduler.after(delay_us, self.enter, self.run, act, *args)

    # -- the metadata

    def _register(self, registration: int) -> None:
        if registration != self._registrations or self._incarnation:
            return
        disk, mine = self.disk, [[UUID, 0]]
        is_hidden = self.world.has_bug("keep_unproven")
        node = {"node_id": self.node_id, "pull_host": "h", "pull_port": 1}
        self._propose(
            "register_node",
            f"register-{self.node_id}-{self.run}-{registration}",
            lambda outcome: self._registered(registration, outcome),
            node=node,
            is_log_proven=not disk.is_doubtful or is_hidden,
            failed=mine if disk.is_failed else [],
            lost=mine if disk.is_lost and not is_hidden else [],
            cut=mine if disk.is_cut and not self.world.has_bug("keep_cut") else [],
        )
        self._soon(400 * MS, self._register, registration)

    def _registered(self, registration: int, outcome: Outcome) -> None:
        if registration != self._registrations or self._incarnation:
            return
        self.disk.is_doubtful = self.disk.is_lost = self.disk.is_cut = False
        self._incarnation = outcome.value
        self._viewed()

    def _propose(self, op: str, command_id: str, answer: Callable[[Outcome], None] | None, **args: Any) -> None:
        run = self.run
        heard = None if answer is None else lambda outcome: self.enter(run, answer, outcome)
        self.world.metadata.propose(self, op, command_id, heard, args)

    def _heartbeat(self) -> None:
        self._soon(HEARTBEAT_US, self._heartbeat)
        if self._incarnation:
            metadata = self.world.metadata
            self.world.network.send(self.node_id, META, metadata.heartbeat, self, self._incarnation)

    def metadata_changed(self, state: MetadataState) -> None:
        self.enter(self.run, self._learned, state)

    def _learned(self, state: MetadataState) -> None:
        if self._state is None or state.revision > self._state.revision:
            self._state = state
            self._viewed()

    def _viewed(self) -> None:
        if self._state is None or not self._incarnation:
            return
        me = self._state.nodes.get(self.node_id)
        if me is not None and (
            me.incarnation > self._incarnation or (me.expired and me.incarnation == self._incarnation)
        ):
            self._become_new()
        elif me is not None and me.incarnation == self._incarnation:
            self._look_at(self._state.streams["s"].partitions[0])

    def _look_at(self, info: PartitionInfo) -> None:
        """Open the replica that this node shall have; drop the one that it shall have no longer."""
        assert self._state is not None
        if self.node_id not in info.replicas:
            self._close()
            self.disk.rebuild(0)
            return
        self._renew(info)
        if self.replica is None:
            self.replica = Replica(self.node_id, self._incarnation, KEY, self.disk.marks(), self.world.times)
            if self.disk.is_failed:
                self.step(inputs.LogFailed())
        view = PartitionView.of(self._state, "s", 0)
        assert view is not None
        self.step(inputs.ViewChanged(view=view))
        self._finish_move(info)

    def _renew(self, info: PartitionInfo) -> None:
        """A log that had failed is copied anew; where nobody is left to copy from it is read, and found well."""
        if not self.disk.is_failed or self.disk.is_broken or self.node_id not in info.failed:
            return
        if info.isr and info.leader is None:
            return
        self._close()
        self.disk.is_failed = False
        if info.isr:
            self.disk.renew()

    def _finish_move(self, info: PartitionInfo) -> None:
        """The leader's node says when everybody who shall stay is in sync."""
        if self.replica is None or self.replica.leader is None or info.target is None:
            return
        if set(info.target) - set(info.target_observers) <= set(info.isr):
            self._proposals += 1
            command_id = f"finish-{self.node_id}-{self.run}-{self._proposals}"
            term = {"leader_epoch": info.leader_epoch, "version": info.version}
            self._propose("finish_reassignment", command_id, None, name="s", uuid=UUID, partition=0, **term)

    # -- time

    def _tick(self) -> None:
        self._soon(TICK_US, self._tick)
        now = self.world.scheduler.now_us
        paused_us = now - self._ticked_us - TICK_US
        self._ticked_us = now
        for link in self._links.values():
            link.look()
        self._pass(paused_us if paused_us > self.world.times.leader_timeout_s * 0.5e6 else 0)
        if self.disk.is_lazy and self.world.rng.random() < 0.3:
            self.disk.flush(self.replica)
        if self.replica is not None:
            self._retain(self.replica)

    def _pass(self, paused_us: int) -> None:
        """Tick the replica, unless it is quiet and its leader is heard. After a pause, and at times, it is anyway."""
        now, times, replica = self.world.scheduler.now_us, self.world.times, self.replica
        is_sweep = bool(paused_us) or now >= self._sweep_us
        if is_sweep:
            self._sweep_us = now + int(times.replica_lag_max_s * 0.25e6)
        if replica is None:
            return
        link = self._links.get(replica.view.leader or "") if replica.view is not None else None
        is_silent = link is not None and now - link.heard_us > times.leader_timeout_s * 0.5e6
        if is_sweep or is_silent or not replica.is_quiet:
            self.world.seen["Tick"] += 1
            heard_s = self.heard_followers() if replica.leader is not None else self._heard_leader(replica)
            self.step(inputs.Tick(paused_s=paused_us / 1e6, heard_s=heard_s))
        if is_sweep and self._state is not None:
            self._finish_move(self._state.streams["s"].partitions[0])

    def _heard_leader(self, replica: Replica) -> dict[str, float]:
        leader = None if replica.view is None else replica.view.leader
        link = None if leader is None else self._links.get(leader)
        return {leader: link.heard_us / 1e6} if leader is not None and link is not None and link.is_parked else {}

    # -- the replica

    def fail_log(self) -> None:
        """A sync failed. What was not synced may be lost; the node runs on, and is started again much later."""
        self.disk.is_broken = self.disk.is_failed = True
        self.step(inputs.LogFailed())
        self.forget()

    def step(self, given: inputs.Input) -> None:
        waiting = deque([given])
        while waiting:
            replica = self.replica
            if replica is None:
                return
            for effect in replica.step(waiting.popleft(), self.world.scheduler.now_us / 1e6):
                self._carry_out(replica, effect, waiting)
        self._sync()

    def _carry_out(self, replica: Replica, effect: fx.Effect, waiting: deque[inputs.Input]) -> None:
        self.world.seen[type(effect).__name__] += 1
        match effect:
            case fx.AdvanceHighWatermark():
                self.advanced(replica, effect.offset)
            case fx.AnswerFetch() | fx.AnswerEpochEnd():
                self.answer = effect.answer
            case fx.AskEpochEnd():
                self._link(effect.leader).send(effect.question)
            case fx.Fetch():
                self._link(effect.leader).send(effect.request)
            case fx.Append():
                self.world.model.appending(self.node_id, effect.fetched.records)
                if self.disk.append(effect.fetched.records):
                    waiting.append(inputs.LogAppended(ranges=effect.fetched.ranges))
                else:
                    self.world.seen["AppendFailed"] += 1
                    waiting.append(inputs.AppendFailed())
            case fx.Truncate() | fx.Rebuild() if self.disk.is_full and not effect.loses_committed:
                self.world.seen["CutFailed"] += 1
                waiting.append(inputs.CutFailed())
            case fx.Truncate() if not effect.loses_committed:
                self.world.model.truncating(self.node_id, effect.end)
                self._soon(self.disk.sync_us, self._truncated, replica, effect.end)
            case fx.Truncate() | fx.Rebuild():
                start = effect.start if isinstance(effect, fx.Rebuild) else self.disk.start
                self.world.model.truncating(self.node_id, start)
                self._soon(self.disk.sync_us, self._rebuilt, replica, start)
            case fx.KeepCommitted():
                self.world.trace.append((self.world.scheduler.now_us, self.node_id, effect))
            case fx.LeadershipBegan() | fx.LeadershipEnded():
                self.world.trace.append((self.world.scheduler.now_us, self.node_id, effect))
                self.forget()
            case fx.AcceptingChanged():
                if not effect.accepting:
                    self.waiting.clear()  # their publishers are told that the outcome is unknown
            case _:
                self._propose_effect(replica, effect)

    def _propose_effect(self, replica: Replica, effect: fx.Effect) -> None:
        self._proposals += 1
        op, command_id, args = command_of(effect, replica, f"{self.node_id}-{self.run}-{self._proposals}")
        heard = None
        if isinstance(effect, fx.ProposeIsr):
            heard = lambda outcome: self._isr_decided(effect, outcome)
        self._propose(op, command_id, heard, **args)

    def _isr_decided(self, effect: fx.ProposeIsr, outcome: Outcome) -> None:
        if outcome.error:
            self.step(inputs.IsrRefused(version=effect.version, attempt=effect.attempt))

    def _link(self, leader: str) -> Link:
        if leader not in self._links:
            self._links[leader] = Link(self, self.world.nodes[leader])
        return self._links[leader]

    # -- the log

    def _truncated(self, replica: Replica, end: int) -> None:
        if self.replica is replica and not self.disk.is_broken:
            self.disk.truncate(end)
            self.step(inputs.Truncated(end=end))

    def _rebuilt(self, replica: Replica, start: int) -> None:
        if self.replica is replica and not self.disk.is_broken:
            self.disk.rebuild(start)
            self.step(inputs.Rebuilt(start=start))

    def _sync(self) -> None:
        if self.replica is None or self.disk.is_broken or self.disk.synced_end >= self.disk.end:
            return
        if self.disk.is_lazy:
            self.disk.synced_end = self.disk.end
            self.step(inputs.Durable(end=self.disk.end))
        elif not self._is_syncing:
            self._is_syncing = True
            delay = self.disk.sync_us + int(self.world.rng.random() * self.disk.sync_us)
            self._soon(delay, self._synced, self.replica, self.disk.end, self.disk.cuts)

    def _synced(self, replica: Replica, end: int, cuts: int) -> None:
        if self.replica is not replica or self.disk.is_broken:
            return
        self._is_syncing = False
        if cuts == self.disk.cuts:
            self.disk.synced_end = max(self.disk.synced_end, end)
            self.disk.checkpoint = max(self.disk.checkpoint, min(replica.log.high_watermark, end))
            self.step(inputs.Durable(end=end))
        else:
            self._sync()
