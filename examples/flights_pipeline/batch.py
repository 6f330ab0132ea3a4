"""Compute again, from all the history of the stream, what the streaming job has written, and compare every row.

Ends with 1 when a row differs.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import functions as f

from delay_plot import plot
from delay_results import ResultsError
from flight_delays import GROUPINGS, SCHEDULED, delays, read_flights, rows_that_differ
from pipeline_options import connection, open_session, parser, results, run, tell

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from delay_results import Results
    from flight_delays import Grouping

_EXAMPLES_MAX: Final = 5
_NOT_SAID: Final = ("name", "window_start", "window_end", "surplus")
_TIME_FORMAT: Final = "%Y-%m-%d %H:%M"
_FAILED: Final = 1


class History(NamedTuple):
    """What the stream of flights holds.

    Attributes:
        flights: as `read_flights` gives them.
        records: how many there are, the clock's too.
        unreadable: how many of these are no flights.
        due: windows that end until then are closed: all of their flights have come.
    """

    flights: DataFrame
    records: int
    unreadable: int
    due: datetime


def read_history(spark: SparkSession, given: argparse.Namespace) -> History:
    """All of the stream: from the bucket what is there, from the nodes what is not there yet.

    Raises:
        ResultsError: it is empty.
    """
    options = {**connection(given), "subscribe": given.stream}
    records = spark.read.format("liftpy").options(**options).schema("value binary").load()
    flights = read_flights(records).persist()  # it is read once, and used for each grouping
    # Arrow's times are those of the session, Python's would be those of this machine.
    (counted,) = (
        flights.select(
            f.count("*").alias("records"), f.count(SCHEDULED).alias("readable"), f.max(SCHEDULED).alias("last")
        )
        .toArrow()
        .to_pylist()
    )
    if counted["last"] is None:
        raise ResultsError(f"stream {given.stream} has no flights yet")
    due = counted["last"] - timedelta(days=given.late_days)
    unreadable = counted["records"] - counted["readable"]
    return History(flights, counted["records"], unreadable, min(due, given.until or due))


def compare(
    spark: SparkSession, given: argparse.Namespace, history: History, grouping: Grouping
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Compare what the stream and the table have of a grouping with what history says.

    Returns:
        Of both, how many rows there are and how many differ; and the rows, as computed from history.
    """
    is_closed = f.col("window_end") <= f.lit(history.due)
    target = results(given)
    computed = delays(history.flights, grouping, given.late_days).where(is_closed).persist()
    rows, found = computed.toArrow().to_pylist(), []
    for name, written in _written(spark, target, grouping).items():
        differ = rows_that_differ(computed, written.where(is_closed)).persist()
        count, examples = differ.count(), differ.limit(_EXAMPLES_MAX).toArrow().to_pylist()
        found.append({"grouping": grouping.name, "where": name, "rows": len(rows), "differ": count})
        verdict = f"{count:,} DIFFER" if count else "all the same"
        tell(given, f"{grouping.name:>8}: {len(rows):,} rows compared with those of the {name}: {verdict}")
        for row in examples:
            tell(given, f"{'':>10}{_in_words(row, name)}")
        differ.unpersist()
    computed.unpersist()
    return found, rows


def _written(spark: SparkSession, target: Results, grouping: Grouping) -> dict[str, DataFrame]:
    return {"stream": target.from_stream(spark, grouping), "table": target.from_table(spark, grouping)}


def _in_words(row: dict[str, Any], where: str) -> str:
    which = "not in" if row["surplus"] > 0 else "only in"
    values = ", ".join(f"{name} {row[name]}" for name in row if name not in _NOT_SAID)
    return f"{which} the {where}: {row['name']} {row['window_start']:{_TIME_FORMAT}}: {values}"


def summary_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of carriers, added up; the largest first."""
    summed: dict[str, dict[str, Any]] = {}
    for row in rows:
        sums = summed.setdefault(row["name"], {"name": row["name"]})
        for column in ("flights", "cancelled", "late", "delay_sum_min"):
            sums[column] = sums.get(column, 0) + row[column]
    return sorted(summed.values(), key=lambda sums: (-sums["flights"], sums["name"]))


def tell_summary(given: argparse.Namespace, summary: list[dict[str, Any]]) -> None:
    """A table for people."""
    tell(given, f"{'carrier':>8}{'flights':>10}{'cancelled':>11}{'late':>8}{'mean delay':>13}")
    for each in summary:
        left = each["flights"] - each["cancelled"]
        late, mean = (f"{each['late'] / left:.1%}", f"{each['delay_sum_min'] / left:.1f} min") if left else ("-", "-")
        tell(given, f"{each['name']:>8}{each['flights']:>10,}{each['cancelled']:>11,}{late:>8}{mean:>13}")


def work(given: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """Compare, and draw."""
    began = monotonic()
    with open_session(given) as spark:
        history = read_history(spark, given)
        tell(
            given,
            f"{history.records:,} records of history; windows that end until {history.due:{_TIME_FORMAT}} are closed",
        )
        if history.unreadable:
            tell(given, f"{history.unreadable:,} of them are no flights, and in no window")
        compared, rows = [], {}
        for grouping in GROUPINGS:
            found, rows[grouping.name] = compare(spark, given, history, grouping)
            compared += found
    summary = summary_of(rows["carrier"])
    tell_summary(given, summary)
    if given.plot:
        plot(rows["carrier"], given.plot)
        tell(given, f"delays over the day: {given.plot}")
    differ = sum(each["differ"] for each in compared)
    if differ:
        print(
            f"error: {differ:,} rows differ from what history says; where streaming.py is still behind, run it with "
            "--once first, or compare with --until a time that it has passed",
            file=sys.stderr,
        )
    report = {
        "records": history.records,
        "unreadable": history.unreadable,
        "due": history.due,
        "compared": compared,
        "carriers": summary,
        "flights_by_grouping": {name: sum(row["flights"] for row in rows[name]) for name in rows},
        "took_s": monotonic() - began,
    }
    return report, _FAILED if differ else 0


def _time(text: str) -> datetime:
    """A time by the clock of New York, for argparse."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; gives the exit code."""
    made = parser((__doc__ or "").splitlines()[0])
    made.add_argument("--until", type=_time, help="compare only windows that end until then")
    made.add_argument("--plot", type=Path, help="draw delays over the day, as PNG")
    return run(made.parse_args(arguments), work)


if __name__ == "__main__":
    sys.exit(main())
