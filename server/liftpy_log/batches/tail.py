"""The end of a batch, as a batch of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_log.batches.partial import PartialBatch
from liftpy_log.batches.stored import StoredBatch

if TYPE_CHECKING:
    import pyarrow as pa

    from liftpy_envelope.batch import BatchHeader

__all__ = ["batch_tail"]


def batch_tail(header: BatchHeader, data: pa.Buffer, offset: int, codec: str) -> bytes:
    """What a batch covers from an offset on; there may be no record in it.

    Args:
        header: Header of the batch.
        data: The whole batch, checked.
        offset: Above its base offset, and below its next offset.
        codec: Codec for a batch that is compressed: `lz4` or `zstd`.

    Raises:
        BatchCorruptError: the batch is not what its header announces.
    """
    assert header.base_offset < offset < header.next_offset
    batch = StoredBatch(header, data)
    records = batch.records
    # Where no record is left its time is that of the last: it must not be before those of the records ahead of it.
    tail = PartialBatch(header._replace(base_offset=offset, base_timestamp=header.max_timestamp))
    tail.take(batch, batch.offsets(records) >= offset, records)
    return b"".join(tail.encode(codec).parts)
