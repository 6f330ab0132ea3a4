"""The log of a partition as its leaders have it: a segment file, and the records in it as plain values."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, NamedTuple

from liftpy_bucket.objects.read import trimmed
from liftpy_bucket.objects.rows.convert import rows_of_many
from liftpy_bucket.objects.setsum import NO_RECORDS
from liftpy_envelope.batch import encode_body, encode_header
from liftpy_envelope.columns import Column
from liftpy_envelope.ipc import fixed_column, nullable_column, values_column
from liftpy_server.tier.jobs.parts.slices import batches_in
from liftpy_server.tier.requests import LogSlice

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    from liftpy_bucket.objects.setsum import Setsum

START_NS = 1_700_000_000_000_000_000
BATCH_RECORDS = 8


class Row(NamedTuple):
    """A record, as it is compared."""

    offset: int
    epoch: int
    timestamp_ns: int
    key: bytes | None
    value: bytes | None


class WorldLog:
    """See the module.

    Args:
        path: of the file.
        tombstones: every so many records one; 0 for none.
        keys: how many there are.
    """

    def __init__(self, path: Path, *, tombstones: int, keys: int) -> None:
        self.path, self.tombstones, self.keys = path, tombstones, keys
        self.rows: list[Row] = []
        self.epochs: list[tuple[int, int]] = []
        self._batches: list[tuple[int, int, int, int]] = []
        path.write_bytes(b"")

    @property
    def end(self) -> int:
        return len(self.rows)

    def copy(self, path: Path, end: int) -> WorldLog:
        """The same up to `end`."""
        other = WorldLog(path, tombstones=self.tombstones, keys=self.keys)
        shutil.copyfile(self.path, path)
        other.rows = self.rows[:end]
        other.epochs = [row for row in self.epochs if row[1] < end]
        other._batches = [each for each in self._batches if each[0] < end]
        return other

    def begin(self, epoch: int) -> None:
        """A leader begins."""
        self.epochs = [row for row in self.epochs if row[1] < self.end]
        self.epochs.append((epoch, self.end))

    def epochs_until(self, epoch: int) -> list[list[int]]:
        """As a leader knows them."""
        return [[each, start] for each, start in self.epochs if each <= epoch]

    def end_of(self, epoch: int) -> int:
        """Where the log ends for a leader, who knows nothing of later ones."""
        return min((start for each, start in self.epochs if each > epoch), default=self.end)

    def append(self, count: int, epoch: int) -> None:
        """Append records, in batches of a few."""
        if not self.epochs:
            self.epochs.append((epoch, 0))
        with self.path.open("ab") as file:
            while count:
                rows = [self._row(self.end + number, epoch) for number in range(min(count, BATCH_RECORDS))]
                data = _batch(rows)
                self._batches.append((rows[0].offset, rows[-1].offset + 1, file.tell(), len(data)))
                file.write(data)
                self.rows += rows
                count -= len(rows)

    def _row(self, offset: int, epoch: int) -> Row:
        key = b"k%d" % (offset * 7 % self.keys) if offset % 9 else None
        is_tombstone = self.tombstones and key is not None and offset % self.tombstones == 0
        return Row(offset, epoch, START_NS + 1_000_000 * offset, key, None if is_tombstone else b"v%d" % offset)

    def sum_until(self, end: int, sum_of: Callable[[pa.RecordBatch], Setsum]) -> Setsum:
        """Of all records below `end`."""
        total = NO_RECORDS
        batches = batches_in([LogSlice(**each) for each in self.slices(0, end)], 0, end) if end else ()
        for rows in rows_of_many(batches, keeps_replies=False):
            total += sum_of(trimmed(rows, 0, end))
        return total

    def slices(self, base: int, end: int) -> list[dict]:
        """One slice with all batches that hold anything of [base, end)."""
        wanted = [each for each in self._batches if each[1] > base and each[0] < end]
        position = wanted[0][2]
        return [{"path": str(self.path), "position": position, "length": wanted[-1][2] + wanted[-1][3] - position}]


def _batch(rows: list[Row]) -> bytes:
    columns = [
        fixed_column([row.timestamp_ns for row in rows], "q"),
        values_column([b"orders" for _ in rows]),
        nullable_column([row.key for row in rows]),
        nullable_column([row.value for row in rows]),
    ]
    body = encode_body(len(rows), Column.TIMESTAMP | Column.SUBJECT | Column.KEY | Column.VALUE, columns)
    header = encode_header(
        body,
        base_offset=rows[0].offset,
        leader_epoch=rows[0].epoch,
        base_timestamp=rows[0].timestamp_ns,
        max_timestamp=rows[-1].timestamp_ns,
    )
    return header + b"".join(bytes(part) for part in body.parts)
