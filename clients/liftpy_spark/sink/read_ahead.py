"""Reads staged sections in few requests: a section is as small as the rows that one task has for one partition.

The sections of an object stand in the order of their partitions, and in about that order they are published. So what is
read of an object is a block of it, with the sections that come next; a small object is read whole. Sixty-four tasks for
ten thousand partitions stage 640,000 sections, which is some hundreds of requests then.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final

from liftpy_bucket.staging.source import SectionSource

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftpy_bucket.staging.section import Section

__all__ = ["ReadAhead"]

_BYTES_MAX: Final = 64 * 1024 * 1024  # of all blocks together
_BLOCK_BYTES_MIN: Final = 16 * 1024


class _Object:
    """A staged object, and the block of it that was read last."""

    def __init__(self) -> None:
        self.size = 0
        self.sections = 0
        self.lock = Lock()
        self.start = 0
        self.block = b""


class ReadAhead(SectionSource):
    """Reads the sections of one decision. Several threads use it at once; calls block.

    Args:
        place: Where they are.
        sections: All of them.
        bytes_max: Size of what is held, bytes.
    """

    def __init__(self, place: SectionSource, sections: Iterable[Section], bytes_max: int = _BYTES_MAX) -> None:
        self._place = place
        self._objects: dict[str, _Object] = {}
        for section in sections:
            found = self._objects.setdefault(section.key, _Object())
            found.size = max(found.size, section.start + section.length)
            found.sections += 1
        self._block_bytes = bytes_max // max(1, len(self._objects))
        self.loss = place.loss

    def read(self, key: str, start: int, length: int) -> bytes:
        """See `SectionSource.read`."""
        found = self._objects[key]
        if found.sections == 1 or length >= self._block_bytes or self._block_bytes < _BLOCK_BYTES_MIN:
            return self._place.read(key, start, length)
        with found.lock:
            if not found.start <= start <= start + length <= found.start + len(found.block):
                if start < found.start:  # of a partition that is slow; the others are further on
                    return self._place.read(key, start, length)
                begin = 0 if found.size <= self._block_bytes else start
                found.block = self._place.read(key, begin, min(self._block_bytes, found.size - begin))
                found.start = begin
            at = start - found.start
            return found.block[at : at + length]

    def name(self, key: str) -> str:
        """See `SectionSource.name`."""
        return self._place.name(key)
