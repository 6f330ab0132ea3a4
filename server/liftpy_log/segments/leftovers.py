"""What a crash amid a swap of segments leaves, and how it is finished; see `liftpy_log.compaction.swap`."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final

from liftpy_log.segments.recovery import find_end

if TYPE_CHECKING:
    from pathlib import Path

    from liftpy_log.segments.segment import Segment
    from liftpy_log.storage.disk import Disk
    from liftpy_log.storage.files import FileCache

__all__ = ["drop_leftovers", "drop_replaced", "generation_of"]

logger = logging.getLogger(__name__)

_LEFT: Final = re.compile(r"[0-9]{20}(?:\.c[0-9]{8})?\.log\.(?:tmp|gone)")
_COMPACTED: Final = re.compile(r"[0-9]{20}\.c([0-9]{8})\.log")


def generation_of(name: str) -> int:
    """How often the segment with this file name was compacted; 0 when it never was."""
    found = _COMPACTED.fullmatch(name)
    return int(found[1]) if found else 0


def drop_leftovers(disk: Disk, directory: Path) -> None:
    """Remove the files that a pass left which did not come to its end; no pass may be at work.

    Raises:
        OSError: some may be left; they take room, and nothing else.
    """
    for name in disk.names(directory):
        if _LEFT.fullmatch(name):
            disk.remove(directory / name)


def drop_replaced(disk: Disk, files: FileCache, segments: list[Segment]) -> None:
    """Delete the segments that a compacted one covers, durably.

    Args:
        disk: Disk that holds the files.
        files: The node's open files.
        segments: Segments that were found, in the order of their base offsets; what is deleted is taken from the list.

    Raises:
        OSError: some may be left, and are found again.
    """
    compacted = [segment for segment in segments if segment.generation]
    for segment in sorted(compacted, key=lambda each: each.generation, reverse=True):
        if segment not in segments:
            continue
        elders = [each for each in segments if _may_be_replaced(each, segment)]
        if not elders:
            continue
        end = find_end(segment, files.get(segment))
        replaced = [each for each in elders if each.base_offset < end]
        for each in replaced:
            logger.info("%s was replaced by %s before the crash, and is removed", each.path, segment.path)
            files.forget(each)
            each.remove()
            segments.remove(each)
        if replaced:
            disk.sync_directory(segment.path.parent)


def _may_be_replaced(segment: Segment, by: Segment) -> bool:
    return segment.generation < by.generation and segment.base_offset >= by.base_offset
