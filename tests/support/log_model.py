"""The plain list that a partition's log must equal, and bodies of record batches to fill both with."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple

from liftpy_envelope.batch import NO_PRODUCER, encode_body, encode_header, encode_plain_body
from liftpy_envelope.columns import Column
from liftpy_envelope.ipc import nullable_column, values_column
from liftpy_log.partition_log import LogConfig, PartitionLog
from liftpy_log.storage.files import FileCache
from support.simdisk import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_envelope.batch import BatchBody
    from liftpy_log.reader import Slice
    from support.simdisk import SimDisk

DIRECTORY = ROOT / "streams" / "orders" / "0"
SUBJECT = b"orders.eu"
T0 = 1_700_000_000_000_000_000


class StoredBatch(NamedTuple):
    """One batch as it must stand on disk."""

    base_offset: int
    next_offset: int
    timestamp: int
    epoch: int
    data: bytes


def body_of(values: Sequence[bytes], ids: Sequence[bytes | None] | None = None) -> BatchBody:
    """A body with these values, and these message ids where there are any."""
    if ids is None:
        return encode_plain_body([SUBJECT] * len(values), values)
    columns = [values_column([SUBJECT] * len(values)), values_column(values), nullable_column(ids)]
    return encode_body(len(values), Column.SUBJECT | Column.VALUE | Column.MESSAGE_ID, columns)


def numbered_body(number: int, records: int = 1, size: int = 40) -> BatchBody:
    """A body that differs from that of any other number."""
    return body_of([f"{number}/{record}".encode().ljust(size, b".") for record in range(records)])


def encode_batch(
    body: BatchBody,
    base_offset: int,
    timestamp: int,
    epoch: int = 0,
    producer_id: bytes = NO_PRODUCER,
    producer_sequence: int = -1,
) -> bytes:
    """The bytes of a batch."""
    header = encode_header(
        body,
        base_offset=base_offset,
        leader_epoch=epoch,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_sequence=producer_sequence,
    )
    return header + b"".join(bytes(part) for part in body.parts)


class LogModel:
    """A log as a list of batches; `log_start` is the first offset that may be read."""

    def __init__(self) -> None:
        self.batches: list[StoredBatch] = []
        self.log_start = 0
        self.first_offset = 0

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset if self.batches else self.first_offset

    @property
    def edges(self) -> list[int]:
        """Every offset at which a batch begins, and the end."""
        return [batch.base_offset for batch in self.batches] + [self.end]

    def append(self, body: BatchBody, now: int, epoch: int = 0) -> StoredBatch:
        """Take a batch, as the log must."""
        readable = self.batches and self.log_start < self.end
        timestamp = max(now, self.batches[-1].timestamp) if readable else now
        base = self.end
        data = encode_batch(body, base, timestamp, epoch)
        batch = StoredBatch(base, base + body.record_count, timestamp, epoch, data)
        self.batches.append(batch)
        return batch

    def truncate(self, end: int) -> None:
        """Forget what a crash took."""
        while self.batches and self.batches[-1].next_offset > end:
            if len(self.batches) == 1:
                self.first_offset = self.batches[0].base_offset
            self.batches.pop()
        assert self.end == end, f"{end} is in the middle of a batch"

    def renew(self, start: int) -> None:
        """Forget everything, and go on at `start`."""
        self.batches.clear()
        self.first_offset = self.log_start = start

    def between(self, start: int, end: int) -> list[StoredBatch]:
        """The batches with a record in the range."""
        low = bisect_right(self.batches, start, key=lambda batch: batch.next_offset)
        high = bisect_right(self.batches, end - 1, key=lambda batch: batch.base_offset)
        return self.batches[low:high]

    def offset_at_time(self, timestamp: int) -> int | None:
        """First readable offset not before a time."""
        for batch in self.between(self.log_start, self.end):
            if batch.timestamp >= timestamp:
                return max(batch.base_offset, self.log_start)
        return None

    def epochs(self) -> list[tuple[int, int]]:
        """(epoch, first readable offset of it)."""
        entries: dict[int, int] = {}
        for batch in self.between(self.log_start, self.end):
            entries.setdefault(batch.epoch, max(batch.base_offset, self.log_start))
        return list(entries.items())


def bytes_of(disk: SimDisk, slices: Sequence[Slice]) -> bytes:
    """What a consumer gets."""
    pieces = []
    for segment, position, length, _ in slices:
        pieces.append(disk.content(segment.path)[position : position + length])
        assert len(pieces[-1]) == length, f"{segment.path} has no {length} bytes at {position}"
    return b"".join(pieces)


def check_read(
    disk: SimDisk, log: PartitionLog, model: LogModel, offset: int, end: int, bytes_max: int, hint: Slice | None = None
) -> list[Slice]:
    """Read, and check everything that is promised of a read."""
    slices = log.read(offset, end, bytes_max, hint)
    if offset == end:
        assert slices == []
        return slices
    stop = slices[-1].next_offset
    expected = model.between(offset, stop)
    assert offset < stop <= end, "at least one batch, and none past the end"
    assert stop == expected[-1].next_offset, "whole batches"
    assert bytes_of(disk, slices) == b"".join(batch.data for batch in expected)
    size = sum(len(batch.data) for batch in expected)
    assert len(expected) == 1 or size - len(expected[-1].data) < bytes_max, "about as much as was asked for"
    return slices


def check_reads_all(disk: SimDisk, log: PartitionLog, model: LogModel) -> None:
    """Check that the log holds what the model holds, by reading all of it at once."""
    assert (log.log_start, log.log_end) == (model.log_start, model.end)
    check_read(disk, log, model, log.log_start, log.log_end, 2**62)


class OpenLog:
    """A log on a simulated disk beside its model: every append goes to both and is compared."""

    def __init__(self, disk: SimDisk, config: LogConfig | None = None, **given: int) -> None:
        self.disk = disk
        self.config = config or LogConfig()
        self.model = LogModel()
        self.model.first_offset = self.model.log_start = given.get("log_start", 0)
        self._numbers = 0
        self.reopen(**given)

    def reopen(self, **given: Any) -> PartitionLog:
        """Open the log anew, without a close: by a process that comes after one that was killed."""
        if hasattr(self, "files"):
            self.files.close()
        self.files = FileCache(self.disk, 4)
        self.log = PartitionLog.open(self.disk, self.files, DIRECTORY, self.config, **given)
        return self.log

    def append(self, records: int = 1, size: int = 40, now: int = T0, epoch: int = 0) -> StoredBatch:
        """Append a batch of values that were never there before."""
        self._numbers += 1
        body = numbered_body(self._numbers, records, size)
        appended = self.log.append(body, leader_epoch=epoch, timestamp=now)
        expected = self.model.append(body, now, epoch)
        assert appended == (expected.base_offset, expected.next_offset, expected.timestamp)
        return expected

    def fill(self, batches: int, **given: int) -> OpenLog:
        """Append several batches, a second apart."""
        for number in range(batches):
            self.append(**{"now": T0 + number * 10**9, **given})
        return self

    def commit(self) -> None:
        """Make everything durable, as a round of group commit does."""
        tail, _ = self.log.durability.sync_target()
        file = self.files.pin(tail.segment)
        file.sync()
        self.files.unpin(tail.segment, file)
        self.log.durability.mark_synced(tail.next_offset)

    def check(self) -> None:
        """Check that the log holds what the model holds."""
        check_reads_all(self.disk, self.log, self.model)

    @property
    def path(self):
        """The newest segment's file."""
        return self.log.active.path
