"""One node: the real shell in a process that can be paused, killed and started, on a disk that can lose power.

Everything between the NATS socket and the disk is the code under test: ingest, partition, replica, host, proposals,
session, durability record, opening, log, write-ahead log, group commit, ids, acks, and both ends of the follow
protocol. The order of start is that of `Node`.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, Future
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from liftpy_envelope.pull import PartitionKey
from liftpy_log.checkpoint import Checkpoint, open_checkpoint
from liftpy_log.data_dir import DataDir
from liftpy_log.durability.group_commit import GroupCommit
from liftpy_log.durability.wal import WriteAheadLog, replay_wal
from liftpy_log.errors import WalCorruptError
from liftpy_log.storage.files import FileCache
from liftpy_server.gaps.recorder import GapRecorder
from liftpy_server.ingest.ingest import Ingest
from liftpy_server.node.maintenance import keep_checkpoint, make_checkpoint, unsaved_ordered
from liftpy_server.node.metadata_follower import MetadataFollower
from liftpy_server.partition.committing import Load
from liftpy_server.partition.group_commits import GroupCommits
from liftpy_server.partition.outbox import Outbox
from liftpy_server.replication.host.cluster_side import ClusterSide
from liftpy_server.replication.host.durability_record import DurabilityRecord
from liftpy_server.settings.cluster import ClusterConfig
from liftpy_server.settings.config import NodeConfig
from liftpy_server.streams.opening import StreamOpening
from liftpy_server.streams.streams import Streams
from simulation.metadata import META, UUID
from simulation.model import ViolationError
from simulation.process import Process
from simulation.scheduler import MS, S
from simulation.shell_loop import SimLoop
from simulation.shell_metadata import NodeMetadata
from support.nats_frames import encode_all
from support.published import published
from support.simdisk import ROOT, Order, SimDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from liftpy_log.partition_log import PartitionLog
    from liftpy_server.ingest.binding import Binding
    from liftpy_server.metadata.state import MetadataState
    from liftpy_server.partition.partition import Partition
    from liftpy_server.partition.stream_state import StreamState
    from simulation.shell_world import ShellWorld

__all__ = ["ShellNode", "key_of"]

EPOCH_NS = 1_700_000_000 * 10**9
HEARTBEAT_S = 0.5
CHECKPOINT_S = 1.0


def key_of(number: int) -> PartitionKey:
    """Of a partition of the stream."""
    return PartitionKey(bytes.fromhex(UUID), number)


class _Clock:
    """Of one node."""

    def __init__(self, node: ShellNode) -> None:
        self._node = node

    def now_ns(self) -> int:
        return self._node.wall_ns()

    def monotonic(self) -> float:
        return self._node.world.scheduler.now_us / 1e6

    elapsed = monotonic


class _AtOnce(Executor):
    """Small files are written when that is asked for."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class _Rounds(GroupCommits):
    """Rounds of group commit: each begins some time after it was asked for, and is told of some time after it ended."""

    def __init__(self, node: ShellNode, wal: WriteAheadLog, partitions: Any, after: Callable[[], None]) -> None:
        assert node.files is not None
        super().__init__(node.files, wal, node.loop, partitions, after)
        self._commits = GroupCommit(node.files, wal, self._after_round, node.world.direct_max)
        self._node = node
        self._asked: dict[PartitionLog, None] = {}
        self._is_waiting = False

    def request(self, log: PartitionLog) -> None:
        self._asked[log] = None
        if not self._is_waiting:
            self._is_waiting = True
            sync_us = self._node.sync_us
            delay_us = sync_us + int(self._node.world.rng.random() * sync_us)
            self._node.loop.call_later(delay_us / 1e6, self._round)

    def finish(self) -> None:
        """The last round."""
        if self._asked:
            self._round()

    def _round(self) -> None:
        self._is_waiting = False
        asked, self._asked = list(self._asked), {}
        self._commits.run_round([log.durability for log in asked])


class _Subscriptions:
    """What an ingest connection does, where the NATS server is always there, and nothing is on its way."""

    hearing = None

    def __init__(self, node: ShellNode) -> None:
        self.ingest = Ingest(node.clock, node.outbox, lambda _: None, node.loop.call_later, self._broke)
        self._node = node
        self._numbers = 0

    def _broke(self, cause: str) -> None:
        raise ViolationError(cause)

    async def bind(self, bindings: Sequence[Binding]) -> None:
        self.take(bindings)

    def take(self, bindings: Sequence[Binding]) -> None:
        for binding in bindings:
            self._numbers += 1
            self.ingest.bindings[self._numbers] = binding
            self._confirmed(binding.stream)

    async def unbind(self, bindings: Sequence[Binding]) -> None:
        for number, binding in list(self.ingest.bindings.items()):
            if binding in bindings:
                del self.ingest.bindings[number]

    def refusal(self, _bindings: Sequence[Binding]) -> None:
        return None

    async def review(self, stream: StreamState) -> None:
        self._confirmed(stream)

    def _confirmed(self, stream: StreamState) -> None:
        assert self._node.streams is not None
        for partition in self._node.streams.partitions:
            partition.gaps.close()
        self._node.streams.confirmed(stream)


class ShellNode(Process):
    """See the module.

    Attributes:
        is_doubtful: its disk lost, or holds wrong, what it promised to keep, and the cluster was not told yet.
        is_damaged: something on its disk is illegible.
        may_be_torn: the power went while its disk lied about syncs: what turns out to be illegible, that did.
    """

    def __init__(self, world: ShellWorld, node_id: str) -> None:
        super().__init__()
        self.world = world
        self.node_id = node_id
        self.disk = SimDisk()
        self.is_doubtful = False
        self.is_damaged = self.may_be_torn = False
        self.clock_offset_ns = 0
        self.sync_us = 1 * MS
        self.resumed_us = -1 * S
        self.boots = 0
        self.error_in: str | None = None  # the next call of this raises
        self.ends: list[str] = []
        self.clock = _Clock(self)
        self.loop: SimLoop
        self.files: FileCache | None = None
        self.cluster: ClusterSide | None = None
        self.streams: Streams | None = None
        self._metadata: NodeMetadata
        self._subscriptions: _Subscriptions | None = None
        self.loops: list[SimLoop] = []  # of all processes: what was killed is kept, so that nothing of it is ever run

    @property
    def unheard_s(self) -> float:
        """How long it has heard nothing of the metadata, while it ran."""
        now_us = self.world.scheduler.now_us
        return min(self._metadata.unheard_s(), (now_us - self.resumed_us) / 1e6)

    def wall_ns(self) -> int:
        return EPOCH_NS + self.world.scheduler.now_us * 1_000 + self.clock_offset_ns

    def partition(self, number: int) -> Partition | None:
        """As it is open now."""
        return None if self.streams is None else self.streams.by_key.get(key_of(number))

    @property
    def partitions(self) -> list[Partition]:
        """All that are open now."""
        return [] if self.streams is None else list(self.streams.partitions)

    # -- the process

    def start(self) -> None:
        self._begun()
        run = self.run
        self.loop = SimLoop(
            self.world.scheduler, self.world.rng, lambda act, *args: self.enter(run, act, *args), self.world.surprised
        )
        self.loops.append(self.loop)
        self.enter(run, lambda: self.loop.create_task(self._main(), name=f"node {self.node_id}"))

    async def _main(self) -> None:
        try:
            await self._start()
        except ViolationError as error:
            self.world.surprised(error, "at the start")
        except Exception as error:
            self.ends.append(str(error))
            self.world.node_ended(self, error)

    async def _start(self) -> None:
        disk = self.disk
        data_dir = DataDir(ROOT, -1)
        disk.make_directory(ROOT)
        checkpoint, is_doubtful = open_checkpoint(disk, data_dir.checkpoint_path, data_dir.quarantine_directory)
        record = DurabilityRecord(disk, ROOT / "standing.json", f"boot-{self.boots}", is_doubtful=is_doubtful)
        try:
            replay_wal(disk, data_dir.wal_directory, ROOT, record.wal_torn)
        except WalCorruptError:
            record.doubt()
            raise
        self._metadata = metadata = NodeMetadata(self)
        cluster = ClusterConfig(leader_timeout_s=1.0, replica_lag_max_s=2.0, preferred_return_s=2.0)
        config = NodeConfig(node_id=self.node_id, cluster=cluster)
        pull = {"pull_host": self.node_id, "pull_port": 1}
        self.cluster = ClusterSide(
            config, metadata, pull, self.clock, self._leadership_changed, self._committed, self._superseded
        )
        opening = self._open_files(data_dir, checkpoint, record)
        await self.cluster.register(record, opening.open_logs, checkpoint)
        self.is_doubtful = self.is_damaged or self.disk.is_lying
        for model in self.world.models:  # from here on the cluster knows what it lost
            model.check_isr()
        self._open_storage(data_dir, checkpoint, opening)
        await self._listen()
        self.cluster.start()
        MetadataFollower(metadata, self._follow).start()
        self.loop.create_task(self._heartbeats())
        self.loop.create_task(self._upkeep(data_dir))

    def _open_files(self, data_dir: DataDir, checkpoint: Checkpoint, record: DurabilityRecord) -> StreamOpening:
        disk = self.disk
        self.files = FileCache(disk, 8)
        wal = self.wal = WriteAheadLog(disk, data_dir.wal_directory, ROOT, self.world.wal_bytes)
        rounds = self.rounds = _Rounds(self, wal, self._partitions, self._committed)
        self.outbox = Outbox(self._send_acks)
        cluster = self.cluster
        assert cluster is not None
        self._gaps = GapRecorder(self.node_id, lambda: cluster.incarnation, self._metadata.propose)
        self._gaps.start()
        return StreamOpening(
            *(self.node_id, disk, self.files, data_dir, checkpoint, self.clock, self.outbox, Load()),
            *(rounds.request, self._gaps, record),
        )

    def _partitions(self) -> Mapping[PartitionLog, Partition]:
        assert self.streams is not None
        return self.streams.by_durability

    def _open_storage(self, data_dir: DataDir, checkpoint: Checkpoint, opening: StreamOpening) -> None:
        disk = self.disk
        assert self.cluster is not None
        self.streams = streams = Streams(opening, self.cluster.host, _AtOnce())
        streams.open_all(self._metadata.state)
        if checkpoint.clean:
            keep_checkpoint(disk, data_dir, replace(checkpoint, clean=False))

    async def _listen(self) -> None:
        assert self.streams is not None
        self._subscriptions = _Subscriptions(self)
        self._subscriptions.take(self.streams.connect(self._subscriptions))  # type: ignore[arg-type]

    async def _follow(self, state: MetadataState) -> None:
        assert self.cluster is not None
        assert self.streams is not None
        await self.cluster.follow(state)
        await self.streams.follow(state)

    async def _heartbeats(self) -> None:
        assert self.cluster is not None
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            metadata = self.world.metadata
            self.world.network.send(self.node_id, META, metadata.heartbeat, self, self.cluster.incarnation)

    async def _upkeep(self, data_dir: DataDir) -> None:
        """What `Maintenance` does from time to time."""
        checkpoints = count()
        assert self.streams is not None
        while True:
            await asyncio.sleep(CHECKPOINT_S * (0.5 + self.world.rng.random()))
            unsaved = unsaved_ordered(self.streams, may_wait=next(checkpoints) % 3 > 0)
            keep_checkpoint(self.disk, data_dir, make_checkpoint(self.streams, self.clock, clean=False), unsaved)
            for saved in unsaved:
                saved.note()
            for partition in self.streams.partitions:
                if partition.log.failure is not None:
                    partition.fail(str(partition.log.failure))
                    self.streams.renew(partition)

    def _leadership_changed(self, replica: Any) -> None:
        assert self.streams is not None
        self.streams.leadership_changed(replica)

    def _committed(self) -> None:
        self.outbox.flush()

    def _superseded(self, why: str) -> None:
        self.world.node_ended(self, RuntimeError(why))

    def kill(self, *, power: bool = False) -> None:
        """Kill -9, or a power loss."""
        for model in self.world.models:
            model.dies(self)
        self._ended()
        self.streams = self.cluster = self.files = self._subscriptions = None
        if power:
            self.boots += 1
            self.may_be_torn |= self.disk.is_lying  # closed segments, too, which nobody looks at in a start
            self.disk = self.disk.crash(self.world.rng, self.world.rng.choice(list(Order)))
        else:
            self.disk = self.disk.kill()

    def end(self) -> None:
        """The process ends by itself."""
        if self.is_up:
            self.kill()

    def stop(self) -> None:
        """A clean stop, in the order of `Node`."""
        self.enter(self.run, lambda: self.loop.create_task(self._stop()))

    async def _stop(self) -> None:
        assert self.cluster is not None
        assert self.streams is not None
        cluster, streams, data_dir = self.cluster, self.streams, DataDir(ROOT, -1)
        await cluster.leave()
        await self._listen_no_more()
        streams.end_passes()
        self.rounds.finish()
        await asyncio.sleep(0.01)  # lets the results of the last round in
        self.outbox.flush()
        unsaved = unsaved_ordered(streams, may_wait=False)
        checkpoint = make_checkpoint(streams, self.clock, clean=True)
        checkpoint.clean = streams.close()
        self.wal.close(remove=checkpoint.clean)
        keep_checkpoint(self.disk, data_dir, checkpoint, unsaved)
        self.world.seen["clean stop"] += checkpoint.clean
        self.world.scheduler.after(0, self._gone, self.run)

    async def _listen_no_more(self) -> None:
        assert self.cluster is not None
        await self.cluster.stop()

    def _gone(self, run: int) -> None:
        if run == self.run:
            self.end()
            if self.world.is_healed:
                self.start()

    def resume(self) -> None:
        self.resumed_us = self.world.scheduler.now_us
        super().resume()

    def _act(self, act: Callable[..., Any], *args: Any) -> None:
        run = self.run
        asyncio._set_running_loop(self.loop)
        try:
            act(*args)
        except Exception as error:
            self.world.surprised(error, "in a call")
        finally:
            asyncio._set_running_loop(None)
        if run == self.run:
            for model in self.world.models:
                model.observe(self)

    # -- what comes over the network

    def metadata_changed(self, state: MetadataState) -> None:
        if self.cluster is not None:
            self.enter(self.run, self._metadata.learned, state)

    def published(self, numbers: Sequence[int]) -> None:
        """A chunk from NATS."""
        self.enter(self.run, self._ingest, numbers)

    def _ingest(self, numbers: Sequence[int]) -> None:
        subscriptions = self._subscriptions
        if subscriptions is None:
            return
        for sid in list(subscriptions.ingest.bindings):
            subscriptions.ingest.receive(encode_all([self.world.frame(number, sid) for number in numbers]))

    def _send_acks(self, frames: bytes) -> bool:
        for ack in published(frames):
            number = int(ack.subject.rpartition(b".")[2])
            if "error" in ack.json:
                self.world.refused(self, number, ack.json["error"]["err_code"])
            self.world.network.send(self.node_id, "nats", self.world.acked, number, ack.json)
        return True
