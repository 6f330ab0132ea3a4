"""A fetch session: the partitions that one connection reads, and which of them have news.

A partition without news costs nothing per round: it calls back when it has some. A replica that only follows is looked
at now and then all the same: that it is no longer in sync is nothing that calls.
"""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.limits import FETCH_PARTITIONS_MAX
from liftpy_envelope.pull import FetchResult
from liftpy_log.errors import OffsetOutOfRangeError, PartitionOfflineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_envelope.pull import FetchPartition, FetchRequest, PartitionKey
    from liftpy_log.reader import Slice
    from liftpy_server.partition import Partition

    Lookup = Callable[[PartitionKey], Partition | ErrorCode]

__all__ = ["FetchSession", "Found"]

_LOOK_S: Final = 1.0
_PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class Found(NamedTuple):
    """News of one partition: what to say of it, and the batches to send."""

    result: FetchResult
    partition: Partition | None
    slices: list[Slice]


class _Entry:
    """One partition in the session."""

    __slots__ = ("hint", "is_new", "key", "lookup", "offset", "partition", "wake")

    def __init__(self, key: PartitionKey, offset: int, lookup: Lookup, wake: Callable[[], None]) -> None:
        self.key = key
        self.offset = offset
        self.lookup = lookup
        self.partition = lookup(key)
        self.hint: Slice | None = None
        self.is_new = True
        self.wake = wake


class FetchSession:
    """See the module.

    Args:
        lookup: the partition with a key that is led here, or why there is none here.
        readable: the same for one that is led here, or follows in sync.
    """

    def __init__(self, lookup: Lookup, readable: Lookup | None = None) -> None:
        self._lookup = lookup
        self._readable = readable or lookup
        self._looked_s = float("-inf")
        self._entries: dict[PartitionKey, _Entry] = {}
        self._ready: dict[PartitionKey, None] = {}
        self.news = asyncio.Event()

    def apply(self, request: FetchRequest) -> None:
        """Let partitions enter, move and leave."""
        for key in request.forget:
            self._drop(key)
        for wanted in request.partitions:
            self._enter(wanted, self._readable if request.any_replica else self._lookup)

    def look_at_followers(self, now_s: float) -> None:
        """Have those that may be read from a replica that follows looked at again, about once a second."""
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        for key, entry in self._entries.items():
            if entry.lookup != self._lookup:
                self._ready[key] = None

    def _enter(self, wanted: FetchPartition, lookup: Lookup) -> None:
        key = wanted.key
        self._drop(key)

        def wake() -> None:
            self._ready[key] = None
            self.news.set()

        self._entries[key] = _Entry(key, wanted.offset, lookup, wake)
        self._ready[key] = None

    def _drop(self, key: PartitionKey) -> None:
        entry = self._entries.pop(key, None)
        self._ready.pop(key, None)
        if entry is not None and not isinstance(entry.partition, ErrorCode):
            entry.partition.stop_waiting(entry.wake)

    def close(self) -> None:
        """Leave every partition alone."""
        for key in list(self._entries):
            self._drop(key)

    def collect(self, bytes_max: int) -> list[Found]:
        """News of the partitions that have any, up to about `bytes_max` of batches.

        Partitions that sent something go to the end of the line, so that a busy one does not starve the others.
        """
        self.news.clear()
        found: list[Found] = []
        for key in list(self._ready):
            if bytes_max <= 0 or len(found) == FETCH_PARTITIONS_MAX:
                break
            entry = self._entries[key]
            news = self._look(entry, bytes_max)
            if news is None:
                del self._ready[key]
                continue
            found.append(news)
            bytes_max -= news.result.body_bytes
            del self._ready[key]
            if news.result.error is not ErrorCode.NONE:
                self._drop(key)
            elif key in self._entries:
                self._ready[key] = None
        return found

    def unreadable(self, news: Found, error: OSError) -> Found:
        """What to say instead of `news` whose batches can not be read; the partition leaves the session."""
        assert news.partition is not None
        self._drop(news.result.key)
        return _broken(news.result.key, news.partition, error)

    def _look(self, entry: _Entry, bytes_max: int) -> Found | None:
        """News of one partition; None when there are none, and then it will call when there are."""
        partition = entry.partition
        gone = partition if isinstance(partition, ErrorCode) else partition.gone
        if gone is ErrorCode.NOT_LEADER and entry.lookup != self._lookup:
            found = entry.lookup(entry.key)
            gone = found if isinstance(found, ErrorCode) else None
        if gone is not None:
            return Found(_failed(entry.key, gone, "the stream or partition is not here"), None, [])
        assert not isinstance(partition, ErrorCode)
        log = partition.log
        if log.failure is not None:
            return Found(_failed(entry.key, ErrorCode.PARTITION_OFFLINE, str(log.failure), partition), None, [])
        end = partition.high_watermark
        if entry.offset > end and entry.offset <= log.log_end:
            partition.wait(entry.wake)  # committed to be, and a reader that saw it before must not seem to step back
            return None
        try:
            slices = log.read(entry.offset, end, bytes_max, entry.hint)
        except OffsetOutOfRangeError as error:
            return Found(_failed(entry.key, ErrorCode.OFFSET_OUT_OF_RANGE, str(error), partition), None, [])
        except (PartitionOfflineError, OSError) as error:
            return _broken(entry.key, partition, error)
        if not slices and not entry.is_new:
            partition.wait(entry.wake)
            return None
        entry.is_new = False
        if slices:
            entry.hint = slices[-1]
            entry.offset = max(entry.offset, slices[-1].next_offset)
        size = sum(piece.length for piece in slices)
        result = FetchResult(entry.key, ErrorCode.NONE, "", partition.epoch, end, log.log_start, size)
        return Found(result, partition, slices)


def _broken(key: PartitionKey, partition: Partition, error: PartitionOfflineError | OSError) -> Found:
    """A partition with damage goes offline; one that only lacks a file descriptor is asked again later."""
    if isinstance(error, OSError) and error.errno in _PASSING:
        return Found(_failed(key, ErrorCode.NOT_AVAILABLE, str(error), partition), None, [])
    partition.fail(str(error))
    return Found(_failed(key, ErrorCode.PARTITION_OFFLINE, str(error), partition), None, [])


def _failed(key: PartitionKey, error: ErrorCode, message: str, partition: Partition | None = None) -> FetchResult:
    if partition is None:
        return FetchResult(key, error, message, -1, -1, -1, 0)
    return FetchResult(key, error, message, partition.epoch, partition.high_watermark, partition.log.log_start, 0)
