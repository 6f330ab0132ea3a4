"""Questions of the pull protocol: where offsets and epochs are. Of the bucket only times have to be asked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.pull import EARLIEST, LATEST, EpochEndResponse, EpochEndResult, OffsetResult, OffsetsResponse
from liftpy_log.errors import PartitionOfflineError
from liftpy_log.storage.disk import is_full
from liftpy_server.tier.reads.reads import ColdUnavailableError, HistoryLostError, is_unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_envelope.pull import EpochEndQuery, EpochEndRequest, OffsetQuery, OffsetsRequest, PartitionKey
    from liftpy_server.partition.partition import Partition
    from liftpy_server.tier.reads.reads import ColdReads

    Lookup = Callable[[PartitionKey], Partition | ErrorCode]

__all__ = ["epoch_ends", "offsets"]

_SLICE_S: Final = 0.005
_BUCKET_QUERIES_MAX: Final = 64
_UNKNOWN: Final = "the leader has yet to look what the bucket has of the partition; ask again"


async def offsets(request: OffsetsRequest, lookup: Lookup, cold: ColdReads | None = None) -> OffsetsResponse:
    """Answer a `list_offsets` request, of logs and of what is before them in the bucket.

    Logs are looked through in slices of time, between which the event loop does everything else, and the bucket is
    asked for some partitions at a time.

    Args:
        request: The questions.
        lookup: The partition with a key, or why there is none here.
        cold: Reads the bucket; None where there is none.
    """
    queries = request.queries
    results: list[OffsetResult] = []
    loop = asyncio.get_running_loop()
    until_s = loop.time() + _SLICE_S
    for query in queries:
        results.append(_offset(query, lookup(query.key)))
        if loop.time() >= until_s:
            await asyncio.sleep(0)
            until_s = loop.time() + _SLICE_S
    if cold is not None:
        for start in range(0, len(queries), _BUCKET_QUERIES_MAX):
            pairs = zip(queries[start : start + _BUCKET_QUERIES_MAX], results[start:], strict=False)
            some = await asyncio.gather(*(_offset_across(*pair, lookup(pair[0].key), cold) for pair in pairs))
            results[start : start + _BUCKET_QUERIES_MAX] = some
    return OffsetsResponse(tuple(results))


async def _offset_across(
    query: OffsetQuery, result: OffsetResult, partition: Partition | ErrorCode, cold: ColdReads
) -> OffsetResult:
    """What the bucket has of a time counts also where the leader can not tell of its own log: it was committed."""
    is_told = result.error is ErrorCode.NONE
    may_ask = is_told or result.error is ErrorCode.NOT_AVAILABLE
    if isinstance(partition, ErrorCode) or not may_ask or query.timestamp == LATEST:
        return result
    if is_unknown(partition):
        return OffsetResult(query.key, ErrorCode.NOT_AVAILABLE, _UNKNOWN, -1, partition.epoch)
    if query.timestamp == EARLIEST or not _may_be_in_bucket(partition, query.timestamp):
        return result
    try:
        found = await cold.offset_at_time(partition, query.timestamp)
    except ColdUnavailableError as error:
        return OffsetResult(query.key, ErrorCode.NOT_AVAILABLE, str(error), -1, partition.epoch)
    except HistoryLostError as error:
        return OffsetResult(query.key, ErrorCode.BATCH_CORRUPT, str(error), -1, partition.epoch)
    if found is None or (is_told and found >= result.offset):
        return result
    return OffsetResult(query.key, ErrorCode.NONE, "", max(found, partition.start), partition.epoch)


def _may_be_in_bucket(partition: Partition, timestamp: int) -> bool:
    """Whether the first record not before a time (ns) may lie before the log: times only grow."""
    if partition.start >= partition.log.log_start:
        return False
    first = next((each.first_timestamp for each in partition.log.segments if each.first_timestamp is not None), None)
    return first is None or timestamp <= first


def _offset(query: OffsetQuery, partition: Partition | ErrorCode) -> OffsetResult:
    if isinstance(partition, ErrorCode):
        return OffsetResult(query.key, partition, "the stream or partition is not here", -1, -1)
    log = partition.log
    if log.failure is not None:
        return OffsetResult(query.key, ErrorCode.PARTITION_OFFLINE, str(log.failure), -1, partition.epoch)
    try:
        offset = _committed_offset(query.timestamp, partition)
    except PartitionOfflineError as error:
        partition.fail(str(error))
        return OffsetResult(query.key, ErrorCode.PARTITION_OFFLINE, str(error), -1, partition.epoch)
    except OSError as error:
        if is_full(error):
            return OffsetResult(query.key, ErrorCode.NOT_AVAILABLE, str(error), -1, partition.epoch)
        partition.fail(str(error))
        return OffsetResult(query.key, ErrorCode.PARTITION_OFFLINE, str(error), -1, partition.epoch)
    if offset is None:
        return OffsetResult(query.key, ErrorCode.NOT_AVAILABLE, _high_watermark_unknown(partition), -1, partition.epoch)
    return OffsetResult(query.key, ErrorCode.NONE, "", offset, partition.epoch)


def _committed_offset(timestamp: int, partition: Partition) -> int | None:
    """Where a time is among what is committed; None while that is not known: an earlier leader may have shown more.

    Raises:
        PartitionOfflineError, OSError: the log can not be read.
    """
    if timestamp == EARLIEST:
        return partition.start
    end = partition.high_watermark
    found = None if timestamp == LATEST else partition.log.offset_at_time(timestamp)
    if found is not None and found < end:
        return found
    return end if partition.is_high_watermark_known else None


def _high_watermark_unknown(partition: Partition) -> str:
    start, end, log_end = partition.start, partition.high_watermark, partition.log.log_end
    committed = f"offsets {start} to {end - 1} are" if end > start else "none is"
    return (
        f"the leader does not know yet what is committed: {committed} known to be; {end} to {log_end - 1} are once all "
        f"in-sync replicas have said that they have them. Ask again, or stop at offset {end}"
    )


def epoch_ends(request: EpochEndRequest, lookup: Lookup) -> EpochEndResponse:
    """Answer an `epoch_end_offset` request."""
    return EpochEndResponse(tuple([_epoch_end(query, lookup(query.key)) for query in request.queries]))


def _epoch_end(query: EpochEndQuery, partition: Partition | ErrorCode) -> EpochEndResult:
    if isinstance(partition, ErrorCode):
        return EpochEndResult(query.key, partition, "the stream or partition is not here", -1, -1)
    if partition.log.failure is not None:
        return EpochEndResult(query.key, ErrorCode.PARTITION_OFFLINE, str(partition.log.failure), -1, -1)
    epoch, end = partition.log.epochs.end_offset(query.epoch, partition.log.log_end)
    if epoch < 0 and partition.cold is not None and partition.start < partition.log.log_start:
        epoch, end = partition.cold.epochs.end_offset(query.epoch, end)
    return EpochEndResult(query.key, ErrorCode.NONE, "", epoch, end)
