"""Local logs that workers can upload, written without a node."""

from __future__ import annotations

import os
import time

import numpy as np

from liftpy_envelope.batch import encode_body, encode_header
from liftpy_envelope.columns import Column
from liftpy_envelope.ipc import fixed_column, nullable_column, values_column

__all__ = ["BATCH_BYTES", "LogFile"]

BATCH_BYTES = 1 << 20  # of values
_VARIANTS = 16  # of batches that differ from each other


class LogFile:
    """A file with record batches of some MiB in all, whose values are drawn by chance.

    Args:
        path: Path of the file.
        size: Size of a value, bytes.
        batch_bytes: Size of the values of a batch, bytes.
    """

    def __init__(self, path, size, batch_bytes=BATCH_BYTES):
        self.path = path
        self.records_per_batch = batch_bytes // size
        self._bodies = [_body(self.records_per_batch, size) for _ in range(_VARIANTS)]
        self._times = (time.time_ns(), time.time_ns() + 1)
        self.end = 0
        self.bytes = 0

    def start_over(self):
        """Forget the batches, and go on with the offsets."""
        self.path.write_bytes(b"")
        self.bytes = 0

    def write(self, batches):
        """Append record batches. Returns (first offset, the one after the last, slices of them)."""
        base, position = self.end, self.bytes
        with self.path.open("ab") as file:
            for _ in range(batches):
                body = self._bodies[self.end // self.records_per_batch % _VARIANTS]
                first, last = self._times
                header = encode_header(
                    body, base_offset=self.end, leader_epoch=0, base_timestamp=first, max_timestamp=last
                )
                data = header + b"".join(bytes(part) for part in body.parts)
                file.write(data)
                self.end += self.records_per_batch
                self.bytes += len(data)
        return base, self.end, [{"path": str(self.path), "position": position, "length": self.bytes - position}]


def _body(count, size):
    noise = os.urandom(count * size)
    times = time.time_ns() + np.arange(count) * 1_000
    columns = [
        fixed_column(times.tolist(), "q"),
        values_column([b"orders.%d" % (number % 7) for number in range(count)]),
        nullable_column([noise[number * size : (number + 1) * size] for number in range(count)]),
    ]
    return encode_body(count, Column.TIMESTAMP | Column.SUBJECT | Column.VALUE, columns)
