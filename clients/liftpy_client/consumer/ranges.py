"""A range of a stream as one Arrow table or one pandas frame, in no more memory than was agreed to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from liftpy_client.consumer.decode import EXTRA_COLUMNS, RECORDS_SCHEMA, records_schema
from liftpy_client.errors import UsageError
from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Sequence

__all__ = ["PandasMissingError", "RangeTooLargeError", "check_columns", "check_pandas", "read_range", "to_frame"]


class RangeTooLargeError(LiftError):
    """A range of a stream needs more memory than was agreed to.

    Attributes:
        rows: How many fitted.
        bytes_max: What was agreed to.
    """

    def __init__(self, stream: str, rows: int, bytes_max: int) -> None:
        super().__init__(
            f"the range of stream {stream} needs more than {bytes_max} bytes: {rows} messages fitted; ask for a "
            "smaller range, fewer columns or subjects, a larger bytes_max, or go through it with consume_batches"
        )
        self.rows = rows
        self.bytes_max = bytes_max


class PandasMissingError(LiftError, ImportError):
    """pandas is not installed; liftpy does not need it otherwise."""

    def __init__(self) -> None:
        super().__init__("to_pandas needs pandas: pip install pandas; to_arrow does without")


def check_columns(columns: Sequence[str] | None, extra: tuple[str, ...] = ()) -> list[str]:
    """The columns to read, by default those of `records_schema(extra)`.

    Raises:
        UsageError: there is no such column, or none is named, or one twice.
    """
    if columns is None:
        return list(records_schema(extra).names)
    names = records_schema(EXTRA_COLUMNS).names
    unknown = [column for column in columns if column not in names]
    if isinstance(columns, str) or unknown or not columns or len(set(columns)) < len(columns):
        raise UsageError(f"columns: {columns!r} is not a list of some of {', '.join(names)}")
    return list(columns)


async def read_range(
    stream: str, batches: AsyncIterable[pa.RecordBatch], columns: list[str], bytes_max: int
) -> pa.Table:
    """All batches as a table, partition after partition.

    Args:
        stream: Name of the stream, for errors.
        batches: Batches of any partitions, in order within each.
        columns: Checked ones.
        bytes_max: How large the table may be.

    Raises:
        RangeTooLargeError: it is larger.
    """
    of_partition: dict[int, list[pa.RecordBatch]] = {}
    rows = size = 0
    is_all = columns == RECORDS_SCHEMA.names
    async for batch in batches:
        partition = batch.column("partition")[0].as_py()
        wanted = batch
        if not is_all:
            # What is left is copied, since it would keep the memory of what was left out.
            wanted = batch.select(columns)
            wanted = pa.concat_batches([wanted, wanted.slice(0, 0)])
        size += wanted.nbytes
        if size > bytes_max:
            raise RangeTooLargeError(stream, rows, bytes_max)
        rows += wanted.num_rows
        of_partition.setdefault(partition, []).append(wanted)
    ordered = [batch for _, run in sorted(of_partition.items()) for batch in run]
    schema = records_schema(EXTRA_COLUMNS)
    return pa.Table.from_batches(ordered, pa.schema([schema.field(column) for column in columns]))


def check_pandas() -> None:
    """See that there is pandas, before anything is read.

    Raises:
        PandasMissingError: there is not.
    """
    try:
        __import__("pandas")
    except ImportError:
        raise PandasMissingError from None


def to_frame(table: pa.Table) -> Any:
    """A table as a pandas frame; the table is taken apart by that, so that both need not be in memory at once."""
    return table.to_pandas(split_blocks=True, self_destruct=True)
