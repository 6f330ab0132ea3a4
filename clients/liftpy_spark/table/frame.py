"""A stream as one DataFrame whose history Spark reads from the bucket by itself, and whose end the source reads.

For clusters whose JVM reaches the bucket (`s3a://` of Hadoop, `s3://` of EMR or Databricks): there Spark's own Parquet
reader prunes columns and row groups by what the query asks for, which Python data sources are not told. Where the one
part ends and the other begins is a pinned version of every partition, so both fit together whatever is merged,
compacted or taken away meanwhile.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Self

from pyspark.sql.functions import col, lit

from liftpy_spark.connections import bucket_address, lift, open_bucket
from liftpy_spark.errors import BucketError
from liftpy_spark.options.connection import ConnectionOptions
from liftpy_spark.options.names import CONNECTION_ALIASES, CONNECTION_OPTIONS
from liftpy_spark.options.offsets import EARLIEST
from liftpy_spark.options.values import OptionError, Options
from liftpy_spark.reading.schema import LOG_APPEND_TIME, source_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from pyspark.sql import DataFrame, SparkSession

    from liftpy_spark.table.plan import ColdPartition, PinnedStream

__all__ = ["StreamTable", "table"]

_TAIL_OPTIONS: Final = ("minPartitions", "maxTasks", "failOnDataLoss", "cold")
_IN_OBJECTS: Final = ("key", "value", "offset", "timestamp", "subject")
_HOLD_S: Final = 86_400.0


class StreamTable:
    """A stream as it was when `table` was called; to be used in a `with`, or released in the end.

    Attributes:
        frame: Records of the stream, with the columns of the source but `headers`.
        cold: What of each partition Spark reads from the bucket by itself; partitions without history are missing.
    """

    def __init__(self, frame: DataFrame, pinned: PinnedStream) -> None:
        self.frame = frame
        self.cold: Mapping[int, ColdPartition] = pinned.cold
        self._pinned = pinned

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def renew(self, hold_s: float = _HOLD_S) -> None:
        """Keep the objects for `hold_s` more from now on, in seconds.

        Raises:
            PinRefusedError: the time was over already: call `table` anew.
        """
        self._pinned.renew(hold_s)

    def release(self) -> None:
        """Let the objects go, which may be collected then; idempotent. The frame is of no use afterwards.

        Raises:
            StoreError: the bucket can not be written; the objects still go when their time is over.
        """
        self._pinned.release()


def table(
    spark: SparkSession,
    stream: str,
    *,
    hold_s: float = _HOLD_S,
    scheme: str = "s3a",
    locate: Callable[[str], str] | None = None,
    **options: Any,
) -> StreamTable:
    """All records that a stream has now, most of them read by Spark's own Parquet reader.

    Args:
        spark: The session.
        stream: Name of the stream.
        hold_s: How long the objects of the bucket stay at least, in seconds, unless they are released or held longer.
        scheme: Scheme of the addresses by which Spark reads the bucket.
        locate: The address of an object, by its key relative to the prefix of the bucket; takes the place of `scheme`.
        options: Those of the source that say how NATS and the bucket are reached, and `minPartitions`, `maxTasks`,
            `failOnDataLoss` and `cold` for what the source reads; a name with a dot as `**{"s3.endpoint": ...}`.

    Raises:
        OptionError: an option is unknown, or means nothing.
        NoSuchStreamError: there is no such stream.
        NatsError: nobody answers.
        BucketError: there is no bucket, or it can not be read.
        TierError: something in the bucket can not be read, or no pin can be written there.
    """
    from liftpy_spark.heads import heads  # noqa: PLC0415 (tasks of the source import this module as well)
    from liftpy_spark.table.plan import PinnedStream  # noqa: PLC0415 (needs packages that only buckets need)

    given = {name: _text(value) for name, value in options.items()}
    connection = ConnectionOptions.read(Options(given, (*CONNECTION_OPTIONS, *_TAIL_OPTIONS), CONNECTION_ALIASES))
    if hold_s <= 0:
        raise OptionError("hold_s", f"{hold_s!r} is no time to hold anything for")
    (head,) = heads(lift(connection), [stream])
    opened = open_bucket(connection)
    if opened is None:
        raise BucketError(
            f"the nodes have no bucket, so all of stream {stream} is with them: read it with "
            "spark.read.format('liftpy'), or name a bucket in the option 'bucket'"
        )
    pinned = PinnedStream(opened.store, head.uuid, sorted(head.partitions), hold_s=hold_s)
    with ExitStack() as undo:
        undo.callback(pinned.release)
        address = locate or _addresses(connection, scheme)
        starting = {n: pinned.cold[n].end if n in pinned.cold else EARLIEST for n in head.partitions}
        # The pins are younger than the heads, so an object may end behind what was the end before.
        ending = {n: max(each.end, starting[n]) for n, each in head.partitions.items()}
        tail = _tail(spark, stream, given, starting, ending)
        parts = [_cold_frame(spark, stream, each, address) for each in pinned.cold.values() if each.keys]
        frame = _union([*parts, tail])
        undo.pop_all()
    return StreamTable(frame, pinned)


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    """All rows, by halves: Spark looks at all of what it has been given so far, at every union."""
    middle = len(frames) // 2
    return _union(frames[:middle]).unionByName(_union(frames[middle:])) if middle else frames[0]


def _text(value: object) -> str:
    """As Spark writes option values."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _addresses(connection: ConnectionOptions, scheme: str) -> Callable[[str], str]:
    """Where Spark finds an object, by its key."""
    found = bucket_address(connection)
    assert found is not None, "it is open"
    home = f"{scheme}://{found.url.removeprefix('s3://').rstrip('/')}"
    return lambda key: f"{home}/{key}"


def _cold_frame(spark: SparkSession, stream: str, cold: ColdPartition, address: Callable[[str], str]) -> DataFrame:
    """The records of a partition's objects, with the columns of the source."""
    schema = source_schema(include_headers=False)
    wanted = type(schema)([field for field in schema.fields if field.name in _IN_OBJECTS])
    rows = spark.read.schema(wanted).parquet(*map(address, cold.keys))
    same = {"topic": lit(stream), "partition": lit(cold.partition), "timestampType": lit(LOG_APPEND_TIME)}
    counts = (col("offset") >= cold.start) & (col("offset") < cold.end)
    return rows.where(counts).select(*(same.get(name, col(name)).alias(name) for name in schema.names))


def _tail(
    spark: SparkSession,
    stream: str,
    given: Mapping[str, str],
    starting: Mapping[int, int],
    ending: Mapping[int, int],
) -> DataFrame:
    """What is behind the objects, as far as there is anything now, whenever it is read first."""
    reader = spark.read.format("liftpy").options(**given).option("subscribe", stream)
    for option, offsets in (("startingOffsets", starting), ("endingOffsets", ending)):
        reader = reader.option(option, json.dumps({stream: {str(n): offset for n, offset in offsets.items()}}))
    return reader.load()
