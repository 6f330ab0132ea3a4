"""How much of a log is durable, what of it is not, and whether it is well: what group commit works with."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from threading import Condition
from typing import TYPE_CHECKING, Protocol

from liftpy_log.errors import PartitionOfflineError
from liftpy_log.limits import ROUND_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from liftpy_log.entries import Tail, Unsynced
    from liftpy_log.storage.disk import Disk

__all__ = ["Durability", "EntriesAhead"]


class EntriesAhead(Protocol):
    """What holds batches of logs apart from their segments: the write-ahead log."""

    def void(self, directory: Path, /, *, is_given_up: bool = False) -> None:
        """Cancel, durably, every entry for a log's directory; see `WriteAheadLog.void`.

        Raises:
            OSError: they may or may not be cancelled.
        """


class Durability:
    """What a log shares with the thread that makes it durable. The log owns it, and tells it what was appended and cut.

    Args:
        disk: Disk that holds the files.
        directory: Directory of the log.

    Attributes:
        directory: Directory of the log.
        tail: The end of the log.
        failure: Why the log refuses to work further; None while it is well.
        synced_end: Records below this offset are durable.
        wal: The write-ahead log that may hold batches of this log; None when none does.
        unsynced_names: Directories whose names lead to the log and may not be on disk.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        self.directory = directory
        self.tail: Tail
        self.failure: PartitionOfflineError | None = None
        self.synced_end = 0
        self.wal: EntriesAhead | None = None
        self.unsynced_names: tuple[Path, ...] = ()
        self._disk = disk
        self._unsynced: deque[Unsynced] = deque()
        self._unsynced_bytes = 0
        self._kept_from = 0  # of what is not durable, all from this offset on is in `_unsynced`
        self._rounds = 0  # how many rounds are at work on this log
        self._round_error: str | None = None
        self._round_ended = Condition()
        # Set by a cut. Results of rounds that ended before it may come in after it, and speak of records that are
        # gone; so from then on nothing counts as durable but what rounds, in their thread, said of the log as it is.
        self._confirmed_end: int | None = None

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

    def sync_names(self, synced: set[Path]) -> None:
        """Make the names durable that lead to the log, where they may not be. May be called from any thread.

        Args:
            synced: Directories that were synced since those of this log were made; what is synced here is added.

        Raises:
            OSError: they may not be durable still.
        """
        for directory in self.unsynced_names:
            if directory not in synced:
                self._disk.sync_directory(directory)
                synced.add(directory)
        self.unsynced_names = ()

    def keep_unsynced(self, batch: Unsynced, length: int) -> None:
        """Keep what was appended until it is durable, so that a round can write it ahead."""
        self._unsynced.append(batch)
        self._unsynced_bytes += length

    def appended_unkept(self, next_offset: int) -> None:
        """Take note that what was appended, up to `next_offset`, was not kept."""
        self._kept_from = next_offset

    def sync_target(self) -> tuple[Tail, list[Unsynced]]:
        """What a group commit round would make durable now. May be called from any thread.

        Returns:
            The end of the log, and the batches up to it; none unless all that are not durable were kept.
        """
        tail = self.tail
        if self._kept_from > self.synced_end:
            return tail, []
        return tail, [entry for entry in tuple(self._unsynced) if entry.next_offset <= tail.next_offset]

    def begin_round(self) -> tuple[Tail, list[Unsynced]] | None:
        """Begin to make the log durable, in the rounds' thread; waits while the log is being cut.

        Returns:
            See `sync_target`; None when there is nothing to do, and then there is no round to end either.
        """
        with self._round_ended:
            target = self.sync_target()
            if self.failure is not None or target[0].next_offset <= self.synced_end:
                return None
            self._rounds += 1
            return target

    def end_round(self, durable_end: int, error: str | None) -> None:
        """End what `begin_round` began, before its result is reported.

        Args:
            durable_end: Records below this offset are durable.
            error: Why they are not.
        """
        with self._round_ended:
            self._round_error = self._round_error or error
            self._rounds -= 1
            self._round_ended.notify_all()
        self.confirm_synced(durable_end)

    def confirm_synced(self, durable_end: int) -> None:
        """Say, of the log as it is now, that records below `durable_end` are durable. May be called from any thread.

        What group commit rounds do for `mark_synced` to have an effect after a cut.
        """
        with self._round_ended:
            if self._confirmed_end is not None:
                self._confirmed_end = max(self._confirmed_end, durable_end)

    @contextmanager
    def between_rounds(self) -> Iterator[None]:
        """Wait until no round is at work on the log, and let none begin meanwhile. Blocks for as long as a sync takes.

        Raises:
            PartitionOfflineError: a round does not end, or one failed, whose result was not reported yet.
        """
        with self._round_ended:
            if not self._round_ended.wait_for(lambda: self._rounds == 0, ROUND_TIMEOUT_S):
                raise self.fail(f"a sync of the log's files has not ended within {ROUND_TIMEOUT_S} s: see to the disk")
            if self._round_error is not None:
                raise self.fail(self._round_error)
            yield

    def mark_synced(self, next_offset: int) -> None:
        """Take note that records below `next_offset` are durable, as a round reported.

        After a cut, what a round reported that ended before it counts only for what the cut has left.
        """
        if self._confirmed_end is not None:
            next_offset = min(next_offset, self._confirmed_end)
        self.synced_end = max(self.synced_end, next_offset)
        unsynced = self._unsynced
        while unsynced and unsynced[0].next_offset <= next_offset:
            self._unsynced_bytes -= sum(map(len, unsynced.popleft().parts))

    def note_synced(self, next_offset: int) -> None:
        """Take note that records below `next_offset` were just made durable by the log itself."""
        self.confirm_synced(next_offset)
        self.mark_synced(next_offset)

    def note_cut(self, end: int) -> None:
        """Take note that the log ends at `end` now, and that all of it is durable."""
        self._unsynced.clear()
        self._unsynced_bytes = 0
        self._kept_from = end
        self.synced_end = self._confirmed_end = end
