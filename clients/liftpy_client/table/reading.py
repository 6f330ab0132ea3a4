"""Reads a stream from its beginning into the rows of a table, and follows it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self

from liftpy_client.connection.cancelling import end_tasks
from liftpy_client.consumer.consumer import BatchConsumer
from liftpy_client.errors import TableTooLargeError
from liftpy_client.table.rows import TableRows
from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    import pyarrow as pa

    from liftpy_client.connection.session import Session
    from liftpy_client.consumer.options import ConsumeOptions

__all__ = ["TableReading", "TombstonesGoneError"]

_ROWS_AT_ONCE: Final = 4_096  # some 5 ms of work, after which others have their turn


class TombstonesGoneError(LiftError):
    """Keys may have been deleted without notice: their tombstones were compacted away before they were read."""


class TableReading:
    """One reading of a stream into rows. Use it in an `async with`, which starts and ends the reading.

    Args:
        session: Connections and the cluster's metadata.
        stream: Name of the stream.
        partitions: Numbers of the partitions; None for all.
        options: Fetch options.
        bytes_max: Limit of the memory that the rows take.
        before: Called with records before they are applied.
        after: Called after records were applied, and when the reading ends.

    Attributes:
        rows: Rows read so far.
    """

    def __init__(
        self,
        session: Session,
        stream: str,
        partitions: Sequence[int] | None,
        options: ConsumeOptions,
        bytes_max: int,
        before: Callable[[TableReading, pa.RecordBatch], None],
        after: Callable[[], None],
    ) -> None:
        self.rows = TableRows()
        self._stream = stream
        self._bytes_max = bytes_max
        self._before = before
        self._after = after
        self._offsets: dict[int, int] = {}
        self._delete_horizon: dict[int, int] = {}
        self._has_applied_all = False
        self._consumer = BatchConsumer(session, [stream], "earliest", None, partitions, options)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._read(), name=f"table {self._stream}")
        self._task.add_done_callback(lambda _: self._after())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        await end_tasks([self._task])

    def offset(self, partition: int) -> int:
        """Everything of a partition below this offset is in the rows."""
        if self._has_applied_all:  # then a position also tells of records that are not there any more
            return max(self._consumer.position(partition), self._offsets.get(partition, 0))
        return self._offsets.get(partition, 0)

    def offsets(self) -> dict[int, int]:
        """`offset` of every partition of which something was read."""
        return {number: self.offset(number) for number in self._offsets}

    def has_passed(self, ends: dict[int, int]) -> bool:
        """Whether everything below these offsets is in the rows."""
        return all(self.offset(number) >= end for number, end in ends.items())

    def check(self) -> None:
        """See whether the reading goes on.

        Raises:
            LiftError: it has failed.
        """
        if self._task is not None and self._task.done():
            self._task.result()

    async def ended(self) -> None:
        """Wait until the reading fails.

        Raises:
            LiftError: why.
        """
        assert self._task is not None
        await self._task

    async def _read(self) -> None:
        async with self._consumer:
            self._has_applied_all = True
            async for records in self._consumer:
                self._has_applied_all = False
                partition = records.column("partition")[0].as_py()
                self._check_gone(partition)
                for at in range(0, records.num_rows, _ROWS_AT_ONCE):
                    self._take(partition, records.slice(at, _ROWS_AT_ONCE))
                    await asyncio.sleep(0)
                self._offsets[partition] = self._consumer.position(partition)
                self._has_applied_all = True
                self._after()

    def _check_gone(self, partition: int) -> None:
        """See that no tombstone can have gone between what was read before and what is there now.

        Those that were gone when the reading began are no harm: what they deleted had gone before them.

        Raises:
            TombstonesGoneError: one may have.
        """
        delete_horizon = self._consumer.delete_horizon(partition)
        known = self._delete_horizon.setdefault(partition, delete_horizon)
        if delete_horizon <= known:
            return
        read = self._offsets.get(partition, 0)
        if read < delete_horizon:
            raise TombstonesGoneError(
                f"partition {partition} was read up to offset {read}, and tombstones up to "
                f"{delete_horizon - 1} are gone"
            )
        self._delete_horizon[partition] = delete_horizon

    def _take(self, partition: int, records: pa.RecordBatch) -> None:
        self._before(self, records)
        self.rows.apply(records)
        if self.rows.bytes > self._bytes_max:
            raise TableTooLargeError(self._stream, self._bytes_max, len(self.rows.values))
        self._offsets[partition] = records.column("offset")[-1].as_py() + 1
        self._after()
