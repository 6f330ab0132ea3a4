"""What drivers of clusters are told to do, and what befalls their executors while they do it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

__all__ = ["read", "read_held", "stream_to_files", "stream_to_stream", "write", "writers_of"]

QUERY_S = 480


def troubled(notes: Path, kills: tuple[int, ...]) -> Work:
    """For `mapInArrow`: in every batch one task fails when it has handed out records, or its executor is killed.

    Args:
        notes: a directory, where a file says for each batch what happened.
        kills: batches in which the executor is killed.
    """

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os  # noqa: PLC0415 - it runs in a task, and has nothing of this module
        import signal  # noqa: PLC0415

        import psutil  # noqa: PLC0415
        from pyspark import TaskContext  # noqa: PLC0415

        batch = int(TaskContext.get().getLocalProperty("streaming.sql.batchId") or 0)
        for each in batches:
            yield each
            try:
                (notes / str(batch)).touch(exist_ok=False)
            except FileExistsError:
                continue
            if batch not in kills:
                raise RuntimeError("a task that fails when it has handed out records")
            executors = [
                p for p in psutil.Process().parents() if "CoarseGrainedExecutorBackend" in " ".join(p.cmdline())
            ]
            (notes / str(batch)).write_text("killed")
            executors[0].send_signal(signal.SIGKILL)
            os._exit(1)

    return work


def read(session: SparkSession, options: dict[str, str], notes: Path, kills: tuple[int, ...]) -> pa.Table:
    """All that a batch reads."""
    frame = session.read.format("liftpy").options(**options).load()
    return frame.mapInArrow(troubled(notes, kills), frame.schema).toArrow()


def writers_of(session: SparkSession, options: dict[str, str]) -> int:
    """By how many executors a batch was read."""
    frame = session.read.format("liftpy").options(**options).load()

    def who(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
        import os  # noqa: PLC0415 - it runs in a task

        import pyarrow as pa  # noqa: PLC0415

        for _ in batches:
            pass
        yield pa.record_batch({"daemon": pa.array([os.getppid()], pa.int64())})

    return frame.mapInArrow(who, "daemon long").distinct().count()


def read_held(session: SparkSession, options: dict[str, str], notes: Path) -> pa.Table:
    """The same; the first task stops at its first records until there is a file `go`."""
    frame = session.read.format("liftpy").options(**options).load()

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        deadline_s = time.monotonic() + QUERY_S
        for each in batches:
            (notes / "reading").touch()
            while not (notes / "go").exists() and time.monotonic() < deadline_s:
                time.sleep(0.02)
            yield each

    return frame.mapInArrow(hold, frame.schema).toArrow()


def stream_to_files(
    session: SparkSession, options: dict[str, str], home: Path, notes: Path, kills: tuple[int, ...]
) -> None:
    """A streaming query into Parquet files, until it has read what there is."""
    frame = session.readStream.format("liftpy").options(**options).load()
    frame = frame.mapInArrow(troubled(notes, kills), frame.schema)
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(home / "checkpoint"))
    _until_done(writer.trigger(availableNow=True).option("path", str(home / "out")))


def stream_to_stream(
    session: SparkSession, options: dict[str, str], source: Path, home: Path, notes: Path, kills: tuple[int, ...]
) -> None:
    """A streaming query of Parquet files, each of them a batch, into a stream."""
    frame = session.readStream.schema("value string").option("maxFilesPerTrigger", 1).parquet(str(source))
    frame = frame.repartition(3)
    frame = frame.mapInArrow(troubled(notes, kills), frame.schema)
    writer = frame.writeStream.format("liftpy").options(**options)
    _until_done(writer.option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True))


def write(session: SparkSession, options: dict[str, str], count: int, notes: Path, kills: tuple[int, ...]) -> None:
    """A batch of numbers into a stream."""
    frame = session.range(0, count, 1, 3).selectExpr("string(id) AS value")
    frame = frame.mapInArrow(troubled(notes, kills), frame.schema)
    frame.write.format("liftpy").mode("append").options(**options).save()


def _until_done(writer: Any) -> None:
    query = writer.start()
    try:
        assert query.awaitTermination(QUERY_S), f"the query does not end: {query.lastProgress}"
    finally:
        query.stop()
