"""Batches on their way to a stream, and the acks that are waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from liftpy_client.errors import UsageError
from liftpy_envelope.ack import Ack
from liftpy_envelope.errors import LiftError
from liftpy_envelope.headers import check_record_headers
from liftpy_envelope.limits import ENVELOPE_RECORDS_MAX

if TYPE_CHECKING:
    from collections.abc import Generator

    from liftpy_client.publisher.routes import Route

_BATCH_BYTES: Final = 2_048

__all__ = ["OutgoingBatch", "PendingAck", "as_table", "by_partition", "pieces_of"]


class PendingAck:
    """The ack of one message, to be awaited; it need not be, since `flush` and `close` tell of every failure."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: OutgoingBatch, index: int) -> None:
        self._batch = batch
        self._index = index

    def __await__(self) -> Generator[Any, None, Ack]:
        return self._wait().__await__()

    async def _wait(self) -> Ack:
        try:
            ack = await asyncio.shield(self._batch.done)
        except LiftError:
            self._batch.is_told = True
            raise
        behind = self._batch.count - 1 - self._index
        return Ack(
            stream=ack.stream,
            offset=ack.offset - behind,
            partition=ack.partition,
            epoch=ack.epoch,
            duplicate=ack.duplicate,
        )


class OutgoingBatch:
    """Messages of one subject and partition on their way.

    Args:
        route: How their subject is published.
        partition: Partition of all of the messages, where the stream has several.
        done: Gets the ack.
        size_max: Bytes at which it leaves.
    """

    __slots__ = (
        "count",
        "done",
        "headers",
        "is_told",
        "keys",
        "partition",
        "payload",
        "route",
        "size",
        "size_max",
        "timer",
        "values",
    )

    def __init__(self, route: Route, partition: int | None, done: asyncio.Future[Ack], size_max: int) -> None:
        self.route = route
        self.partition = partition
        self.done = done
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.headers: list[bytes | None] = []
        self.size = 0
        self.size_max = size_max
        self.count = 0
        self.timer: asyncio.TimerHandle | None = None
        self.payload: dict[str, pa.Array] | None = None
        self.is_told = False  # whether somebody who waits for an ack was told of the failure

    @property
    def weight(self) -> int:
        """Bytes that it takes while it has no ack: a batch of one message takes more than the message."""
        return self.size + _BATCH_BYTES

    def take(self, records: pa.Table) -> None:
        """Be these records, instead of messages that are gathered one by one."""
        self.payload = {name: _contiguous(records.column(name)) for name in records.column_names}
        self.count, self.size = records.num_rows, records.nbytes

    def release(self) -> None:
        """Let the records go: the batch is sent no more."""
        self.values, self.keys, self.headers, self.payload = [], [], [], {}

    def columns(self) -> dict[str, pa.Array]:
        """The records; what no message has is left out.

        Raises:
            UsageError: a value or key is not bytes.
        """
        if self.payload is None:
            try:
                self.payload = self._gathered()
            except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError) as error:
                raise UsageError(f"values and keys must be bytes: {error}") from None
        return self.payload

    def _gathered(self) -> dict[str, pa.Array]:
        columns = {"value": pa.array(self.values, pa.binary())}
        if any(key is not None for key in self.keys):
            columns["key"] = pa.array(self.keys, pa.binary())
        if any(self.headers):
            columns["headers"] = pa.array(self.headers, pa.binary())
        return columns


def _contiguous(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def as_table(records: pa.RecordBatch | pa.Table | Mapping[str, pa.Array]) -> pa.Table:
    """Records as a table of binary columns. Strings of Arrow are UTF-8, so they have bytes; those of Python have not.

    Raises:
        UsageError: the columns are not as they must be.
        HeaderError: a record has headers that a batch cannot honour.
    """
    try:
        if isinstance(records, pa.RecordBatch):
            table = pa.Table.from_batches([records])
        else:
            table = records if isinstance(records, pa.Table) else pa.table(dict(records))
    except (ValueError, TypeError) as error:  # Arrow's errors are among these
        raise UsageError(f"records must be a RecordBatch, a Table, or arrays by name: {error}") from None
    names = table.column_names
    if set(names) - {"value", "key", "headers"} or "value" not in names or len(set(names)) < len(names):
        raise UsageError(f"records have the columns value and, where wanted, key and headers, not {names}")
    if isinstance(records, Mapping):
        _check_lists(records, table.schema)
    try:
        table = table.cast(pa.schema([pa.field(name, pa.binary()) for name in names]))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UsageError(f"records must be of binary or string type: {error}") from None
    if "headers" in names:
        blocks = table.column("headers")
        for prefix in (b"\r\nLift-", b"\r\nNats-"):
            for block in blocks.filter(pc.match_substring(blocks, prefix)).to_pylist():
                check_record_headers(block)
    return table


def _check_lists(columns: Mapping[str, Any], schema: pa.Schema) -> None:
    """Refuse text in lists of Python, as `publish` does."""
    for name, column in columns.items():
        kind = schema.field(name).type
        if not isinstance(column, (pa.Array, pa.ChunkedArray)) and pa.types.is_string(kind):
            raise UsageError(f"column {name}: a list must hold bytes; encode text first, or pass a pyarrow.Array")


def by_partition(route: Route, table: pa.Table) -> list[tuple[int | None, pa.Table]]:
    """Records by the partition they belong to, in their order; None where the stream has only one.

    Keys are hashed once each, however many records have them, and the records are sorted by Arrow.
    """
    if not table.num_rows:
        return []
    if route.config.partitions == 1:
        return [(None, table)]
    if "key" not in table.column_names:
        return [(route.partition(None), table)]
    keys = table.column("key").dictionary_encode().unify_dictionaries()
    of_key = pa.array([route.partition(key) for key in keys.chunk(0).dictionary.to_pylist()], pa.int32())
    partitions = pa.chunked_array([of_key.take(chunk.indices) for chunk in keys.chunks])
    partitions = pc.fill_null(partitions, route.partition(None))
    table = table.take(pc.sort_indices(partitions))  # a stable sort
    shares, begin = [], 0
    for partition, count in sorted((item["values"], item["counts"]) for item in partitions.value_counts().to_pylist()):
        shares.append((partition, table.slice(begin, count)))
        begin += count
    return shares


def pieces_of(table: pa.Table, bytes_max: int) -> list[pa.Table]:
    """Cut a table so that each piece fits a payload.

    Raises:
        UsageError: one record alone does not.
    """
    if table.nbytes <= bytes_max and table.num_rows <= ENVELOPE_RECORDS_MAX:
        return [table]
    if table.num_rows == 1:
        raise UsageError(f"a record of {table.nbytes} bytes is over what one batch may hold ({bytes_max})")
    half = table.num_rows // 2
    return pieces_of(table.slice(0, half), bytes_max) + pieces_of(table.slice(half), bytes_max)
