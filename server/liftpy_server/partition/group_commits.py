"""Group commit on a node: rounds run in threads of their own, and what they made durable is told on the event loop."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from liftpy_log.durability.group_commit import GroupCommit

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from liftpy_log.durability.durability import Durability
    from liftpy_log.durability.group_commit import Synced
    from liftpy_log.durability.wal import WriteAheadLog
    from liftpy_log.histogram import Histogram
    from liftpy_log.partition_log import PartitionLog
    from liftpy_log.storage.files import FileCache
    from liftpy_server.partition.partition import Partition

__all__ = ["GroupCommits"]

logger = logging.getLogger(__name__)


class GroupCommits:
    """See the module.

    Args:
        files: The node's open files.
        wal: Write-ahead log of the node.
        loop: Where partitions are told.
        partitions: Partitions by their logs' durability, as they are now.
        after: Called there after each round.
    """

    def __init__(
        self,
        files: FileCache,
        wal: WriteAheadLog,
        loop: asyncio.AbstractEventLoop,
        partitions: Callable[[], Mapping[Durability, Partition]],
        after: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._partitions = partitions
        self._after = after
        self._commits = GroupCommit(files, wal, self._after_round)
        self._interval_commits = GroupCommit(files, None, self._after_round)

    def start(self) -> None:
        """Begin."""
        self._commits.start()
        self._interval_commits.start()

    def stop_usual(self) -> None:
        """End those of streams that are synced always; blocks until the last round is through."""
        self._commits.stop()

    def stop(self) -> None:
        """End; blocks until the last round is through."""
        self._commits.stop()
        self._interval_commits.stop()

    def request(self, log: PartitionLog) -> None:
        """Ask for a round."""
        self._commits.request(log.durability)

    def request_interval(self, log: PartitionLog) -> None:
        """Ask for a round of a log that is synced at intervals."""
        self._interval_commits.request(log.durability)

    @property
    def count(self) -> int:
        """How many rounds there were."""
        return self._commits.rounds + self._interval_commits.rounds

    @property
    def round_s(self) -> Histogram:
        """How long the rounds took that acks wait for."""
        return self._commits.round_s

    def _after_round(self, results: Sequence[Synced]) -> None:
        """In the thread of group commit."""
        try:
            self._loop.call_soon_threadsafe(self._settle, results)
        except RuntimeError:
            logger.debug("a round ended after the event loop did")

    def _settle(self, results: Sequence[Synced]) -> None:
        partitions = self._partitions()
        for log, next_offset, error in results:
            partition = partitions.get(log)
            if partition is None:
                log.mark_synced(next_offset)
            elif error is not None:
                partition.fail(error)
            else:
                partition.on_synced(next_offset)
        self._after()
