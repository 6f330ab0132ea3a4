"""The ordered producers of one partition: of each, the highest batch that is stored.

A batch of an ordered producer is stored only if its (epoch, sequence) is greater than all that the partition has of
that producer. What is known of a producer is a number, so it is kept for as long as there is room, and not for a
window of time: over restarts, retention and key compaction, in a file beside the segments.

    <partition>/producers  magic u32 | version u32 | crc32c u32 (of the rest) | 4 pad
                           | end_offset i64 | of each producer: id 16 bytes, epoch i32, records i32, sequence i64,
                             offset i64, time i64 (ns)

The file says what was stored below `end_offset`, which is committed. What came later is read from the log. A log
without the file had no such batch below its last checkpoint. Little-endian.

A log that begins anew above offset 0 does not hold what its producers stored before. Nor do the batches of a leader
that merged them, by key compaction. So a follower is told by its leader, in these same bytes, of each producer whose
highest batch is neither in its log nor will come with its header. Until a log that begins anew was told, it is not
whole: its node says so with every fetch, and does not count as having anything.

A record above the high watermark may be cut off again. So a producer's batches are remembered back to the newest one
below the high watermark.
"""

from __future__ import annotations

import logging
import struct
from bisect import insort
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

import google_crc32c

from liftpy_log.storage.disk import read_whole, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from liftpy_log.storage.disk import Disk

__all__ = [
    "NODE_PRODUCERS_MAX",
    "PRODUCERS_MAX",
    "OrderedId",
    "OrderedMemory",
    "OrderedProducers",
    "StoredBatch",
    "ToldProducers",
    "decode_ordered",
    "load_ordered",
    "save_ordered",
]

logger = logging.getLogger(__name__)

PRODUCERS_MAX: Final = 10_000
NODE_PRODUCERS_MAX: Final = 250_000  # some 250 MB
EXPIRY_NS: Final = 7 * 86_400 * 10**9

_NAME: Final = "producers"
_MAGIC: Final = 0x4452504C  # "LPRD"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<III4x")
_END: Final = struct.Struct("<q")
_ENTRY: Final = struct.Struct("<16siiqqq")


class OrderedId(NamedTuple):
    """What a batch of an ordered producer is known by."""

    producer: bytes
    epoch: int
    sequence: int


class StoredBatch(NamedTuple):
    """A stored batch: its place in its producer's order, and in the log.

    Attributes:
        offset: Offset of its last record.
        records: Number of its records.
        time: Timestamp of its last record, in ns.
    """

    epoch: int
    sequence: int
    offset: int
    records: int
    time: int

    @property
    def order(self) -> tuple[int, int]:
        """What only grows."""
        return self.epoch, self.sequence


class ToldProducers(NamedTuple):
    """What a file, or a leader, says of ordered producers.

    Attributes:
        end: Offset below which it is the highest batch of each producer.
        batches: Ascending by offset.
    """

    end: int
    batches: list[tuple[bytes, StoredBatch]]


class OrderedMemory:
    """What the ordered producers of all partitions of a node may be.

    Args:
        producers_max: Beyond that no leader takes new ones. A follower takes what its leader has.

    Attributes:
        producers: How many there are.
    """

    def __init__(self, producers_max: int = NODE_PRODUCERS_MAX) -> None:
        self.producers_max = producers_max
        self.producers = 0


class OrderedProducers:
    """The ordered producers that one partition remembers.

    Args:
        producers_max: How many it takes. Beyond that a new one takes the place of one that expired, or is refused.
        expiry_ns: How much older than the newest record the last batch of a producer is that expired.
        memory: What all of the node share.

    Attributes:
        end_offset: What is stored below it is known here, and nothing from there on.
        is_whole: Whether what was stored below the log's start is known, too.
        told_end: A leader said that records below it are committed; they may be not on this disk.
        saved_end: `end_offset` of the file; None if there is no file, -1 if it says what is not so any more.
    """

    def __init__(
        self, producers_max: int = PRODUCERS_MAX, expiry_ns: int = EXPIRY_NS, memory: OrderedMemory | None = None
    ) -> None:
        self._producers_max = producers_max
        self._expiry_ns = expiry_ns
        self._memory = memory or OrderedMemory()
        self._batches: dict[bytes, deque[StoredBatch]] = {}  # ascending; producers by the age of their last batch
        self._changed_end = 0  # no batch was added from there on
        self.end_offset = 0
        self.is_whole = True
        self.told_end = 0
        self.saved_end: int | None = None

    def __len__(self) -> int:
        return len(self._batches)

    def find(self, key: OrderedId) -> StoredBatch | None:
        """The highest batch of this producer, if it makes a batch with this id a duplicate."""
        batches = self._batches.get(key.producer)
        if batches is None or batches[-1].order < (key.epoch, key.sequence):
            return None
        return batches[-1]

    def has_room(self, producer: bytes, now: int) -> bool:
        """Whether another batch of this producer can be remembered."""
        if producer in self._batches:
            return True
        if len(self._batches) < self._producers_max and self._memory.producers < self._memory.producers_max:
            return True
        oldest = next(iter(self._batches.values()), None)
        return oldest is not None and oldest[-1].time < now - self._expiry_ns

    def add(self, producer: bytes, batch: StoredBatch, committed_end: int) -> None:
        """Remember a batch that was appended.

        Args:
            producer: Producer that sent the batch.
            batch: What it is.
            committed_end: Records below it are never cut off.
        """
        self._changed_end = max(self._changed_end, batch.offset + 1)
        batches = self._batches.get(producer)
        if batches is None:
            batches = deque()
            self._memory.producers += 1
        elif batches[-1].order >= batch.order:
            return
        else:
            del self._batches[producer]
        batches.append(batch)
        while len(batches) > 1 and batches[1].offset < committed_end:
            batches.popleft()
        self._batches[producer] = batches
        while self._is_too_much:
            oldest = next(iter(self._batches))
            if self._batches[oldest][-1].time >= batch.time - self._expiry_ns:
                break  # its leader had room; the limit of another version may have been larger
            self._forget(oldest)

    @property
    def _is_too_much(self) -> bool:
        return len(self._batches) > self._producers_max or self._memory.producers > self._memory.producers_max

    def _forget(self, producer: bytes) -> None:
        del self._batches[producer]
        self._memory.producers -= 1

    def learn(self, batches: Iterable[tuple[bytes, StoredBatch]]) -> None:
        """Take over what another replica, or the file, has; ascending by offset.

        It is committed. A later batch that is known here may be cut off, so it is no reason to pass over it.
        """
        for producer, batch in batches:
            known = self._batches.get(producer)
            if known is None or known[-1].order < batch.order:
                self.add(producer, batch, batch.offset)
            elif all(each.order != batch.order for each in known):
                insort(known, batch, key=lambda each: each.order)

    def known(self, end: int, since: int = 0) -> list[tuple[bytes, StoredBatch]]:
        """Of each producer the highest batch below `end`, if it is not below `since`; ascending by offset."""
        found = [
            (producer, batch)
            for producer, batches in self._batches.items()
            if (batch := next((each for each in reversed(batches) if each.offset < end), None)) is not None
            and batch.offset >= since
        ]
        return sorted(found, key=lambda each: each[1].offset)

    def truncate(self, end: int) -> None:
        """Forget what is stored from `end` on."""
        self.end_offset = min(self.end_offset, end)
        self.told_end = min(self.told_end, end)
        if self.saved_end is not None and self.saved_end > end:
            self.saved_end = -1
        if self._changed_end <= end:
            return
        self._changed_end = end
        for producer, batches in list(self._batches.items()):
            while batches and batches[-1].offset >= end:
                batches.pop()
            if not batches:
                self._forget(producer)

    def clear(self, end: int) -> None:
        """Forget everything: the log begins anew at `end`."""
        self._memory.producers -= len(self._batches)
        self._batches.clear()
        self._changed_end = 0
        self.end_offset = end
        self.is_whole = end == 0
        self.told_end = 0
        if self.saved_end is not None:
            self.saved_end = -1

    def is_unsaved(self) -> bool:
        """Whether the file lacks a batch that is known here."""
        return self._changed_end > (self.saved_end or 0)

    def lacks_below(self, end: int, sure_end: int) -> bool:
        """Whether the file lacks a batch that only the log below `end` tells of; from `sure_end` on it may be cut."""
        saved_end = self.saved_end or 0
        return any(saved_end <= batch.offset < end for _, batch in self.known(max(end, sure_end)))

    def encode(self, end: int, since: int = 0) -> bytes:
        """The bytes of the file: what is stored below `end`; for a follower, which knows the rest, from `since` on."""
        body = _END.pack(end) + b"".join(
            _ENTRY.pack(producer, batch.epoch, batch.records, batch.sequence, batch.offset, batch.time)
            for producer, batch in self.known(end, since)
        )
        return _HEAD.pack(_MAGIC, _VERSION, google_crc32c.value(body)) + body


def decode_ordered(content: bytes) -> ToldProducers | None:
    """What the bytes of a file say; None if they are damaged."""
    body = content[_HEAD.size :]
    if len(content) < _HEAD.size + _END.size or (len(body) - _END.size) % _ENTRY.size:
        return None
    if _HEAD.unpack_from(content) != (_MAGIC, _VERSION, google_crc32c.value(body)):
        return None
    entries = [
        (producer, StoredBatch(epoch, sequence, offset, records, time))
        for producer, epoch, records, sequence, offset, time in _ENTRY.iter_unpack(body[_END.size :])
    ]
    return ToldProducers(_END.unpack_from(body)[0], entries)


def save_ordered(disk: Disk, directory: Path, content: bytes) -> None:
    """Write the file of a partition, durably and as a whole.

    Raises:
        OSError: it could not be written.
    """
    write_atomically(disk, directory / _NAME, content)


def load_ordered(
    disk: Disk,
    directory: Path,
    log_start: int,
    log_end: int,
    checkpointed_end: int,
    memory: OrderedMemory | None = None,
) -> OrderedProducers:
    """What the file of a partition says, as far as the log has it.

    Args:
        disk: Disk that has the file.
        directory: Directory of the partition.
        log_start: First offset of the log.
        log_end: Log end offset.
        checkpointed_end: What the last checkpoint says was committed; 0 if it says nothing.
        memory: What all partitions of the node share.

    Raises:
        OSError: the disk fails.
    """
    producers = OrderedProducers(memory=memory)
    try:
        decoded = decode_ordered(read_whole(disk, directory / _NAME))
    except FileNotFoundError:
        producers.end_offset = min(checkpointed_end, log_end)
        producers.is_whole = log_start == 0 or (log_start <= producers.end_offset and log_start < log_end)
        return producers
    if decoded is None:
        producers.is_whole = False
        logger.error(
            "%s is damaged: what it said is read from the log again, as far as that reaches back, and asked of the "
            "leader; if there is none, outputs of older transactions may be stored twice if they are sent again",
            directory / _NAME,
        )
        return producers
    end, entries = decoded
    producers.learn(entries)
    producers.saved_end = end
    producers.end_offset = end
    producers.is_whole = log_start <= end
    producers.truncate(log_end)
    return producers
