"""Commits into a real stream by way of a real bucket, interrupted between the effects on its partitions."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from liftpy_bucket.errors import StagingDamagedError
from liftpy_envelope.ack import AckPolicy
from liftpy_spark.connections import bucket
from liftpy_spark.sink import applying
from liftpy_spark.sink import link as sink_link
from liftpy_spark.sink.accounts import mark_of
from liftpy_spark.sink.commit import StagedRows, commit
from liftpy_spark.sink.contents import total_of
from liftpy_spark.sink.decision import SinkBatch
from liftpy_spark.sink.errors import BatchMismatchError, CommitUnclearError, SinkModeError
from liftpy_spark.sink.link import StreamTarget, open_link
from liftpy_spark.sink.options import SinkOptions
from liftpy_spark.sink.plan import make_plan
from liftpy_spark.sink.staging import place_of
from liftpy_spark.sink.writing import abort_rows, commit_rows, stage_rows
from support.spark_system import eventually

SCHEMA = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])
COUNT = 400


class Killed(BaseException):
    """The driver is gone."""


class Dying(StreamTarget):
    """The connection of a driver that dies before or after some of its publications."""

    left = 0
    is_stored = False

    async def publish(self, chunk, producer_id, sequence):
        type(self).left -= 1
        if self.left < 0 and not self.is_stored:
            raise Killed
        place = await super().publish(chunk, producer_id, sequence)
        if self.left < 0:
            raise Killed
        return place


def plan_of(system, stream, **options):
    read = SinkOptions.read(system.options | {"stream": stream} | options, streaming=False)
    return make_plan(read, SCHEMA, overwrite=False)


def rows(first=0, count=COUNT):
    """Large ones, so that every partition gets several chunks."""
    values = [b"%06d" % number + bytes(20_000) for number in range(first, first + count)]
    return pa.record_batch({"key": [b"k%d" % (number % 50) for number in range(count)], "value": values})


def batch_of(plan, number=0):
    return SinkBatch(stream=plan.options.stream, uuid=plan.uuid, application="app", number=number)


def staged(plan, batch, tasks=2):
    """What tasks stage, in a distribution that depends on how many there are."""
    whole = rows()
    order = [number for task in range(tasks) for number in range(task, COUNT, tasks)]
    share = COUNT // tasks
    table = whole.take(pa.array(order))
    return [stage_rows(plan, batch, [table.slice(task * share, share)], task) for task in range(tasks)]


def rows_of(written):
    return StagedRows(
        tuple(section for each in written for section in each.sections), total_of(each.contents for each in written)
    )


def numbers(system, stream):
    return Counter(int(value[:6]) for value in system.records(stream).column("value").to_pylist())


@contextmanager
def one_at_a_time():
    """Of what a driver publishes that dies in here, nothing is still on its way to a node afterwards."""
    with mock.patch.multiple(applying, _CHUNKS_IN_FLIGHT=1, _PARTITIONS_AT_ONCE=1):
        yield


def interrupt(plan, batch, *, after, is_stored):
    """A driver that dies."""
    Dying.left, Dying.is_stored = after, is_stored
    connection = plan.options.connection
    with mock.patch.object(sink_link, "StreamTarget", Dying), open_link(connection) as link:
        target = link.target(plan.options.stream, plan.uuid, plan.window_s, AckPolicy.ALL)
        store = bucket(connection)
        place = place_of(store, plan.options.staging_directory)
        committing = commit(batch, rows_of(staged(plan, batch)), store, place, target, "dying")
        with pytest.raises(Killed):
            link.run(committing)


@pytest.fixture(params=["bucket", "directory"])
def staging(request, tmp_path):
    """The options for both ways of staging."""
    return {} if request.param == "bucket" else {"stagingDirectory": str(tmp_path)}


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_driver_that_dies_between_partitions(system, staging, is_stored):
    stream = f"sinkdies{is_stored}{len(staging)}"
    system.lift.create_stream(stream, subject=stream, partitions=4)
    plan = plan_of(system, stream, **staging)
    for number, after in enumerate((0, 1, 3, 6)):
        batch = batch_of(plan, number)
        interrupt(plan, batch, after=after, is_stored=is_stored)
        before = numbers(system, stream).total()
        assert number * COUNT <= before < (number + 1) * COUNT + is_stored, "a few may be stored, or all"
        commit_rows(plan, staged(plan, batch, tasks=4))
        assert numbers(system, stream) == Counter(dict.fromkeys(range(COUNT), number + 1))
        commit_rows(plan, staged(plan, batch, tasks=5))
        assert numbers(system, stream).total() == (number + 1) * COUNT
        assert left(plan, batch) == []


def test_a_batch_after_a_change_of_leaders_knows_whether_records_are_gone(system):
    """The mark of the batch before says up to where it wrote, and in which leader epoch at the latest."""
    stream = "sinkepochs"
    system.lift.create_stream(stream, subject=stream)
    plan = plan_of(system, stream)
    store = bucket(plan.options.connection)
    commit_rows(plan, staged(plan, batch_of(plan)))
    before = system.lift.stream_info(stream).partitions[0]
    mark = mark_of(store, batch_of(plan))
    assert mark == ({0: before.high_watermark}, {0: before.leader_epoch})
    system.node.kill()
    system.node.start()
    eventually(
        lambda: (system.lift.stream_info(stream).partitions[0].leader_epoch or 0) > before.leader_epoch, "it leads anew"
    )
    commit_rows(plan, staged(plan, batch_of(plan, 1)))
    assert numbers(system, stream) == Counter(dict.fromkeys(range(COUNT), 2))

    # As if batch 2 had reached further than the first epoch did: what is there now is in the second.
    forged = mark._replace(ends={0: before.high_watermark + 1})
    store.create(batch_of(plan, 2).done_key, forged.encode(), "forged")
    with pytest.raises(BatchMismatchError, match=f"other records from {before.high_watermark} on"):
        commit_rows(plan, staged(plan, batch_of(plan, 3)))
    assert numbers(system, stream).total() == 2 * COUNT


def left(plan, batch):
    place = place_of(bucket(plan.options.connection), plan.options.staging_directory)
    return [entry.key for entry in place.entries(batch.staging_prefix)]


def test_a_batch_goes_on_from_its_directory_or_not_at_all(system, tmp_path):
    """Also where the option is no longer given; and not at all where the directory is not there, or lost a file."""
    system.lift.create_stream("sinkmoves", subject="sinkmoves", partitions=4)
    directory, gone = tmp_path / "staging", tmp_path / "gone"
    directory.mkdir()
    plan, plain = plan_of(system, "sinkmoves", stagingDirectory=str(directory)), plan_of(system, "sinkmoves")
    batch = batch_of(plan)
    interrupt(plan, batch, after=0, is_stored=False)  # decided, and nothing is on its way
    directory.rename(gone)
    words = rf"^{batch}: staged file {directory}/.* it is gone; is its directory mounted here.*nothing is skipped"
    with pytest.raises(StagingDamagedError, match=words):
        commit_rows(plain, staged(plain, batch, tasks=4))
    assert numbers(system, "sinkmoves").total() == 0
    gone.rename(directory)
    commit_rows(plain, staged(plain, batch, tasks=4))
    assert numbers(system, "sinkmoves") == Counter(dict.fromkeys(range(COUNT), 1))
    assert left(plan, batch) == left(plain, batch) == []


def test_nodes_that_have_forgotten_are_asked_for_their_logs(system):
    """The same with a stream whose nodes forget ids at once, as far as a count of one does.

    Without ids nothing tells a chunk that arrives after the look from another one, so there must be none.
    """
    system.lift.create_stream("sinkforgets", subject="sinkforgets", partitions=2, dedupe_ids_max=1)
    plan = plan_of(system, "sinkforgets")
    batch = batch_of(plan)
    with one_at_a_time():
        interrupt(plan, batch, after=5, is_stored=True)
    for partition in range(2):
        system.lift.publish("sinkforgets", b"999999", key=b"k%d" % partition)
    commit_rows(plan, staged(plan, batch, tasks=5))
    found = numbers(system, "sinkforgets")
    assert found.pop(999_999) == 2
    assert found == Counter(dict.fromkeys(range(COUNT), 1))


@pytest.mark.parametrize("compact", [False, True])
def test_what_left_the_disk_of_the_leader_is_asked_of_the_bucket(system, compact):
    """Records of ordinary publishers, which have no ids, are no reason for doubt there, also where keys are compacted.

    Nothing has been compacted yet.
    """
    stream = f"sinkleft{compact}"
    system.lift.create_stream(
        stream,
        subject=stream,
        partitions=2,
        dedupe_ids_max=1,
        segment_bytes=65_536,
        local_retention_bytes=65_536,
        **({"compact": True, "min_compaction_lag_s": 86_400.0} if compact else {}),
    )
    plan = plan_of(system, stream)
    batch = batch_of(plan)
    for partition in range(2):
        system.lift.publish(stream, b"888888", key=b"k%d" % partition)
    with one_at_a_time():
        interrupt(plan, batch, after=5, is_stored=True)
    for partition in range(2):
        system.lift.publish(stream, b"999999", key=b"k%d" % partition)
    eventually(lambda: all(each.local_start for each in system.partitions(stream)), "local retention")
    assert 4 < numbers(system, stream).total() < COUNT
    commit_rows(plan, staged(plan, batch, tasks=5))
    found = numbers(system, stream)
    assert found.pop(999_999) == found.pop(888_888) == 2
    assert found == Counter(dict.fromkeys(range(COUNT), 1))


def test_a_log_that_is_gone_is_a_reason_to_refuse(system):
    system.lift.create_stream("sinkgone", subject="sinkgone")
    plan = plan_of(system, "sinkgone")
    batch = batch_of(plan)
    with one_at_a_time():  # none comes in behind the purge
        interrupt(plan, batch, after=2, is_stored=True)
    system.lift.purge_stream("sinkgone")
    with pytest.raises(CommitUnclearError, match="can not be told any more"):
        commit_rows(plan, staged(plan, batch, tasks=4))
    assert system.records("sinkgone").num_rows == 0


def test_an_abort_leaves_what_may_have_been_decided(system, staging):
    stream = f"sinkabort{len(staging)}"
    system.lift.create_stream(stream, subject=stream)
    plan = plan_of(system, stream, **staging)
    batch = batch_of(plan)
    written = staged(plan, batch)
    abort_rows(plan, written)
    assert len(left(plan, batch)) == 2, "all tasks were through: a commit may have decided"
    abort_rows(plan, [None, written[1]])
    assert left(plan, batch) == [written[0].sections[0].key]
    abort_rows(plan, [written[0], None])
    assert left(plan, batch) == []


def test_streams_that_can_not_take_records_once(system):
    system.lift.create_stream("sinkshort", subject="sinkshort", dedupe_window_s=5.0)
    with pytest.raises(SinkModeError, match="knows the ids of batches for 5 s"):
        plan_of(system, "sinkshort")
    assert plan_of(system, "sinkshort", delivery="at-least-once").window_s == 5.0
