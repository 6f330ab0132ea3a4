"""Streaming queries: every record once, whatever limits, restarts and changes of the streams there are."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from support.spark_streaming import TIMEOUT_S, Query, create, publish, stored, values
from support.spark_system import eventually


@pytest.fixture
def name(request):
    """A name for a stream that no other test uses."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", f"s-{request.node.name}")[:100].strip("-")


@pytest.fixture
def query(spark, system, tmp_path, name):
    """Makes a query of the stream of this test."""

    def make(home="query", **options):
        chosen = {} if {"subscribe", "subscribePattern", "assign"} & set(options) else {"subscribe": name}
        return Query(spark, system, tmp_path / home, **chosen | options)

    return make


def test_every_record_once_over_many_runs(system, query, name):
    create(system, name, partitions=3, count=500)
    asked = query(startingOffsets="earliest").run()
    assert asked.records() == stored(system, name)
    for run in range(1, 3):
        publish(system, name, 300, first=500 * run)
        asked.run()
        assert asked.records() == stored(system, name)
    planned = sorted((asked.home / "checkpoint" / "offsets").iterdir())
    assert sum(asked.run().batches) == 0
    assert sorted((asked.home / "checkpoint" / "offsets").iterdir()) == planned, "nothing new is no batch"


def test_batches_are_as_large_as_they_may_be(system, query, name):
    create(system, name, partitions=3, count=1_000)
    waiting = {p: sum(1 for r in stored(system, name) if r[1] == p) for p in range(3)}
    asked = query(startingOffsets="earliest", maxOffsetsPerTrigger="300").run()
    assert asked.batches == [300, 300, 300, 100]
    assert asked.records() == stored(system, name)
    end = asked.offsets(0)["streams"][name]["offsets"]
    for partition, count in waiting.items():
        assert abs(end[str(partition)] - 300 * count / 1_000) < 1, "in proportion to what waits"


def test_batches_have_about_as_many_bytes_as_they_may(system, query, name):
    create(system, name, count=0)
    system.publish(f"{name}.x", value=pa.array([b"%0500d" % number for number in range(1_000)]))
    asked = query(startingOffsets="earliest", maxBytesPerTrigger="200000").run()
    assert values(asked.records()) == list(range(1_000))
    assert 2 <= len(asked.batches) <= 4
    assert max(asked.batches) * 500 <= 200_000


def test_latest_begins_at_the_end_and_is_kept(system, query, name):
    create(system, name, count=100)
    asked = query().run()
    assert asked.records() == []
    assert asked.offsets(0)["streams"][name]["offsets"] == {"0": 100}
    publish(system, name, 50, first=100)
    assert values(asked.run().records()) == list(range(100, 150))


def test_a_crash_before_the_first_batch_is_done_loses_nothing(system, query, name):
    create(system, name, partitions=2, count=100)
    asked = query().run()
    (asked.home / "checkpoint" / "commits" / "0").unlink()
    (asked.home / "checkpoint" / "commits" / ".0.crc").unlink(missing_ok=True)
    publish(system, name, 40, first=100)
    assert values(asked.run().records()) == list(range(100, 140))


def test_a_batch_that_was_planned_and_not_done_is_done_again(system, query, name):
    create(system, name, partitions=2, count=100)
    asked = query(startingOffsets="earliest").run()
    (asked.home / "checkpoint" / "commits" / "0").unlink()
    (asked.home / "checkpoint" / "commits" / ".0.crc").unlink(missing_ok=True)
    publish(system, name, 40, first=100)
    asked.run()
    assert asked.records() == stored(system, name), "the sink knows a batch that it has, and takes it once"


def test_a_new_stream_of_a_pattern_is_read_from_its_start(system, query, name):
    create(system, f"{name}-a", count=50)
    asked = query(subscribePattern=f"{name}-.*", startingOffsets="latest").run()
    assert asked.records() == []
    create(system, f"{name}-b", partitions=2, count=70)
    publish(system, f"{name}-a", 5, first=50)
    asked.run()
    asked.run()
    assert [record for record in asked.records() if record[0] == f"{name}-b"] == stored(system, f"{name}-b")
    assert values(record for record in asked.records() if record[0] == f"{name}-a") == list(range(50, 55))


def test_another_stream_of_the_same_name_is_refused_or_begun_anew(system, query, name):
    create(system, name, count=30)
    asked = query(startingOffsets="earliest").run()
    system.lift.delete_stream(name)
    create(system, name, count=7)
    with pytest.raises(StreamingQueryException, match=f"{name} was deleted and created again") as raised:
        asked.run()
    assert "failOnDataLoss" in str(raised.value)
    assert "Traceback" not in str(raised.value)
    tolerant = query(startingOffsets="earliest", failOnDataLoss="false").run().run()
    assert values(tolerant.records()) == sorted([*range(30), *range(7)])


def test_a_checkpoint_of_another_stream_is_refused(system, query, name):
    create(system, f"{name}-a", count=3)
    create(system, f"{name}-b", count=3)
    query(subscribe=f"{name}-a", startingOffsets="earliest").run()
    with pytest.raises(StreamingQueryException, match=f"{name}-a is not there any more, or not among those"):
        query(subscribe=f"{name}-b", startingOffsets="earliest").run()


def test_a_log_that_took_another_way_is_noticed(system, query, name):
    """As after a restore: what the checkpoint has is of an epoch that ended before it."""
    create(system, name, count=30)
    asked = query(startingOffsets="earliest").run()
    (epoch,) = (each.leader_epoch for each in system.partitions(name))
    planned = asked.home / "checkpoint" / "offsets" / "0"
    assert asked.offsets(0)["streams"][name]["epochs"] == {"0": epoch}
    planned.write_text(re.sub(r'("epochs": *{"0": *)[0-9]+', r"\g<1>0", planned.read_text()))
    planned.with_name(".0.crc").unlink()
    assert asked.offsets(0)["streams"][name]["epochs"] == {"0": 0}
    with pytest.raises(StreamingQueryException, match="other records from offset 0 on than the query, which has read"):
        asked.run()
    tolerant = query(startingOffsets="earliest", failOnDataLoss="false").run()
    assert values(tolerant.records()) == sorted([*range(30), *range(30)])


def test_retention_is_quicker_than_the_query(system, query, name):
    create(system, name, count=30)
    asked = query(startingOffsets="earliest", maxOffsetsPerTrigger="10").run()
    publish(system, name, 30, first=30)
    system.lift.purge_stream(name, offset=45)
    with pytest.raises(StreamingQueryException, match="offsets 30 to 44 are not there any more"):
        asked.run()
    tolerant = query(startingOffsets="earliest", maxOffsetsPerTrigger="10", failOnDataLoss="false").run()
    assert values(tolerant.records()) == [*range(30), *range(45, 60)]


def test_the_progress_says_how_far_behind_it_is(system, query, name):
    create(system, name, count=100)
    asked = query(startingOffsets="earliest", maxOffsetsPerTrigger="40").run()
    (first, *_) = [each["sources"][0] for each in asked.progress]
    seen = {which: json.loads(json.dumps(first[which])) for which in ("endOffset", "latestOffset")}
    assert seen["endOffset"]["streams"][name]["offsets"] == {"0": 40}
    assert seen["latestOffset"]["streams"][name]["offsets"] == {"0": 100}


def test_a_query_that_runs_reads_what_comes(system, query, name):
    create(system, name, partitions=2, count=20)
    asked = query(startingOffsets="earliest")
    running = asked.writer(available_now=False).start()

    def has_all():
        assert running.isActive, running.exception()
        return asked.records() == stored(system, name)

    try:
        for round_ in range(1, 4):
            # Not `processAllAvailable`: it ends with a look at the stream that began before the records came.
            eventually(has_all, "what came is read", TIMEOUT_S)
            publish(system, name, 20, first=20 * round_)
        eventually(has_all, "what came is read", TIMEOUT_S)
    finally:
        running.stop()
    assert values(asked.records()) == list(range(80))


def test_columns_of_ones_own_choice(spark, system, tmp_path, name):
    create(system, name, count=10)
    frame = spark.readStream.format("liftpy").schema("offset long, subject string")
    frame = frame.options(**system.options, subscribe=name, startingOffsets="earliest").load()
    writer = frame.writeStream.format("memory").queryName("chosen").trigger(availableNow=True)
    asked = writer.option("checkpointLocation", str(tmp_path)).start()
    assert asked.awaitTermination(TIMEOUT_S)
    rows = spark.table("chosen").orderBy("offset").collect()
    assert [tuple(row) for row in rows] == [(number, f"{name}.x") for number in range(10)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"endingOffsets": "latest"}, "a streaming query has no end"),
        ({"subscribe": "nothing-like-it"}, "there is no stream 'nothing-like-it'"),
    ],
)
def test_a_slip_is_said_in_words(query, options, words):
    with pytest.raises(Exception, match=re.escape(words)) as raised:
        query(**{"subscribe": "none", **options}).run()
    assert "Traceback" not in str(raised.value)
