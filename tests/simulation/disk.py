"""The log of one replica on a disk that keeps what was synced, and may keep some of what was not.

A lazy one (`sync = interval`) counts everything as durable at once, and flushes it now and then: a process that is
killed loses nothing, a kernel that stops loses what was not flushed, and then the log can prove nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_server.replication.messages import BatchRange
from liftpy_server.replication.view import LogMarks

if TYPE_CHECKING:
    import random

    from liftpy_server.replication.replica import Replica

Record = tuple[int, int]  # (leader epoch, value)


class SimDisk:
    """`records[i]` has offset `start + i`. What `is_doubtful` can not prove that its log is whole."""

    def __init__(self, *, is_lazy: bool = False) -> None:
        self.is_lazy = is_lazy
        self.is_broken = False
        self.flushed_end = 0
        self.start = 0
        self.records: list[Record] = []
        self.synced_end = 0
        self.checkpoint = 0
        self.cuts = 0
        self.is_full = False
        self.sync_us = 1_000
        self.is_doubtful = False
        self.lost: list[tuple[int, list[Record]]] = []

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    def at(self, offset: int) -> Record | None:
        index = offset - self.start
        return self.records[index] if 0 <= index < len(self.records) else None

    def read(self, begin: int, end: int) -> list[Record]:
        return self.records[begin - self.start : end - self.start]

    def ranges(self, begin: int, end: int) -> tuple[BatchRange, ...]:
        """The batches of what is there: neighbours of one epoch."""
        found: list[BatchRange] = []
        for offset, (epoch, _) in enumerate(self.read(begin, end), begin):
            if found and found[-1].epoch == epoch:
                found[-1] = BatchRange(epoch=epoch, base=found[-1].base, end=offset + 1)
            else:
                found.append(BatchRange(epoch=epoch, base=offset, end=offset + 1))
        return tuple(found)

    def append(self, records: list[Record]) -> bool:
        if self.is_full or self.is_broken:
            return False
        self.records += records
        return True

    def truncate(self, end: int) -> None:
        del self.records[end - self.start :]
        self.synced_end = min(self.synced_end, end)
        self.checkpoint = min(self.checkpoint, end)
        self.flushed_end = min(self.flushed_end, end)
        self.cuts += 1

    def rebuild(self, start: int) -> None:
        self.records = []
        self.start = self.synced_end = self.checkpoint = self.flushed_end = start
        self.cuts += 1

    def drop_below(self, start: int) -> None:
        del self.records[: start - self.start]
        self.start = start

    def lose_power(self, rng: random.Random) -> None:
        """Of what was not synced a part survives; what recovery finds it syncs."""
        kept = rng.randint(max(self.synced_end, self.start), max(self.end, self.start))
        self.truncate(kept)
        self.synced_end = kept

    def lose_tail(self, rng: random.Random, first: int | None = None) -> None:
        """The disk forgets records that it had promised to keep: any, or those from `first` on."""
        self.lost.append((self.start, self.read(self.start, self.synced_end)))
        if first is None:
            kept = rng.choice((self.start, rng.randint(self.start, self.synced_end)))
        else:
            kept = rng.randint(max(self.start, first), max(self.start, self.end))
        self.truncate(kept)
        self.synced_end = kept
        self.is_doubtful = True

    def flush(self, replica: Replica | None) -> None:
        """Write everything, and how far it is known to be committed."""
        self.flushed_end = self.end
        if replica is not None:
            self.checkpoint = max(self.checkpoint, min(replica.log.high_watermark, self.end))

    def had_durable(self, begin: int, records: list[Record]) -> bool:
        """Whether these records are on this disk, or were until it lost them."""
        end = begin + len(records)
        if begin >= self.start and self.synced_end >= end and self.read(begin, end) == records:
            return True
        return any(begin >= start and lost[begin - start : end - start] == records for start, lost in self.lost)

    def marks(self) -> LogMarks:
        """The log as a process finds it when it opens it."""
        return LogMarks(
            start=self.start,
            end=self.end,
            durable_end=max(self.start, self.synced_end),
            high_watermark=self.checkpoint,
            epochs=[(part.epoch, part.base) for part in self.ranges(self.start, self.end)],
        )
