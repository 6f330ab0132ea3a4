"""A fetch session: the partitions that one connection reads, and which of them have news.

A partition without news costs nothing per round: it calls back when it has some. A replica that only follows is looked
at now and then all the same: that it is no longer in sync is nothing that calls. What lies before a partition's log is
read from the bucket; while it is being fetched the partition has no news.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.limits import FETCH_PARTITIONS_MAX
from liftpy_envelope.pull import FetchResult
from liftpy_log.errors import OffsetOutOfRangeError, PartitionOfflineError
from liftpy_log.storage.disk import is_full
from liftpy_server.pull.filtering import SCAN_COST_MAX
from liftpy_server.tier.reads.reads import ColdUnavailableError, HistoryLostError, is_cold, is_unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_envelope.errors import LiftError
    from liftpy_envelope.pull import FetchPartition, FetchRequest, PartitionKey
    from liftpy_envelope.subject_filter import SubjectMatcher
    from liftpy_log.reader import Slice
    from liftpy_server.partition.partition import Partition
    from liftpy_server.tier.reads.reads import ColdReads

    Lookup = Callable[[PartitionKey], Partition | ErrorCode]

__all__ = ["FetchFound", "FetchSession"]

_LOOK_S: Final = 1.0


class FetchFound(NamedTuple):
    """News of one partition: what to say of it, and the batches to send.

    Attributes:
        matcher: When there is one, only those of the batches are to be sent that hold records it takes. How many
            bytes that are is not known yet, and `FetchSession.advance` is to be told how far it was looked.
    """

    result: FetchResult
    partition: Partition | None
    slices: list[Slice]
    matcher: SubjectMatcher | None = None


class _Entry:
    """One partition in the session; with a matcher, only what it takes is wanted of it."""

    __slots__ = ("hint", "is_behind", "is_new", "key", "lookup", "matcher", "offset", "partition", "wake")

    def __init__(
        self,
        key: PartitionKey,
        offset: int,
        lookup: Lookup,
        wake: Callable[[], None],
        matcher: SubjectMatcher | None,
    ) -> None:
        self.key = key
        self.offset = offset
        self.lookup = lookup
        self.partition = lookup(key)
        self.hint: Slice | None = None
        self.is_new = True
        self.is_behind = True  # of one with a matcher: it was not looked through to its end yet
        self.wake = wake
        self.matcher = matcher

    def move_behind(self, last: Slice) -> None:
        self.hint = last
        self.offset = max(self.offset, last.next_offset)


class FetchSession:
    """The partitions that one connection reads, and which of them have news.

    Args:
        lookup: The partition with a key that is led here, or why there is none here.
        readable: The same for one that is led here, or follows in sync.
        cold: Reads the bucket; None where there is none.
    """

    def __init__(self, lookup: Lookup, readable: Lookup | None = None, cold: ColdReads | None = None) -> None:
        self._lookup = lookup
        self._readable = readable or lookup
        self._cold = cold
        self._looked_s = float("-inf")
        self._entries: dict[PartitionKey, _Entry] = {}
        self._ready: dict[PartitionKey, None] = {}
        self.news = asyncio.Event()

    @property
    def has_ready(self) -> bool:
        """Whether a partition may have news that was not looked at yet."""
        return bool(self._ready)

    def apply(self, request: FetchRequest, matcher: SubjectMatcher | None = None) -> None:
        """Let partitions enter, move and leave.

        Args:
            request: The request.
            matcher: Finds what is wanted of those that enter; None when that is everything.
        """
        for key in request.forget:
            self._drop(key)
        for wanted in request.partitions:
            self._enter(wanted, self._readable if request.any_replica else self._lookup, matcher)

    def look_at_followers(self, now_s: float) -> None:
        """Have those that may be read from a replica that follows looked at again, about once a second."""
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        for key, entry in self._entries.items():
            if entry.lookup != self._lookup:
                self._ready[key] = None

    def _enter(self, wanted: FetchPartition, lookup: Lookup, matcher: SubjectMatcher | None) -> None:
        key = wanted.key
        self._drop(key)

        def wake() -> None:
            self._ready[key] = None
            self.news.set()

        self._entries[key] = _Entry(key, wanted.offset, lookup, wake, matcher)
        self._ready[key] = None

    def _drop(self, key: PartitionKey) -> None:
        entry = self._entries.pop(key, None)
        self._ready.pop(key, None)
        if entry is not None and not isinstance(entry.partition, ErrorCode):
            entry.partition.stop_waiting(entry.wake)
            if self._cold is not None:
                self._cold.stop_waiting(entry.partition, entry.wake)

    def close(self) -> None:
        """Leave every partition alone."""
        for key in list(self._entries):
            self._drop(key)

    def collect(self, bytes_max: int, scan_bytes_max: int = SCAN_COST_MAX) -> list[FetchFound]:
        """News of the partitions that have any.

        Partitions that sent something go to the end of the line, so that a busy one does not starve the others.

        Args:
            bytes_max: About how many bytes of batches to send.
            scan_bytes_max: About how many bytes of batches to look through for subjects.
        """
        self.news.clear()
        found: list[FetchFound] = []
        for key in list(self._ready):
            if bytes_max <= 0 or len(found) == FETCH_PARTITIONS_MAX:
                break
            entry = self._entries[key]
            limit = bytes_max if entry.matcher is None else scan_bytes_max
            if limit <= 0:
                continue
            news = self._look(entry, limit)
            if news is None:
                del self._ready[key]
                continue
            found.append(news)
            bytes_max -= news.result.body_bytes
            if news.matcher is not None:
                scan_bytes_max -= sum(piece.length for piece in news.slices)
            del self._ready[key]
            if news.result.error is not ErrorCode.NONE:
                self._drop(key)
            elif key in self._entries:
                self._ready[key] = None
        return found

    def advance(self, news: FetchFound, last: Slice) -> bool:
        """Go on behind `last`, the last of the batches of `news` that were looked through.

        Returns:
            Whether the reader has caught up with that, which it is to hear even if nothing is sent.
        """
        entry = self._entries[news.result.key]
        was_behind, entry.is_behind = entry.is_behind, last.next_offset < news.result.high_watermark
        entry.move_behind(last)
        return was_behind and not entry.is_behind

    def unreadable(self, news: FetchFound, error: LiftError | OSError) -> FetchFound:
        """What to say instead of `news` whose batches can not be read; the partition leaves the session."""
        assert news.partition is not None
        key = news.result.key
        self._drop(key)
        if self._cold is not None and self._cold.discard(news.slices):
            text = f"what was fetched from the bucket is damaged, ask again: {error}"
            return FetchFound(_failed(key, ErrorCode.NOT_AVAILABLE, text, news.partition), None, [])
        return _broken(key, news.partition, error)

    def _look(self, entry: _Entry, bytes_max: int) -> FetchFound | None:
        """News of one partition; None when there are none, and then it will call when there are."""
        failed = self._failure(entry)
        if failed is not None:
            return failed
        partition = entry.partition
        assert not isinstance(partition, ErrorCode)
        log, end = partition.log, partition.high_watermark
        if entry.offset > end and entry.offset <= log.log_end:
            partition.wait(entry.wake)  # committed to be, and a reader that saw it before must not seem to step back
            return None
        cold = partition.cold if self._cold is not None and is_cold(partition, entry.offset) else None
        slices = self._read(entry, partition, bytes_max, from_bucket=cold is not None)
        if isinstance(slices, FetchFound):
            return slices
        if not slices and cold is not None:
            return None
        if not slices and not entry.is_new:
            partition.wait(entry.wake)
            return None
        entry.is_new = False
        entry.is_behind &= bool(slices)
        here = log.compaction.delete_horizon
        delete_horizon = here if cold is None else max(here, cold.delete_horizon)
        start, epoch = partition.start, partition.epoch
        result = FetchResult(entry.key, ErrorCode.NONE, "", epoch, end, start, 0, delete_horizon=delete_horizon)
        if slices and entry.matcher is not None:
            return FetchFound(result, partition, slices, entry.matcher)
        if slices:
            entry.move_behind(slices[-1])
        return FetchFound(result._replace(body_bytes=sum(piece.length for piece in slices)), partition, slices)

    def _failure(self, entry: _Entry) -> FetchFound | None:
        """Why nothing of a partition can be read here, if so."""
        partition = entry.partition
        gone = partition if isinstance(partition, ErrorCode) else partition.gone
        if gone is ErrorCode.NOT_LEADER and entry.lookup != self._lookup:
            found = entry.lookup(entry.key)
            gone = found if isinstance(found, ErrorCode) else None
        if gone is not None:
            return FetchFound(_failed(entry.key, gone, "the stream or partition is not here"), None, [])
        assert not isinstance(partition, ErrorCode)
        failure = partition.log.failure
        if failure is not None:
            return FetchFound(_failed(entry.key, ErrorCode.PARTITION_OFFLINE, str(failure), partition), None, [])
        return None

    def _read(
        self, entry: _Entry, partition: Partition, bytes_max: int, *, from_bucket: bool
    ) -> list[Slice] | FetchFound:
        """What there is from the position of an entry on, of the bucket nothing until that calls; or what failed."""
        offset, end = entry.offset, partition.high_watermark
        try:
            if self._cold is not None and from_bucket:
                return self._cold.read(partition, offset, bytes_max, entry.hint, entry.wake)
            if self._cold is not None and offset < partition.log.log_start and is_unknown(partition):
                text = "the leader has yet to look what the bucket has of it; ask again"
                return FetchFound(_failed(entry.key, ErrorCode.NOT_AVAILABLE, text, partition), None, [])
            return partition.log.read(offset, end, bytes_max, entry.hint)
        except OffsetOutOfRangeError:
            text = str(OffsetOutOfRangeError(offset, partition.start, end))
            return FetchFound(_failed(entry.key, ErrorCode.OFFSET_OUT_OF_RANGE, text, partition), None, [])
        except ColdUnavailableError as error:
            return FetchFound(_failed(entry.key, ErrorCode.NOT_AVAILABLE, str(error), partition), None, [])
        except HistoryLostError as error:
            return FetchFound(_failed(entry.key, ErrorCode.BATCH_CORRUPT, str(error), partition), None, [])
        except (PartitionOfflineError, OSError) as error:
            return _broken(entry.key, partition, error)


def _broken(key: PartitionKey, partition: Partition, error: LiftError | OSError) -> FetchFound:
    """A partition with damage goes offline; one that only lacks a file descriptor is asked again later."""
    if isinstance(error, OSError) and is_full(error):
        return FetchFound(_failed(key, ErrorCode.NOT_AVAILABLE, str(error), partition), None, [])
    partition.fail(str(error))
    return FetchFound(_failed(key, ErrorCode.PARTITION_OFFLINE, str(error), partition), None, [])


def _failed(key: PartitionKey, error: ErrorCode, message: str, partition: Partition | None = None) -> FetchResult:
    if partition is None:
        return FetchResult(key, error, message, -1, -1, -1, 0)
    return FetchResult(key, error, message, partition.epoch, partition.high_watermark, partition.start, 0)
