"""Delays of flights by windows of event time: the same plan for a streaming query and for a batch. Pure.

A message is one flight, as JSON. Its event time is when it was to leave: the wall clock of New York, which the session
takes for UTC. When it is published is another matter: after it has left, so hours late, or later. A message
`{"clock": "2014-02-01T00:00:00"}` is no flight; it says that no earlier ones come, and so closes the last windows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "GROUPINGS",
    "ROW_SCHEMA",
    "SCHEDULED",
    "Grouping",
    "as_records",
    "delays",
    "from_records",
    "read_flights",
    "rows_that_differ",
]

SCHEDULED: Final = "scheduled"
"""The column with the event time."""
ROW_SCHEMA: Final = (
    "name string, window_start timestamp, window_end timestamp, flights bigint, cancelled bigint, late bigint, "
    "delay_sum_min bigint, delay_max_min bigint"
)
"""Of results. `late` are flights that left 15 minutes after their time, or later. Sums are of whole minutes, so that
they do not depend on the order of adding."""

_FLIGHT_SCHEMA: Final = (
    "carrier string, origin string, dest string, year int, month int, day int, hour int, minute int, "
    "dep_delay bigint, clock string"
)
_LATE_MIN: Final = 15
_TIME_FORMAT: Final = "yyyy-MM-dd'T'HH:mm:ss"


class Grouping(NamedTuple):
    """What delays are added up by.

    Attributes:
        name: of the results: of their subject, Delta table and query.
        column: an expression in SQL over the columns of `read_flights`.
        window: how long a window is.
    """

    name: str
    column: str
    window: str


GROUPINGS: Final = (
    Grouping("carrier", "carrier", "1 hour"),
    Grouping("route", "concat(origin, '-', dest)", "1 day"),
)


def read_flights(records: DataFrame) -> DataFrame:
    """Flights from the records of a stream; what can not be read has no event time, and is in no window."""
    parsed = records.select(f.from_json(f.col("value").cast("string"), _FLIGHT_SCHEMA).alias("flight"))
    year, month, day, hour, minute = (f"flight.{part}" for part in ("year", "month", "day", "hour", "minute"))
    of_flight = f.try_make_timestamp(year, month, day, hour, minute, f.lit(0))
    of_clock = f.try_to_timestamp(f.col("flight.clock"), f.lit(_TIME_FORMAT))
    return parsed.select(
        "flight.carrier",
        "flight.origin",
        "flight.dest",
        "flight.dep_delay",
        f.coalesce(of_flight, of_clock).alias(SCHEDULED),
    )


def delays(flights: DataFrame, grouping: Grouping, late_days: int) -> DataFrame:
    """Delays by name and window, with the columns of `ROW_SCHEMA`.

    A streaming query has each window once, when the watermark has passed its end; a batch has all of them.

    Args:
        flights: as `read_flights` gives them.
        grouping: what to add up by.
        late_days: for how long after a flight was to leave its message may come.
    """
    timed = flights.withWatermark(SCHEDULED, f"{late_days} days")
    left = f.col("dep_delay")
    added = timed.groupBy(f.expr(grouping.column).alias("name"), f.window(SCHEDULED, grouping.window)).agg(
        f.count("carrier").alias("flights"),
        f.count_if(left.isNull()).alias("cancelled"),
        f.count_if(left >= _LATE_MIN).alias("late"),
        f.coalesce(f.sum(left), f.lit(0)).alias("delay_sum_min"),
        f.max(left).alias("delay_max_min"),
    )
    # The clock has no carrier. Leaving it out sooner would hide it from the watermark, which it is there for.
    return added.where("flights > 0").select(
        "name",
        f.col("window.start").alias("window_start"),
        f.col("window.end").alias("window_end"),
        *("flights", "cancelled", "late", "delay_sum_min", "delay_max_min"),
    )


def as_records(rows: DataFrame, grouping: Grouping, subject: str) -> DataFrame:
    """Rows as records of a stream: the key is grouping, name and window, the value is the row as JSON."""
    window = f.date_format("window_start", _TIME_FORMAT)
    return rows.select(
        f.concat_ws("/", f.lit(grouping.name), "name", window).alias("key"),
        f.to_json(f.struct("*"), {"timestampFormat": _TIME_FORMAT}).alias("value"),
        f.lit(subject).alias("subject"),
    )


def from_records(records: DataFrame) -> DataFrame:
    """Rows from the records of a stream: of each key the last one, as compaction leaves them."""
    last = records.groupBy("key").agg(f.max_by("value", "offset").alias("value"))
    row = f.from_json(f.col("value").cast("string"), ROW_SCHEMA, {"timestampFormat": _TIME_FORMAT})
    return last.select(row.alias("row")).select("row.*")


def rows_that_differ(left: DataFrame, right: DataFrame) -> DataFrame:
    """Rows that one of two has and the other has not, or less often.

    Returns:
        The rows, with a column `surplus`: how much more often the left one has it. None where both are the same.
    """
    both = left.withColumn("side", f.lit(1)).unionByName(right.withColumn("side", f.lit(-1)))
    return (
        both.groupBy(*left.columns)
        .agg(f.sum("side").alias("surplus"))
        .where("surplus <> 0")
        .orderBy("window_start", "name", "surplus")
    )
