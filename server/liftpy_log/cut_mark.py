"""A file beside a partition's segments that says where the log is being cut back, or was cut back last.

    <partition>/cut    magic u32 | version u32 | crc32c u32 (of the rest) | state u32 | end i64 | old_end i64
                       | base_offset i64 | position i64

    state CUTTING    the log ends at `end` from now on: segments that begin behind `base_offset` go, and the one that
                     begins there is cut to `position` bytes. Whoever opens the log finishes this first.
          RENEWING   every segment goes, and an empty one begins at `end`.
          DONE       it was finished.

A cut is several changes of the disk; the mark makes them one, since it is durable before the first of them. `DONE` is
durable before anything is appended. It stays, because records up to `old_end` were durable before the cut, and the
node's checkpoint may say so for a while: what it says of offsets from `end` to `old_end` does not count. Little-endian.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import google_crc32c

from liftpy_log.errors import PartitionOfflineError
from liftpy_log.storage.disk import read_whole, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from liftpy_log.storage.disk import Disk

__all__ = ["CutMark", "CutState", "load_cut_mark", "remove_cut_mark", "save_cut_mark"]

_NAME: Final = "cut"
_MAGIC: Final = 0x5455434C
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<III")
_BODY: Final = struct.Struct("<Iqqqq")


class CutState(IntEnum):
    """How far a cut is; see the module."""

    CUTTING = 1
    RENEWING = 2
    DONE = 3


_STATES: Final = frozenset(map(int, CutState))


class CutMark(NamedTuple):
    """What the file says; see the module."""

    state: CutState
    end: int
    old_end: int
    base_offset: int
    position: int

    def durable_end(self, claimed: int) -> int:
        """How much is known to be durable when a checkpoint that may be older than the cut claims so much."""
        if self.state is not CutState.DONE:
            return self.end
        return min(claimed, self.end) if claimed <= self.old_end else claimed

    def encode(self) -> bytes:
        """The bytes of the file."""
        body = _BODY.pack(*self)
        return _HEAD.pack(_MAGIC, _VERSION, google_crc32c.value(body)) + body

    @classmethod
    def decode(cls, content: bytes) -> CutMark | None:
        """What `encode` wrote; None when it did not write this."""
        body = content[_HEAD.size :]
        if len(body) != _BODY.size or content[: _HEAD.size] != _HEAD.pack(_MAGIC, _VERSION, google_crc32c.value(body)):
            return None
        state, *places = _BODY.unpack(body)
        return cls(CutState(state), *places) if state in _STATES else None


def load_cut_mark(disk: Disk, directory: Path) -> CutMark | None:
    """The mark of a partition; None when there is none.

    Raises:
        PartitionOfflineError: it is damaged.
    """
    path = directory / _NAME
    try:
        mark = CutMark.decode(read_whole(disk, path))
    except FileNotFoundError:
        return None
    if mark is None:
        raise PartitionOfflineError(
            f"{path} is damaged, or of another version of liftpy: it says where the log was cut back. The partition "
            "stays offline so that nothing comes back; restore the file from a copy, or delete this replica"
        )
    return mark


def save_cut_mark(disk: Disk, directory: Path, mark: CutMark) -> None:
    """Write the mark, durably and as a whole, together with what was done to names in the directory before."""
    write_atomically(disk, directory / _NAME, mark.encode())


def remove_cut_mark(disk: Disk, directory: Path) -> None:
    """Remove a mark that is done and says nothing any more."""
    disk.remove(directory / _NAME)
