"""What must hold: an observer that sees every disk and every commit, and remembers all of it.

P1  an acked record is committed, and on the disks of `min_isr` replicas when it commits; whoever is in the ISR, and so
    may be elected at any moment, has every committed record on disk, and drops none of them
P2  offsets are contiguous, and what was committed at one keeps its content, on every replica
P3  no replica's high watermark, and no consumer, is ever beyond what is committed
P4  one epoch has one leader that commits
P5  where everything is well and nothing happens, nobody proposes anything

Copies on observers, and on nodes that keep a replica no longer, count for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from liftpy_server.metadata.state import PartitionInfo
    from simulation.disk import Record, SimDisk


class ViolationError(AssertionError):
    """A promise was broken."""


class Model:
    """See the module."""

    def __init__(self, min_isr: int, disks: dict[str, SimDisk]) -> None:
        self.committed: list[Record] = []
        self.acked: dict[int, tuple[int, int]] = {}  # value -> (epoch, offset)
        self.acked_end = 0
        self.acked_epoch = 0
        self.isr: tuple[str, ...] = ()  # as the metadata has it at this moment
        self.voters: tuple[str, ...] = ()
        self._min_isr = min_isr
        self._disks = disks
        self._committers: dict[int, str] = {}

    def configured(self, info: PartitionInfo) -> None:
        """The metadata says something else of the partition."""
        self.isr, self.voters = info.isr, info.voters
        self.check_isr()

    def advanced(self, node: str, high_watermark: int, leader_epoch: int | None) -> None:
        """A replica's high watermark moved; `leader_epoch` if it leads."""
        disk = self._disks[node]
        if high_watermark > disk.end:
            raise ViolationError(f"P3: {node} has no record at its high watermark {high_watermark}")
        if high_watermark > len(self.committed):
            if leader_epoch is None:
                raise ViolationError(f"P3: follower {node} shows {high_watermark} of {len(self.committed)} committed")
            self._commit(node, disk, high_watermark, leader_epoch)
        first = max(disk.start, high_watermark - 20)
        if disk.read(first, high_watermark) != self.committed[first:high_watermark]:
            raise ViolationError(f"P2: {node} has other content below its high watermark {high_watermark}")

    def _commit(self, node: str, disk: SimDisk, high_watermark: int, epoch: int) -> None:
        if self._committers.setdefault(epoch, node) != node:
            raise ViolationError(f"P4: {node} and {self._committers[epoch]} both commit in epoch {epoch}")
        begin = len(self.committed)
        fresh = disk.read(begin, high_watermark)
        copies = sum(self._disks[other].had_durable(begin, fresh) for other in self.voters)
        if copies < self._min_isr:
            raise ViolationError(f"P1: records {begin}..{high_watermark} are committed with {copies} durable copies")
        self.committed += fresh
        self.check_isr()

    def check_isr(self) -> None:
        """Records were committed, or the ISR was changed. A node that lost some will say so before it serves."""
        end = len(self.committed)
        for node in self.isr:
            disk = self._disks[node]
            first = max(disk.start, end - 20)
            has_all = disk.synced_end >= end and disk.read(first, end) == self.committed[first:]
            if not has_all and disk.can_be_trusted:
                raise ViolationError(f"P1: {node} is in the ISR without every one of {end} committed records")

    def acknowledged(self, value: int, epoch: int, offset: int) -> None:
        """The publisher got an ack."""
        if offset >= len(self.committed) or self.committed[offset] != (epoch, value):
            raise ViolationError(f"P1: value {value} is acked at {offset} in epoch {epoch}, and not committed there")
        self.acked[value] = (epoch, offset)
        self.acked_end = max(self.acked_end, offset + 1)
        self.acked_epoch = max(self.acked_epoch, epoch)

    def truncating(self, node: str, end: int) -> None:
        """A replica is about to drop its records from `end` on.

        One outside the ISR may still follow a deposed leader and drop what the next one has committed since; nobody
        counted its copy.
        """
        if node not in self.isr:
            return
        disk = self._disks[node]
        for offset in range(max(end, disk.start), min(disk.end, len(self.committed))):
            if disk.at(offset) == self.committed[offset]:
                raise ViolationError(f"P1: {node} drops the committed record {offset}")

    def appending(self, node: str, records: list[Record]) -> None:
        """A replica is about to append; epochs only grow along a log."""
        disk = self._disks[node]
        if records and disk.records and records[0][0] < disk.records[-1][0]:
            raise ViolationError(f"P2: {node} appends epoch {records[0][0]} after {disk.records[-1][0]}")

    def shown(self, offset: int, records: list[Record]) -> None:
        """A consumer was given records from `offset` on."""
        if self.committed[offset : offset + len(records)] != records:
            raise ViolationError(f"P3: a consumer was shown {records} at {offset}, which is not what is committed")

    def finished(self) -> None:
        """Everything has healed and settled: every replica has everything, and the same."""
        assert self.voters, "nobody keeps anything"
        for node in self.voters:
            disk = self._disks[node]
            if disk.read(disk.start, len(self.committed)) != self.committed[disk.start :]:
                raise ViolationError(f"P1: {node} lacks committed records after everything has healed")
        for value, (epoch, offset) in self.acked.items():
            if self.committed[offset] != (epoch, value):
                raise ViolationError(f"P1: the acked value {value} is gone from {offset}")


class Hopeless(Model):
    """More was lost than the promise allows: nothing can be held against anybody, but in the end all must agree."""

    def advanced(self, node: str, high_watermark: int, leader_epoch: int | None) -> None:
        del node, high_watermark, leader_epoch

    def acknowledged(self, value: int, epoch: int, offset: int) -> None:
        del value, epoch, offset

    def truncating(self, node: str, end: int) -> None:
        del node, end

    def appending(self, node: str, records: list[Record]) -> None:
        del node, records

    def shown(self, offset: int, records: list[Record]) -> None:
        del offset, records

    def check_isr(self) -> None:
        pass

    def agree(self) -> bool:
        """Whether all replicas hold the same, as far as the shortest of them reaches."""
        disks = [self._disks[node] for node in self.voters]
        start = max(disk.start for disk in disks)
        end = min(disk.end for disk in disks)
        return all(disk.read(start, end) == disks[0].read(start, end) for disk in disks)

    def finished(self) -> None:
        assert self.agree()
