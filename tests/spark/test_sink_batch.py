"""DataFrames appended to streams, read back by the client record by record."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

import liftpy_spark
from liftpy_envelope.headers import Headers
from liftpy_envelope.partitioner import partition_of

COUNT = 5_000


def frame(spark, count=COUNT, tasks=3):
    """Keys that come several times, a header on every third row, and every tenth value null."""
    return spark.range(0, count, 1, tasks).selectExpr(
        "concat('key-', id % 500) AS key",
        "CASE WHEN id % 10 = 9 THEN NULL ELSE encode(concat('value-', id), 'utf-8') END AS value",
        "CASE WHEN id % 3 = 0 THEN array(struct('Row' AS key, encode(string(id), 'utf-8') AS value)) END AS headers",
    )


def write(system, df, stream, **options):
    df.write.format("liftpy").mode("append").options(**system.options, stream=stream, **options).save()


def rows_of(table) -> Counter:
    return Counter(zip(*(table.column(name).to_pylist() for name in ("key", "value", "headers")), strict=True))


def expected(count=COUNT) -> Counter:
    rows = []
    for number in range(count):
        value = None if number % 10 == 9 else b"value-%d" % number
        headers = None if number % 3 else b"NATS/1.0\r\nRow: %d\r\n\r\n" % number
        rows.append((b"key-%d" % (number % 500), value, headers))
    return Counter(rows)


def staged(system, stream, kind="staging"):
    uuid = system.lift.stream_info(stream).uuid
    return [entry.key for entry in system.server.store("liftpy").list(f"spark/{kind}/{uuid}/")]


@pytest.mark.parametrize("partitions", [1, 8])
def test_a_frame_is_in_the_stream_record_by_record(spark, system, partitions):
    stream = f"sink{partitions}"
    system.lift.create_stream(stream, subject=f"{stream}.>", partitions=partitions)
    write(system, frame(spark), stream, subject=f"{stream}.all")
    records = system.records(stream)
    assert rows_of(records) == expected()
    assert set(records.column("subject").to_pylist()) == {f"{stream}.all"}
    assert staged(system, stream) == []
    for key, partition in zip(*(records.column(name).to_pylist() for name in ("key", "partition")), strict=True):
        assert partition == partition_of(key, partitions)
    row = next(block for block in records.column("headers").to_pylist() if block)
    assert set(Headers(row)) == {"Row"}
    # Of each key the records are in the order of their rows, within what one task wrote.
    for task in range(3):
        first, last = task * COUNT // 3, (task + 1) * COUNT // 3
        numbers = [int(v.split(b"-")[1]) for v in records.column("value").to_pylist() if v and _is_of(v, first, last)]
        by_partition = {}
        for number in numbers:
            by_partition.setdefault(partition_of(b"key-%d" % (number % 500), partitions), []).append(number)
        assert all(found == sorted(found) for found in by_partition.values())


def _is_of(value, first, last):
    return first < int(value.split(b"-")[1]) < last - 1


def test_subjects_and_partitions_of_rows(spark, system):
    system.lift.create_stream("sinkplaces", subject="sinkplaces.>", partitions=4)
    df = spark.range(400).selectExpr(
        "encode(string(id), 'utf-8') AS value",
        "concat('sinkplaces.', id % 3) AS subject",
        "CASE WHEN id % 5 < 4 THEN int(id % 5) END AS partition",
    )
    write(system, df, "sinkplaces")
    records = system.records("sinkplaces").to_pylist()
    assert len(records) == 400
    for record in records:
        number = int(record["value"])
        assert record["subject"] == f"sinkplaces.{number % 3}"
        assert number % 5 == 4 or record["partition"] == number % 5
    dealt = Counter(record["partition"] for record in records if int(record["value"]) % 5 == 4)
    assert set(dealt) == {0, 1, 2, 3}


def test_a_batch_of_an_application_is_written_once_in_whatever_distribution(spark, system):
    system.lift.create_stream("sinktwice", subject="sinktwice", partitions=4)
    df = frame(spark, 1_000)
    for tasks in (3, 1, 5):
        write(system, df.repartition(tasks), "sinktwice", txnAppId="job", txnVersion=7)
    assert rows_of(system.records("sinktwice")) == expected(1_000)
    write(system, df, "sinktwice", txnAppId="job", txnVersion=8)
    write(system, df, "sinktwice", txnAppId="other", txnVersion=7)
    write(system, df, "sinktwice")
    write(system, df, "sinktwice")
    assert rows_of(system.records("sinktwice")) == Counter({row: 5 * often for row, often in expected(1_000).items()})
    assert staged(system, "sinktwice") == []
    kept = {key.split("/")[3] for key in staged(system, "sinktwice", "commits")}
    assert kept == {"job", "other"}, "a write without a name leaves nothing"


def test_other_rows_for_a_batch_of_an_application_are_not_dropped_in_silence(spark, system):
    system.lift.create_stream("sinkother", subject="sinkother", partitions=4)
    named = {"txnAppId": "job", "txnVersion": 7}
    write(system, frame(spark, 1_000), "sinkother", **named)
    with pytest.raises(Exception, match=r"batch 7 of job .* with 1000 rows, .* 900 rows, which are not written"):
        write(system, frame(spark, 900), "sinkother", **named)
    write(system, frame(spark, 900), "sinkother", **named, failOnMismatch=False)
    assert rows_of(system.records("sinkother")) == expected(1_000)


def test_rows_are_brought_together_by_the_partition_of_their_key(spark, system):
    system.lift.create_stream("sinktogether", subject="sinktogether", partitions=4)
    df = frame(spark, 2_000)
    df = df.withColumn("partition", liftpy_spark.partition_of("key", 4))
    assert {row.key: row.partition for row in df.select("key", "partition").distinct().collect()} == {
        f"key-{number}": partition_of(b"key-%d" % number, 4) for number in range(500)
    }
    together = df.repartitionById(4, liftpy_spark.partition_of("key", 4))
    spread = together.selectExpr("spark_partition_id() AS task", "partition").distinct().collect()
    assert sorted((row.task, row.partition) for row in spread) == [(number, number) for number in range(4)]
    write(system, together, "sinktogether")
    assert rows_of(system.records("sinktogether")) == expected(2_000)


def test_rows_go_by_way_of_a_directory(spark, system, tmp_path):
    system.lift.create_stream("sinkfiles", subject="sinkfiles", partitions=4)
    for tasks in (3, 5):
        df = frame(spark).repartition(tasks)
        write(system, df, "sinkfiles", txnAppId="job", txnVersion=7, stagingDirectory=str(tmp_path))
    assert rows_of(system.records("sinkfiles")) == expected()
    (marker,) = (path.name for path in tmp_path.iterdir())
    assert marker.startswith("liftpy-staging-")
    assert staged(system, "sinkfiles") == []
    (decision,) = (key for key in staged(system, "sinkfiles", "commits") if key.endswith(".json"))
    document = json.loads(system.server.store("liftpy").get(decision).body)
    assert document["directory"] == str(tmp_path), "it was not staged in the bucket"


def test_tasks_that_do_not_see_the_directory_of_the_driver_say_so(spark, system, tmp_path):
    """The first ones take the marker away: the later ones see what tasks of another machine would see."""
    system.lift.create_stream("sinkblind", subject="sinkblind")

    def unmark(batches, directory=str(tmp_path)):
        for path in Path(directory).glob("liftpy-staging-*"):
            path.unlink(missing_ok=True)
        yield from batches

    df = spark.range(0, 80, 1, 8).selectExpr("encode(string(id), 'utf-8') AS value").mapInArrow(unmark, "value binary")
    words = rf"a task on \S+ does not see the directory {tmp_path} of the driver on \S+ .*: mount one and the same"
    with pytest.raises(Exception, match=words):
        write(system, df, "sinkblind", stagingDirectory=str(tmp_path))
    assert system.records("sinkblind").num_rows == 0
    assert staged(system, "sinkblind", "commits") == []


def test_at_least_once_goes_without_the_bucket(spark, system):
    system.lift.create_stream("sinkquick", subject="sinkquick", partitions=2)
    write(system, frame(spark), "sinkquick", delivery="at-least-once")
    assert rows_of(system.records("sinkquick")) == expected()
    assert staged(system, "sinkquick", "commits") == staged(system, "sinkquick") == []


def test_an_empty_frame(spark, system):
    system.lift.create_stream("sinkempty", subject="sinkempty")
    write(system, frame(spark, 0), "sinkempty")
    assert system.records("sinkempty").num_rows == 0


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        (["id AS value"], {}, "column value is bigint; it has to be binary or string"),
        (["'v' AS value", "id"], {}, "column 'id' is none of a record's, which are value, key"),
        (["'v' AS valeu"], {}, "did you mean value?"),
        (["'v' AS value", "map('a', 'b') AS headers"], {}, "array<struct<key: string, value: binary>>"),
        (["'v' AS value"], {"stream": "sinkwhat"}, "there is no stream 'sinkwhat' to write to"),
        (["'v' AS value"], {"subject": "other"}, "does not store 'other'; it stores 'sinkwrong.>'"),
        (["'v' AS value"], {}, "say which subject, here or in a column subject"),
        (["'v' AS value", "'x' AS subject"], {}, "subject 'x' is none that stream sinkwrong stores"),
        (["'v' AS value"], {"subject": "sinkwrong.a", "txnVersion": "1"}, "give both, or none"),
        (["'v' AS value"], {"subject": "sinkwrong.a", "delivry": "x"}, "did you mean 'delivery'?"),
        (["'v' AS value", "9 AS partition"], {"subject": "sinkwrong.a"}, "9 is not a partition of stream sinkwrong"),
        (["repeat('v', 2000000) AS value", "'big' AS key"], {"subject": "sinkwrong.a"}, "key b'big'"),
        (["'v' AS value"], {"subject": "sinkwrong.a", "stagingDirectory": "x/y"}, "'x/y' is no absolute path"),
        (
            ["'v' AS value"],
            {"subject": "sinkwrong.a", "stagingDirectory": "/there/is/none"},
            "option 'stagingDirectory': there is no directory /there/is/none on ",
        ),
        (
            ["'v' AS value"],
            {"subject": "sinkwrong.a", "stagingDirectory": "/dev/null"},
            "option 'stagingDirectory': /dev/null is not a directory on ",
        ),
    ],
)
def test_what_can_not_be_written_is_refused_with_words(spark, system, columns, options, words):
    if "sinkwrong" not in {each.name for each in system.lift.streams()}:
        system.lift.create_stream("sinkwrong", subject="sinkwrong.>", partitions=2)
    df = spark.range(3).selectExpr(*columns)
    with pytest.raises(Exception) as caught:
        write(system, df, options.pop("stream", "sinkwrong"), **options)
    assert words in str(caught.value)
    assert system.records("sinkwrong").num_rows == 0
    assert staged(system, "sinkwrong") == []


def test_a_stream_that_takes_nothing_now(spark, system):
    system.lift.create_stream("sinkshut", subject="sinkshut")
    df = frame(spark, 3)
    system.lift.pause_stream("sinkshut")
    with pytest.raises(
        Exception, match="is paused, and takes nothing until somebody says: liftpy stream resume sinksh"
    ):
        write(system, df, "sinkshut")
    system.lift.resume_stream("sinkshut")
    system.lift.set_read_only("sinkshut", read_only=True)
    with pytest.raises(Exception, match=r"is read-only, and .*: liftpy stream readonly sinkshut --off"):
        write(system, df, "sinkshut", delivery="at-least-once")
    assert staged(system, "sinkshut", "commits") == staged(system, "sinkshut") == []


def test_a_stream_is_not_overwritten(spark, system):
    system.lift.create_stream("sinkover", subject="sinkover")
    with pytest.raises(Exception, match="can not be overwritten: write to sinkover with mode"):
        frame(spark, 3).write.format("liftpy").mode("overwrite").options(**system.options, stream="sinkover").save()
