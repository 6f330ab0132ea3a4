"""Leaders read staged rows from the bucket: all are in the stream once, whoever reads, and whoever is killed."""

from __future__ import annotations

import random
import threading
from collections import Counter
from contextlib import nullcontext
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

import liftpy
from liftpy_client.client import Lift
from liftpy_client.connection.cluster import Cluster
from liftpy_client.errors import AdminError
from liftpy_envelope.errors import ErrorCode
from liftpy_spark.connections import bucket
from liftpy_spark.sink.decision import SinkBatch
from liftpy_spark.sink.link import StreamTarget
from liftpy_spark.sink.options import SinkOptions
from liftpy_spark.sink.plan import make_plan
from liftpy_spark.sink.referring import Referring
from liftpy_spark.sink.writing import commit_rows, stage_rows
from support.cluster_kit import ClusterKit
from support.spark_system import eventually, system_of
from support.tier_kit import tier_toml

SCHEMA = [StructField("key", BinaryType()), StructField("value", BinaryType())]
COUNT = 400
PREFIX = "leaders"


def plan_of(options, stream, schema=SCHEMA):
    return make_plan(
        SinkOptions.read(options | {"stream": stream}, streaming=False), StructType(schema), overwrite=False
    )


def batch_of(plan, number=0):
    return SinkBatch(stream=plan.options.stream, uuid=plan.uuid, application="app", number=number)


def staged(plan, batch, **columns):
    """What tasks stage of rows that do not compress, so that sections are as large as leaders read."""
    first = batch.number * COUNT
    values = [b"%06d" % number + random.Random(number).randbytes(20_000) for number in range(first, first + COUNT)]
    table = pa.table({"key": [b"k%d" % (number % 50) for number in range(COUNT)], "value": values} | columns)
    half = COUNT // 2
    return [
        stage_rows(plan, batch, table.slice(task * half, half).combine_chunks().to_batches(), task) for task in range(2)
    ]


def staged_with_subjects(system, stream):
    """A plan, a batch, and what tasks stage of it when rows have three subjects in turn."""
    plan = plan_of(system.options, stream, [*SCHEMA, StructField("subject", StringType())])
    batch = batch_of(plan)
    return plan, batch, staged(plan, batch, subject=[f"{stream}.{number % 3}" for number in range(COUNT)])


def numbers(lift, stream):
    return Counter(int(value[:6]) for value in lift.to_arrow(stream).column("value").to_pylist())


def once(batches=1):
    return Counter(dict.fromkeys(range(batches * COUNT), 1))


def left(plan, batch):
    return list(bucket(plan.options.connection).list(batch.staging_prefix))


def driver_does_not_publish():
    return mock.patch.object(StreamTarget, "publish", side_effect=AssertionError("the driver publishes"))


def leaders_are_not_asked():
    return mock.patch.object(Referring, "deliver", side_effect=AssertionError("leaders are asked to read"))


def test_the_driver_neither_reads_nor_publishes_rows(system):
    stream = "leadersread"
    system.lift.create_stream(stream, subject=stream, partitions=2)
    plan = plan_of(system.options, stream)
    batch = batch_of(plan)
    with driver_does_not_publish():
        commit_rows(plan, staged(plan, batch))
    assert numbers(system.lift, stream) == once()
    assert left(plan, batch) == []
    commit_rows(plan, staged(plan, batch))
    assert numbers(system.lift, stream) == once()


def test_leaders_read_rows_with_subjects_of_their_own(system):
    stream = "leaderssubjects"
    system.lift.create_stream(stream, subject=f"{stream}.>", partitions=2)
    plan, _, rows = staged_with_subjects(system, stream)
    with driver_does_not_publish():
        commit_rows(plan, rows)
    assert numbers(system.lift, stream) == once()
    found = system.lift.to_arrow(stream).select(["value", "subject"]).to_pylist()
    subjects = {int(row["value"][:6]): row["subject"] for row in found}
    assert subjects == {number: f"{stream}.{number % 3}" for number in range(COUNT)}


@pytest.mark.parametrize("settings", [{"acks": "envelope"}, {"keep_replies": True}], ids=str)
@pytest.mark.parametrize("is_older", [False, True])
def test_where_a_node_could_not_refuse_such_messages_all_have_to_know_them(system, settings, is_older):
    stream = f"leaders{'older' if is_older else 'newer'}{next(iter(settings))}"
    system.lift.create_stream(stream, subject=stream, **settings)
    plan = plan_of(system.options, stream)
    older = mock.patch.object(
        Lift, "nodes", return_value=[{"node_id": "n1", "level": 2}, {"node_id": "n2", "level": 1}]
    )
    with older if is_older else nullcontext(), leaders_are_not_asked() if is_older else driver_does_not_publish():
        commit_rows(plan, staged(plan, batch_of(plan)))
    assert numbers(system.lift, stream) == once()


def test_who_goes_on_with_a_batch_knows_the_subjects_of_what_is_staged(system):
    stream = "leadersgoon"
    system.lift.create_stream(stream, subject=f"{stream}.>", partitions=2)
    plan, _, rows = staged_with_subjects(system, stream)
    with (
        mock.patch.object(StreamTarget, "refer", side_effect=RuntimeError("the driver dies")),
        pytest.raises(RuntimeError, match="the driver dies"),
    ):
        commit_rows(plan, rows)
    plan, batch, rows = staged_with_subjects(system, stream)
    with driver_does_not_publish():
        commit_rows(plan, rows)
    assert left(plan, batch) == []
    assert numbers(system.lift, stream) == once()


def test_the_driver_publishes_the_subjects_alone_that_other_streams_store(system):
    stream = "leadersshared"
    system.lift.create_stream(stream, subject=f"{stream}.>")
    system.lift.create_stream(f"{stream}too", subject=f"{stream}.1")
    plan, _, rows = staged_with_subjects(system, stream)
    published, publish = Counter(), StreamTarget.publish

    async def note(self, chunk, *arguments):
        published[chunk.subject] += chunk.records.num_rows
        return await publish(self, chunk, *arguments)

    with mock.patch.object(StreamTarget, "publish", note):
        commit_rows(plan, rows)
    assert numbers(system.lift, stream) == once()
    ones = [number for number in range(COUNT) if number % 3 == 1]
    assert numbers(system.lift, f"{stream}too") == Counter(ones)
    assert published == {f"{stream}.1": len(ones)}
    system.lift.delete_stream(f"{stream}too")


def test_leaders_read_from_the_directory_that_they_were_told(tmp_path, s3):
    directory = tmp_path / "staging"
    directory.mkdir()
    toml = {"staging_directory": f'"{directory}"'}
    with system_of(tmp_path, s3, "staged", **toml) as system:
        system.lift.create_stream("leadersfiles", subject="leadersfiles", partitions=2)
        plan = plan_of(system.options | {"stagingDirectory": str(directory)}, "leadersfiles")
        with driver_does_not_publish():
            commit_rows(plan, staged(plan, batch_of(plan)))
        assert numbers(system.lift, "leadersfiles") == once()
    assert [each.name.startswith("liftpy-staging-") for each in directory.iterdir()] == [True]


def test_the_driver_publishes_where_an_older_node_does_not_tell_which_other_streams_there_are(system, caplog):
    stream = "leadersolder"
    system.lift.create_stream(stream, subject=f"{stream}.>")
    plan = plan_of(system.options | {"subject": f"{stream}.x"}, stream)
    refusal = AdminError(ErrorCode.INVALID_REQUEST, f"subject: {stream}.> is a wildcard")
    with mock.patch.object(Cluster, "overlapping", side_effect=refusal), leaders_are_not_asked():
        commit_rows(plan, staged(plan, batch_of(plan)))
    assert numbers(system.lift, stream) == once()
    (told,) = [record.message for record in caplog.records if "is a wildcard" in record.message]
    assert f"the driver publishes what is staged for {stream}: whether leaders can read it is not known: " in told


@pytest.mark.parametrize("why", ["told to", "another stream", "directory"])
def test_the_driver_publishes_what_leaders_are_not_to_read(system, why, tmp_path):
    stream = f"leaders{why.replace(' ', '')}"
    subject = f"{stream}.x"
    system.lift.create_stream(stream, subject=f"{stream}.>")
    options = system.options | {"subject": subject}
    if why == "told to":
        options |= {"stagedReader": "driver"}
    elif why == "directory":  # which the node was not told
        options |= {"stagingDirectory": str(tmp_path)}
    else:
        system.lift.create_stream(f"{stream}too", subject=f"{stream}.*")
    plan = plan_of(options, stream)
    with nullcontext() if why == "directory" else leaders_are_not_asked():
        commit_rows(plan, staged(plan, batch_of(plan)))
    assert numbers(system.lift, stream) == once()
    if why == "another stream":
        assert numbers(system.lift, f"{stream}too") == once()
        system.lift.delete_stream(f"{stream}too")


def test_leaders_that_can_not_read_the_bucket_leave_it_to_the_driver(system, caplog):
    stream = "leaderscannot"
    system.lift.create_stream(stream, subject=stream)
    catalog = bucket(plan_of(system.options, stream).options.connection).get("catalog.json").body
    system.server.store("leaders-elsewhere").create("catalog.json", catalog, "n")
    elsewhere = system.options | {"bucket": system.server.url("leaders-elsewhere")}
    plan = plan_of(elsewhere, stream)
    commit_rows(plan, staged(plan, batch_of(plan)))
    assert numbers(system.lift, stream) == once()
    told = [record.message for record in caplog.records if "a leader does not read it" in record.message]
    assert len(told) == 1
    assert "it is gone" in told[0]


def test_leaders_are_killed_while_they_read(tmp_path, s3):
    kit = ClusterKit(tmp_path, toml=tier_toml(s3, PREFIX)).start()
    try:
        with liftpy.connect_sync(kit.url, timeout_s=10.0) as lift:
            stream = "leadersdie"
            lift.create_stream(stream, subject=stream, partitions=2, replicas=3, min_isr=2)
            options = {"servers": kit.url, "bucket": s3.url(PREFIX), "s3.endpoint": s3.endpoint}
            plan = plan_of(options, stream)
            asked, deliver = [], Referring.deliver

            async def count(self, *arguments):
                asked.append(1)
                return await deliver(self, *arguments)

            with mock.patch.object(Referring, "deliver", count):
                for number, delay_s in enumerate((0.05, 0.2, 0.4)):
                    batch = batch_of(plan, number)
                    rows = staged(plan, batch)
                    leader = eventually(lambda: lift.stream_info(stream).partitions[0].leader, "it has a leader")
                    killer = threading.Timer(delay_s, kit.kill, [leader])
                    killer.start()
                    commit_rows(plan, rows)
                    killer.join()
                    kit.start_nodes()
                    assert numbers(lift, stream) == once(number + 1)
                    assert left(plan, batch) == []
            assert len(asked) >= 24, "all chunks of three batches"
    finally:
        kit.close()
