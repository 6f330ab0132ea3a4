"""What of a partition's log is to go to the bucket, as jobs want it told. Looks at the log, and changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy_bucket.objects.record_hash import RecordHash
from liftpy_server.tier.requests import ClaimJob, FurtherObject, LogSlice, LookJob, UploadJob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_log.reader import Slice
    from liftpy_log.segments.segment import Segment
    from liftpy_server.partition.partition import Partition
    from liftpy_server.tier.requests import Producers

__all__ = [
    "claim_job",
    "further_objects",
    "look_job",
    "may_have_history",
    "moved",
    "record_hash_at",
    "sure_end",
    "upload_job",
    "waiting_bytes",
]

_FURTHER_MAX: Final = 15  # as long as they take no more than some seconds
_XXH3_LEVEL: Final = 2  # version 0.3.0 reads it, and begins no history with it


def may_have_history(partition: Partition) -> bool:
    """Whether what the bucket has of a partition, or is to have, is this node's business."""
    return partition.is_leading and partition.log.failure is None


def sure_end(partition: Partition) -> int:
    """Records below are committed, and durable on this disk."""
    return min(partition.high_watermark, partition.log.synced_end)


def waiting_bytes(segments: Sequence[Segment], tiered_end: int, end: int) -> int:
    """Bytes of record batches between two offsets, about: a segment's bytes count in proportion to its offsets.

    Costs what lies between the two, not what lies below.

    Args:
        segments: Segments of the log, oldest first.
        tiered_end: The first offset that counts.
        end: The offset after the last one that counts.
    """
    total = 0.0
    for segment in reversed(segments):
        if segment.next_offset <= tiered_end:
            break
        first, last = max(segment.base_offset, tiered_end), min(segment.next_offset, end)
        if last > first:
            total += segment.size * (last - first) / (segment.next_offset - segment.base_offset)
    return int(total)


def look_job(partition: Partition) -> LookJob:
    """What the bucket has of a partition."""
    log = partition.log
    return LookJob(
        uuid=partition.stream.uuid,
        partition=partition.number,
        log_start=log.log_start,
        epochs=tuple(log.epochs.entries),
    )


def record_hash_at(level: int) -> RecordHash:
    """The hash of records in a history that is begun when all nodes understand a level of the metadata."""
    return RecordHash.XXH3 if level >= _XXH3_LEVEL else RecordHash.BLAKE2B


def claim_job(partition: Partition, node: str, cluster_id: str, level: int) -> ClaimJob:
    """A claim of this leadership; it begins a history where there is none, unless settings keep the stream out.

    Args:
        partition: Partition that is led here.
        node: Id of this node.
        cluster_id: Id of the cluster.
        level: What all nodes understand.
    """
    log = partition.log
    return ClaimJob(
        uuid=partition.stream.uuid,
        partition=partition.number,
        epoch=partition.epoch,
        node=node,
        log_start=log.log_start,
        epochs=tuple(log.epochs.entries),
        create=partition.stream.config.tier,
        cluster_id=cluster_id,
        record_hash=str(record_hash_at(level)),
    )


def upload_job(partition: Partition, base: int, bytes_max: int) -> UploadJob | None:
    """An upload, or what becomes a member of a shared object; None where there is no whole batch to upload.

    Args:
        partition: Number of the partition.
        base: Where the bucket ends.
        bytes_max: About how much; one batch at least.

    Raises:
        OffsetOutOfRangeError: the log begins above `base`.
        SegmentCorruptError: the log is damaged.
    """
    log, end = partition.log, sure_end(partition)
    slices = log.read(base, end, bytes_max) if end > base else []
    if not slices:
        return None
    end = slices[-1].next_offset
    return UploadJob(
        uuid=partition.stream.uuid,
        partition=partition.number,
        epoch=partition.epoch,
        epochs=tuple(log.epochs.entries),
        base=base,
        end=end,
        slices=_told(slices),
        keeps_replies=partition.stream.config.keep_replies,
        producers=_producers(partition, end),
    )


def further_objects(partition: Partition, base: int, bytes_max: int) -> tuple[FurtherObject, ...]:
    """What an upload moves behind its first object: objects of full size only, of a partition that is behind.

    Args:
        partition: Number of the partition.
        base: Where the first object ends.
        bytes_max: About how much becomes an object.

    Raises:
        SegmentCorruptError: the log is damaged.
    """
    log, end = partition.log, sure_end(partition)
    further: list[FurtherObject] = []
    while len(further) < _FURTHER_MAX and waiting_bytes(log.segments, base, end) >= bytes_max:
        slices = log.read(base, end, bytes_max)
        if not slices:
            break  # what waits is a part of a large batch, which goes when all of it is committed
        base = slices[-1].next_offset
        further.append(FurtherObject(end=base, slices=_told(slices), producers=_producers(partition, base)))
    return tuple(further)


def moved(asked: UploadJob, end: int) -> tuple[int, tuple[LogSlice, ...]]:
    """Return how many objects of an upload reach up to an offset, and their slices."""
    there = [asked.slices, *(each.slices for each in asked.further if each.end <= end)]
    return len(there), tuple(piece for slices in there for piece in slices)


def _producers(partition: Partition, end: int) -> Producers:
    """What is known of ordered producers below an offset; nothing of one of which all that is known came later."""
    return tuple(
        (producer.hex(), batch.epoch, batch.sequence, batch.offset, batch.records, batch.time)
        for producer, batch in partition.dedupe.ordered.known(end)
    )


def _told(slices: Sequence[Slice]) -> tuple[LogSlice, ...]:
    return tuple(LogSlice(path=str(each.segment.path), position=each.position, length=each.length) for each in slices)
