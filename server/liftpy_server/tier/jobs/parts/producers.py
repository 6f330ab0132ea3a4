"""Ordered producers of what an upload moves: for whoever leads when nothing else remembers them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_bucket.manifest.root.producers import HighestBatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from liftpy_envelope.batch import BatchHeader
    from liftpy_server.tier.requests import Producers

__all__ = ["ProducersBelow"]


class ProducersBelow:
    """Batches of ordered producers below an offset.

    Two know of them: the record batches, but for those that key compaction merged, and the leader, but for those of a
    producer that has stored more since.

    Args:
        end: The offset.
        told: What the leader knows.
    """

    def __init__(self, end: int, told: Producers) -> None:
        self._end = end
        self.batches = [HighestBatch(*row) for row in told if row[3] < end]

    def watch(self, batches: Iterable[tuple[BatchHeader, pa.Buffer]]) -> Iterator[tuple[BatchHeader, pa.Buffer]]:
        """The same record batches; those of ordered producers are noted as they pass."""
        highest: dict[bytes, BatchHeader] = {}
        for header, body in batches:
            if header.producer_epoch and header.next_offset <= self._end:
                highest[header.producer_id] = header  # they ascend
            yield header, body
        self.batches += [
            HighestBatch(
                producer=producer.hex(),
                epoch=header.producer_epoch,
                sequence=header.producer_sequence,
                offset=header.next_offset - 1,
                records=header.record_count,
                time_ns=header.max_timestamp,
            )
            for producer, header in highest.items()
        ]
