"""The streams of a node: opened, changed and closed to follow the metadata."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_envelope.stream_config import SyncMode
from liftpy_server.gaps.partition_gaps import LED_ELSEWHERE
from liftpy_server.replication.host.views import by_urgency
from liftpy_server.streams.listening import Listening
from liftpy_server.streams.lookup import StreamLookup
from liftpy_server.streams.opening import StreamNotOpenedError, log_config, remove_directory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from concurrent.futures import Executor

    from liftpy_envelope.pull import PartitionKey
    from liftpy_server.ingest.binding import Binding
    from liftpy_server.ingest.connection import IngestConnection
    from liftpy_server.metadata.state import MetadataState, StreamInfo
    from liftpy_server.partition.partition import Partition
    from liftpy_server.partition.stream_state import StreamState
    from liftpy_server.replication.host.local import LocalReplica
    from liftpy_server.replication.host.replica_host import ReplicaHost
    from liftpy_server.streams.opening import LocalStream, StreamOpening
    from liftpy_server.tier.host.tierer import Tierer

__all__ = ["StreamNotOpenedError", "Streams"]

logger = logging.getLogger(__name__)

_SHOWN_PER_PASS: Final = 100
_MADE_AT_ONCE: Final = 50


class Streams(StreamLookup):
    """The streams of the node: open, change, close.

    Args:
        opening: Opens them.
        host: Host of the replicas.
        io_executor: Executor with one thread, for the removal of directories.
        tierer: Moves their history to the bucket; None without one.
    """

    def __init__(
        self, opening: StreamOpening, host: ReplicaHost, io_executor: Executor, tierer: Tierer | None = None
    ) -> None:
        super().__init__(host)
        self._opening = opening
        self._io_executor = io_executor
        self._tierer = tierer
        self.listening = Listening()
        self.took_over: Callable[[LocalReplica], bool] = lambda _replica: False
        self._taken_over = 0
        self._renewed: set[PartitionKey] = set()
        self._watched: dict[PartitionKey, int] = {}
        self._untold: set[PartitionKey] = set()  # of those, the ones that have records
        self._state: MetadataState | None = None

    def open_all(self, state: MetadataState) -> None:
        """Open what the metadata says is here, before the node is connected to anything.

        Most logs were opened before the node registered.
        """
        self._opening.sort_out_directories(state)
        for info in state.streams.values():
            stream = self._opening.begin(info)
            for number in self._opening.kept_here(info):
                self._opening.open_partition(stream, number)
            self._add(stream)
            is_alone = any(self._opening.is_alone(info.partitions[number]) for number in stream.partitions)
            if is_alone and not info.config.is_internal:  # nobody publishes to what is internal
                self._opening.note_absence(stream)
        self._opening.release_rest()
        self._changes.take(state.streams)

    def _add(self, stream: LocalStream) -> LocalStream:
        self.by_uuid[stream.info.uuid] = stream
        for partition in stream.partitions.values():
            self._add_partition(stream, partition)
        return stream

    def _add_partition(self, stream: LocalStream, partition: Partition) -> None:
        self.by_key[partition.key] = partition
        self.by_durability[partition.log.durability] = partition
        self._note_interval(partition)
        self._replicate(stream, partition)
        self._watch_records(stream, partition)
        if self._tierer is not None:
            self._tierer.opened(partition, stream.info.partitions[partition.number])

    def _watch_records(self, stream: LocalStream, partition: Partition) -> None:
        """Have the metadata hear of the first records of a partition that has no other replica.

        Its log is then not begun anew where it is lost before the first checkpoint. Acks do not wait for that.
        """
        info = stream.info.partitions[partition.number]
        start = info.empty_log_start
        if not self._opening.is_alone(info) or info.first_end > start or self._watched.get(partition.key) == start:
            return
        self._watched[partition.key] = start
        if partition.log.log_end > start:  # committed or not: nobody says so once more of what was before a start
            self._untold.add(partition.key)

        def committed(why: str | None) -> None:
            self._untold.add(partition.key)
            if why is None:
                self._host.tell_records(partition)

        partition.on_committed(start + 1, committed)

    def tell_records(self) -> None:
        """Tell again of first records of which the metadata do not know yet."""
        for key in list(self._untold):
            partition = self.by_key.get(key)
            if partition is None:
                self._untold.discard(key)
                continue
            stream = self.by_uuid.get(partition.stream.uuid)
            info = None if stream is None else stream.info.partitions[partition.number]
            if info is None or not self._opening.is_alone(info) or info.first_end > info.empty_log_start:
                self._watched.pop(key, None)
                self._untold.discard(key)
            elif partition.sure_mark > info.empty_log_start:
                self._host.tell_records(partition)

    def _replicate(self, stream: LocalStream, partition: Partition) -> None:
        """Let the replication core decide for a partition that has, or may have, other replicas."""
        if partition.key not in self._host.replicas and not self._opening.is_alone(
            stream.info.partitions[partition.number]
        ):
            self._host.enter(self._opening.replicate(partition, self._host))

    def connect(self, ingest: IngestConnection) -> list[Binding]:
        """Take the ingest connection. Returns the bindings of all streams, for it to subscribe when it connects."""
        ingest.on_route_lost = self._missed_before
        return self.listening.connect(ingest, self.by_uuid.values())

    def _missed_before(self, since_s: float, cause: str) -> None:
        """A route between NATS servers was lost: partitions may miss what was published while this node led them."""
        others = [each for each in self.by_key.values() if not each.is_leading and not each.stream.config.is_internal]
        count = sum(partition.gaps.missed_before(since_s, cause) for partition in others)
        if count:
            logger.warning("%d partitions that this node led until lately may miss messages: %s", count, cause)

    def confirmed(self, stream: StreamState) -> None:
        """All subscriptions of a stream are confirmed."""
        local = self.by_uuid.get(stream.uuid)
        if local is not None:
            self.listening.confirmed(local)

    async def wait_ready(self, uuid: str) -> None:
        """See `Listening.wait_ready`."""
        await self.listening.wait_ready(uuid)

    def leadership_changed(self, replica: LocalReplica) -> None:
        """A replica leads now, or does no longer."""
        partition = replica.partition
        stream = self.by_uuid.get(partition.stream.uuid)
        if stream is None:
            return
        has_taken_over = partition.is_leading and partition.epoch > 1 and not replica.goes_on_leading
        has_heard_all = partition.is_leading and self.took_over(replica)
        if has_taken_over and not stream.info.config.is_internal:
            recorded = stream.info.gaps.get(partition.number, ())
            since_s = None
            if not has_heard_all:
                since_s = min(self.whole_until_s(partition), self.listening.behind_since_s(stream))
                self._taken_over += 1
            partition.gaps.take_over(recorded, since_s, LED_ELSEWHERE)
        self.listening.change(stream)

    def whole_until_s(self, partition: Partition) -> float:
        """See `StreamOpening.whole_until_s`."""
        return self._opening.whole_until_s(self.by_uuid[partition.stream.uuid], partition)

    async def follow(self, state: MetadataState) -> None:
        """Make the node's streams what the metadata says. What another node led comes first: publishers wait for it."""
        self._state = state
        gone, changed = self._changes.take(state.streams)
        for stream in [self.by_uuid[uuid] for uuid in gone if uuid in self.by_uuid]:
            await self._attempt(stream.info, self._delete(stream))
        changed.sort(key=by_urgency(self._opening.leads, self.by_uuid))
        new = [info for info in changed if info.uuid not in self.by_uuid]
        for number, info in enumerate(changed, 1):
            known = self.by_uuid.get(info.uuid)
            if known is not None and known.info is not info:
                before = known.info
                if not await self._attempt(info, self._change(known, info, state)):
                    known.info = before  # what was not done is done when it is tried again
            if number % _SHOWN_PER_PASS == 0:
                await asyncio.sleep(0)  # acks, heartbeats and fetches come in between
        await self._tell_nodes(state)
        for some in (new[start : start + _MADE_AT_ONCE] for start in range(0, len(new), _MADE_AT_ONCE)):
            await asyncio.get_running_loop().run_in_executor(None, self._opening.make_names, some)
            for info in some:
                await self._attempt(info, self._create(info, state))
        if self._taken_over:
            taken_over, self._taken_over = self._taken_over, 0
            logger.info("took over the lead of %d partitions; streams tell of the gaps", taken_over)

    async def _tell_nodes(self, state: MetadataState) -> None:
        """Nodes came, went or started again, which every replica must know."""
        for number, replica in enumerate(self._host.follow_nodes(state)):
            self._host.show(replica, state)
            if number % _SHOWN_PER_PASS == _SHOWN_PER_PASS - 1:
                await asyncio.sleep(0)

    async def _attempt(self, info: StreamInfo, work: Awaitable[None]) -> bool:
        """Do something to one stream; if that fails the others follow all the same. Returns whether it is done."""
        try:
            await work
        except Exception as error:
            logger.exception("stream %s does not do what the metadata says", info.name)
            self._changes.failed(info.uuid)
            self.listening.set_ready(info.uuid, StreamNotOpenedError(f"stream {info.name!r}: {error!r}"))
            return False
        return True

    async def _create(self, info: StreamInfo, state: MetadataState) -> None:
        try:
            stream = self._opening.begin(info)
        except OSError as error:
            logger.error("stream %s can not be opened: %s", info.name, error)  # noqa: TRY400 - the trace adds nothing
            failure = StreamNotOpenedError(f"stream {info.name!r} can not be opened: {error}")
            self._changes.failed(info.uuid)
            self.listening.set_ready(info.uuid, failure)
            return
        self._add(stream)
        await self._open_missing(stream, state)
        logger.info("stream %s stores %s", info.name, info.config.subject or "what the nodes write")
        self.listening.change(stream)

    async def _open_missing(self, stream: LocalStream, state: MetadataState) -> None:
        """Open the partitions that are to be here and are not, and tell the others what the metadata says."""
        for number in self._opening.kept_here(stream.info):
            if number not in stream.partitions:
                self._opening.open_partition(stream, number)
                self._add_partition(stream, stream.partitions[number])
                await asyncio.sleep(0)  # files are made: other streams' messages come in between
        self._show(stream, stream.partitions.values(), state)

    def _show(self, stream: LocalStream, partitions: Iterable[Partition], state: MetadataState) -> None:
        for partition in partitions:
            self._replicate(stream, partition)
            replica = self._host.replicas.get(partition.key)
            if replica is not None:
                self._host.show(replica, state)
            elif partition.epoch != stream.info.partitions[partition.number].leader_epoch:
                partition.lead(stream.info.partitions[partition.number].leader_epoch)

    async def _change(self, stream: LocalStream, info: StreamInfo, state: MetadataState) -> None:
        old = stream.info
        stream.info = info
        stream.state.update(info)
        kept = self._opening.kept_here(info)
        for number in [number for number in stream.partitions if number not in kept]:
            await self._drop(stream, number)
        if old.config is not info.config or len(kept) != len(stream.partitions):
            await self._open_missing(stream, state)
            self._reconfigure(stream)
        else:  # as a rule another node leads some of them
            moved = [each for each in kept if info.partitions[each] is not old.partitions[each]]
            self._show(stream, [stream.partitions[number] for number in moved], state)
        for number, partition in stream.partitions.items():
            if partition.is_leading and info.gaps is not old.gaps:
                partition.gaps.recorded_elsewhere(info.gaps.get(number, ()))
            log_start = info.partitions[number].log_start
            if log_start > partition.log.log_start and partition.log.failure is None:
                self._purge(partition, log_start)
            self._watch_records(stream, partition)
            if self._tierer is not None:
                self._tierer.opened(partition, info.partitions[number])
        if (old.config.subject, old.config.group) != (info.config.subject, info.config.group):
            await self.listening.bind([stream])

    def _note_interval(self, partition: Partition) -> None:
        """Streams that are synced at intervals are few among many."""
        if partition.stream.config.sync is SyncMode.INTERVAL:
            self.by_interval[partition.key] = partition
        else:
            self.by_interval.pop(partition.key, None)

    def _reconfigure(self, stream: LocalStream) -> None:
        config = stream.state.config
        for partition in stream.partitions.values():
            self._note_interval(partition)
            partition.log.config = log_config(config)
            partition.dedupe.resize(int(config.dedupe_window_s * 1e9), config.dedupe_ids_max)
            partition.replicated()  # what waited for the next interval waits for none any more

    def _purge(self, partition: Partition, log_start: int) -> None:
        try:
            partition.purge(log_start)
        except LiftError as error:
            logger.error("purging stream %s failed: %s", partition.stream.name, error)  # noqa: TRY400

    def open_again(self, partition: Partition) -> bool:
        """Open a partition whose log lacked room, memory or files to be opened or cut; whether it works now."""
        stream = self.by_uuid.get(partition.stream.uuid)
        if stream is None or self._state is None or not self._opening.try_again(stream.info, partition.number):
            return False
        self._replace(stream, partition)
        log = stream.partitions[partition.number].log
        log.durability.wal = partition.log.durability.wal  # a later cut cancels what it holds of the log
        logger.info("stream %s partition %d is open now", stream.info.name, partition.number)
        return True

    def _replace(self, stream: LocalStream, partition: Partition) -> None:
        """Open a partition anew in the place of one whose log can not be used."""
        assert self._state is not None, "the node follows the metadata"
        del stream.partitions[partition.number]
        self._close_partition(partition, ErrorCode.NOT_LEADER)
        self._opening.open_partition(stream, partition.number)
        self._add_partition(stream, stream.partitions[partition.number])
        self._show(stream, [stream.partitions[partition.number]], self._state)
        self.listening.change(stream)

    def renew(self, partition: Partition) -> None:
        """Copy a replica anew whose log has failed, once nobody counts on it; what was there is kept aside.

        Once per run of the node: a disk that goes on failing is not to be filled with copies. A full one waits.
        """
        stream = self.by_uuid.get(partition.stream.uuid)
        number, log = partition.number, partition.log
        if stream is None or self._state is None or partition.key in self._renewed:
            return
        if log.failure is None or not self._host.may_renew(partition, stream.info.partitions[number]):
            return
        replica = self._host.replicas[partition.key]
        if partition.storage_full:
            self._host.warn(replica, "is not copied anew yet: the node's disk is full")
            return
        self._renewed.add(partition.key)
        try:
            log.forget_ahead()
            leader = stream.info.partitions[number].leader
            place = self._opening.set_aside(stream.info, number, f"copied anew from node {leader}, as {log.failure}")
        except OSError as error:
            logger.error("stream %s partition %d can not be copied anew: %s", stream.info.name, number, error)  # noqa: TRY400
            return
        logger.warning(
            "stream %s partition %d is copied anew from node %s; its damaged files are in %s",
            stream.info.name,
            number,
            stream.info.partitions[number].leader,
            place,
        )
        self._replace(stream, partition)

    async def _drop(self, stream: LocalStream, number: int) -> None:
        """A partition is kept elsewhere now."""
        partition = stream.partitions.pop(number)
        self._close_partition(partition, ErrorCode.NOT_LEADER)
        try:
            partition.log.forget_ahead()  # it may come back, with other bytes in files of the same names
        except OSError as error:
            logger.warning("the write-ahead log still holds stream %s: %s", stream.info.name, error)
        self.listening.change(stream)
        directory = self._opening.directory(stream.info) / str(number)
        await asyncio.get_running_loop().run_in_executor(self._io_executor, remove_directory, directory)
        self._opening.forget_log(stream.info.uuid, number)
        logger.info("stream %s partition %d is kept by other nodes now", stream.info.name, number)

    async def _delete(self, stream: LocalStream) -> None:
        await self.listening.leave(stream)
        for partition in stream.partitions.values():
            self._close_partition(partition, ErrorCode.UNKNOWN_STREAM)
        del self.by_uuid[stream.info.uuid]
        directory = self._opening.directory(stream.info)
        await asyncio.get_running_loop().run_in_executor(self._io_executor, remove_directory, directory)
        logger.info("stream %s was deleted", stream.info.name)

    def _close_partition(self, partition: Partition, why: ErrorCode) -> bool:
        """Close a partition, whatever it meets: the others are closed all the same. Returns whether it went well."""
        is_well = False
        try:
            partition.close(why)
            is_well = True
        except LiftError as error:
            logger.error("closing stream %s: %s", partition.stream.name, error)  # noqa: TRY400
        except Exception:
            logger.exception("closing stream %s partition %d", partition.stream.name, partition.number)
        self.by_key.pop(partition.key, None)
        self.by_interval.pop(partition.key, None)
        self.by_durability.pop(partition.log.durability, None)
        self._followed_s.pop(partition.key, None)
        self._watched.pop(partition.key, None)
        self._untold.discard(partition.key)
        return is_well

    async def unsubscribe(self) -> None:
        """Take no more messages; those on their way arrive before this returns."""
        await self.listening.stop(self.by_uuid.values())

    def end_passes(self) -> None:
        """Have all that was read made durable and acknowledged, whatever one of the partitions meets."""
        for partition in self.partitions:
            try:
                partition.end_pass()
            except Exception:
                logger.exception("stream %s partition %d: before it is closed", partition.stream.name, partition.number)

    def close(self) -> bool:
        """Make everything durable and give the files back. Returns whether all of it went well."""
        closed = [self._close_partition(partition, ErrorCode.NOT_AVAILABLE) for partition in self.partitions]
        return all(closed) and all(
            partition.log.failure is None
            for stream in self.by_uuid.values()
            for partition in stream.partitions.values()
        )
