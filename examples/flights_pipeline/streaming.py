"""Delays by carrier and by route, from a stream of flights as it grows, into a compacted stream and Delta tables."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from delay_results import DelaySink, Results, make_stream
from flight_delays import GROUPINGS, delays, read_flights
from pipeline_options import connection, open_session, parser, positive, results, run, tell

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from flight_delays import Grouping

_LOOK_EVERY_S: Final = 1


class Running:
    """A query on one grouping.

    Attributes:
        records: how many it has read since it was started.
        dropped: how many rows of them came too late for their windows.
    """

    def __init__(self, spark: SparkSession, given: argparse.Namespace, target: Results, grouping: Grouping) -> None:
        self.grouping = grouping
        self.records = 0
        self.dropped = 0
        self.sink = DelaySink(target, grouping)
        self._seen = ""
        options = {
            **connection(given),
            "subscribe": given.stream,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(given.max_offsets),
        }
        # Values are all that is needed, so nothing else is fetched.
        records = spark.readStream.format("liftpy").options(**options).schema("value binary").load()
        writer = (
            delays(read_flights(records), grouping, given.late_days)
            .writeStream.queryName(grouping.name)
            .outputMode("append")  # a window comes once, when it is closed
            .option("checkpointLocation", str(target.checkpoint(grouping)))
            .foreachBatch(self.sink)
        )
        self.query: StreamingQuery = (writer.trigger(availableNow=True) if given.once else writer).start()
        self.sink.query_id.set_result(self.query.id)

    def look(self, given: argparse.Namespace) -> bool:
        """Add up, and tell of, the batches that are new since the last look; gives whether there was ever one."""
        for progress in self.query.recentProgress:
            if progress.timestamp <= self._seen:
                continue
            self._seen = progress.timestamp
            self.records += progress.numInputRows
            self.dropped += sum(each.numRowsDroppedByWatermark for each in progress.stateOperators)
            if progress.numInputRows:
                closed = progress.eventTime.get("watermark", "")[:16]
                took_s = progress.batchDuration / 1000
                tell(
                    given,
                    f"{self.grouping.name:>8}: batch {progress.batchId}, {progress.numInputRows:,} records in "
                    f"{took_s:.1f} s, windows closed up to {closed}",
                )
        return bool(self._seen)

    def report(self) -> dict[str, Any]:
        """For scripts."""
        return {"records": self.records, "rows": self.sink.rows, "dropped": self.dropped}


def work(given: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """Run the queries: until they have read what there is, or until they are interrupted."""
    target = results(given)
    make_stream(given.servers, given.stream, given.results)
    with open_session(given) as spark:
        running: list[Running] = []
        try:
            for grouping in GROUPINGS:
                running.append(Running(spark, given, target, grouping))
                # Spark gives the Python of a source 10 s to start, so nothing else should keep this machine busy then.
                while not running[-1].look(given) or given.once:
                    if running[-1].query.awaitTermination(_LOOK_EVERY_S):  # raises what the query failed with
                        break
            while any(each.query.isActive for each in running):
                for each in running:
                    each.query.awaitTermination(_LOOK_EVERY_S)
                    each.look(given)
            for each in running:
                each.query.awaitTermination()
                each.look(given)
        finally:
            for each in running:
                each.query.stop()
    for each in running:
        name, dropped = each.grouping.name, each.dropped
        tell(given, f"{name:>8}: {each.records:,} records read, {each.sink.rows:,} rows written")
        if dropped:
            tell(
                given,
                f"{name:>8}: {dropped:,} rows came more than {given.late_days} days late and are in no window; "
                "give them longer with --late-days, and a new --home",
            )
    return {each.grouping.name: each.report() for each in running}, 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; gives the exit code."""
    made = parser(__doc__ or "")
    made.add_argument("--once", action="store_true", help="end when all that there is has been read")
    made.add_argument(
        "--max-offsets", type=positive, default=100_000, help="how many records a micro-batch has at most"
    )
    return run(made.parse_args(arguments), work)


if __name__ == "__main__":
    sys.exit(main())
