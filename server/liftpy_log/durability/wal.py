"""A node-wide write-ahead log, so that a thousand dirty partitions cost one fdatasync.

An entry repeats bytes that stand in a segment already but may not be on disk there: writing them again at the same
position is all that recovery does, so applying an entry twice is harmless. A `VOID` entry cancels the earlier ones of
a directory; whoever cuts a log back writes one first. The file it is in outlasts, on disk, every file before it: an
older one that came back alone would bring back what was cut off. Otherwise a file is removed when every segment it
speaks of has been synced itself, which happens a few segments at a time, before the next file is full; it stays when
one of them could not be synced, since it has the only copy on disk then.

See `wal_format` for the bytes, and `wal_replay` for what is done with them when a node starts.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from threading import Lock
from typing import TYPE_CHECKING

from liftpy_log.durability.wal_format import (
    DATA,
    ROUND_HEAD_SIZE,
    VOID,
    RoundHead,
    encode_entry,
    encode_head,
    list_files,
    path_of,
)
from liftpy_log.durability.wal_replay import replay_wal
from liftpy_log.limits import WAL_FILE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from liftpy_envelope.ipc import BufferLike
    from liftpy_log.durability.durability import Durability
    from liftpy_log.entries import Unsynced
    from liftpy_log.segments.segment import Segment
    from liftpy_log.storage.disk import Disk, File

__all__ = ["WriteAheadLog", "replay_wal"]

logger = logging.getLogger(__name__)


class _ClosedFile:
    """A file that is written no more, and the segments that must be synced before it may go."""

    __slots__ = ("has_void", "needed", "path", "segments")

    def __init__(self, path: Path, segments: list[tuple[Segment, Durability]], *, has_void: bool) -> None:
        self.path = path
        self.has_void = has_void
        self.segments = segments
        self.needed = False


class WriteAheadLog:
    """The writing side. Belongs to the thread that runs group commit rounds; `void` may be called from any.

    Args:
        disk: Disk that holds the files.
        directory: Directory of the node's write-ahead log files.
        root: The data directory; segments are named relative to it.
        file_bytes_max: Size at which a file is closed.

    Attributes:
        turn: Held by a round while it writes, and until the segments that are due with it are synced.
    """

    def __init__(self, disk: Disk, directory: Path, root: Path, file_bytes_max: int = WAL_FILE_BYTES_MAX) -> None:
        self._disk = disk
        self._directory = directory
        self._root = root
        self._file_bytes_max = file_bytes_max
        disk.make_directory(directory)
        self._sequence = max((sequence for sequence, _ in list_files(disk, directory)), default=0)
        self._previous = (0, 0)  # sequence and durable size of the last file in which anything was durable
        self._file: File | None = None
        self._size = 0
        self._segments: dict[Segment, Durability] = {}
        self._closed: deque[_ClosedFile] = deque()
        self._to_sync = 0  # how many segments the closed files spoke of when the present file was begun
        self._synced = 0  # how many of those have had their turn
        self._failed: set[Segment] = set()
        self._voids: set[Path] = set()  # files with a `VOID` entry
        self._is_one_kept = False  # a file that was closed stays until the node is started again
        self.turn = Lock()

    def write_round(self, batches: Sequence[tuple[Durability, Sequence[Unsynced]]]) -> None:
        """Make batches durable.

        Args:
            batches: Contiguous batches in one segment, for each log.

        Raises:
            OSError: they may not be durable; the file is given up.
        """
        parts: list[BufferLike] = []
        segments = {}
        for log, run in batches:
            segment = run[0].segment
            path = segment.path.relative_to(self._root).as_posix()
            parts += encode_entry(DATA, path, run[0].position, [part for entry in run for part in entry.parts])
            segments[segment] = log
            log.wal = self  # before the write: one that fails may be on disk all the same
        self._write(parts, segments)

    def void(self, directory: Path, *, is_given_up: bool = False) -> None:
        """Cancel, durably, every earlier entry for the segments of a partition's directory.

        The caller has synced the segments themselves, or gives them up. Waits for the round that is writing.

        Raises:
            OSError: it may or may not be cancelled; or a sync of one of the segments failed earlier, so that the
                entries may be the only copy on disk, and they are not given up.
        """
        with self.turn:
            failed = next((segment for segment in self._failed if segment.path.parent == directory), None)
            if failed is not None and not is_given_up:
                raise OSError(errno.EIO, "an earlier fdatasync failed", str(failed.path))
            self._write(encode_entry(VOID, directory.relative_to(self._root).as_posix(), 0, []), {}, is_void=True)

    def _write(self, parts: list[BufferLike], segments: Mapping[Segment, Durability], *, is_void: bool = False) -> None:
        file = self._file
        if file is None or self._size >= self._file_bytes_max:
            file = self._begin_file()
        self._segments.update(segments)
        if is_void:
            self._voids.add(self._path)
        length = sum(map(len, parts))
        head = encode_head(RoundHead(self._sequence, self._size, length, *self._previous))
        try:
            file.write(self._size, [head, *parts])
            file.sync()
        except OSError:
            self._end_file()
            raise
        self._size += ROUND_HEAD_SIZE + length

    @property
    def _path(self) -> Path:
        return path_of(self._directory, self._sequence)

    def _begin_file(self) -> File:
        self._end_file()
        self._sequence += 1
        file = self._disk.open(self._path, create=True)
        self._file, self._size = file, 0
        self._to_sync, self._synced = sum(len(closed.segments) for closed in self._closed), 0
        try:
            self._disk.sync_directory(self._directory)
        except OSError:
            self._end_file()
            raise
        return file

    def _end_file(self) -> None:
        if self._file is None:
            return
        self._file.close()
        has_void = self._path in self._voids
        self._closed.append(_ClosedFile(self._path, list(self._segments.items()), has_void=has_void))
        if self._size:
            self._previous = (self._sequence, self._size)
        self._file, self._segments = None, {}

    def segments_to_sync(self) -> Iterator[tuple[Segment, Durability]]:
        """Segments to sync after a round; removes the files that nothing needs any more.

        The caller syncs each segment before it asks for the next, and says with `keep` when that failed. The pace is
        such that the files before the present one are gone when it is full.
        """
        due = -(-self._to_sync * self._size // self._file_bytes_max)
        while self._closed:
            closed = self._closed[0]
            if not closed.segments:
                self._closed.popleft()
                self._is_one_kept |= closed.needed
                if not closed.needed and not (closed.has_void and self._is_one_kept):
                    self._remove(closed)
                continue
            if self._synced >= due:
                return
            segment, log = closed.segments[-1]
            if segment not in self._failed and log.failure is None:
                yield segment, log
            # After a failed sync a later one may succeed although the bytes never came to the disk.
            closed.needed |= segment in self._failed or log.failure is not None
            closed.segments.pop()
            self._synced += 1

    def keep(self, segment: Segment) -> None:
        """Keep the files that speak of a segment: its sync failed."""
        self._failed.add(segment)

    def _remove(self, closed: _ClosedFile) -> None:
        try:
            self._remove_for_good([closed.path])
        except OSError as error:  # it does no harm: what it holds is where it belongs, or cancelled by a later file
            self._is_one_kept = True
            logger.warning("%s is not needed any more, and could not be removed: %s", closed.path, error)

    def _remove_for_good(self, paths: Iterable[Path]) -> None:
        """Remove files, oldest first; none that holds a `VOID` while an older one may still come back."""
        for path in paths:
            if path in self._voids:
                self._disk.sync_directory(self._directory)
            self._disk.remove(path)
            self._voids.discard(path)

    def close(self, *, remove: bool) -> None:
        """Stop. `remove` deletes every file: the caller has synced all segments."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if remove:
            self._remove_for_good(path for _, path in list_files(self._disk, self._directory))
