"""The newest batches of logs that others follow, in memory: who is at a log's end gets them without a look at the disk.

What is kept of a log is a run of whole batches without a gap, found by their offsets, which in a log that leads always
mean the same records. A log that is cut must keep none: its owner takes the tail away before.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RecentBatches", "RecentTail"]

_NODE_BYTES_MAX: Final = 64 * 1024 * 1024
_LOG_BYTES_MAX: Final = 4 * 1024 * 1024


class RecentBatches:
    """The memory of a node, shared by its logs. Where it is short, the log that was appended to longest ago loses all.

    Args:
        bytes_max: Maximum bytes of all logs.
        log_bytes_max: Size of the batches of one log; not above `bytes_max`.
    """

    def __init__(self, bytes_max: int = _NODE_BYTES_MAX, log_bytes_max: int = _LOG_BYTES_MAX) -> None:
        assert log_bytes_max <= bytes_max, "one log alone must fit"
        self.bytes_max = bytes_max
        self.log_bytes_max = log_bytes_max
        self._tails: OrderedDict[RecentTail, None] = OrderedDict()  # with batches; last appended to comes last
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return self._size_bytes

    def tail(self) -> RecentTail:
        """Return the tail for one log, to be used while this node leads it."""
        return RecentTail(self)

    def grew(self, tail: RecentTail, by: int) -> None:
        """A tail got another batch."""
        self._size_bytes += by
        self._tails[tail] = None
        self._tails.move_to_end(tail)
        while self._size_bytes > self.bytes_max:
            next(iter(self._tails)).clear()

    def shrank(self, tail: RecentTail, by: int) -> None:
        """A tail has lost some."""
        self._size_bytes -= by
        if not tail.size_bytes:
            self._tails.pop(tail, None)


class RecentTail:
    """The newest batches of one log, kept in memory. Made by `RecentBatches.tail`.

    Attributes:
        size_bytes: Size in bytes of its batches.
        batch_bytes_max: A larger batch is not kept.
    """

    __slots__ = ("_batches", "_end", "_shared", "batch_bytes_max", "size_bytes")

    def __init__(self, shared: RecentBatches) -> None:
        self._shared = shared
        self._batches: deque[tuple[int, bytes]] = deque()  # (base offset, the batch)
        self._end = -1
        self.size_bytes = 0
        self.batch_bytes_max = shared.log_bytes_max

    def add(self, base_offset: int, next_offset: int, batch: bytes) -> None:
        """A batch was appended, of at most `batch_bytes_max`."""
        if base_offset != self._end:
            self.clear()
        self._batches.append((base_offset, batch))
        self._end = next_offset
        self.size_bytes += len(batch)
        self._shared.grew(self, len(batch))
        while self.size_bytes > self.batch_bytes_max:
            self._drop_first()

    def read(self, offset: int, bytes_max: int) -> Sequence[bytes]:
        """Batches from `offset` on; none when no batch that is kept begins there.

        Args:
            offset: First offset wanted.
            bytes_max: Maximum bytes of all; the first is returned whatever its size.
        """
        found: list[bytes] = []
        if offset >= self._end or not self._batches or offset < self._batches[0][0]:
            return found
        for base_offset, batch in reversed(self._batches):
            found.append(batch)
            if base_offset <= offset:
                break
        if base_offset != offset:
            return []
        found.reverse()
        return _up_to(found, bytes_max)

    def drop_before(self, offset: int) -> None:
        """Batches that end at `offset` or before will not be asked for."""
        batches = self._batches
        while batches and (batches[1][0] if len(batches) > 1 else self._end) <= offset:
            self._drop_first()

    def clear(self) -> None:
        """Keep nothing of what there is."""
        size, self.size_bytes = self.size_bytes, 0
        self._batches.clear()
        self._end = -1
        self._shared.shrank(self, size)

    def _drop_first(self) -> None:
        size = len(self._batches.popleft()[1])
        self.size_bytes -= size
        self._shared.shrank(self, size)


def _up_to(batches: list[bytes], bytes_max: int) -> list[bytes]:
    size = 0
    for count, batch in enumerate(batches):
        size += len(batch)
        if count and size > bytes_max:
            return batches[:count]
    return batches
