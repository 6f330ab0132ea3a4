"""Chunks on this node's disk: bounded in bytes, those go first that were read longest ago.

No chunk lies wholly within another one of its partition, so the one that begins nearest before an offset is the one
that reaches farthest.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from liftpy_server.tier.reads.limits import FRESH_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from liftpy_envelope.pull import PartitionKey
    from liftpy_log.storage.disk import Disk
    from liftpy_log.storage.files import FileCache
    from liftpy_server.tier.reads.chunk import Chunk

__all__ = ["ChunkCache"]

_RESERVES: Final = 2


class ChunkCache:
    """A bounded cache of chunks on this node's disk.

    What a file takes that is being sent while its chunk goes is free when it was sent.

    Args:
        disk: Disk that holds the files.
        files: The node's open files.
        directory: Directory for the chunks, with nothing else in it; `wipe` empties it.
        bytes_max: Maximum bytes of all chunks together while the disk has room; more only while those that somebody
            waits for do not fit.
        now_s: The loop's clock.

    Attributes:
        bytes_max: Maximum bytes of all chunks together now.
        used_bytes: Bytes of all chunks.
    """

    def __init__(
        self, disk: Disk, files: FileCache, directory: Path, bytes_max: int, now_s: Callable[[], float]
    ) -> None:
        self._disk = disk
        self._files = files
        self.directory = directory
        self.bytes_max = self._bytes_max_set = bytes_max
        self.used_bytes = 0
        self._now_s = now_s
        self._by_key: dict[PartitionKey, list[Chunk]] = {}
        self._by_use: OrderedDict[Chunk, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_use)

    def wipe(self) -> None:
        """Begin with an empty directory: what a process left behind is not worth a look. Waits for the disk.

        Raises:
            OSError: that failed.
        """
        self._disk.make_directory(self.directory, durable=False)
        for name in self._disk.names(self.directory):
            self._disk.remove(self.directory / name)

    def find(self, key: PartitionKey, offset: int) -> Chunk | None:
        """The chunk that answers for an offset."""
        chunks = self._by_key.get(key, ())
        position = bisect_right(chunks, offset, key=_base) - 1
        return chunks[position] if position >= 0 and offset < chunks[position].next_offset else None

    def ending_at(self, key: PartitionKey, offset: int) -> Chunk | None:
        """A chunk after which an offset comes next."""
        chunks = self._by_key.get(key, ())
        position = bisect_left(chunks, offset, key=_base) - 1
        return chunks[position] if position >= 0 and chunks[position].next_offset == offset else None

    def note_use(self, chunk: Chunk) -> None:
        """Note that a chunk was read."""
        chunk.is_read = True
        chunk.used_s = self._now_s()
        self._by_use.move_to_end(chunk)

    def add(self, chunk: Chunk) -> None:
        """Take a chunk, in place of those that lie within it; nothing where it lies within another."""
        chunks = self._by_key.setdefault(chunk.key, [])
        before = bisect_right(chunks, chunk.base_offset, key=_base) - 1
        if before >= 0 and chunk.next_offset <= chunks[before].next_offset:
            self._disk.remove(chunk.path)
            return
        chunk.landed_s = chunk.used_s = self._now_s()
        for other in [each for each in chunks if _is_within(each, chunk)]:
            self.drop(other)
        chunks = self._by_key.setdefault(chunk.key, chunks)
        chunks.insert(bisect_left(chunks, chunk.base_offset, key=_base), chunk)
        self._by_use[chunk] = None
        self.used_bytes += chunk.size

    def drop(self, chunk: Chunk) -> None:
        """Delete a chunk; no error when it is gone."""
        if chunk not in self._by_use:
            return
        del self._by_use[chunk]
        chunks = self._by_key[chunk.key]
        chunks.remove(chunk)
        if not chunks:
            del self._by_key[chunk.key]
        self.used_bytes -= chunk.size
        self._files.forget(chunk)
        self._disk.remove(chunk.path)

    def fit(self, free_bytes: int, reserve_bytes: int) -> None:
        """Give way to what the node stores: where its disk gets short, what can be fetched again goes first.

        Args:
            free_bytes: Free bytes of the disk.
            reserve_bytes: Messages are refused when less is free; as much again is kept free of chunks.
        """
        room = self.used_bytes + free_bytes - _RESERVES * reserve_bytes
        self.bytes_max = max(0, min(self._bytes_max_set, room))
        if self.used_bytes > self.bytes_max:
            self.make_room(0)

    def make_room(self, wanted_bytes: int) -> tuple[bool, int]:
        """Have chunks go until so much more fits.

        Returns:
            Whether it does, and how many of those that went had been fetched for nothing.
        """
        unread, fresh_s = 0, self._now_s() - FRESH_S
        for chunk in list(self._by_use):
            if self.used_bytes + wanted_bytes <= self.bytes_max:
                break
            if chunk.is_wanted and not chunk.is_read and chunk.landed_s > fresh_s:
                continue
            unread += not chunk.is_read
            self.drop(chunk)
        return self.used_bytes + wanted_bytes <= self.bytes_max, unread

    def drop_idle(self, idle_s: float) -> None:
        """Have those go that nobody has read for so long."""
        until_s = self._now_s() - idle_s
        for chunk in [chunk for chunk in self._by_use if chunk.used_s <= until_s]:
            self.drop(chunk)

    def clear(self) -> None:
        """Have all of them go."""
        for chunk in list(self._by_use):
            self.drop(chunk)


def _base(chunk: Chunk) -> int:
    return chunk.base_offset


def _is_within(chunk: Chunk, other: Chunk) -> bool:
    return other.base_offset <= chunk.base_offset and chunk.next_offset <= other.next_offset
