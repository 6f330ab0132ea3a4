"""Streams whose settings leave it to the kernel when a record is on disk: what waits for the bucket is synced in time.

Only what is durable goes to the bucket, and of such a stream that would be whole segments. So what has waited for
`upload_age_s` is made durable by a round of group commit, once, and goes to the bucket then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_server.tier.host.tiered_partition import sure_end

if TYPE_CHECKING:
    from liftpy_server.partition.partition import Partition

__all__ = ["Unsynced"]


class Unsynced:
    """Has logs synced that wait for the bucket.

    Args:
        upload_age_s: How long committed records may wait until they are made durable.
    """

    def __init__(self, upload_age_s: float) -> None:
        self._age_s = upload_age_s
        self._before: dict[Partition, float] = {}
        self._since_s: dict[Partition, float] = {}

    def again(self) -> set[Partition]:
        """Partitions to check although nothing of them was committed since; begins a new check."""
        self._before, self._since_s = self._since_s, {}
        return set(self._before)

    def sure_end(self, partition: Partition, now_s: float) -> int:
        """Records below are committed, and durable on this disk; see that those above come to be."""
        end = sure_end(partition)
        if end < partition.high_watermark:
            since_s = self._before.get(partition, now_s)
            if now_s - since_s >= self._age_s:
                partition.sync_soon()
                since_s = now_s
            self._since_s[partition] = since_s
        return end
