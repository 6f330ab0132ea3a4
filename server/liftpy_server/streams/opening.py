"""Opening the streams of a node: their directories, their logs, and what earlier runs left behind."""

from __future__ import annotations

import asyncio
import errno
import logging
import shutil
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_envelope.errors import LiftError
from liftpy_envelope.pull import PartitionKey
from liftpy_envelope.stream_config import SyncMode
from liftpy_log.errors import PartitionOfflineError, StorageFullError
from liftpy_log.ids.dedupe import DedupeMemory, DedupeWindow
from liftpy_log.ids.ordered import OrderedMemory, load_ordered
from liftpy_log.log_time import LogTime, LogTimeState
from liftpy_log.opening import check_batches
from liftpy_log.partition_log import LogConfig, PartitionLog
from liftpy_log.quarantine import WHY_FILE
from liftpy_log.segments.segment import segment_path
from liftpy_log.storage.disk import is_full, write_atomically
from liftpy_server.gaps.whole import Whole, WholeHistory
from liftpy_server.partition.dedupe_rebuild import note_log
from liftpy_server.partition.partition import Partition
from liftpy_server.partition.stream_state import StreamState
from liftpy_server.replication.host.durability_record import has_log
from liftpy_server.replication.host.local import LocalReplica

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from liftpy_envelope.stream_config import StreamConfig
    from liftpy_log.checkpoint import Checkpoint
    from liftpy_log.clock import Clock
    from liftpy_log.data_dir import DataDir
    from liftpy_log.segments.recovery import TornTail
    from liftpy_log.storage.disk import Disk
    from liftpy_log.storage.files import FileCache
    from liftpy_server.gaps.partition_gaps import GapKeeper
    from liftpy_server.ingest.binding import Binding
    from liftpy_server.metadata.state import MetadataState, PartitionInfo, StreamInfo
    from liftpy_server.partition.outbox import Outbox
    from liftpy_server.partition.partition import Load
    from liftpy_server.replication.host.durability_record import DurabilityRecord
    from liftpy_server.replication.host.replica_host import ReplicaHost

__all__ = ["LocalStream", "StreamNotOpenedError", "StreamOpening", "log_config", "remove_directory"]

logger = logging.getLogger(__name__)

_DISK_FAILED: Final = frozenset({errno.EIO, errno.EUCLEAN, errno.EBADMSG})  # not that which an operator may set right


class StreamNotOpenedError(LiftError):
    """A stream could not be opened on this node."""


class LocalStream:
    """A stream with the partitions of which this node has a replica.

    Attributes:
        bindings: Subscriptions of the stream, whether they stand or not.
        refusal: Why the NATS server does not let it listen to the subject it has now; None while it does.
    """

    def __init__(self, info: StreamInfo, state: StreamState, partitions: dict[int, Partition]) -> None:
        self.info = info
        self.state = state
        self.partitions = partitions
        self.bindings: list[Binding] = []
        self.refusal: LiftError | None = None


class _OpenLog(NamedTuple):
    """A log that is open, or offline where it can not be used.

    Attributes:
        made_for: The settings that it was opened with.
        kept_mark: Records below it had been committed, as far as the node knew when it stopped last.
    """

    made_for: tuple[StreamConfig, int]
    log: PartitionLog
    dedupe: DedupeWindow
    log_time: LogTime | None
    kept_mark: int


class StreamOpening:
    """See the module.

    Args:
        node_id: This node.
        disk: Disk of the node.
        files: The node's open files.
        data_dir: Data directory of the node.
        checkpoint: What the node knew when it stopped last.
        clock: Clock for gaps, and the time of logs.
        outbox: Outbox for acks.
        load: Counts what waits for the disk.
        request_sync: Asks group commit for a round.
        keeper: Has gaps written down.
        durability_record: Record of the logs that have failed; None for none.
        dedupe_memory: Dedupe memory for message ids.
    """

    def __init__(
        self,
        node_id: str,
        disk: Disk,
        files: FileCache,
        data_dir: DataDir,
        checkpoint: Checkpoint,
        clock: Clock,
        outbox: Outbox,
        load: Load,
        request_sync: Callable[[PartitionLog], None],
        keeper: GapKeeper,
        durability_record: DurabilityRecord | None = None,
        dedupe_memory: DedupeMemory | None = None,
    ) -> None:
        self._durability_record = durability_record
        self._node_id = node_id
        self._disk = disk
        self._files = files
        self._data_dir = data_dir
        self._checkpoint = checkpoint
        self._clock = clock
        self._outbox = outbox
        self._load = load
        self._request_sync = request_sync
        self._keeper = keeper
        self._dedupe_memory = dedupe_memory or DedupeMemory()
        self._ordered_memory = OrderedMemory()
        self._ready: dict[tuple[str, int], _OpenLog] = {}  # whose partitions are not opened yet
        self._to_try_again: set[tuple[str, int]] = set()

    def directory(self, info: StreamInfo) -> Path:
        """Where a stream is."""
        return self._data_dir.streams_directory / f"{info.name}.{info.uuid}"

    def begin(self, info: StreamInfo) -> LocalStream:
        """A stream without its partitions yet.

        Raises:
            OSError: its directory can not be made.
        """
        directory = self.directory(info)
        self._disk.make_directory(directory, durable=False)  # its name is made durable with the first record
        return LocalStream(info, StreamState(info, self._clock, self._keeper), {})

    def kept_here(self, info: StreamInfo) -> list[int]:
        """Numbers of the partitions of which this node has a replica."""
        return [number for number, partition in enumerate(info.partitions) if self._node_id in partition.replicas]

    def make_names(self, infos: Iterable[StreamInfo]) -> None:
        """Make the directories and files of new streams, in any thread: the disk may take seconds when it is busy.

        What can not be made is tried again, and its error reported, when the stream is opened.
        """
        for info in infos:
            try:
                for number in self.kept_here(info):
                    directory = self.directory(info) / str(number)
                    self._disk.make_directory(directory, durable=False)
                    if not has_log(self._disk, directory):
                        path = segment_path(directory, info.partitions[number].empty_log_start)
                        self._disk.open(path, create=True).close()
            except OSError as error:
                logger.info("the files of stream %s can not be made ahead: %s", info.name, error)

    def leads(self, info: StreamInfo) -> bool:
        """Whether this node is to lead any of a stream's partitions."""
        return any(partition.leader == self._node_id for partition in info.partitions)

    def is_alone(self, partition: PartitionInfo) -> bool:
        """Whether this node has the only replica, and nothing is to be said of it before it leads."""
        return partition.replicas == (self._node_id,) and not partition.unproven

    def note_absence(self, stream: LocalStream) -> None:
        """The time since the node ran last is a gap of a stream that was there then; it lasts until it listens."""
        cause = "the node was stopped" if self._checkpoint.clean else "the node died"
        for number, partition in stream.partitions.items():
            if self.is_alone(stream.info.partitions[number]):
                recorded = stream.info.gaps.get(number, ())
                partition.gaps.take_over(recorded, self.whole_until_s(stream, partition), cause)

    def whole_until_s(self, stream: LocalStream, partition: Partition) -> float:
        """When nothing was missing in a partition's log for certain, by elapsed time: the last such moment.

        Where no question that NATS answered tells, as in a stream's first second, it is the stream's creation; with no
        other replica the end of the partition's last gap. Where others led and ended gaps, their logs may have more.
        """
        whole = partition.whole.newest(partition.log.log_end)
        if whole is not None:
            return whole.at_s
        is_alone = self.is_alone(stream.info.partitions[partition.number])
        recorded = stream.info.gaps.get(partition.number, ()) if is_alone else ()
        ends = [gap.until_ns for gap in recorded if gap.until_ns is not None]
        return max([partition.gaps.created_s, *map(self._elapsed_at, ends)])

    def _elapsed_at(self, wall_ns: int) -> float:
        return self._clock.elapsed() - max(0, self._clock.now_ns() - wall_ns) / 1e9

    def replicate(self, partition: Partition, host: ReplicaHost) -> LocalReplica:
        """Let the replication core decide for a partition."""
        return LocalReplica(partition, host)

    async def open_logs(self, state: MetadataState) -> None:
        """Open the logs that are here, before the node registers: what they lack is told of with that.

        A log that is not there is created later: its absence is told of, too, and a node that is killed in between must
        find it missing again. One that had failed is opened later: that it had failed must be known first.
        """
        for info in state.streams.values():
            for number in self.kept_here(info):
                if has_log(self._disk, self.directory(info) / str(number)) and not self._why_failed(info.uuid, number):
                    self._ready[info.uuid, number] = self._open_log(info, number)
                    await asyncio.sleep(0)  # thousands take long, and the metadata may need this node's vote meanwhile

    def release_rest(self) -> None:
        """Give back the logs that were opened before the node registered, and are not wanted any more."""
        for ready in self._ready.values():
            ready.dedupe.clear(0)
            ready.log.release()
        self._ready.clear()

    def open_partition(self, local: LocalStream, number: int) -> None:
        """Open one of a stream's partitions; one whose log can not be used is there all the same, and offline."""
        stream, info = local.state, local.info.partitions[number]
        ready = self._ready.pop((stream.uuid, number), None)
        if ready is not None and ready.made_for != (local.info.config, info.empty_log_start):
            ready.dedupe.clear(0)
            ready.log.release()
            ready = None
        _, log, dedupe, log_time, kept_mark = ready or self._open_log(local.info, number)
        key = PartitionKey(bytes.fromhex(stream.uuid), number)
        partition = local.partitions[number] = Partition(
            *(key, stream, log, dedupe, info.leader_epoch, self._outbox, self._load, self._request_sync),
            clock=self._clock,
            log_time=log_time,
        )
        partition.whole = WholeHistory(
            Whole(self._elapsed_at(at_ns), end)
            for at_ns, end in self._checkpoint.wholes.get((bytes.fromhex(stream.uuid), number), ())
            if end <= log.log_end  # no longer, after a power loss or when it is copied anew
        )
        if log.failure is None:
            partition.note_failure = partial(self._note_failure, stream.uuid, number)
            partition.note_lack = partial(self._note_lack_of, partition)
        if not self.is_alone(info):  # what lies above the mark may be another's by now, and the lead, too
            partition.high_watermark = max(log.log_start, min(kept_mark, log.log_end))
            partition.is_leading = False

    def _open_log(self, stream: StreamInfo, number: int) -> _OpenLog:
        config, info = stream.config, stream.partitions[number]
        directory = self.directory(stream) / str(number)
        uuid = bytes.fromhex(stream.uuid)
        is_durable = config.sync is SyncMode.ALWAYS
        kept_mark = self._checkpoint.high_watermarks.get((uuid, number), 0)
        if self.is_alone(info):  # with others it may be copied anew; they are asked, and an operator
            kept_mark = max(kept_mark, info.first_end)
        log_time: LogTime | None = None
        dedupe = DedupeWindow(int(config.dedupe_window_s * 1e9), config.dedupe_ids_max, self._dedupe_memory)
        try:
            if not self.is_alone(info) and self._node_id not in info.isr and not has_log(self._disk, directory):
                kept_mark = 0  # of a replica that was here before: this begins anew, and counts once it has caught up
            self._check_renewable(info, stream.uuid, number, directory)
            log = PartitionLog.open(
                self._disk,
                self._files,
                directory,
                log_config(config),
                log_start=info.empty_log_start,
                durable_end=kept_mark if is_durable else 0,
                unsynced_parents=(directory.parent, self._data_dir.streams_directory),
                on_torn=partial(self._note_torn, stream, number),
            )
            self._check_whole(stream.uuid, number, log)
            kept_time = self._checkpoint.times.get((uuid, number))
            if kept_time is None and info.restored_time and not log.last_timestamp:
                kept_time = LogTimeState(info.restored_time)  # from there on nothing measured the time
            log_time = _log_time(log, self._files, self._clock.elapsed(), kept_time)
            checkpointed = self._checkpoint.high_watermarks.get((uuid, number), 0)
            dedupe.ordered = load_ordered(
                *(self._disk, directory, log.log_start, log.log_end, checkpointed, self._ordered_memory)
            )
            if dedupe.ordered.saved_end is not None:  # what it says is committed; merged batches lie below that
                kept_mark = max(kept_mark, dedupe.ordered.end_offset)
            note_log(dedupe, log, log_time, log.log_end if self.is_alone(info) else kept_mark)
        except (PartitionOfflineError, LiftError, OSError) as error:
            logger.error("stream %s partition %d is offline: %s", stream.name, number, error)  # noqa: TRY400
            log = PartitionLog.offline(self._disk, self._files, directory, PartitionOfflineError(str(error)))
            self._note_unusable(stream.uuid, number, error)
            dedupe.clear(0)  # what was read of it by then takes room in the node's memory, and is read again later
        return _OpenLog((config, info.empty_log_start), log, dedupe, log_time, kept_mark)

    def _note_torn(self, stream: StreamInfo, number: int, tail: TornTail) -> None:
        """What is about to be cut off may have been damaged rather than never whole; who has more must lead.

        Raises:
            OSError: that can not be written down.
        """
        if self._durability_record is not None and len(stream.partitions[number].replicas) > 1:
            self._durability_record.log_torn(stream.uuid, number)
            logger.warning(
                "stream %s partition %d: the end of its log can not be read, from offset %d on; this node can not "
                "prove that nothing acknowledged was there, and counts as in sync once it has caught up",
                *(stream.name, number, tail.offset),
            )

    def _note_unusable(self, uuid: str, number: int, error: Exception) -> None:
        """A log can not be opened: it has failed for good, or the error says nothing of what is on disk."""
        if isinstance(error, StorageFullError) or (isinstance(error, OSError) and is_full(error)):
            self._note_lack(uuid, number, str(error))
        elif not isinstance(error, OSError) or error.errno in _DISK_FAILED:
            self._note_failure(uuid, number, str(error))
        elif self._durability_record is not None:
            self._durability_record.log_unusable(uuid, number)

    def _note_lack(self, uuid: str, number: int, _why: str) -> None:
        self._to_try_again.add((uuid, number))
        if self._durability_record is not None:
            self._durability_record.log_unusable(uuid, number)

    def _note_lack_of(self, partition: Partition, why: str) -> None:
        """What is known of a log that was open takes the place of what was known before."""
        place, checkpoint = (partition.key.uuid, partition.number), self._checkpoint
        checkpoint.high_watermarks[place] = partition.sure_mark
        checkpoint.times[place] = partition.kept_time()
        self._note_lack(partition.stream.uuid, partition.number, why)

    def try_again(self, info: StreamInfo, number: int) -> bool:
        """Open a log that could not be opened for lack of room, memory or files; whether `open_partition` finds it."""
        place = info.uuid, number
        if place not in self._to_try_again:
            return False
        ready = self._open_log(info, number)
        if ready.log.failure is not None:
            return False
        self._to_try_again.remove(place)
        self._ready[place] = ready
        return True

    def _check_renewable(self, info: PartitionInfo, uuid: str, number: int, directory: Path) -> None:
        """A log that had failed is not opened where another node has a copy to renew it from.

        Raises:
            PartitionOfflineError: it waits for that.
        """
        why = self._why_failed(uuid, number)
        if why is None or not has_log(self._disk, directory):
            self.forget_failure(uuid, number)
        elif any(node != self._node_id for node in info.isr):
            raise PartitionOfflineError(f"the log had failed, and is to be copied anew: {why}")

    def _check_whole(self, uuid: str, number: int, log: PartitionLog) -> None:
        """A log that had failed is well where every batch in it is.

        Raises:
            PartitionOfflineError: one is damaged.
        """
        why = self._why_failed(uuid, number)
        if why is None:
            return
        check_batches(log.segments, self._files)
        logger.warning(
            "%s: every batch was read and is well, so the log works again; it had failed: %s", log.directory, why
        )
        self.forget_failure(uuid, number)

    def _why_failed(self, uuid: str, number: int) -> str | None:
        return None if self._durability_record is None else self._durability_record.why_failed(uuid, number)

    def _note_failure(self, uuid: str, number: int, why: str) -> None:
        if self._durability_record is not None:
            self._durability_record.log_failed(uuid, number, why)

    def forget_failure(self, uuid: str, number: int) -> None:
        """A log that had failed is not there any more, or well again.

        Raises:
            OSError: that can not be written down.
        """
        if self._durability_record is not None:
            self._durability_record.forget(uuid, number)

    def forget_log(self, uuid: str, number: int) -> None:
        """A log is not there any more: what was known of it says nothing of another one in its place.

        Raises:
            OSError: that it had failed can not be forgotten.
        """
        self._checkpoint.forget(uuid, number)
        self.forget_failure(uuid, number)

    def set_aside(self, info: StreamInfo, number: int, why: str) -> Path:
        """Move a partition's directory into quarantine, durably; a file in it says why. Returns where it is.

        Raises:
            OSError: it could not be moved.
        """
        aside = self._data_dir.quarantine_directory
        self._disk.make_directory(aside)
        place = aside / f"{info.name}.{info.uuid}.{number}.{self._clock.now_ns()}"
        self._disk.rename(self.directory(info) / str(number), place)
        self._disk.sync_directory(aside)
        self._disk.sync_directory(self.directory(info))
        self.forget_log(info.uuid, number)
        try:
            write_atomically(self._disk, place / WHY_FILE, f"{why}\n".encode())
        except OSError as error:  # the replica is to be copied anew all the same
            logger.warning("%s could not be written (%s), which would say: %s", place / WHY_FILE, error, why)
        return place

    def sort_out_directories(self, state: MetadataState) -> None:
        """Finish deletions, and put what no stream knows aside."""
        root = self._data_dir.streams_directory
        self._disk.make_directory(root)
        live = {f"{info.name}.{info.uuid}" for info in state.streams.values()}
        for name in self._disk.names(root):
            if name in live:
                continue
            if name.rpartition(".")[2] in state.deleted:
                remove_directory(root / name)
                continue
            aside = self._data_dir.quarantine_directory
            self._disk.make_directory(aside)
            self._disk.rename(root / name, aside / name)
            logger.warning("no stream knows %s: moved it to %s", root / name, aside)


def _log_time(log: PartitionLog, files: FileCache, now_s: float, kept: LogTimeState | None) -> LogTime:
    """The time of a log that was opened; what came after the time was kept last tells of leaps that were not.

    Where none was kept, as in the first seconds of a stream, the newest segment tells of them.
    """
    if not log.last_timestamp:
        return LogTime(0, now_s, kept)
    start = log.active.base_offset if kept is None else log.offset_at_time(kept.ns + 1)
    if start is None or start == log.log_end:
        return LogTime(log.last_timestamp, now_s, kept)
    time: LogTime | None = None if kept is None else LogTime(kept.ns, now_s, kept)
    for piece in log.read(max(start, log.log_start), log.log_end, 2**62):
        for position, header in piece.segment.headers(files.get(piece.segment), piece.position):
            if position >= piece.position + piece.length:
                break
            time = time or LogTime(header.base_timestamp, now_s)
            time.found(header.base_timestamp)
            time.found(header.max_timestamp)
    return time or LogTime(log.last_timestamp, now_s, kept)


def log_config(config: StreamConfig) -> LogConfig:
    """How a stream's logs are kept."""
    return LogConfig(
        segment_bytes=config.segment_bytes,
        segment_age_ns=int(config.segment_age_s * 1e9),
        keep_unsynced=config.sync is SyncMode.ALWAYS,
    )


def remove_directory(directory: Path) -> None:
    """Remove a directory with everything in it, as far as that is possible; the next start finishes it."""
    shutil.rmtree(directory, ignore_errors=True)
