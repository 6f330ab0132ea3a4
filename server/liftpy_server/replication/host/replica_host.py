"""The replicas of a node: their clock, their links to leaders, and their proposals to the metadata.

Idle partitions cost nothing: a replica in a steady state is not ticked. What it would find out by itself, that its
leader is silent or its follower lags, the host sees for all of them at once by looking at the links.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING

from liftpy_log.recent import RecentBatches
from liftpy_server.metadata.elections import able_to_lead
from liftpy_server.repeated_warnings import RepeatedWarnings
from liftpy_server.replication.core.effects import ProposeLeader, ReportRecords
from liftpy_server.replication.host.proposals import FinishReassignment
from liftpy_server.replication.host.views import incarnations, partition_view
from liftpy_server.replication.wire.link import FollowLink
from liftpy_server.settings.limits import DEAF_AFTER_S

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Mapping

    from liftpy_envelope.follow import FollowEnd, FollowFetch, FollowQuestion
    from liftpy_envelope.pull import PartitionKey
    from liftpy_log.clock import Clock
    from liftpy_server.metadata.state import MetadataState, PartitionInfo
    from liftpy_server.partition.partition import Partition
    from liftpy_server.replication.core.effects import Effect
    from liftpy_server.replication.core.inputs import FetchAnswered
    from liftpy_server.replication.core.view import ReplicationTimes
    from liftpy_server.replication.host.durability_record import DurabilityRecord
    from liftpy_server.replication.host.local import LocalReplica
    from liftpy_server.replication.host.proposals import ReplicaProposals

__all__ = ["ReplicaHost"]

logger = logging.getLogger(__name__)

_TICKS_PER_TIMEOUT = 5
_HEIR_S = 15.0  # a partition that moves is handed over within this time, or ends here with a gap
_TICKED_PER_PASS = 50  # ticks can wait: between two passes of theirs 100 streams get other leaders


class ReplicaHost:
    """Runs the replicas of a node: ticks them, links them to leaders, and passes their proposals to the metadata.

    Args:
        node_id: Id of this node.
        times: How patient replicas are.
        clock: Monotonic clock.
        proposals: Takes what replicas propose to the metadata.
        on_leadership: Called when a replica begins or ceases to lead.
        on_commits: Called once after a pass in which records were committed.
        tls: Verifies leaders whose pull server speaks TLS; by default as the system does.

    Attributes:
        incarnation: Incarnation that this node has registered.
        replicas: Replicas, by key of the partition.
        durability_record: Keeps in mind which logs have failed; None before the node registers.
        recent: The newest batches of the logs that lead.
        hears: Whether this node hears NATS.
        answered_question_s: When NATS was asked the last question that was answered, by elapsed time.
        hand_over: Lets another node lead, with the leader epoch and version it is wanted in; None proposes it at once.
    """

    hand_over: Callable[[LocalReplica, str, int, int], None] | None = None

    def __init__(
        self,
        node_id: str,
        times: ReplicationTimes,
        clock: Clock,
        proposals: ReplicaProposals,
        unheard_s: Callable[[], float],
        on_leadership: Callable[[LocalReplica], None],
        on_commits: Callable[[], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.node_id = node_id
        self.times = times
        self.incarnation = 0
        self.durability_record: DurabilityRecord | None = None
        self.replicas: dict[PartitionKey, LocalReplica] = {}
        self.recent = RecentBatches()
        self.leadership_changed = on_leadership
        self.is_cut_off = False
        self.answered_question_s: Callable[[], float] = lambda: float("-inf")
        self.hears: Callable[[], bool] = lambda: True
        self._deaf_since_s: float | None = None
        self._handed_over_s = float("-inf")
        self._unheard_s = unheard_s
        self.now_s = clock.monotonic
        self._clock = clock
        self._tls = tls
        self._on_commits = on_commits
        self._will_tell_commits = False
        self._proposals = proposals
        self._state: MetadataState | None = None
        self._links: dict[str, FollowLink] = {}
        self._active: dict[LocalReplica, None] = {}
        self._moving: dict[LocalReplica, float | None] = {}  # since when all that shall keep a copy have one
        self._led_by: dict[LocalReplica, str] = {}
        self._heard: dict[str, float] = {}
        self._hearing: dict[str, bool] = {}
        self._warnings: dict[LocalReplica, RepeatedWarnings] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._is_stopped = False
        self._tick_s = times.leader_timeout_s / _TICKS_PER_TIMEOUT
        self._sweep_s = times.replica_lag_max_s / 4
        self._sweep_began_s = float("-inf")
        self._sweeping: list[LocalReplica] = []
        self._ticking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to tick."""
        self._ticking = asyncio.create_task(self._run(), name="replica ticks")

    async def stop(self) -> None:
        """Stop ticking, and leave all leaders, for good."""
        self._is_stopped = True
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*(link.close() for link in links), *self._leaving)

    @property
    def is_leading(self) -> bool:
        """Whether this node leads a partition that has other replicas."""
        return any(replica.partition.is_leading for replica in self.replicas.values())

    def register(self, incarnation: int) -> None:
        """The metadata gave this node an incarnation: every role of an earlier one is over."""
        self.incarnation = incarnation
        for replica in list(self.replicas.values()):
            replica.reset_role()

    def enter(self, replica: LocalReplica) -> None:
        """A replica is opened."""
        self.replicas[replica.key] = replica

    def may_renew(self, partition: Partition, info: PartitionInfo) -> bool:
        """Whether a log that failed may be begun anew: nobody counts on it, and another node has it to copy from.

        The metadata must know that it failed: then no proposal that is under way can make anybody count on it again.
        """
        is_led_elsewhere = info.leader not in {None, self.node_id} and bool(info.isr) and self.node_id not in info.isr
        return partition.key in self.replicas and is_led_elsewhere and self.node_id in info.failed

    def leave(self, replica: LocalReplica) -> None:
        """A replica is closed."""
        self.drop(replica)
        self.replicas.pop(replica.key, None)
        self._active.pop(replica, None)
        self._moving.pop(replica, None)
        self._warnings.pop(replica, None)

    def follow_nodes(self, state: MetadataState) -> Iterable[LocalReplica]:
        """Take note of nodes that came, went or started again. Returns the replicas that must hear of it."""
        before, self._state = self._state, state
        if before is not None and before.nodes == state.nodes:
            return ()
        is_same = before is not None and incarnations(before) == incarnations(state)
        for node_id in [node_id for node_id in self._links if node_id not in state.nodes]:
            leaving = asyncio.create_task(self._links.pop(node_id).close(), name=f"leave {node_id}")
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
        return () if is_same else list(self.replicas.values())  # of nodes, that is all they look at

    def show(self, replica: LocalReplica, state: MetadataState) -> None:
        """Tell a replica what the metadata says of its partition."""
        stream = replica.partition.stream
        view = partition_view(state, stream.name, replica.partition.number)
        if view is None or view.uuid != stream.uuid:
            return
        replica.viewed(view)
        self._reassign(replica, state.streams[stream.name].partitions[replica.partition.number])

    def _reassign(self, replica: LocalReplica, partition: PartitionInfo) -> None:
        """Whoever leads a partition that is moved ends that when the others have all of it."""
        if partition.target is None or partition.leader != self.node_id:
            self._moving.pop(replica, None)
            return
        since_s = self._moving.setdefault(replica, None)
        if not {*partition.target} - {*partition.target_observers} <= {*partition.isr}:
            return
        now_s = self.now_s()
        if since_s is None:
            since_s = self._moving[replica] = now_s
        heir = None if self.node_id in partition.target else self._heir(partition)
        if heir is not None and self.hand_over is not None and now_s - since_s < _HEIR_S:
            self.hand_over(replica, heir, partition.leader_epoch, partition.version)  # who then finds it moved
        else:
            self._proposals.add(replica, FinishReassignment(partition.leader_epoch, partition.version))

    def _heir(self, partition: PartitionInfo) -> str | None:
        """Who can lead when this node keeps no copy any more."""
        assert self._state is not None, "it says that the partition is moved"
        target = [node for node in partition.target or () if node not in partition.target_observers]
        able = able_to_lead(self._state.nodes, partition, target)
        return able[0] if able and not self._state.nodes[able[0]].draining else None

    # -- what replicas want

    def stepped(self, replica: LocalReplica, *, is_quiet: bool) -> None:
        """A replica took an input: it is ticked until it has nothing more to wait for."""
        if is_quiet:
            self._active.pop(replica, None)
        else:
            self._active[replica] = None

    def committed(self) -> None:
        """A replica committed records: what that makes due is done once for all of a pass."""
        if not self._will_tell_commits:
            self._will_tell_commits = True
            asyncio.get_running_loop().call_soon(self._tell_commits)

    def _tell_commits(self) -> None:
        self._will_tell_commits = False
        self._on_commits()

    def fetch(self, replica: LocalReplica, leader: str, request: FollowFetch) -> None:
        """Fetch from a leader."""
        if not self._is_stopped:
            self._link(replica, leader).fetch(request)

    def ask(self, replica: LocalReplica, leader: str, question: FollowQuestion) -> None:
        """Send a request to a leader."""
        if not self._is_stopped:
            self._link(replica, leader).ask(question)

    def propose(self, replica: LocalReplica, effect: Effect) -> None:
        """Propose a change to the metadata; a node that is deaf to NATS is not to lead, though it be preferred."""
        if not isinstance(effect, ProposeLeader):
            self._proposals.add(replica, effect)
        elif self._hearing.get(effect.leader, False):
            if self.hand_over is None:
                self._proposals.add(replica, effect)
            else:
                self.hand_over(replica, effect.leader, effect.leader_epoch, effect.version)

    def tell_records(self, partition: Partition) -> None:
        """Tell the metadata of the first records of a partition that has no other replica."""
        effect = ReportRecords(leader_epoch=partition.epoch, end=partition.sure_mark)
        self._proposals.add_alone(partition, effect)

    def drop(self, replica: LocalReplica) -> None:
        """A replica follows nobody now."""
        leader = self._led_by.pop(replica, None)
        if leader is not None and leader in self._links:
            self._links[leader].drop(replica.key)

    def _link(self, replica: LocalReplica, leader: str) -> FollowLink:
        if self._led_by.get(replica) != leader:
            self.drop(replica)
            self._led_by[replica] = leader
        link = self._links.get(leader)
        if link is None:
            link = self._links[leader] = FollowLink(
                leader,
                lambda: None if self._state is None else self._state.nodes.get(leader),
                self._answered,
                node_id=self.node_id,
                incarnation=self.incarnation,
                times=self.times,
                tls=self._tls,
                hears=self._hears_nats,
                on_whole=lambda at_s, ends: self._leader_whole(leader, at_s, ends),
            )
            link.start()
        return link

    def _answered(self, answers: list[tuple[PartitionKey, FetchAnswered | FollowEnd]]) -> None:
        for key, answer in answers:
            replica = self.replicas.get(key)
            if replica is not None:
                replica.step(answer)

    def warn(self, replica: LocalReplica, text: str) -> None:
        """Log something about a replica that may happen again and again; what stands before a colon tells it apart."""
        warnings = self._warnings.get(replica)
        if warnings is None:
            warnings = self._warnings[replica] = RepeatedWarnings(logger)
        where = f"stream {replica.partition.stream.name} partition {replica.partition.number}"
        warnings.tell(text.partition(":")[0], f"{where}: {text}", self.now_s())

    # -- who was heard when

    def heard(self, node_id: str, hears: bool) -> None:  # noqa: FBT001 - as the session has it
        """A follower's session sent a request, and says whether its node hears NATS."""
        self._heard[node_id] = self.now_s()
        self._hearing[node_id] = hears

    def _hears_nats(self) -> bool:
        return self.hears()

    def asked(self) -> tuple[float, float]:
        """When NATS was asked a question last that was answered, by elapsed time; and how long ago that is."""
        asked_s = self.answered_question_s()
        return asked_s, self._clock.elapsed() - asked_s

    def _leader_whole(self, leader: str, at_s: float, ends: Mapping[PartitionKey, int]) -> None:
        """The logs of a leader held, up to these ends, what was published before `at_s`, by the event loop's clock."""
        at_s += self._clock.elapsed() - self.now_s()
        for key, end in ends.items():
            replica = self.replicas.get(key)
            if replica is not None and replica.is_agreed and self._led_by.get(replica) == leader:
                partition = replica.partition
                partition.whole.note(at_s, end, partition.sure_end)

    def heard_of(self, nodes: Iterable[str]) -> dict[str, float]:
        """When these followers were heard last."""
        return {node: self._heard[node] for node in nodes if node in self._heard}

    def heard_from_leader(self, replica: LocalReplica) -> dict[str, float]:
        """When the leader was heard last, while it keeps the replica's fetch waiting."""
        leader = self._led_by.get(replica)
        link = self._links.get(leader) if leader is not None else None
        return {leader: link.heard_s} if leader is not None and link is not None and link.is_parked(replica.key) else {}

    async def _run(self) -> None:
        before_s = self.now_s()
        while True:
            await asyncio.sleep(self._tick_s)
            now_s = self.now_s()
            paused_s = now_s - before_s - self._tick_s
            self._listen()
            try:
                await self._tick(now_s, paused_s if paused_s > self.times.leader_timeout_s / 2 else 0.0)
            except Exception:
                logger.exception("a tick of the replicas failed; the next one tries again")
            # Not from when it began: thousands take long after a pause, and must not take that for the next one.
            before_s = self.now_s()

    def _listen(self) -> None:
        unheard_s = self._unheard_s()
        is_cut_off = unheard_s >= self.times.leader_timeout_s
        if is_cut_off == self.is_cut_off:
            return
        self.is_cut_off = is_cut_off
        if not self.is_leading:
            return
        if is_cut_off:
            logger.warning(
                "no majority of the metadata nodes was heard for %.1f s: others may lead what this node leads, so it "
                "answers publishers only when their messages are committed",
                unheard_s,
            )
        else:
            logger.info("a majority of the metadata nodes is heard again: publishers are answered as usual")

    def _hand_over(self, now_s: float) -> None:
        """What this node leads and can not hear is led by others that do, if there are any."""
        if self.hears():
            self._deaf_since_s = None
            return
        if self._deaf_since_s is None:
            self._deaf_since_s = now_s
        if now_s - self._deaf_since_s < DEAF_AFTER_S or now_s - self._handed_over_s < DEAF_AFTER_S:
            return
        self._handed_over_s = now_s
        fresh_s = now_s - self.times.leader_timeout_s
        able = {node for node, heard_s in self._heard.items() if self._hearing[node] and heard_s > fresh_s}
        moved = 0
        for replica in self.replicas.values():
            leader = replica.core.leader
            if leader is None or replica.partition.stream.config.is_internal:
                continue
            view = leader.view
            target = next((node for node in view.isr if node in able), None)
            if target is not None:
                moved += 1
                effect = ProposeLeader(leader=target, leader_epoch=view.leader_epoch, version=view.version)
                self._proposals.add(replica, effect)
        if moved:
            logger.warning("this node does not hear NATS: %d partitions are handed to nodes that do", moved)

    async def _tick(self, now_s: float, paused_s: float) -> None:
        self._hand_over(now_s)
        is_new_sweep = now_s - self._sweep_began_s >= self._sweep_s
        silent_after_s = self.times.leader_timeout_s / 2
        silent = {node for node, link in self._links.items() if now_s - link.heard_s > silent_after_s}
        swept = self._swept(now_s, is_whole=paused_s > 0)
        due = dict(self._active) | {each: None for each in swept if paused_s > 0 or not self._is_cared_for(each)}
        if silent:
            due |= {replica: None for replica, leader in self._led_by.items() if leader in silent}
        for start in range(0, len(due), _TICKED_PER_PASS):
            self._tick_some(self._still_here(islice(due, start, start + _TICKED_PER_PASS)), paused_s)
            await asyncio.sleep(0)  # messages, acks and the answers of leaders come in between
        if self._state is not None:
            for replica in list(self._moving) if is_new_sweep else ():
                self.show(replica, self._state)

    @staticmethod
    def _tick_some(replicas: Iterable[LocalReplica], paused_s: float) -> None:
        for replica in replicas:
            try:
                replica.tick(paused_s)
            except Exception:  # must not cost the others their tick
                logger.exception("a tick of replica %s failed", replica.key)

    def _swept(self, now_s: float, *, is_whole: bool) -> list[LocalReplica]:
        """All are ticked now and then, for what takes long to find out, a few of them each time.

        After a pause all are at once, to be told of it: `is_whole`.
        """
        passed = (now_s - self._sweep_began_s) / self._sweep_s
        is_whole = is_whole or passed == float("inf")  # the first time
        if is_whole or passed >= 1:
            due, self._sweeping, self._sweep_began_s = self._sweeping, list(self.replicas.values()), now_s
            return list(self.replicas.values()) if is_whole else self._still_here(due)
        left = round(len(self.replicas) * (1 - passed))
        due = self._sweeping[left:]
        del self._sweeping[left:]
        return self._still_here(due)

    def _is_cared_for(self, replica: LocalReplica) -> bool:
        """Whether a replica waits at a leader: it is ticked when that falls silent, and costs nothing until then."""
        link = self._links.get(self._led_by.get(replica, ""))
        return link is not None and replica.core.is_quiet and link.is_parked(replica.key)

    def _still_here(self, replicas: Iterable[LocalReplica]) -> list[LocalReplica]:
        return [replica for replica in replicas if self.replicas.get(replica.key) is replica]
