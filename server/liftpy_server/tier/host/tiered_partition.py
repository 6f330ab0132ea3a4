"""What of a partition's log is to go to the bucket, as jobs want it told. Looks at the log, and changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_log.partition_log import PartitionLog
    from liftpy_log.reader import Slice
    from liftpy_log.segments.segment import Segment
    from liftpy_server.partition.partition import Partition

__all__ = [
    "claim_arguments",
    "further_arguments",
    "may_have_history",
    "moved",
    "sure_end",
    "upload_arguments",
    "waiting_bytes",
]

_FURTHER_MAX: Final = 3  # then other partitions, and other jobs of this one, come in between


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
        segments: of the log, oldest first.
        tiered_end: the first offset that counts.
        end: the offset after the last one that counts.
    """
    total = 0.0
    for segment in reversed(segments):
        if segment.next_offset <= tiered_end:
            break
        first, last = max(segment.base_offset, tiered_end), min(segment.next_offset, end)
        if last > first:
            total += segment.size * (last - first) / (segment.next_offset - segment.base_offset)
    return int(total)


def claim_arguments(partition: Partition, node_id: str) -> dict[str, Any]:
    """Of the jobs `claim` and `look`."""
    log = partition.log
    return {
        **_name(partition),
        "epoch": partition.epoch,
        "node": node_id,
        "log_start": log.log_start,
        "epochs": _epochs(log),
    }


def upload_arguments(partition: Partition, base: int, bytes_max: int) -> dict[str, Any] | None:
    """Of the job `upload`, or of one member of `upload_set`; None where there is no whole batch to upload.

    Args:
        partition: which.
        base: where the bucket ends.
        bytes_max: about how much; one batch at least.

    Raises:
        OffsetOutOfRangeError: the log begins above `base`.
        SegmentCorruptError: the log is damaged.
    """
    log, end = partition.log, sure_end(partition)
    slices = log.read(base, end, bytes_max) if end > base else []
    if not slices:
        return None
    return {
        **_name(partition),
        "epoch": partition.epoch,
        "epochs": _epochs(log),
        "base": base,
        "end": slices[-1].next_offset,
        "slices": _plain(slices),
        "keeps_replies": partition.stream.config.keep_replies,
    }


def further_arguments(partition: Partition, base: int, bytes_max: int) -> list[dict[str, Any]]:
    """What the job `upload` moves behind its first object: objects of full size only, of a partition that is behind.

    Args:
        partition: which.
        base: where the first object ends.
        bytes_max: about how much becomes an object.

    Raises:
        SegmentCorruptError: the log is damaged.
    """
    log, end = partition.log, sure_end(partition)
    further: list[dict[str, Any]] = []
    while len(further) < _FURTHER_MAX and waiting_bytes(log.segments, base, end) >= bytes_max:
        slices = log.read(base, end, bytes_max)
        if not slices:
            break  # what waits is a part of a large batch, which goes when all of it is committed
        base = slices[-1].next_offset
        further.append({"end": base, "slices": _plain(slices)})
    return further


def moved(arguments: dict[str, Any], end: int) -> tuple[int, list[dict[str, Any]]]:
    """Of what the job `upload` was asked for, how many objects reach up to an offset, and the slices in them."""
    there = [arguments, *(each for each in arguments["further"] if each["end"] <= end)]
    return len(there), [piece for each in there for piece in each["slices"]]


def _plain(slices: Sequence[Slice]) -> list[dict[str, Any]]:
    return [{"path": str(each.segment.path), "position": each.position, "length": each.length} for each in slices]


def _name(partition: Partition) -> dict[str, Any]:
    return {"uuid": partition.stream.uuid, "partition": partition.number}


def _epochs(log: PartitionLog) -> list[list[int]]:
    return [[epoch, start] for epoch, start in log.epochs.entries]
