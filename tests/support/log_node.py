"""The storage of a node on a simulated disk: write-ahead log, group commit and logs, with a model beside each log.

It starts, works and stops in the order in which a node does. `reported` is what group commit said is durable: it must
be there after everything that can happen to a disk.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from liftpy_log.durability.group_commit import GroupCommit, Synced
from liftpy_log.durability.wal import WriteAheadLog, replay_wal
from liftpy_log.partition_log import LogConfig, PartitionLog
from liftpy_log.storage.files import FileCache
from support.log_batches import headers_of
from support.log_model import T0, LogModel, check_read, numbered_body
from support.simdisk import ROOT, SimDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from support.log_model import StoredBatch
    from support.simdisk import Order

WAL_DIRECTORY = ROOT / "wal"


def partition_directory(number: int) -> Path:
    """Where a partition is."""
    return ROOT / "streams" / "orders.5f" / str(number)


class StorageNode:
    """See the module.

    Args:
        disk: where.
        partitions: how many logs.
        with_wal: whether there is a write-ahead log.
        direct_max: largest number of dirty logs that are synced by themselves.
        wal_bytes: size at which a file of the write-ahead log is closed.
        config: of every log.
    """

    def __init__(
        self,
        disk: SimDisk,
        partitions: int = 3,
        *,
        with_wal: bool = True,
        direct_max: int = 0,
        wal_bytes: int = 4_000,
        config: LogConfig | None = None,
        open_files: int = 4,
    ) -> None:
        self.disk = disk
        self.partitions = range(partitions)
        self.models = [LogModel() for _ in self.partitions]
        self.reported = [0] * partitions
        self.droppable = [0] * partitions
        self.log_starts = [0] * partitions  # as the metadata knows them
        self.growing: list[int | None] = [None] * partitions  # where a log ended to which batches are being appended
        self.cuts: list[int | None] = [None] * partitions  # where a log is being cut now
        self.renewals: list[int | None] = [None] * partitions  # where a log is being begun anew now
        self.claims: list[int] | None = None  # what a checkpoint says that may be older than a cut
        self.results: list[Synced] = []
        self.now = T0
        self.epoch = 0
        self.config = config or LogConfig()
        self._with_wal, self._direct_max, self._wal_bytes = with_wal, direct_max, wal_bytes
        self._open_files = open_files
        self._numbers = 0
        self.logs: list[PartitionLog] = []

    def start(self, *, checkpoint: bool = True) -> StorageNode:
        """Start as a node does; with `checkpoint` it knows exactly what was committed."""
        self.logs = []
        self.results.clear()
        replay_wal(self.disk, WAL_DIRECTORY, ROOT)
        self.files = FileCache(self.disk, self._open_files)
        wal = WriteAheadLog(self.disk, WAL_DIRECTORY, ROOT, self._wal_bytes)
        self.wal = wal if self._with_wal else None
        self.commits = GroupCommit(self.files, self.wal, self.results.extend, self._direct_max)
        self.disk.make_directory(ROOT / "streams")
        for number in self.partitions:
            directory = partition_directory(number)
            log = PartitionLog.open(
                self.disk,
                self.files,
                directory,
                self.config,
                log_start=self.log_starts[number],
                durable_end=(self.claims or self.reported)[number] if checkpoint else 0,
                unsynced_parents=(directory.parent, directory.parent.parent),
            )
            self.logs.append(log)
        return self

    def append(self, number: int, records: int = 1, size: int = 40, later: int = 1) -> StoredBatch:
        """Append a batch of values that were never there before."""
        self._numbers += 1
        self.now += later
        body = numbered_body(self._numbers, records, size)
        appended = self.logs[number].append(body, leader_epoch=self.epoch, timestamp=self.now)
        expected = self.models[number].append(body, self.now, self.epoch)
        assert appended == (expected.base_offset, expected.next_offset, expected.timestamp)
        return expected

    def append_batches(self, number: int, sizes: Sequence[tuple[int, int]], later: int = 1) -> list[StoredBatch]:
        """Append whole batches, of (records, value size), as a follower does with what its leader sent."""
        model = self.models[number]
        self.growing[number] = model.end
        batches = []
        for records, size in sizes:
            self._numbers += 1
            self.now += later
            batches.append(model.append(numbered_body(self._numbers, records, size), self.now, self.epoch))
        data = b"".join(batch.data for batch in batches)
        appended = self.logs[number].append_batches(data, headers_of(data))
        assert appended == (batches[0].base_offset, model.end, self.now)
        self.growing[number] = None
        return batches

    def round(self, numbers: Iterable[int] | None = None) -> Sequence[Synced]:
        """Run a round of group commit for some of the logs, and do with its results what a node does."""
        self.begin_round(numbers)
        return self.end_round()

    def begin_round(self, numbers: Iterable[int] | None = None) -> None:
        """Run a round, whose results are still on their way to those who own the logs."""
        self.results.clear()
        self.commits.run_round(
            [self.logs[number].durability for number in (self.partitions if numbers is None else numbers)]
        )

    def end_round(self) -> Sequence[Synced]:
        """Do with the results of a round what a node does."""
        results = tuple(self.results)
        self.results.clear()
        for log, next_offset, error in results:
            number = next(number for number in self.partitions if self.logs[number].durability is log)
            if error is not None:
                log.fail(error)
            else:
                log.mark_synced(next_offset)
                self.reported[number] = max(self.reported[number], log.synced_end)
        return results

    def truncate(self, number: int, end: int) -> None:
        """Cut a log back."""
        model = self.models[number]
        if model.log_start == end < model.end:
            self.rebuild(number, end, self.logs[number].truncate)
            return
        self.cuts[number] = end
        self.logs[number].truncate(end)
        self.cuts[number] = None
        if end < model.end:
            self.reported[number] = end
        model.truncate(end)

    def rebuild(self, number: int, start: int, rebuild: Callable[[int], None] | None = None) -> None:
        """Begin a log anew."""
        self.renewals[number] = start
        (rebuild or self.logs[number].rebuild)(start)
        self._renewed(number)

    def _renewed(self, number: int) -> None:
        start = self.renewals[number]
        assert start is not None
        self.renewals[number] = None
        self.models[number].renew(start)
        self.reported[number] = start
        self.droppable[number] = max(self.droppable[number], start)

    def purge(self, number: int, offset: int) -> None:
        """Purge a log; that it was is known to the node's metadata before anything is deleted."""
        model = self.models[number]
        model.log_start = self.log_starts[number] = max(model.log_start, offset)
        self.droppable[number] = max(self.droppable[number], offset)
        self.logs[number].purge(offset)

    def drop_before(self, number: int, offset: int) -> None:
        """Drop what retention allows to drop."""
        self.droppable[number] = max(self.droppable[number], offset)
        self.logs[number].drop_before(offset)
        self.models[number].log_start = self.log_starts[number] = self.logs[number].log_start

    def stop(self) -> None:
        """Stop cleanly."""
        for number, log in enumerate(self.logs):
            log.close()
            self.reported[number] = log.log_end
        if self.wal is not None:
            self.wal.close(remove=True)
        self.files.close()

    def durable_ends(self) -> list[int]:
        """What must be there whatever happens: what was reported, and what the logs themselves say is durable."""
        ends = list(self.reported)
        for number, log in enumerate(self.logs):
            ends[number] = max(ends[number], log.synced_end)
        return [end if cut is None else min(end, cut) for end, cut in zip(ends, self.cuts, strict=True)]

    def found_on(self, disk: SimDisk, *, checkpoint: bool = True) -> StorageNode:
        """Another node that is started on a disk, and expects what this one promised."""
        other = StorageNode(
            disk,
            len(self.partitions),
            with_wal=self._with_wal,
            direct_max=self._direct_max,
            wal_bytes=self._wal_bytes,
            config=self.config,
        )
        other.reported, other.droppable = self.durable_ends(), list(self.droppable)
        other.log_starts, other.growing = list(self.log_starts), list(self.growing)
        other.cuts, other.renewals = list(self.cuts), list(self.renewals)
        other.claims = self.claims and list(self.claims)
        for mine, its in zip(self.models, other.models, strict=True):
            its.batches, its.log_start, its.first_offset = list(mine.batches), mine.log_start, mine.first_offset
        other.now, other.epoch, other._numbers = self.now, self.epoch, self._numbers
        return other.start(checkpoint=checkpoint)

    def check_after_crash(self) -> None:
        """Check that what was promised is there and nothing was invented; take note of what else is there."""
        for number, (log, model) in enumerate(zip(self.logs, self.models, strict=True)):
            where = f"partition {number}"
            found = (log.segments[0].base_offset, log.log_start, log.log_end)
            if self.renewals[number] is not None and found == (self.renewals[number],) * 3:
                self._renewed(number)  # else a purged log, of which the rest was lost, may end there, too
            self.renewals[number] = self.cuts[number] = self.growing[number] = None
            assert log.log_end >= self.reported[number], f"{where}: durable records are gone"
            assert log.log_end <= model.end, f"{where}: records were invented"
            model.truncate(log.log_end)
            assert log.segments[0].base_offset <= self.droppable[number], f"{where}: too much was dropped"
            assert log.log_start == max(model.log_start, log.segments[0].base_offset)
            for segment in log.segments:
                expected = model.between(segment.base_offset, segment.next_offset) if segment.size else []
                held = self.disk.content(segment.path)
                assert held == b"".join(batch.data for batch in expected), f"{where}: {segment.path.name} differs"
            check_read(self.disk, log, model, log.log_start, log.log_end, 2**62)
            model.log_start = log.log_start
            self.log_starts[number] = max(self.log_starts[number], self.logs[number].segments[0].base_offset)
            self.reported[number] = log.log_end
            assert log.epochs.entries == model.epochs(), where

    def check_after_kill(self) -> None:
        """Check that nothing that was appended is missing."""
        for number, (log, model) in enumerate(zip(self.logs, self.models, strict=True)):
            if self.growing[number] is None:
                assert log.log_end in {model.end, self.cuts[number], self.renewals[number]} - {None}
            else:
                assert self.growing[number] <= log.log_end <= model.end
        self.check_after_crash()

    def state(self) -> object:
        """All that a node shows of its logs."""
        shown = [(log.log_start, log.log_end, log.epochs.entries, log.last_timestamp) for log in self.logs]
        return self.disk.files(".log"), shown

    def crash(self, seed: int, order: Order) -> StorageNode:
        """The node as it is after a power loss."""
        return self.found_on(self.disk.crash(random.Random(seed), order))
