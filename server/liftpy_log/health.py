"""What others need to know of a partition's log: whether it is well, and how much of it is durable."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from liftpy_log.errors import PartitionOfflineError

if TYPE_CHECKING:
    from liftpy_log.entries import Tail, Unsynced

__all__ = ["LogHealth"]


class LogHealth:
    """The part of a log that group commit works with.

    Attributes:
        failure: why the log refuses to work further; None while it is well.
        synced_end: records below this offset are durable.
    """

    def __init__(self) -> None:
        self.failure: PartitionOfflineError | None = None
        self.synced_end = 0
        self._tail: Tail
        self._unsynced: deque[Unsynced] = deque()
        self._unsynced_bytes = 0
        self._kept_from = 0  # of what is not durable, all from this offset on is in `_unsynced`

    @property
    def unsynced_bytes(self) -> int:
        """Bytes in memory of batches that may not be durable yet."""
        return self._unsynced_bytes

    def fail(self, reason: str) -> PartitionOfflineError:
        """Stop working for good, and remember why. Returns the error to raise."""
        return self.fail_with(PartitionOfflineError(reason))

    def fail_with(self, failure: PartitionOfflineError) -> PartitionOfflineError:
        """Stop working for good because of an error. Returns the first one, which is to be raised."""
        if self.failure is None:
            self.failure = failure
        return self.failure

    def check_well(self) -> None:
        """Do nothing while the log is well.

        Raises:
            PartitionOfflineError: it failed earlier.
        """
        if self.failure is not None:
            raise self.failure

    def sync_target(self) -> tuple[Tail, list[Unsynced]]:
        """What a group commit round would make durable now. The one method that another thread may call.

        Returns:
            The end of the log, and the batches up to it; none unless all that are not durable were kept.
        """
        tail = self._tail
        if self._kept_from > self.synced_end:
            return tail, []
        return tail, [entry for entry in tuple(self._unsynced) if entry.next_offset <= tail.next_offset]

    def mark_synced(self, next_offset: int) -> None:
        """Take note that records below `next_offset` are durable."""
        self.synced_end = max(self.synced_end, next_offset)
        unsynced = self._unsynced
        while unsynced and unsynced[0].next_offset <= next_offset:
            self._unsynced_bytes -= sum(map(len, unsynced.popleft().parts))
