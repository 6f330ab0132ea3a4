"""Functions of columns that have to do with streams."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import Column

__all__ = ["partition_of"]


def partition_of(key: Column | str, partitions: int) -> Column:
    """The partition of a stream to which a record with a key goes, as publishers, nodes and the sink compute it.

    Repartitioned by it, each task of a write has the rows of some partitions only, and messages are as large as can be:

        df.repartitionById(n, partition_of("key", n)).write.format("liftpy")...

    Args:
        key: A column of binary values or strings; where it is null, so is the partition.
        partitions: How many the stream has.

    Raises:
        ValueError: a stream can not have so many.
    """
    from pyspark.sql.functions import col  # noqa: PLC0415 (tasks of the source import this package as well)

    if partitions < 1:
        raise ValueError(f"{partitions} is no number of partitions")
    column = col(key) if isinstance(key, str) else key
    return _function(partitions)(column.cast("binary"))


@cache
def _function(partition_count: int) -> Callable[..., Column]:
    from pyspark.sql.pandas.functions import arrow_udf  # noqa: PLC0415 (see above)

    # A lambda: without annotations Spark takes it for a function of columns. Others must be types, not their names.
    return cast("Callable[..., Column]", arrow_udf(lambda keys: _partitions(keys, partition_count), "int"))  # type: ignore[call-overload]  # (its stubs know no plain function)


def _partitions(keys: pa.BinaryArray, partition_count: int) -> pa.Int32Array:
    """Runs in a task."""
    import pyarrow as pa  # noqa: PLC0415 (see above)

    from liftpy_spark.sink.hashing import partitions_of  # noqa: PLC0415 (see above)

    found = partitions_of(keys.cast(pa.binary()), partition_count)
    return pa.array(found, pa.int32(), mask=found < 0)
