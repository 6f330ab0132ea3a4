"""A stream with its partitions and an ingest, as a node has them, without a network and with a clock that is set.

The logs are real and in a directory of the test; the disk can be told to fail. Acks go into a list. Group commit
happens when the test says so.
"""

from __future__ import annotations

import errno
from collections import deque
from typing import TYPE_CHECKING, Any

from liftpy_envelope.pull import PartitionKey
from liftpy_envelope.stream_config import Spread, StreamConfig
from liftpy_log.ids.dedupe import DedupeWindow
from liftpy_log.partition_log import LogConfig, PartitionLog
from liftpy_log.storage.disk import OsDisk, OsFile
from liftpy_log.storage.files import FileCache
from liftpy_server.ingest.binding import Binding
from liftpy_server.ingest.ingest import Ingest
from liftpy_server.metadata.state import StreamInfo
from liftpy_server.partition.outbox import Outbox
from liftpy_server.partition.partition import Load, Partition
from liftpy_server.partition.stream_state import StreamState
from support.batches import log_records
from support.gap_notes import GapNotes
from support.nats_frames import encode_all
from support.published import published

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from liftpy_server.gaps.gap import Gap
    from support.batches import Record
    from support.nats_frames import Frame
    from support.published import Published

UUID = bytes(range(16))
NOW_NS = 1_700_000_000 * 10**9


class SetClock:
    """A clock that goes where it is told."""

    def __init__(self, now_ns: int = NOW_NS) -> None:
        self.ns = now_ns
        self.seconds = 1_000.0

    def now_ns(self) -> int:
        return self.ns

    def monotonic(self) -> float:
        return self.seconds

    elapsed = monotonic

    def advance(self, seconds: float) -> None:
        self.ns += int(seconds * 1e9)
        self.seconds += seconds


class FlakyDisk(OsDisk):
    """A disk that fails when it is told to.

    Attributes:
        write_errors: error numbers for the next writes; None lets one through.
        create_errors: likewise for the creation of segment files.
        is_full: nothing can be written at all.
    """

    def __init__(self) -> None:
        super().__init__()
        self.write_errors: deque[int | None] = deque()
        self.create_errors: deque[int | None] = deque()
        self.is_full = False

    def open(self, path: Path, *, create: bool = False) -> OsFile:
        if create and path.suffix == ".log" and self.create_errors and (number := self.create_errors.popleft()):
            raise OSError(number, "told to fail")
        return FlakyFile(self, super().open(path, create=create))


class FlakyFile(OsFile):
    """A file of a `FlakyDisk`."""

    def __init__(self, disk: FlakyDisk, file: OsFile) -> None:
        super().__init__(file.fileno())
        self._disk = disk

    def write(self, position: int, parts: Any) -> None:
        errors = self._disk.write_errors
        number = errno.ENOSPC if self._disk.is_full else errors.popleft() if errors else None
        if number is not None:
            super().write(position, [b"".join(parts)[:10]])  # a disk that is full takes some of it
            raise OSError(number, "told to fail")
        super().write(position, parts)


class Kit:
    """One stream on one node.

    Args:
        directory: for the logs.
        led: the partitions that this node leads; by default all.
        log: how the logs are kept; by default as the stream says.
        settings: fields of `StreamConfig`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        led: Iterable[int] | None = None,
        log: LogConfig | None = None,
        **settings: Any,
    ) -> None:
        config = StreamConfig.from_plain({"name": "orders", "subject": "orders.>"} | settings)
        self.clock = SetClock()
        self.disk = FlakyDisk()
        self.files = FileCache(self.disk, 64)
        self.load = Load()
        self.frames: list[bytes] = []
        self.outbox = Outbox(self._write)
        self.sync_requests: list[PartitionLog] = []
        self.info = StreamInfo(uuid=UUID.hex(), config=config, created_ns=0)
        self.stream = StreamState(self.info, self.clock, GapNotes())
        numbers = range(config.partitions) if led is None else led
        self.partitions = {number: self._open(number, directory / str(number), log) for number in numbers}
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.control = b""
        self.ingest = Ingest(self.clock, self.outbox, self._hand_back, self._call_later, self._broke)
        self._bind(config)

    def _open(self, number: int, directory: Path, log_config: LogConfig | None) -> Partition:
        config = self.stream.config
        log = PartitionLog.open(self.disk, self.files, directory, log_config)
        dedupe = DedupeWindow(int(config.dedupe_window_s * 1e9), config.dedupe_ids_max)
        key = PartitionKey(UUID, number)
        return Partition(
            key, self.stream, log, dedupe, 7, self.outbox, self.load, self.sync_requests.append, self.clock
        )

    def _bind(self, config: StreamConfig) -> None:
        if config.partitions == 1 or config.spread is Spread.HASH:
            self.ingest.bindings[1] = Binding(self.stream, config.subject, self.partitions)
            return
        for number, partition in self.partitions.items():
            binding = Binding(self.stream, config.partition_subject(number), {number: partition})
            self.ingest.bindings[number + 1] = binding

    def _write(self, frames: bytes) -> bool:
        self.frames.append(frames)
        return True

    def _hand_back(self, data: bytes) -> None:
        self.control += data

    def _broke(self, cause: str) -> None:
        raise AssertionError(cause)

    def _call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        self.timers.append((delay_s, action))

    @property
    def partition(self) -> Partition:
        """The only partition, or the first."""
        return next(iter(self.partitions.values()))

    @property
    def log(self) -> PartitionLog:
        return self.partition.log

    def change(self, **settings: Any) -> None:
        """Change the stream's configuration."""
        config = StreamConfig.from_plain(self.stream.config.to_plain() | settings)
        self.stream.config = config

    def receive(self, *items: Frame | bytes) -> None:
        """One chunk from the socket."""
        self.ingest.receive(encode_all(items))

    def sync(self) -> None:
        """A group commit round for everything that was asked for."""
        requests = dict.fromkeys(self.sync_requests)
        self.sync_requests.clear()
        for partition in self.partitions.values():
            log = partition.log
            if log in requests and (target := log.durability.begin_round()) is not None:
                log.durability.end_round(target[0].next_offset, None)
                partition.on_synced(target[0].next_offset)
        self.outbox.flush()

    def sent(self) -> list[Published]:
        """The acks that went out since the last call."""
        frames, self.frames = b"".join(self.frames), []
        return published(frames)

    def acks(self) -> list[tuple[bytes, dict[str, Any]]]:
        """As `sent`, with the JSON read."""
        return [(ack.subject, ack.json) for ack in self.sent()]

    def offsets(self) -> list[tuple[bytes, int]]:
        """As `sent`, where all are acks of stored messages."""
        return [(subject, ack["offset"]) for subject, ack in self.acks()]

    def errors(self) -> list[tuple[bytes, int]]:
        """As `sent`, where all are refusals: their numbers."""
        return [(subject, ack["error"]["err_code"]) for subject, ack in self.acks()]

    def records(self, number: int = 0) -> list[Record]:
        """What is in a partition's log, from its files."""
        return log_records(self.partitions[number].log)

    def gaps(self, number: int = 0) -> tuple[Gap, ...]:
        """The gaps of a partition, none of which is recorded."""
        return self.stream.gaps_of(number).unrecorded()

    def stored(self, number: int = 0) -> list[bytes | None]:
        """The values in a partition's log."""
        return [record.value for record in self.records(number)]

    def close(self) -> None:
        self.files.close()
