"""What a follower does to its log: appends a leader's batches, and cuts it back, also where a log was compacted.

A leader that compacts merges batches, all of them below its high watermark. So the first batch that it sends may begin
below the end of a log that was behind; then only the rest of that batch is appended. And the place at which a log is to
be cut may be inside of a batch that this node has merged; then it is cut where that batch begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from liftpy_envelope.batch import read_header
from liftpy_log.batches.tail import batch_tail
from liftpy_log.errors import BatchBoundaryError
from liftpy_server.replication.wire.batches import FollowedBatches

if TYPE_CHECKING:
    from liftpy_log.entries import Appended
    from liftpy_log.partition_log import PartitionLog

__all__ = ["append_followed", "cut_back"]

_CODEC: Final = "zstd"


def append_followed(
    log: PartitionLog, records: FollowedBatches, high_watermark: int, delete_horizon: int
) -> tuple[Appended, FollowedBatches]:
    """Append what a leader sent.

    Args:
        log: Log of the follower.
        records: The first batch holds the log's end.
        high_watermark: High watermark of the leader.
        delete_horizon: Delete horizon of the leader's log; this log holds its records from now on.

    Returns:
        Where they went, and which of them did.

    Raises:
        BatchesRefusedError, StorageFullError, PartitionOfflineError: from the log.
        BatchCorruptError: a batch is not what its header announces; nothing is appended.
    """
    start = log.log_end
    log.compaction.raise_delete_horizon(delete_horizon)
    if not records.headers or records.headers[0].base_offset >= start:
        return log.append_batches(records.data, records.headers), records
    if log.log_start < start:
        if records.headers[0].next_offset <= high_watermark:
            records = _without_head(records, start)
        return log.append_batches(records.data, records.headers), records
    # The leader's log begins inside of this batch, by a purge; a batch is stored as a whole, or not at all.
    log.rebuild(records.headers[0].base_offset)
    appended = log.append_batches(records.data, records.headers)
    log.purge(start)
    return appended, records


def _without_head(records: FollowedBatches, offset: int) -> FollowedBatches:
    first, *others = records.headers
    whole = pa.py_buffer(records.data)
    tail = batch_tail(first, whole.slice(0, first.length), offset, _CODEC)
    data = pa.py_buffer(tail + whole.slice(first.length).to_pybytes())
    return FollowedBatches(data, [read_header(tail), *others])


def cut_back(log: PartitionLog, end: int) -> int:
    """Drop the records from `end` on, and those that share a batch with it. Returns where the log ends now.

    Raises:
        StorageFullError, PartitionOfflineError: from the log.
    """
    try:
        log.truncate(end)
    except BatchBoundaryError as error:
        end = max(log.log_start, error.base_offset)
        log.truncate(end)
    return end
