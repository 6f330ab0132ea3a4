"""The log of one replica on a disk that keeps what was synced, and may keep some of what was not.

A lazy one (`sync = interval`) counts everything as durable at once, and flushes it now and then: a process that is
killed loses nothing, a kernel that stops loses what was not flushed, and then the log can prove nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_server.replication.core.ranges import BatchRange
from liftpy_server.replication.core.view import LogMarks

if TYPE_CHECKING:
    import random

    from liftpy_server.replication.core.replica import Replica

Record = tuple[int, int]  # (leader epoch, value)


class SimDisk:
    """`records[i]` has offset `start + i`.

    What `is_doubtful` can not prove that its log is whole; what `is_lost` has forgotten what it promised to keep; what
    `is_cut` had an end that did not read well. All of it is known to the node that starts on it. While it `is_broken`
    nothing is written; what `is_failed` because of that counts no more before there is a new copy.
    """

    def __init__(self, *, is_lazy: bool = False) -> None:
        self.is_lazy = is_lazy
        self.is_broken = self.is_failed = False
        self.flushed_end = 0
        self.start = 0
        self.records: list[Record] = []
        self.synced_end = 0
        self.checkpoint = 0
        self.cuts = 0
        self.is_full = False
        self.sync_us = 1_000
        self.is_doubtful = self.is_lost = self.is_cut = False
        self.known_end = 0
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
        self.is_cut |= rng.random() < 0.4  # the next batch is there in parts
        self.truncate(kept)
        self.synced_end = kept

    def renew(self) -> None:
        """Begin a new copy."""
        self.lost.append((self.start, self.read(self.start, self.synced_end)))
        self.rebuild(0)

    def damage_end(self, rng: random.Random) -> None:
        """The last records turn bad, and look as if they had never been written whole."""
        self.lost.append((self.start, self.read(self.start, self.synced_end)))
        kept = max(self.start, self.end - rng.randint(1, 3))
        self.is_cut |= kept < self.end
        checkpoint = self.checkpoint
        self.truncate(kept)
        self.synced_end = kept
        if kept < checkpoint:  # which tells damage from a write that was never finished
            self.is_lost, self.known_end = True, max(self.known_end, checkpoint)

    def lose_tail(self, rng: random.Random, first: int | None = None) -> None:
        """The disk forgets records that it had promised to keep: any, or those from `first` on."""
        self.lost.append((self.start, self.read(self.start, self.synced_end)))
        if first is None:
            kept = rng.choice((self.start, rng.randint(self.start, self.synced_end)))
            self.is_lost, self.known_end = True, max(self.known_end, self.checkpoint)
        else:
            kept = rng.randint(max(self.start, first), max(self.start, self.end))
            self.is_doubtful = True
        self.truncate(kept)
        self.synced_end = kept

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

    @property
    def can_be_trusted(self) -> bool:
        """Whether a node that starts on it may say nothing."""
        return not (self.is_doubtful or self.is_lost or self.is_cut)

    @property
    def reach(self) -> tuple[int, int]:
        """How far the log reaches: its last epoch, and its end."""
        return (self.records[-1][0] if self.records else -1), self.end

    def marks(self) -> LogMarks:
        """The log as a process finds it when it opens it."""
        return LogMarks(
            start=self.start,
            end=self.end,
            durable_end=max(self.start, self.synced_end),
            high_watermark=self.checkpoint,
            epochs=[(part.epoch, part.base) for part in self.ranges(self.start, self.end)],
            known_end=self.known_end,
        )
