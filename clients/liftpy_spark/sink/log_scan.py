"""Which chunks of a producer are among the batches of a log.

A batch that key compaction wrote says so, and names no producer. Compaction may also drop a batch whole, which leaves a
hole in the offsets. A chunk that is not found may have been in either. Where there is neither, it is not in the log,
whoever else publishes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy_spark.sink.target import ChunkScan

if TYPE_CHECKING:
    from liftpy_envelope.batch import BatchHeader

__all__ = ["LogScan"]

_COMPACTED: Final = "key compaction was at work there, which takes records, and the ids of batches"


class LogScan:
    """Goes through the headers of batches, in the order of their offsets.

    Args:
        start: The offset to begin with.
        producer_id: Whose chunks are looked for.
    """

    def __init__(self, start: int, producer_id: bytes) -> None:
        self._at = start
        self._producer_id = producer_id
        self._sequences: set[int] = set()
        self._was_compacted = False

    def see(self, header: BatchHeader) -> None:
        """Take the next batch into account."""
        self._was_compacted |= header.is_compacted or header.base_offset > self._at
        self._at = max(self._at, header.next_offset)
        if header.producer_id == self._producer_id:
            self._sequences.add(header.producer_sequence)

    def result(self, stop: int) -> ChunkScan:
        """What was found before an offset up to which the log was read."""
        is_whole = not self._was_compacted and self._at >= stop
        return ChunkScan(stop, frozenset(self._sequences), "" if is_whole else _COMPACTED)
