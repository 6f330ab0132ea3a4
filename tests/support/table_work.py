"""What a driver is told to do with a table of a stream; it keeps the one that is open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.functions import input_file_name

from liftpy_spark.table.frame import StreamTable, table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from liftpy_spark.table.plan import ColdPartition

__all__ = ["hold", "let_go", "read_held", "schemes"]

_HELD: list[StreamTable] = []


def hold(session: SparkSession, stream: str, options: dict[str, Any]) -> dict[int, ColdPartition]:
    """Open a table; what Spark is to read of each partition by itself."""
    _HELD.append(table(session, stream, **options))
    return dict(_HELD[-1].cold)


def read_held(_session: SparkSession, where: str, columns: list[str]) -> pa.Table:
    """Rows of the table that is open, in the order of partition and offset."""
    return _HELD[-1].frame.where(where).orderBy("partition", "offset").select(*columns).toArrow()


def schemes(_session: SparkSession) -> dict[str, int]:
    """By what the address of their file begins with, how many rows of the table come from there; "" for no file."""
    scheme = input_file_name().substr(1, 6).alias("scheme")
    return {row["scheme"]: row["count"] for row in _HELD[-1].frame.groupBy(scheme).count().collect()}


def let_go(_session: SparkSession) -> None:
    """Close the table that is open."""
    _HELD.pop().release()
