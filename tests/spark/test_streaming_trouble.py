"""Streaming queries while tasks fail, drivers and nodes are killed, and history is merged and compacted below them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

import liftpy
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.root.file import RootFile
from support.cluster_kit import ClusterKit
from support.spark_streaming import TIMEOUT_S, Query, create, publish, stored, values
from support.spark_system import System, eventually, system_of

TESTS = Path(__file__).parents[1]
IDLE_S = 20.0
IDLE_SHARE_MAX = 0.03


@pytest.fixture
def name(request):
    """A name for a stream that no other test uses."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", f"u-{request.node.name}")[:100].strip("-")


def in_batches(spark, system, stream, home, each, **options):
    """A query that hands its batches to a function, and ends when it has read what there is."""
    usual = {"subscribe": stream, "startingOffsets": "earliest"}
    frame = spark.readStream.format("liftpy").options(**system.options, **usual | options).load()
    writer = frame.writeStream.foreachBatch(each).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(home / "checkpoint")).start()
    try:
        assert query.awaitTermination(TIMEOUT_S), "the query does not end"
    finally:
        query.stop()


def test_tasks_that_fail_at_first_are_tried_again(spark, system, tmp_path, name):
    create(system, name, partitions=2, count=300)
    failures = tmp_path / "failures"
    failures.mkdir()

    def fail_at_first(batches):
        from pyspark import TaskContext  # noqa: PLC0415 - it runs in a task

        for number, batch in enumerate(batches):
            yield batch
            context = TaskContext.get()
            if number == 0 and context.attemptNumber() == 0:
                (failures / str(context.taskAttemptId())).touch()
                raise RuntimeError("a task that fails when it has handed out records")

    class Failing(Query):
        def writer(self, **how):
            frame = spark.readStream.format("liftpy").options(**self.options).load()
            frame = frame.mapInArrow(fail_at_first, frame.schema)
            writer = frame.writeStream.format("parquet").option("checkpointLocation", str(self.home / "checkpoint"))
            return writer.trigger(availableNow=True).option("path", str(self.home / "out"))

    options = {"subscribe": name, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "100"}
    asked = Failing(spark, system, tmp_path / "query", **options).run()
    assert asked.records() == stored(system, name)
    assert len(list(failures.iterdir())) >= 3, "one in every batch at least"


@pytest.fixture(scope="module")
def busy_system(tmp_path_factory, s3):
    """A system whose node merges objects when there are a few small ones."""
    tier = {"merge_bytes": 65_536, "object_bytes": 1_048_576}
    with system_of(tmp_path_factory.mktemp("busy"), s3, prefix="busy", **tier) as made:
        yield made


def object_names(system, stream):
    """Names of the objects that the root of partition 0 names."""
    uuid = system.lift.stream_info(stream).uuid.replace("-", "")
    file = RootFile(system.server.store("busy"), PartitionPath(uuid, 0), new_id=lambda: "")
    loaded = file.load()
    return set() if loaded is None else {each.name for each in file.fragments(loaded.root)}


def publish_noise(system, stream, count, first):
    """Records of 600 bytes that do not compress."""
    found = [b"%d " % number + os.urandom(600) for number in range(first, first + count)]
    system.publish(f"{stream}.x", value=pa.array(found))


def test_a_merge_is_committed_between_planning_and_reading(spark, busy_system, tmp_path, name):
    system = busy_system
    create(system, name, segment_bytes=65_536, local_retention_bytes=65_536)
    for first in range(0, 900, 300):
        publish_noise(system, name, 300, first)
        system.tiered(name)
    read, merged = [], []

    def each(batch, number):
        before = object_names(system, name)
        published = 900 + 300 * len(merged)
        while len(merged) < 2 and not before - object_names(system, name):
            publish_noise(system, name, 300, published)
            system.tiered(name)
            published += 300
            assert published < 30_000, "the node merges nothing"
        merged.append(number)
        read.extend((row.offset, bytes(row.value)) for row in batch.select("offset", "value").collect())

    in_batches(spark, system, name, tmp_path, each, maxOffsetsPerTrigger="450")
    assert len(merged) == 2
    assert sorted(read) == [(offset, value) for _, _, offset, value in stored(system, name)][:900]


def test_compaction_runs_beneath_a_query(spark, system, tmp_path, name):
    settings = {"compact": True, "segment_bytes": 65_536, "dedupe_window_s": 0.0, "min_dirty_ratio": 0.1}
    create(system, name, **settings)
    count, keys = 20_000, 100
    numbers = [b"%d" % (number % keys) for number in range(count)]
    written = [b"%050d" % number for number in range(count)]
    system.publish(f"{name}.x", key=pa.array(numbers), value=pa.array(written))
    read = []

    def each(batch, number):
        if number == 1:
            eventually(
                lambda: system.lift.to_arrow(name, columns=["offset"]).num_rows < count / 2, "the stream is compacted"
            )
        read.extend((row.offset, bytes(row.value)) for row in batch.select("offset", "value").collect())

    in_batches(spark, system, name, tmp_path, each, maxOffsetsPerTrigger="5000")
    offsets = [offset for offset, _ in read]
    assert len(set(offsets)) == len(offsets), "no record twice"
    assert all(value == written[offset] for offset, value in read)
    assert set(range(count - keys, count)) <= set(offsets), "the last record of every key"
    assert len(offsets) < count


def test_a_checkpoint_of_another_source_is_refused(spark, system, tmp_path, name):
    create(system, name, count=3)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_text("a line")
    frame = spark.readStream.text(str(tmp_path / "source"))
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(TIMEOUT_S)
    with pytest.raises(Exception, match="which is not of liftpy: was another source read with it") as raised:
        in_batches(spark, system, name, tmp_path, lambda *_: None)
    assert "Traceback" not in str(raised.value)


DRIVER = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from support.spark_system import spark_session
home, options = Path(sys.argv[2]), json.loads(sys.argv[3])
with spark_session(home / "session") as spark:
    frame = spark.readStream.format("liftpy").options(**options).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(home / "checkpoint"))
    writer.option("path", str(home / "out")).start().awaitTermination()
"""


@contextmanager
def driver(home, options):
    """A driver in processes of its own, gone with all of them afterwards: by SIGKILL."""
    import json  # noqa: PLC0415 - nobody else needs it

    command = [sys.executable, "-c", DRIVER, str(TESTS), str(home), json.dumps(options)]
    with (home / "driver.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for number in (signal.SIGSTOP, signal.SIGKILL):  # so that none sees another one die, and tidies up
            for each in family:
                with suppress(psutil.NoSuchProcess):
                    each.send_signal(number)
        process.wait()
        psutil.wait_procs(family, 30)


def newest(directory):
    return max((int(each.name) for each in directory.glob("[0-9]*")), default=-1)


@pytest.mark.slow
def test_a_driver_that_is_killed_in_a_batch_goes_on_where_it_was(spark, system, tmp_path, name):
    create(system, name, partitions=2, count=3_000)
    options = {"subscribe": name, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "250"}
    asked = Query(spark, system, tmp_path, **options)
    offsets, commits = tmp_path / "checkpoint" / "offsets", tmp_path / "checkpoint" / "commits"

    def is_in_a_batch(process, commits_least):
        assert process.poll() is None, (tmp_path / "driver.log").read_text()[-2_000:]
        return newest(commits) >= commits_least and newest(offsets) > newest(commits)

    for _ in range(2):
        with driver(tmp_path, asked.options) as process:
            eventually(partial(is_in_a_batch, process, newest(commits) + 1), "the driver is in a batch", 180)
    assert newest(offsets) < 3_000 / 250 - 1, "it was killed before it was through"
    assert asked.run().records() == stored(system, name)


@pytest.mark.slow
def test_a_leader_that_is_killed_in_a_batch_is_followed(spark, tmp_path, name):
    home = tmp_path / "cluster"
    home.mkdir()
    kit = ClusterKit(home)
    try:
        kit.start()
        with liftpy.connect_sync(kit.url, timeout_s=10.0) as lift:
            system = System(kit.nats[0], _NoBucket(), kit.nodes["node-1"], lift)
            system.options = {"servers": kit.url}
            create(system, name, replicas=3, min_isr=2)
            publish(system, name, 20_000)
            read = []

            def each(batch, number):
                if number == 1:
                    kit.kill(system.partitions(name)[0].leader)
                read.extend((row.offset, bytes(row.value)) for row in batch.select("offset", "value").collect())
                if number == 1:
                    publish(system, name, 1_000, first=20_000)

            in_batches(spark, system, name, tmp_path, each, maxOffsetsPerTrigger="5000")
            in_batches(spark, system, name, tmp_path, each, maxOffsetsPerTrigger="5000")
            assert sorted(offset for offset, _ in read) == list(range(21_000))
            assert sorted(int(value) for _, value in read) == list(range(21_000))
    finally:
        kit.close()


class _NoBucket:
    """Instead of an S3 server."""

    endpoint = ""

    def url(self, _prefix):
        return ""


@pytest.mark.parametrize("cold", ["true", "false"])
def test_a_node_that_starts_when_tasks_begin_is_waited_for(spark, s3, tmp_path, name, cold):
    with system_of(tmp_path / "system", s3, prefix=f"starts-{cold}") as system:
        create(system, name, partitions=2, count=300)
        read = []

        def each(batch, number):
            if number == 1:
                system.node.kill()
                system.node.spawn()
            read.extend((row.offset, row.partition) for row in batch.select("offset", "partition").collect())
            if number == 1:
                system.node.wait_ready()

        in_batches(spark, system, name, tmp_path, each, maxOffsetsPerTrigger="100", cold=cold)
        assert sorted(read) == sorted((offset, partition) for _, partition, offset, _ in stored(system, name))


@pytest.mark.slow
def test_an_idle_query_takes_next_to_nothing(spark, system, tmp_path, name):
    create(system, name, partitions=4, count=100)
    jvm = psutil.Process(spark.sparkContext._gateway.proc.pid)

    def spent_s():
        return {each.pid: sum(each.cpu_times()[:2]) for each in [jvm, *jvm.children(recursive=True)]}

    def share():
        """Of a core, while nothing happens; by processes that are there all the time."""
        began_s, before = time.monotonic(), spent_s()
        time.sleep(IDLE_S)  # what is measured is that time
        spent = sum(now_s - before[pid] for pid, now_s in spent_s().items() if pid in before)
        return spent / (time.monotonic() - began_s)

    without = share()
    asked = Query(spark, system, tmp_path, subscribe=name, startingOffsets="earliest")
    running = asked.writer(available_now=False).start()
    try:
        eventually(lambda: values(asked.records()) == list(range(100)), "what is there is read", TIMEOUT_S)
        share()  # the JVM compiles what it has just learnt
        idle = share()
        print(f"an idle query takes {idle - without:.4f} of a core, besides {without:.4f} without it")
        assert idle - without < IDLE_SHARE_MAX
        publish(system, name, 10, first=100)
        eventually(lambda: values(asked.records()) == list(range(110)), "what came is read", TIMEOUT_S)
    finally:
        running.stop()
