"""Segment files with record batches of chosen records, and the slices of them that an upload is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from liftpy_envelope.batch import encode_body, encode_header
from liftpy_envelope.columns import Column
from liftpy_envelope.ipc import fixed_column, nullable_column, values_column

if TYPE_CHECKING:
    from pathlib import Path

START_NS = 1_700_000_000_000_000_000


class Shape(NamedTuple):
    """What records look like: what is made of one offset is always the same."""

    value_bytes: int = 20
    keys: int = 7
    records_per_batch: int = 10


SHAPE = Shape()


def value_of(offset: int, shape: Shape = SHAPE, tag: str = "") -> bytes:
    """The value of the record at an offset."""
    return f"{tag}{offset}.".encode().ljust(shape.value_bytes, b"%d" % (offset % 10))


def batch(base: int, end: int, epoch: int = 0, shape: Shape = SHAPE, tag: str = "") -> bytes:
    """One record batch with the records of [base, end)."""
    offsets = range(base, end)
    columns = [
        fixed_column([START_NS + 1_000_000 * offset for offset in offsets], "q"),
        values_column([b"orders.%d" % (offset % 3) for offset in offsets]),
        nullable_column([b"k%d" % (offset % shape.keys) for offset in offsets]),
        nullable_column([value_of(offset, shape, tag) for offset in offsets]),
    ]
    body = encode_body(end - base, Column.TIMESTAMP | Column.SUBJECT | Column.KEY | Column.VALUE, columns)
    times = (START_NS + 1_000_000 * base, START_NS + 1_000_000 * (end - 1))
    header = encode_header(body, base_offset=base, leader_epoch=epoch, base_timestamp=times[0], max_timestamp=times[1])
    return header + b"".join(bytes(part) for part in body.parts)


class LogFile:
    """A file with batches that follow on one another.

    Args:
        path: of the file.
        base: the first offset.
    """

    def __init__(self, path: Path, base: int = 0) -> None:
        self.path = path
        self.end = base
        self._batches: list[tuple[int, int, int, int]] = []  # base, end, position, length
        self.path.write_bytes(b"")

    def append(self, count: int, epoch: int = 0, shape: Shape = SHAPE, tag: str = "") -> int:
        """Append records; the offset after the last one."""
        end = self.end + count
        with self.path.open("ab") as file:
            while self.end < end:
                until = min(end, self.end + shape.records_per_batch)
                data = batch(self.end, until, epoch, shape, tag)
                self._batches.append((self.end, until, file.tell(), len(data)))
                file.write(data)
                self.end = until
        return end

    def slices(self, base: int, end: int) -> list[dict]:
        """One slice with all batches that hold anything of [base, end)."""
        wanted = [each for each in self._batches if each[1] > base and each[0] < end]
        position = wanted[0][2]
        length = wanted[-1][2] + wanted[-1][3] - position
        return [{"path": str(self.path), "position": position, "length": length}]
