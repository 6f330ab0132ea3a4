"""What key compaction in the bucket would work on, and whether that pays."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from liftpy_log.compaction.compact import is_due

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.objects.pointers import FragmentPointer

__all__ = ["HistoryCompactionConfig", "HistoryPlan", "plan_history"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryCompactionConfig:
    """How the history of a partition is compacted.

    Attributes:
        min_lag_ns: an object with a younger record is not touched.
        delete_retention_ns: how long tombstones stay after what they delete is gone.
        min_dirty_ratio: share of the history that must be dirty before a pass pays.
        object_bytes: neighbours that are written anew become one object up to this size.
        memory_bytes_max: for the map of keys; a pass goes as far as it lasts. 70 bytes per distinct key.
    """

    min_lag_ns: int = 0
    delete_retention_ns: int = 86_400 * 10**9
    min_dirty_ratio: float = 0.5
    object_bytes: int = 256 * 1024 * 1024
    memory_bytes_max: int = 256 * 1024 * 1024


class HistoryPlan(NamedTuple):
    """What a pass works on.

    Attributes:
        path: of the partition.
        pointers: all fragments that may be compacted, oldest first.
        compacted_end: that of the root.
        gone_below: that of the root.
        held: (first offset, offset after the last one or None for all that follow) of what cursors and pins hold.
        now_ns: when this is, ns since the epoch.
    """

    path: PartitionPath
    pointers: tuple[FragmentPointer, ...]
    compacted_end: int
    gone_below: int
    held: tuple[tuple[int, int | None], ...]
    now_ns: int

    def is_held(self, pointer: FragmentPointer) -> bool:
        """Whether a pin holds any of what a fragment answers for."""
        return any(start < pointer.end and (end is None or end > pointer.base) for start, end in self.held)


def plan_history(
    pointers: Iterable[FragmentPointer],
    *,
    path: PartitionPath,
    compacted_end: int,
    gone_below: int,
    clean_end: int,
    held: Iterable[tuple[int, int | None]],
    now_ns: int,
    config: HistoryCompactionConfig,
) -> HistoryPlan | None:
    """What a pass would work on now; None when it does not pay.

    Args:
        pointers: all fragments of the history, oldest first.
        path: of the partition.
        compacted_end: that of the root.
        gone_below: that of the root.
        clean_end: nothing at or above this offset is touched.
        held: (first offset, offset after the last one or None for all that follow) of what cursors and pins hold.
        now_ns: ns since the epoch.
        config: how.
    """
    young = now_ns - config.min_lag_ns
    chosen = tuple(takewhile(lambda each: each.end <= clean_end and each.last_timestamp <= young, pointers))
    clean_bytes = sum(each.size for each in chosen if each.end <= compacted_end)
    dirty_bytes = sum(each.size for each in chosen) - clean_bytes
    if not is_due(dirty_bytes, clean_bytes, config.min_dirty_ratio):
        return None
    return HistoryPlan(path, chosen, compacted_end, gone_below, tuple(held), now_ns)
