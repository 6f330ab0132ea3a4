"""What key compaction knows of a log, in a file beside its segments, and small values that its parts hand around.

    <partition>/cleaned    magic u32 | version u32 | crc32c u32 (of the rest) | 4 pad
                           | clean_end i64 | delete_horizon i64 | tombstones i64
                           | passes, oldest first: end i64, time i64 (ns)

`clean_end` and the passes are a cache: without them all counts as dirty, and tombstones stay longer. Little-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import google_crc32c

from liftpy_log.storage.disk import read_whole, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from liftpy_log.storage.disk import Disk

__all__ = ["Cleaned", "CleanedSegment", "SealedSegment", "gone_path", "load_cleaned", "save_cleaned"]

_NAME: Final = "cleaned"
_MAGIC: Final = 0x4E4C434C
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<III4x")
_BODY: Final = struct.Struct("<qqq")
_PASS: Final = struct.Struct("<qq")
_PASSES_MAX: Final = 128


def gone_path(path: Path) -> Path:
    """What the file of a segment is called from when another one took its place until it is removed."""
    return path.with_name(path.name + ".gone")


class SealedSegment(NamedTuple):
    """A segment that grows no more, as it was at one moment; sizes in bytes, times in ns."""

    path: Path
    base_offset: int
    next_offset: int
    size: int
    generation: int
    max_timestamp: int


class CleanedSegment(NamedTuple):
    """A segment that was written anew and waits, durable but for its name, to take the place of others.

    Attributes:
        path: Path of the file now; see `swap` for the name that it gets.
        records: How many it holds.
    """

    path: Path
    base_offset: int
    next_offset: int
    size: int
    generation: int
    first_timestamp: int
    max_timestamp: int
    records: int


@dataclass(frozen=True, slots=True)
class Cleaned:
    """How far a log is clean.

    Attributes:
        clean_end: Below this offset no key has two records, but for those that a pass may not drop.
        delete_horizon: Below this offset tombstones may be gone. Who read the log up to an earlier offset, and was away
            since, must read it from its start, or deleted keys stay alive there.
        tombstones: How many the last pass kept.
        passes: (end, time in ns): a tombstone was first found to be the last of its key by the first pass here
            whose end is above it. Both ascend.
    """

    clean_end: int = 0
    delete_horizon: int = 0
    tombstones: int = 0
    passes: tuple[tuple[int, int], ...] = ()

    def expired_end(self, now: int, delete_retention_ns: int) -> int:
        """Below this offset every tombstone was found at least `delete_retention_ns` ago."""
        return max((end for end, time in self.passes if time + delete_retention_ns <= now), default=0)

    def after_pass(self, end: int, now: int, tombstones: int, delete_retention_ns: int) -> Cleaned:
        """What is known when a pass that ended at `end` is over."""
        time = max(now, self.passes[-1][1]) if self.passes else now
        passes = [*self.passes, (end, time)] if end > self.clean_end else list(self.passes)
        expired = [each for each in passes if each[1] + delete_retention_ns <= now]
        passes = [*expired[-1:], *passes[len(expired) :]]
        if len(passes) > _PASSES_MAX:  # what the older one found counts as found by the younger one
            del passes[-2]
        return Cleaned(max(end, self.clean_end), self.delete_horizon, tombstones, tuple(passes))

    def with_delete_horizon(self, offset: int) -> Cleaned:
        """The same, when tombstones below `offset` are about to go."""
        return replace(self, delete_horizon=max(self.delete_horizon, offset))

    def cut(self, end: int) -> Cleaned:
        """What is known of a log that was cut back to `end`."""
        passes = {min(each, end): time for each, time in reversed(self.passes)}
        return Cleaned(min(self.clean_end, end), self.delete_horizon, self.tombstones, tuple(sorted(passes.items())))

    def encode(self) -> bytes:
        """The bytes of the file."""
        body = _BODY.pack(self.clean_end, self.delete_horizon, self.tombstones)
        body += b"".join(_PASS.pack(*each) for each in self.passes)
        return _HEAD.pack(_MAGIC, _VERSION, google_crc32c.value(body)) + body

    @classmethod
    def decode(cls, content: bytes) -> Cleaned | None:
        """What `encode` wrote; None when it did not write this."""
        body = content[_HEAD.size :]
        if content[: _HEAD.size] != _HEAD.pack(_MAGIC, _VERSION, google_crc32c.value(body)):
            return None
        if len(body) < _BODY.size or (len(body) - _BODY.size) % _PASS.size:
            return None
        clean_end, delete_horizon, tombstones = _BODY.unpack_from(body)
        passes = tuple((end, time) for end, time in _PASS.iter_unpack(body[_BODY.size :]))
        return cls(clean_end, delete_horizon, tombstones, passes)


def load_cleaned(disk: Disk, directory: Path, log_end: int) -> Cleaned:
    """What the file of a partition says; when it is damaged, the most cautious that it may have said.

    Args:
        disk: Disk that holds the files.
        directory: Directory of the partition.
        log_end: Offset after the last record of the log.
    """
    try:
        cleaned = Cleaned.decode(read_whole(disk, directory / _NAME))
    except FileNotFoundError:
        return Cleaned()
    return Cleaned(delete_horizon=log_end) if cleaned is None else cleaned


def save_cleaned(disk: Disk, directory: Path, cleaned: Cleaned) -> None:
    """Write the file, durably and as a whole."""
    write_atomically(disk, directory / _NAME, cleaned.encode())
