"""A piece of a partition's history that was fetched from the bucket: record batches in a file of its own.

It is a segment like those of the local log, without holes between its batches, so that the same code reads it; but
nothing is ever lost with it: one that turns out to be damaged is thrown away and fetched again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_envelope.errors import LiftError
from liftpy_log.errors import SegmentCorruptError
from liftpy_log.segments.scan import walk_headers
from liftpy_log.segments.segment import Segment

if TYPE_CHECKING:
    from pathlib import Path

    from liftpy_envelope.pull import PartitionKey
    from liftpy_log.storage.disk import Disk

__all__ = ["Chunk"]


class Chunk(Segment):
    """A fetched piece of history, which is read as a segment is.

    Args:
        disk: Where it is.
        path: Path of the file.
        key: Key of the partition.
        base_offset: The first offset that it answers for.
        target_bytes: How much was asked for when it was fetched.
        is_wanted: Somebody waited for it; otherwise it was fetched ahead.

    Attributes:
        landed_s: When it came, by the loop's clock.
        used_s: When it was read last.
        is_read: Somebody has read of it.
        is_followed: What follows it was asked for.
        following: Where fetches end that follow on one another behind it, as far as that was foreseen.
    """

    __slots__ = ("following", "is_followed", "is_read", "is_wanted", "key", "landed_s", "target_bytes", "used_s")

    def __init__(
        self, disk: Disk, path: Path, key: PartitionKey, base_offset: int, target_bytes: int, *, is_wanted: bool
    ) -> None:
        super().__init__(disk, path.parent, base_offset)
        self.path = path
        self.key = key
        self.target_bytes = target_bytes
        self.is_wanted = is_wanted
        self.landed_s = self.used_s = 0.0
        self.is_read = self.is_followed = False
        self.following: tuple[int, ...] = ()
        self.start_over()

    def load(self) -> None:
        """Find out what is in the file. Waits for the disk.

        Raises:
            SegmentCorruptError: not what must be.
            OSError: it can not be read.
        """
        file = self._disk.open(self.path)
        try:
            for position, header in walk_headers(file, 0, file.size()):
                self.check_chain(position, header)
                self.append(header)
        except SegmentCorruptError:
            raise
        except LiftError as error:
            raise SegmentCorruptError(self.path, self.size, str(error)) from error
        finally:
            file.close()
