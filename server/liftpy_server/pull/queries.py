"""Questions of the pull protocol that need no waiting: where offsets and epochs are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.pull import EARLIEST, LATEST, EpochEndQuery, EpochEndResult, OffsetQuery, OffsetResult
from liftpy_log.errors import PartitionOfflineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_envelope.pull import PartitionKey
    from liftpy_server.partition import Partition

    Lookup = Callable[[PartitionKey], Partition | ErrorCode]

__all__ = ["epoch_ends", "offsets"]


def offsets(body: Any, lookup: Lookup) -> list[list[Any]]:
    """Answer a `list_offsets` request.

    Raises:
        FrameError: it is malformed.
    """
    return [_offset(query, lookup(query.key)).to_row() for query in OffsetQuery.from_body(body)]


def _offset(query: OffsetQuery, partition: Partition | ErrorCode) -> OffsetResult:
    if isinstance(partition, ErrorCode):
        return OffsetResult(query.key, partition, "the stream or partition is not here", -1, -1)
    log = partition.log
    if log.failure is not None:
        return OffsetResult(query.key, ErrorCode.PARTITION_OFFLINE, str(log.failure), -1, partition.epoch)
    end = partition.high_watermark
    if query.timestamp == EARLIEST:
        offset = log.log_start
    elif not partition.is_settled:  # what an earlier leader may have shown is not known to be committed yet
        text = "the leader does not know yet what is committed; ask again"
        return OffsetResult(query.key, ErrorCode.NOT_AVAILABLE, text, -1, partition.epoch)
    elif query.timestamp == LATEST:
        offset = end
    else:
        try:
            found = log.offset_at_time(query.timestamp)
        except PartitionOfflineError as error:
            partition.fail(str(error))
            return OffsetResult(query.key, ErrorCode.PARTITION_OFFLINE, str(error), -1, partition.epoch)
        offset = end if found is None else min(found, end)
    return OffsetResult(query.key, ErrorCode.NONE, "", offset, partition.epoch)


def epoch_ends(body: Any, lookup: Lookup) -> list[list[Any]]:
    """Answer an `epoch_end_offset` request.

    Raises:
        FrameError: it is malformed.
    """
    return [_epoch_end(query, lookup(query.key)).to_row() for query in EpochEndQuery.from_body(body)]


def _epoch_end(query: EpochEndQuery, partition: Partition | ErrorCode) -> EpochEndResult:
    if isinstance(partition, ErrorCode):
        return EpochEndResult(query.key, partition, "the stream or partition is not here", -1, -1)
    if partition.log.failure is not None:
        return EpochEndResult(query.key, ErrorCode.PARTITION_OFFLINE, str(partition.log.failure), -1, -1)
    epoch, end = partition.log.epochs.end_offset(query.epoch, partition.log.log_end)
    return EpochEndResult(query.key, ErrorCode.NONE, "", epoch, end)
