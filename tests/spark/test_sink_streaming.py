"""Streaming queries into streams: every row once, across restarts, replays of a batch, and drivers that are killed."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.spark_driver import drive, kill_all, said
from support.spark_system import eventually

COUNT = 3_000
WAIT_S = 90
DRIVEN_S = 240  # a driver of its own has a JVM and workers to start, and others may use the machine

WORK = """
frames = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).parquet(source)
writer = frames.repartition(3).writeStream.format("liftpy").options(**options, stream=stream)
writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
"""


def files(directory, count, first=0, each=COUNT):
    """A file is a micro-batch."""
    directory.mkdir(exist_ok=True)
    for number in range(first, first + count):
        rows = pa.table({"value": [str(row) for row in range(number * each, (number + 1) * each)]})
        pq.write_table(rows, directory / f"{number:04d}.parquet")
    return directory


def start(spark, system, source, stream, checkpoint, tasks=2, **options):
    df = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).parquet(str(source))
    writer = df.repartition(tasks).writeStream.format("liftpy").options(**system.options, stream=stream, **options)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def run(*arguments, **options):
    query = start(*arguments, **options)
    try:
        assert query.awaitTermination(WAIT_S), "the query does not end"
    finally:
        query.stop()


def values(system, stream):
    return Counter(int(value) for value in system.records(stream).column("value").to_pylist())


def once(batches):
    return Counter(dict.fromkeys(range(batches * COUNT), 1))


def staged(system, stream):
    uuid = system.lift.stream_info(stream).uuid
    return [entry.key for entry in system.server.store("liftpy").list(f"spark/staging/{uuid}/")]


@pytest.fixture(scope="module", autouse=True)
def warm(spark, system, tmp_path_factory):
    """Spark's Python workers are started by the first query, which takes long on a slow machine."""
    directory = tmp_path_factory.mktemp("warm")
    system.lift.create_stream("streamedfirst", subject="streamedfirst")
    run(spark, system, files(directory / "source", 1, each=1), "streamedfirst", directory / "checkpoint")


@pytest.mark.parametrize("way", ["exactly-once", "at-least-once", "directory"])
def test_every_row_is_in_the_stream_once_across_restarts(spark, system, tmp_path, way):
    stream = f"streamed-{way}"
    system.lift.create_stream(stream, subject=stream, partitions=8)
    options = staged_in(tmp_path / "staging") if way == "directory" else {"delivery": way}
    source = files(tmp_path / "source", 2)
    run(spark, system, source, stream, tmp_path / "checkpoint", **options)
    assert values(system, stream) == once(2)
    files(source, 1, 2)
    run(spark, system, source, stream, tmp_path / "checkpoint", tasks=3, **options)
    assert values(system, stream) == once(3)
    assert staged(system, stream) == []
    if way == "directory":
        assert_empty(tmp_path / "staging")


def staged_in(directory):
    directory.mkdir()
    return {"stagingDirectory": str(directory)}


def assert_empty(directory):
    """Nothing is staged there, and once something was."""
    (marker,) = (path.name for path in directory.iterdir())
    assert marker.startswith("liftpy-staging-")


def test_a_batch_that_is_replayed_in_another_distribution_is_there_once(spark, system, tmp_path):
    """Spark is made to forget that it finished a batch: it executes it again with its number."""
    system.lift.create_stream("replayed", subject="replayed", partitions=3)
    checkpoint = tmp_path / "checkpoint"
    source = files(tmp_path / "source", 2)
    run(spark, system, source, "replayed", checkpoint)
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    run(spark, system, source, "replayed", checkpoint, tasks=5)
    assert values(system, "replayed") == once(2)
    # With a new checkpoint it is another query: all rows come again.
    run(spark, system, source, "replayed", tmp_path / "other")
    assert values(system, "replayed") == Counter(dict.fromkeys(range(2 * COUNT), 2))
    assert staged(system, "replayed") == []


def test_what_can_not_be_written_is_told_to_who_starts_the_query(spark, system, tmp_path):
    system.lift.create_stream("streamwrong", subject="streamwrong.>")
    source = files(tmp_path / "source", 1, each=10)
    with pytest.raises(Exception, match="say which subject, here or in a column subject"):
        run(spark, system, source, "streamwrong", tmp_path / "checkpoint")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["bucket", "directory"])
def test_drivers_that_are_killed(spark, system, tmp_path, way):
    """A driver is killed again and again in the middle of what it does; in the end every row is there once."""
    stream = f"killed-{way}"
    system.lift.create_stream(stream, subject=stream, partitions=4)
    options = system.options | (staged_in(tmp_path / "staging") if way == "directory" else {})
    batches = 6
    source = files(tmp_path / "source", batches)
    arguments = {
        "options": options,
        "source": str(source),
        "checkpoint": str(tmp_path / "checkpoint"),
        "stream": stream,
    }
    store = system.server.store("liftpy")
    log = tmp_path / "driver.log"
    for _ in range(3):
        kill_amid(arguments, log, lambda: sum(each.high_watermark for each in system.partitions(stream)))
    process = drive(WORK, arguments, log)
    try:
        assert process.wait(300) == 0, said(log)
    finally:
        kill_all(process)
    assert values(system, stream) == once(batches)
    if way == "directory":
        assert_empty(tmp_path / "staging")
    marks = [
        entry.key for entry in store.list("spark/commits/") if stream in store.get(_decision(entry.key)).body.decode()
    ]
    assert len([key for key in marks if key.endswith(".done")]) == batches


def _decision(key):
    return key.removesuffix(".done").removesuffix(".json") + ".json"


def kill_amid(arguments, log, progress):
    """Start a driver, and kill it when there is progress; it is to end by itself only when all is written."""
    before = progress()
    process = drive(WORK, arguments, log)

    def goes_on():
        assert process.poll() in {None, 0}, "the driver has failed"
        return process.poll() == 0 or progress() > before

    try:
        eventually(goes_on, "something more is written", DRIVEN_S)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{said(log)}") from error
    finally:
        kill_all(process)
