"""Gathers the record batches of a partition until there are enough rows, or until they have waited long enough."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from liftpy_client.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from liftpy_client.processing.options import Batch
    from liftpy_client.processing.schedule import Schedule, Work
    from liftpy_envelope.pull import PartitionKey

__all__ = ["GatheredBatch", "Gatherer"]

_COLUMNS: Final = ("partition", "offset", "subject", "key", "headers", "value")


class GatheredBatch:
    """Record batches of one partition that are handled together.

    Attributes:
        stream: Name of the stream.
        rows: Number of rows.
    """

    __slots__ = ("_parts", "rows", "stream")

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.rows = 0
        self._parts: list[pa.RecordBatch] = []

    def append(self, records: pa.RecordBatch) -> None:
        """Add rows."""
        self._parts.append(records)
        self.rows += records.num_rows

    def records(self) -> pa.RecordBatch:
        """Return all rows as one record batch."""
        if len(self._parts) > 1:
            self._parts = [pa.concat_batches(self._parts)]
        return self._parts[0]

    def messages(self) -> Iterator[Message]:
        """Return the rows as messages."""
        records = self.records()
        columns = [records.column(name) for name in _COLUMNS]
        times = records.column("timestamp").cast(pa.int64())
        for row in range(records.num_rows):
            partition, offset, subject, key, block, value = (column[row].as_py() for column in columns)
            yield Message(self.stream, partition, offset, times[row].as_py(), subject, key, block, value)


class Gatherer:
    """Makes batches of what is read.

    Args:
        schedule: Gets the batches.
        batch: How large they are, and how long they wait.
        on_ready: Called when a batch is complete.
    """

    def __init__(self, schedule: Schedule, batch: Batch, on_ready: Callable[[], None]) -> None:
        self._schedule = schedule
        self._batch = batch
        self._on_ready = on_ready
        self._open: dict[PartitionKey, tuple[Work, GatheredBatch, asyncio.TimerHandle]] = {}

    def add(self, stream: str, key: PartitionKey, epoch: int, records: pa.RecordBatch) -> None:
        """Add rows of a partition."""
        while records.num_rows:
            opened = self._open.get(key)
            room = self._batch.rows - (0 if opened is None else opened[1].rows)
            some = records.slice(0, room)
            records = records.slice(some.num_rows)
            offsets = some.column("offset")
            end, size = offsets[-1].as_py() + 1, some.nbytes
            if opened is None:
                gathered = GatheredBatch(stream)
                work = self._schedule.open(key, key, offsets[0].as_py(), end, epoch, size, gathered)
                timer = asyncio.get_running_loop().call_later(self._batch.wait_s, self._seal, key)
                opened = self._open[key] = work, gathered, timer
            else:
                self._schedule.grow(opened[0], end, epoch, size)
            opened[1].append(some)
            if opened[1].rows >= self._batch.rows:
                self._seal(key)

    def _seal(self, key: PartitionKey) -> None:
        work, _, timer = self._open.pop(key)
        timer.cancel()
        self._schedule.seal(work)
        self._on_ready()

    def seal_all(self) -> None:
        """Wait for nothing more: there is no room for it."""
        for key in list(self._open):
            self._seal(key)

    def drop(self, key: PartitionKey) -> None:
        """Forget what was gathered of a partition."""
        opened = self._open.pop(key, None)
        if opened is not None:
            opened[2].cancel()
