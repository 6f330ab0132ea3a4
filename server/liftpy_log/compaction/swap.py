"""Compacted segments take the place of others.

A run of neighbouring segments is written anew as one segment, beside them, and synced. Its file then gets the name

    <base_offset:020d>.c<generation:08d>.log

where the generation is one above the highest of those it replaces. That one rename, once it is durable, is the swap:
whoever opens the log drops segments of lower generations that begin inside of the range that the file covers. The
files of the others lose their names after it, and that is durable too before anything else happens to names in the
directory: they are called `.log.gone` until whoever compacts removes them, which takes long for large files. No file
ever gets a name that others knew: a reader with an old segment finds its bytes or no file at all, and the write-ahead
log's entries for an old file do not hit a new one.

The batches of a compacted segment follow on one another like all others: a batch covers the offsets that were dropped
behind, or before, its records. A range of one leader epoch of which nothing is left is a batch without records. So
offsets, epochs, cuts and appends work as on any segment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_log.compaction.state import SealedSegment, gone_path, load_cleaned, save_cleaned
from liftpy_log.errors import StorageFullError
from liftpy_log.segments.index import OFFSET_SUFFIX, TIME_SUFFIX
from liftpy_log.segments.segment import Segment, last_timestamp
from liftpy_log.storage.disk import is_full

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from liftpy_log.compaction.state import Cleaned, CleanedSegment
    from liftpy_log.durability.durability import Durability
    from liftpy_log.storage.disk import Disk
    from liftpy_log.storage.files import FileCache

__all__ = ["LogCompaction"]


class LogCompaction:
    """A log's side of key compaction: what a pass may work on, and what it is allowed to change.

    Args:
        disk: Disk that holds the files.
        files: The node's open files.
        segments: Segments of the log, oldest first; the log's own list, in which compacted ones take their places.
        durability: Durability of the log.

    Attributes:
        directory: Directory of the log.
        cuts: How often the log was cut back, begun anew or given back since it was opened.
    """

    def __init__(self, disk: Disk, files: FileCache, segments: list[Segment], durability: Durability) -> None:
        self.directory = durability.directory
        self.cuts = 0
        self._disk = disk
        self._files = files
        self._segments = segments
        self._durability = durability
        self._delete_horizon = 0

    def note_opened(self) -> None:
        """Read what was noted of the log before it was opened.

        Raises:
            OSError: it could not be read.
        """
        self._delete_horizon = self.load_cleaned().delete_horizon

    def note_cut(self, end: int) -> None:
        """Note, before the log is cut back to `end`, that what is appended behind it is not clean.

        Raises:
            StorageFullError: there is no room for it.
            PartitionOfflineError: an I/O error.
        """
        self.cuts += 1
        try:
            cleaned = self.load_cleaned()
        except OSError as error:
            if is_full(error):
                raise StorageFullError(f"how far {self.directory} is clean can not be read now") from error
            raise self._durability.fail(f"reading how far {self.directory} is clean failed: {error}") from error
        if cleaned.clean_end > end:
            self._save(cleaned.cut(end))

    @property
    def last_timestamp(self) -> int:
        """Time of the log's last record; see `last_timestamp`."""
        return last_timestamp(self._segments)

    @property
    def delete_horizon(self) -> int:
        """Tombstones below this offset may be gone; 0 where the log was never compacted."""
        return self._delete_horizon

    def sealed_segments(self) -> list[SealedSegment]:
        """All segments but the newest, as they are now."""
        return [_sealed(segment) for segment in self._segments[:-1]]

    def load_cleaned(self) -> Cleaned:
        """How far the log is clean, as its file says.

        Raises:
            OSError: it could not be read.
        """
        return load_cleaned(self._disk, self.directory, self._durability.tail.next_offset)

    def save_cleaned(self, cleaned: Cleaned, cuts: int) -> bool:
        """Note how far the log is clean, durably; False, and nothing is noted, when it was cut meanwhile.

        Args:
            cleaned: What to note.
            cuts: The log's `cuts` when the pass was planned.

        Raises:
            StorageFullError: there is no room for it; what was noted before stays.
            PartitionOfflineError: an I/O error, now or earlier.
        """
        self._durability.check_well()
        if cuts != self.cuts:
            return False
        self._save(cleaned.with_delete_horizon(self._delete_horizon))  # which a leader may have raised meanwhile
        return True

    def raise_delete_horizon(self, offset: int) -> None:
        """Note, durably, that tombstones below `offset` may be missing here: they may in the log this one is copied of.

        Raises:
            StorageFullError: there is no room for it; what was noted before stays.
            PartitionOfflineError: an I/O error, now or earlier.
        """
        if offset > self._delete_horizon:
            self._durability.check_well()
            try:
                cleaned = self.load_cleaned()
            except OSError as error:
                if is_full(error):
                    raise StorageFullError(f"how far {self.directory} is clean can not be read now") from error
                raise self._durability.fail(f"reading how far {self.directory} is clean failed: {error}") from error
            self._save(cleaned.with_delete_horizon(offset))

    def _save(self, cleaned: Cleaned) -> None:
        try:
            save_cleaned(self._disk, self.directory, cleaned)
        except OSError as error:
            if is_full(error):
                raise StorageFullError(f"no room to note how far {self.directory} is clean") from error
            raise self._durability.fail(f"noting how far {self.directory} is clean failed: {error}") from error
        self._delete_horizon = cleaned.delete_horizon

    def replace_segments(self, old: Sequence[SealedSegment], new: CleanedSegment, cuts: int) -> bool:
        """Let a compacted segment take the place of a run of others.

        Costs two syncs of the directory. Slices of the old segments stay readable for who has pinned their files. The
        caller removes those (see `gone_path`).

        Args:
            old: The segments that it replaces, as they were when it was written.
            new: The segment, which covers exactly their offsets.
            cuts: The log's `cuts` at that time.

        Returns:
            Whether it did; it does not when the old segments are not there any more as they were.

        Raises:
            StorageFullError: there is no room for the name; nothing has changed.
            PartitionOfflineError: an I/O error, now or earlier.
        """
        self._durability.check_well()
        assert (new.base_offset, new.next_offset) == (old[0].base_offset, old[-1].next_offset)
        assert new.generation > max(segment.generation for segment in old)
        present = self.sealed_segments()
        start = present.index(old[0]) if old[0] in present else 0
        if cuts != self.cuts or present[start : start + len(old)] != list(old):
            return False
        segment = _segment_of(self._disk, self.directory, new)
        self._give_name(new.path, segment.path)
        replaced = self._segments[start : start + len(old)]
        self._segments[start : start + len(old)] = [segment]
        try:
            for each in replaced:
                self._files.forget(each)
                for suffix in (OFFSET_SUFFIX, TIME_SUFFIX):
                    self._disk.remove(each.path.with_suffix(suffix))
                self._disk.rename(each.path, gone_path(each.path))
            self._disk.sync_directory(self.directory)
        except OSError as error:
            raise self._durability.fail(f"renaming compacted segments in {self.directory} failed: {error}") from error
        return True

    def _give_name(self, temporary: Path, path: Path) -> None:
        try:
            self._disk.rename(temporary, path)
        except OSError as error:
            if is_full(error):
                raise StorageFullError(f"no room for a compacted segment in {self.directory}") from error
            raise self._durability.fail(f"renaming {temporary} failed: {error}") from error
        try:
            self._disk.sync_directory(self.directory)
        except OSError as error:
            raise self._durability.fail(f"making the name of {path} durable failed: {error}") from error


def _sealed(segment: Segment) -> SealedSegment:
    return SealedSegment(
        segment.path,
        segment.base_offset,
        segment.next_offset,
        segment.size,
        segment.generation,
        segment.max_timestamp,
    )


def _segment_of(disk: Disk, directory: Path, new: CleanedSegment) -> Segment:
    segment = Segment(disk, directory, new.base_offset, new.generation)
    segment.size = new.size
    segment.next_offset = new.next_offset
    segment.first_timestamp = new.first_timestamp
    segment.max_timestamp = new.max_timestamp
    return segment
