"""Neighbours that one task takes together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_bucket.reading.version import Piece

__all__ = ["TASK_BYTES", "bins_of", "bytes_of"]

TASK_BYTES: Final = 64 * 1024 * 1024
"""About how much a task reads: some seconds of work."""


def bytes_of(piece: Piece) -> int:
    """How many bytes are read for a piece."""
    return piece.size


def bins_of(sizes: Sequence[int], bytes_max: int) -> list[range]:
    """Places of neighbours that make up to `bytes_max` together; one that is larger is alone.

    Args:
        sizes: Bytes of each.
        bytes_max: Maximum bytes of a bin.
    """
    bins = []
    start = total = 0
    for place, size in enumerate(sizes):
        if place > start and total + size > bytes_max:
            bins.append(range(start, place))
            start, total = place, 0
        total += size
    return [*bins, range(start, len(sizes))] if len(sizes) > start else bins
