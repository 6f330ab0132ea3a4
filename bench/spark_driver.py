"""Spark at work, in a process of its own: `python -m bench.spark_driver NAME JSON-ARGUMENTS`; its figures come last.

Contestants take turns within every run, in one session; each had a turn before that does not count.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from pyspark.sql import functions

import liftpy
from bench.load import say
from bench.spark_s3a import PARQUET_BY_S3A, TABLE
from bench.spark_session import cpu_by_process, session, spent
from bench.spark_sources import ReadyBatches
from liftpy_spark.table.frame import table

COLUMNS = "offset long, timestamp timestamp, value binary"
_CLOCKED = "aggregation", "no-op"
_WAIT_S = 180.0
_POLL_S = 0.02


def scan(home, options, files, count, size, runs, column_types=COLUMNS, s3a=None, store_pid=None):
    """Read a stream, and what others can read: files that hold the same, its objects by S3A, and ready batches.

    Args:
        home: a directory.
        options: of liftpy.
        files: a directory with copies of the objects; None for none.
        count: how many records there are.
        size: of a value, bytes.
        runs: how often.
        column_types: what is read.
        s3a: `settings` of the session, and the addresses of the `objects`; None where there is no S3A.
        store_pid: the process that keeps the objects, if there is one; what it takes is told, too.
    """
    settings = {} if s3a is None else s3a["settings"]
    with session(home, **settings) as spark:
        spark.dataSource.register(ReadyBatches)
        names = [column.split()[0] for column in column_types.split(",")]
        ready = {"rows": str(count), "size": str(size)}

        def from_liftpy(_held):
            return spark.read.format("liftpy").options(**options).schema(column_types).load()

        def from_batches(_held):
            return spark.read.format("ready-batches").options(**ready).schema(column_types).load()

        frames = {"liftpy": from_liftpy}
        if files is not None:
            frames["spark.read.parquet"] = lambda _held: _with_constants(spark.read.parquet(files), names)
        if s3a is not None:
            frames |= _by_s3a(spark, options, s3a["objects"], names)
        frames["ready batches"] = from_batches
        figures = {action: {name: [] for name in frames} for action in _CLOCKED}
        cpu = {action: {name: [] for name in frames} for action in _CLOCKED}
        for run in range(runs + 1):
            for action in _CLOCKED:
                for name, frame in frames.items():
                    before, began = cpu_by_process(store_pid), time.perf_counter()
                    with ExitStack() as held:
                        _act(action, frame(held), names, count)
                    elapsed_s = time.perf_counter() - began
                    if run:
                        figures[action][name].append(count / elapsed_s)
                        cpu[action][name].append(spent(before, store_pid))
    say(figures=figures, cpu=cpu)


def _by_s3a(spark, options, objects, names):
    """What the JVM reads from the bucket by itself: the same objects, and a table of the stream, with its pin."""
    reach = {name: value for name, value in options.items() if name != "subscribe"}
    return {
        PARQUET_BY_S3A: lambda _held: _with_constants(spark.read.parquet(*objects), names),
        TABLE: lambda held: held.enter_context(table(spark, options["subscribe"], **reach)).frame.select(*names),
    }


def _with_constants(frame, names):
    """The columns that a file does not have are the same in every record of a stream."""
    constants = {"topic": functions.lit("scan"), "timestampType": functions.lit(1), "partition": functions.lit(0)}
    return frame.select(*(constants[name].alias(name) if name in constants else name for name in names))


def _act(action, frame, names, count):
    if action == "no-op":
        frame.write.format("noop").mode("overwrite").save()
        return
    sums = {"value": lambda: functions.sum(functions.length("value")), "offset": lambda: functions.sum("offset")}
    wanted = [sums.get(name, partial(functions.max, name))() for name in names]
    found = frame.agg(functions.count(functions.lit(1)).alias("rows"), *wanted).collect()[0]["rows"]
    if found != count:
        raise RuntimeError(f"{found:,} records were read, not {count:,}")


def sink(home, url, options, streams, files, count):
    """Append what is in files to three streams for each run: leaders read bucket or directory, or the driver does.

    And to what only counts it, and to Parquet.
    """
    staging = Path(home) / "staging"
    staging.mkdir(parents=True, exist_ok=True)
    by_directory = options | {"stagingDirectory": str(staging)}
    by_driver = options | {"stagedReader": "driver"}
    figures = {"liftpy": [], "by a directory": [], "by the driver": [], "counting sink": [], "write.parquet": []}
    cpu = {name: [] for name in figures}
    with session(home) as spark, liftpy.connect_sync(url, timeout_s=10.0) as lift:
        spark.dataSource.register(ReadyBatches)
        frame = spark.read.parquet(files)
        for run, (stream, other, third) in enumerate(streams):
            appends = {
                "liftpy": lambda stream=stream: _append(frame, options, stream, lift, count),
                "by a directory": lambda other=other: _append(frame, by_directory, other, lift, count),
                "by the driver": lambda third=third: _append(frame, by_driver, third, lift, count),
                "counting sink": lambda: frame.write.format("ready-batches").mode("append").save(),
                "write.parquet": lambda: frame.write.mode("overwrite").parquet(str(Path(home) / "written")),
            }
            for name, append in appends.items():
                before, began = cpu_by_process(), time.perf_counter()
                append()
                elapsed_s = time.perf_counter() - began
                if run:
                    figures[name].append(count / elapsed_s)
                    cpu[name].append(spent(before))
    say(figures=figures, cpu=cpu)


def _append(frame, options, stream, lift, count):
    """Append, and wait until all of it can be read."""
    frame.write.format("liftpy").mode("append").options(**options, stream=stream).save()
    _until(lambda: _readable(lift, stream) >= count, f"{count:,} records of {stream} can be read")
    found = _readable(lift, stream)
    if found != count:
        raise RuntimeError(f"{found:,} records are in the stream, not {count:,}")


def _readable(lift, stream):
    return sum(each.high_watermark or 0 for each in lift.stream_info(stream).partitions)


def micro_batches(home, url, options, subject, batches, idle_s):
    """Queries with nothing to do, and then with next to nothing: a stream, files, and the source that counts time."""
    with session(home) as spark, liftpy.connect_sync(url, timeout_s=10.0) as lift, lift.publisher() as publisher:
        spark.dataSource.register(ReadyBatches)
        directory = Path(home) / "arriving"
        directory.mkdir(parents=True)

        def publish(number):
            publisher.publish_batch(subject, {"value": [b"%d" % number] * 10})

        def write(_):
            target = directory / f"{time.monotonic_ns()}.txt"
            target.with_suffix(".new").write_text("x\n" * 10)
            target.with_suffix(".new").rename(target)

        sources = {
            "liftpy": (spark.readStream.format("liftpy").options(**options, startingOffsets="earliest"), publish),
            "files": (spark.readStream.format("text").option("pathGlobFilter", "*.txt"), write),
            "rate": (spark.readStream.format("rate").option("rowsPerSecond", 10), None),
            "ready batches": (spark.readStream.format("ready-batches").option("size", 1), None),
        }
        batch_ms, through_ms, idle = {}, {}, {}
        for turn in ("warming up", "measured"):  # the JVM compiles for a while: who comes first would be the slowest
            for name, (reader, feed) in sources.items():
                frame = reader.load(str(directory)) if name == "files" else reader.load()
                checkpoint = str(Path(home) / f"of-{name}-{turn}")
                query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
                try:
                    batch_ms[name], since_ms = _batch_times(query, feed, batches)
                    if feed is not None and turn == "measured":
                        through_ms[name] = since_ms
                        before = cpu_by_process()
                        time.sleep(idle_s)
                        idle[name] = {kind: seconds / idle_s for kind, seconds in spent(before).items()}
                finally:
                    query.stop()
    say(batch_ms=batch_ms, through_ms=through_ms, idle=idle)


def _batch_times(query, feed, batches):
    """Of each micro-batch that had records, ms: how long it took without waiting for them, and since they were there.

    The first ones, in which code is loaded, are left out.
    """
    skipped = 3
    done = {}
    since_ms = []
    for number in range(batches + skipped):
        began = time.perf_counter()
        if feed is not None:
            feed(number)
        _until(lambda wanted=number: _look(query, done) > wanted, f"micro-batch {number} of {query.id}")
        since_ms.append((time.perf_counter() - began) * 1_000)
    took_ms = [durations["triggerExecution"] - durations["latestOffset"] for durations in done.values()]
    return took_ms[skipped:], since_ms[skipped:]


def _look(query, done):
    """Note a micro-batch that is done and had records; how many were."""
    if query.exception() is not None:
        raise query.exception()
    progress = query.lastProgress
    if progress is not None and progress.numInputRows:
        done[progress.batchId] = progress.durationMs
    return len(done)


def first_row(home, kind, options, files):
    """From nothing to the first row, s: the JVM, the session, and the query."""
    began = time.perf_counter()
    with session(home) as spark:
        ready_s = time.perf_counter() - began
        reader = spark.read.format("liftpy").options(**options) if kind == "liftpy" else spark.read.format("parquet")
        frame = reader.load() if kind == "liftpy" else reader.load(files)
        found = frame.select("offset", "value").limit(1).collect()
        first_s = time.perf_counter() - began
        again = time.perf_counter()
        frame.select("offset", "value").limit(1).collect()
        again_s = time.perf_counter() - again
    assert len(found) == 1
    say(session_s=ready_s, first_s=first_s, again_s=again_s)


def _until(condition, what):
    deadline = time.monotonic() + _WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {_WAIT_S:g} s: {what}")
        time.sleep(_POLL_S)


if __name__ == "__main__":
    globals()[sys.argv[1]](**json.loads(sys.argv[2]))
