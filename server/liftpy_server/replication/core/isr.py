"""Who belongs into the in-sync replica set: which change a leader proposes, and whom it counts until it is decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from liftpy_server.replication.core.progress import FollowerProgress
    from liftpy_server.replication.core.view import PartitionView

__all__ = ["is_in_sync", "may_join", "wanted_isr"]


def is_in_sync(progress: FollowerProgress, now_s: float, lag_max_s: float) -> bool:
    """Whether a follower was caught up no longer than `lag_max_s` ago."""
    return now_s - progress.caught_up_s <= lag_max_s


def may_join(progress: FollowerProgress, high_watermark: int, epoch_start: int) -> bool:
    """Whether a follower has all that may ever have been committed.

    The leader's own high watermark may be older than the one an earlier leader reached; what was committed in earlier
    epochs lies below the first offset of this one.
    """
    return progress.durable_end is not None and progress.durable_end >= max(high_watermark, epoch_start)


def wanted_isr(
    view: PartitionView,
    leader: str,
    followers: Mapping[str, FollowerProgress],
    joiners: tuple[str, ...],
    now_s: float,
    lag_max_s: float,
) -> tuple[str, ...]:
    """The in-sync replica set as it should be, in the order of the replicas.

    Members that lag or shall only observe leave, longest lag first, but never so many that fewer than `min_isr` stay.
    A set below `min_isr` could commit nothing anyway, and whoever stays in it has every committed record and can be
    elected cleanly should the leader be lost for good.
    """
    members = [node for node in view.replicas if node in view.isr or node in joiners]
    unfit = [
        node
        for node in members
        if node != leader
        and node not in joiners
        and (node in view.observers or not is_in_sync(followers[node], now_s, lag_max_s))
    ]
    unfit.sort(key=lambda node: followers[node].caught_up_s)
    may_leave = max(0, len(members) - view.min_isr)
    leaving = unfit[:may_leave]
    return tuple(node for node in members if node not in leaving)
