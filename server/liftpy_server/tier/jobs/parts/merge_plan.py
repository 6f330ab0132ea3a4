"""Which objects become one: those of a size, once there are a few of them side by side.

Sizes fall into classes, each four times the one below, as the levels of a log-structured merge tree. So a record is
written anew at most once per class on its way into an object of full size, however small the uploads are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_bucket.objects.pointers import StreamObjectPointer
    from liftpy_server.tier.jobs.parts.context import Context

__all__ = ["FAN", "run_to_merge", "sizes_to_merge"]

FAN: Final = 4
"""So many of a size become one."""

_SMALLEST_BYTES: Final = 64 * 1024


def sizes_to_merge(context: Context, fragments: Sequence[StreamObjectPointer]) -> list[int]:
    """Sizes of objects as `run_to_merge` wants them, bytes.

    What belongs to a partition of which this one is a fork stays as it is: it is there once for both.
    """
    return [context.object_bytes if each.home else each.size for each in fragments]


def run_to_merge(sizes: Sequence[int], object_bytes: int) -> range:
    """Places of neighbours that are to be merged next; empty where there are none.

    Args:
        sizes: Sizes of objects that follow on one another, oldest first, bytes.
        object_bytes: None grows beyond this. Those of more than half of it stay as they are.
    """
    levels = [_level_of(size) if size * 2 <= object_bytes else None for size in sizes]
    for level in sorted({level for level in levels if level is not None}):
        run = _run_of(sizes, levels, level, object_bytes)
        if run:
            return run
    return range(0)


def _level_of(size: int) -> int:
    level, bound = 0, _SMALLEST_BYTES
    while size >= bound:
        level, bound = level + 1, bound * FAN
    return level


def _run_of(sizes: Sequence[int], levels: Sequence[int | None], level: int, object_bytes: int) -> range:
    """The oldest run of objects of a level, or below, of which there are enough; empty where there is none."""
    start = total = 0
    for place, (size, there) in enumerate(zip(sizes, levels, strict=True)):
        if there is not None and there <= level and total + size <= object_bytes:
            total += size
            continue
        if place - start >= FAN:
            return range(start, place)
        fits = there is not None and there <= level
        start, total = (place, size) if fits else (place + 1, 0)
    return range(start, len(sizes)) if len(sizes) - start >= FAN else range(0)
