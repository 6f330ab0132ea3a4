"""Which partitions have work waiting in the bucket: merging, compaction, collection. Pure; `dirty_log` keeps it.

A partition is marked when something was written for it, and settled when the work was done, so that what background
work costs follows what was written, and not how many streams there are. A mark says since which offset, since when, and
how often the partition was put back because its work was not finished; whoever was put back too often, or waits too
long, comes first. The table is bounded: when it is full, new marks are refused, and whoever writes has to wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_log.tier.errors import TierError
from liftpy_log.tier.layout import PartitionPath
from liftpy_log.tier.manifest_json import UUID, Fields, encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["MARKS_MAX", "DirtyFullError", "DirtyMark", "DirtyTable", "decode_change", "encode_change"]

MARKS_MAX: Final = 100_000
_REINSERTIONS_MAX: Final = 10
_FIELDS: Final = ("marks", "settled", "whole")


class DirtyFullError(TierError):
    """So many partitions wait for background work that no more are taken: wait until it has caught up."""

    retriable = True


class DirtyMark(NamedTuple):
    """A partition that has work waiting.

    Attributes:
        path: of the partition.
        since: the first offset that was not worked on.
        first_ns: when it was marked first, ns since the epoch.
        reinsertions: how often it was put back since.
    """

    path: PartitionPath
    since: int
    first_ns: int
    reinsertions: int = 0


class DirtyTable:
    """See the module. What changes it returns the marks to be noted, and notes them only with `apply`.

    Args:
        marks_max: how many partitions may be marked.
    """

    def __init__(self, marks_max: int = MARKS_MAX) -> None:
        self._marks: dict[PartitionPath, DirtyMark] = {}
        self._marks_max = marks_max

    def __len__(self) -> int:
        return len(self._marks)

    def __iter__(self) -> Iterator[DirtyMark]:
        return iter(tuple(self._marks.values()))

    def new_marks(self, written: Iterable[tuple[PartitionPath, int]], now_ns: int) -> tuple[DirtyMark, ...]:
        """The marks that something written takes; () where all partitions are marked already.

        Args:
            written: (partition, first offset written).
            now_ns: the time, ns since the epoch.

        Raises:
            DirtyFullError: there would be too many.
        """
        found: dict[PartitionPath, DirtyMark] = {}
        for path, since in written:
            known = found.get(path) or self._marks.get(path)
            if known is None:
                found[path] = DirtyMark(path, since, now_ns)
            elif since < known.since:
                found[path] = known._replace(since=since)
        count = len(self._marks.keys() | found.keys())
        if count > self._marks_max:
            raise DirtyFullError(
                f"{count} partitions would wait for work in the bucket, and {self._marks_max} may: "
                "wait until merging and collection have caught up"
            )
        return tuple(found.values())

    def put_back(self, path: PartitionPath, since: int) -> DirtyMark | None:
        """The mark of a partition whose work went up to `since` and is not finished; None where it has none."""
        known = self._marks.get(path)
        return known and known._replace(since=max(since, known.since), reinsertions=known.reinsertions + 1)

    def order(self, now_ns: int, age_max_ns: int) -> list[DirtyMark]:
        """All marks, those first that were put back too often or are too old, then the oldest first.

        Args:
            now_ns: the time, ns since the epoch.
            age_max_ns: how long a partition may wait, ns.
        """

        def key(mark: DirtyMark) -> tuple[bool, int]:
            is_urgent = mark.reinsertions >= _REINSERTIONS_MAX or now_ns - mark.first_ns >= age_max_ns
            return not is_urgent, mark.first_ns

        return sorted(self._marks.values(), key=key)

    def apply(self, marks: Iterable[DirtyMark], settled: Iterable[PartitionPath] = (), *, whole: bool = False) -> None:
        """Note a change.

        Args:
            marks: that were made, in place of those that the same partitions have.
            settled: partitions whose work is done.
            whole: forget everything before.
        """
        if whole:
            self._marks.clear()
        for path in settled:
            self._marks.pop(path, None)
        self._marks.update((mark.path, mark) for mark in marks)


def encode_change(
    key: str, marks: Iterable[DirtyMark], settled: Iterable[PartitionPath] = (), *, whole: bool = False
) -> bytes:
    """A change, as a record of the log; for the arguments see `DirtyTable.apply`, `key` is of the log."""
    plain = {
        "marks": [[*mark.path, mark.since, mark.first_ns, mark.reinsertions] for mark in marks],
        "settled": [[*path] for path in settled],
        "whole": whole,
    }
    return encode(key, plain)


def decode_change(key: str, data: bytes) -> tuple[tuple[DirtyMark, ...], tuple[PartitionPath, ...], bool]:
    """Read what `encode_change` wrote: what is to be applied.

    Raises:
        ManifestCorruptError: it is not such a record.
        BucketVersionError: a newer liftpy wrote it.
    """
    fields = Fields.of_body(key, data, _FIELDS)
    marks = tuple(
        DirtyMark(PartitionPath(row.text(0, UUID), row.number(1)), row.number(2), row.number(3), row.number(4))
        for row in fields.rows("marks", 5)
    )
    settled = tuple(PartitionPath(row.text(0, UUID), row.number(1)) for row in fields.rows("settled", 2))
    return marks, settled, fields.flag("whole")
