"""Whether two histories of leader epochs are of the same log.

A history is (leader epoch, first offset) rows, oldest first. Where a log begins later than another, the first row of
its history tells only which epoch that offset is of: histories are compared where both know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_bucket.errors import LineageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["check_lineage", "cut_epochs", "join_epochs"]

Epochs = tuple[tuple[int, int], ...]


def cut_epochs(epochs: Sequence[tuple[int, int]], start: int, end: int) -> Epochs:
    """What a history says of [start, end): the epoch of `start`, if it knows, and those that begin after it."""
    rows: list[tuple[int, int]] = []
    for epoch, first in epochs:
        if first >= end:
            break
        if first <= start:
            rows.clear()
        rows.append((epoch, max(first, start)))
    return tuple(rows)


def join_epochs(earlier: Sequence[tuple[int, int]], later: Sequence[tuple[int, int]]) -> Epochs:
    """A history and what follows on it; a row that goes on with the same epoch is none."""
    rows = list(earlier)
    for epoch, first in later:
        if not rows or epoch != rows[-1][0]:
            rows.append((epoch, first))
    return tuple(rows)


def check_lineage(
    what: str, bucket: Sequence[tuple[int, int]], log: Sequence[tuple[int, int]], start: int, end: int
) -> None:
    """Check that the histories of bucket and log agree on [start, end), as far as both know it.

    Args:
        what: Name of what is checked, for the message.
        bucket: What the bucket says.
        log: What the leader's log says.
        start: The first offset that both may know.
        end: The offset after the last one.

    Raises:
        LineageError: they do not; says from which offset on.
    """
    if not bucket or not log:
        return
    start = max(start, bucket[0][1], log[0][1])
    if start >= end:
        return
    ours, theirs = cut_epochs(bucket, start, end), cut_epochs(log, start, end)
    if ours == theirs:
        return
    different = sorted({*ours} ^ {*theirs}, key=lambda row: row[1])
    offset = different[0][1]
    raise LineageError(
        f"{what}: from offset {offset} on the bucket holds another history than the log: there the record is of leader "
        f"epoch {_at(bucket, offset)}, here of {_at(log, offset)}. One of them was written by a leader that the other "
        f"never had; nothing is uploaded, so that neither is lost"
    )


def _at(epochs: Sequence[tuple[int, int]], offset: int) -> int:
    return max((epoch for epoch, first in epochs if first <= offset), default=-1)
