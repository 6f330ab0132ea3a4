"""The dirty log of a node: its `DirtyTable`, kept in an object log under `dirty/<node>/`.

Every change is a record. When there are many of them the whole table is written as one, and what lies before it is
trimmed. When a node dies another adopts its log: it takes over the marks, in its own log first, and then empties the
other one; should it crash between, they are taken over once more, which is harmless. A node that is adopted while it
still lives learns of it at its next change, as its log has another writer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy_log.tier.dirty import DirtyMark, DirtyTable, decode_change, encode_change
from liftpy_log.tier.object_log import ObjectLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from liftpy_log.tier.layout import PartitionPath
    from liftpy_log.tier.store import ObjectStore

__all__ = ["DirtyLog"]

_RECORDS_MAX: Final = 64  # until the table is written as a whole


class DirtyLog:
    """See the module. For one thread at a time.

    Args:
        store: where.
        node: whose.
        writer: who writes: the node, or who adopts its log.
        new_id: gives a new unique id.
        records_max: how many records there may be before the table is written as a whole.

    Attributes:
        table: as the log has it.
    """

    def __init__(
        self,
        store: ObjectStore,
        node: str,
        *,
        writer: str,
        new_id: Callable[[], str],
        records_max: int = _RECORDS_MAX,
    ) -> None:
        self._key = f"dirty/{node}/"
        self._log = ObjectLog(store, self._key, writer=writer, new_id=new_id)
        self._records_max = records_max
        self.table = DirtyTable()
        self._start, end = self._log.start(), self._log.end()
        for data in self._log.read_range(self._start, end):
            marks, settled, whole = decode_change(self._key, data)
            self.table.apply(marks, settled, whole=whole)

    def mark(self, written: Iterable[tuple[PartitionPath, int]], now_ns: int) -> int:
        """Mark partitions for which something was written; says how many were not marked before, or later.

        Args:
            written: (partition, first offset written).
            now_ns: the time, ns since the epoch.

        Raises:
            DirtyFullError: too many partitions wait; nothing was marked.
            AnotherWriterError: the log was adopted by another node.
            StoreError: the store does not take it.
        """
        marks = self.table.new_marks(written, now_ns)
        self._note(marks)
        return len(marks)

    def settle(self, done: Iterable[PartitionPath], unfinished: Iterable[tuple[PartitionPath, int]] = ()) -> None:
        """Say what became of the work. Raises as `mark`.

        Args:
            done: partitions that need no work until they are marked again.
            unfinished: (partition, first offset that was not worked on): they stay marked.
        """
        back = (self.table.put_back(path, since) for path, since in unfinished)
        self._note([mark for mark in back if mark is not None], tuple(done))

    def adopt(self, other: DirtyLog) -> int:
        """Take over the marks of a node that is dead; says how many partitions they were. Raises as `mark`.

        Args:
            other: its log, opened with this node as the writer.
        """
        taken = tuple(other.table)
        oldest = min((mark.first_ns for mark in taken), default=0)
        self.mark(((mark.path, mark.since) for mark in taken), oldest)
        other.clear()
        return len(taken)

    def clear(self) -> None:
        """Forget everything. Raises as `mark`."""
        self._write((), (), whole=True)

    def _note(self, marks: Iterable[DirtyMark], settled: tuple[PartitionPath, ...] = ()) -> None:
        marks = tuple(marks)
        if not marks and not settled:
            return
        if self._write(marks, settled) - self._start >= self._records_max:
            self._write(tuple(self.table), whole=True)

    def _write(
        self, marks: tuple[DirtyMark, ...], settled: tuple[PartitionPath, ...] = (), *, whole: bool = False
    ) -> int:
        """Write a change, and note it; gives its sequence."""
        sequence = self._log.append(encode_change(self._key, marks, settled, whole=whole))
        self.table.apply(marks, settled, whole=whole)
        if whole:
            self._log.trim(sequence)
            self._start = sequence
        return sequence
