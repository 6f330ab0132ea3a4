"""What the sink needs of a stream: where its partitions end, a way to publish a chunk, and a look at what is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from liftpy_bucket.staging.section import RowChunk, Section

__all__ = ["ChunkRange", "ChunkScan", "Target"]


class ChunkRange(NamedTuple):
    """Where a chunk is.

    Attributes:
        start: The offset of its first record.
        end: The one after its last.
        epoch: Leader epoch of the node that acknowledged it; 0 where nobody knows.
    """

    start: int
    end: int
    epoch: int = 0


class ChunkScan(NamedTuple):
    """What a look at the log of a partition brought.

    Attributes:
        end: The offset up to which was looked.
        sequences: The producer's sequences that were found.
        doubt: Why some may have been there that were not found; "" when that can not be.
    """

    end: int
    sequences: frozenset[int]
    doubt: str = ""


class Target(Protocol):
    """One stream that the sink writes to. It is named by uuid, so that a new stream of the same name is refused.

    Attributes:
        look_age_max_s: How old a look at the log may be when a chunk is published that it did not find: so young that
            the nodes still know the ids of all that was stored since, when the last copy of the chunk reaches them.
        settle_s: Time for which a new leader may tell ends that are older than what was committed, seconds.
    """

    look_age_max_s: float
    settle_s: float

    async def ends(self) -> Sequence[int]:
        """The offset after the last committed record, of every partition.

        Raises:
            LiftError: a leader does not tell.
        """

    async def epoch_ends(self, epochs: Mapping[int, int]) -> Mapping[int, int]:
        """Where the log of a partition left a leader epoch; partitions that were in it at the last `ends` may lack.

        Args:
            epochs: Epochs by partition.

        Raises:
            LiftError: a leader does not tell.
        """

    async def publish(self, chunk: RowChunk, producer_id: bytes, sequence: int) -> ChunkRange:
        """Publish a chunk, and wait until it is committed.

        Raises:
            LiftError: it was refused, or not acknowledged in time: then it may be there or not.
        """

    def suits(self, section: Section) -> bool:
        """Whether the leader of its partition is to read a section by itself, as far as is known without asking."""

    async def refers(self, section: Section, chunk: int) -> bool:
        """Whether the leader of its partition is to read a chunk by itself.

        Args:
            section: Section that has the chunk.
            chunk: Number of the chunk in it.

        Raises:
            LiftError: nobody says who stores its subject.
        """

    async def refer(
        self, section: Section, directory: str | None, chunk: int, producer_id: bytes, sequence: int
    ) -> ChunkRange | None:
        """Have the leader read a chunk from where it is staged, and wait until it is committed.

        Args:
            section: Section that has the chunk, which `refers` was asked for.
            directory: Directory that has the section; None where that is in the bucket.
            chunk: Number of the chunk in it.
            producer_id: As for `publish`.
            sequence: As for `publish`.

        Returns:
            Where it is; None where the leader does not do it. Then it is to be published under the same number, as it
            may be there or not.

        Raises:
            LiftError: as for `publish`.
        """

    async def look(self, partition: int, start: int, producer_id: bytes, stop: int | None = None) -> ChunkScan:
        """Which chunks of a producer are in the log of a partition, from an offset up to what is committed.

        Args:
            partition: Number of the partition.
            start: Where to begin; where the log ends before, nothing is there.
            producer_id: Id of the producer whose chunks are looked for.
            stop: Where to end; by default where the log ends.

        Raises:
            LiftError: the log can not be read.
        """
