"""The synchronous client against a real node: in a script, in a thread, beside a running loop, and interrupted."""

from __future__ import annotations

import asyncio
import inspect
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import liftpy
from liftpy_client.sync.client import SyncPublisher
from liftpy_client.sync.consumer import SyncConsumer, SyncGroupConsumer

ASYNCHRONOUS_ONLY = {"nats"}


@pytest.fixture
def lift(shared_nats, shared_node):
    with liftpy.connect_sync(shared_nats.url, timeout_s=5.0) as client:
        yield client


def fill(lift, name, count, **config):
    lift.create_stream(name, subject=f"{name}.>", **config)
    with lift.publisher(stream=name) as publisher:
        values = pa.array([b"%d" % number for number in range(count)])
        publisher.publish_batch(f"{name}.x", {"value": values, "key": values})


def test_publishing_and_consuming(lift, name):
    lift.create_stream(name, subject=f"{name}.>")
    assert lift.publish(f"{name}.a", b"1", key=b"k").offset == 0
    with lift.publisher() as publisher:
        pending = publisher.publish(f"{name}.b", b"2")
        publisher.flush()
        assert publisher.wait(pending).offset == 1
    assert [message.value for message in lift.consume(name, stop="latest")] == [b"1", b"2"]
    found = list(lift.consume(name, stop="latest", subjects=f"{name}.b"))
    assert [(message.offset, message.value) for message in found] == [(1, b"2")]
    assert sum(batch.num_rows for batch in lift.consume_batches(name, stop="latest")) == 2
    assert name in [stream.name for stream in lift.streams()]
    assert lift.stream_info(name).messages == 2


def test_a_consumer_is_steered_and_left_and_gone_on_with(lift, name):
    fill(lift, name, 1_000)
    with lift.consume(name) as consumer:
        for message in consumer:
            if message.offset == 7:
                break
        assert next(iter(consumer)).offset == 7, "what was in hand when the loop was left"
        assert (consumer.position(), consumer.lag()) == (8, {0: 992})
        consumer.seek(990)
        assert next(iter(consumer)).offset == 990
        consumer.seek_to_time(datetime.now(UTC) - timedelta(days=1))
        assert next(iter(consumer)).offset == 0
        consumer.pause()
        consumer.resume()
        assert [consumer.poll(10).offset for _ in range(2)] == [0, 1]
    with pytest.raises(liftpy.UsageError):
        lift.consume(name, start=-1)
    with pytest.raises(liftpy.NoStreamError):
        list(lift.consume("there-is-none"))
    with pytest.raises(liftpy.UsageError, match="only a group consumes"):
        lift.consume("there-*")


def test_ranges(lift, name):
    fill(lift, name, 3_000, partitions=3)
    table = lift.to_arrow(name)
    assert table.num_rows == 3_000
    assert sorted(map(int, table.column("value").to_pylist())) == list(range(3_000))
    assert table.column("partition").to_pylist() == sorted(table.column("partition").to_pylist())
    some = lift.to_arrow(name, start=10, stop=20, partitions=[1], columns=["key", "offset"])
    assert (some.column_names, some.column("offset").to_pylist()) == (["key", "offset"], list(range(10, 20)))
    assert lift.to_arrow(name, subjects=f"{name}.y").num_rows == 0
    lift.publish(f"{name}.y", b"", message_id="one")
    ids = lift.to_arrow(name, subjects=f"{name}.y", columns=["message_id", "leader_epoch"])
    assert ids.to_pylist() == [{"message_id": b"one", "leader_epoch": 1}]
    more = lift.to_arrow(name, options=liftpy.ConsumeOptions(extra_columns=("leader_epoch",)))
    assert more.column_names == [*table.column_names, "leader_epoch"]
    with pytest.raises(liftpy.RangeTooLargeError, match="needs more than 10000 bytes"):
        lift.to_arrow(name, bytes_max=10_000)
    with pytest.raises(liftpy.UsageError, match="columns"):
        lift.to_arrow(name, columns=["colour"])
    with pytest.raises(liftpy.UsageError, match="extra_columns"):
        liftpy.ConsumeOptions(extra_columns=("key",))
    with pytest.raises(liftpy.UsageError, match="stop"):
        lift.to_arrow(name, stop=None)


def test_without_pandas(lift, name, monkeypatch):
    fill(lift, name, 3)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(liftpy.PandasMissingError, match="pip install pandas"):
        lift.to_pandas(name)


def test_with_pandas(lift, name):
    pytest.importorskip("pandas", reason="pandas is not installed")
    fill(lift, name, 3)
    frame = lift.to_pandas(name, columns=["offset", "value"])
    assert (list(frame["offset"]), list(frame["value"])) == ([0, 1, 2], [b"0", b"1", b"2"])


async def test_beside_a_running_loop_and_from_several_threads(shared_nats, shared_node, name):
    with liftpy.connect_sync(shared_nats.url) as lift:
        fill(lift, name, 500)

        def count():
            return sum(1 for _ in lift.consume(name, stop="latest"))

        assert await asyncio.gather(*(asyncio.to_thread(count) for _ in range(3))) == [500] * 3
        assert count() == 500


def test_nothing_stays_behind(shared_nats, shared_node, name):
    before = set(threading.enumerate())
    lift = liftpy.connect_sync(shared_nats.url)
    fill(lift, name, 10)
    iterating = iter(lift.consume(name))
    next(iterating)
    lift.close()
    lift.close()
    assert set(threading.enumerate()) <= before
    with pytest.raises(liftpy.DisconnectedError):
        lift.stream_info(name)
    iterating.close()
    with pytest.raises(liftpy.UnreachableError):
        liftpy.connect_sync("nats://127.0.0.1:1", timeout_s=0.5)
    assert set(threading.enumerate()) <= before


def test_a_loop_does_not_wait_for_itself(lift, name):
    with pytest.raises(liftpy.UsageError, match="the asynchronous one"):
        lift._loop.call(lift.nodes)


SCRIPT = """
import sys, liftpy
lift = liftpy.connect_sync(sys.argv[1])
try:
    for message in lift.consume(sys.argv[2]):
        print(message.offset, flush=True)
except KeyboardInterrupt:
    print("interrupted", lift.stream_info(sys.argv[2]).messages, flush=True)
lift.close()
"""


def test_ctrl_c_interrupts_the_waiting_and_the_client_goes_on(lift, shared_nats, name):
    fill(lift, name, 1)
    command = [sys.executable, "-c", SCRIPT, shared_nats.url, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "0\n"
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    assert (out, errors, process.returncode) == ("interrupted 1\n", "", 0)


def test_all_of_the_asynchronous_client_is_there():
    def public(kind):
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(liftpy.Lift) - ASYNCHRONOUS_ONLY <= public(liftpy.SyncLift)
    assert public(liftpy.Consumer) - {"parts"} <= public(SyncConsumer)
    assert public(liftpy.Table) <= public(liftpy.SyncTable)
    assert public(liftpy.Publisher) <= public(SyncPublisher)
    for kind in (liftpy.SyncLift, SyncConsumer, SyncGroupConsumer, SyncPublisher, liftpy.SyncTable):
        for name in public(kind):
            member = getattr(kind, name)
            if callable(member):
                assert not inspect.iscoroutinefunction(member), name
                assert member.__doc__, name
                assert "`async" not in member.__doc__, name
    assert list(inspect.signature(liftpy.SyncLift.publish).parameters)[:3] == ["self", "subject", "value"]
    assert inspect.signature(liftpy.SyncLift.streams).return_annotation == "list"


def test_a_member_of_a_group(lift, name):
    fill(lift, name, 100)
    with lift.consume(name, group=name) as consumer:
        for message in consumer:
            if message.offset == 49:
                break
        assert consumer.assignment == [(name, 0)]
        consumer.commit({(name, 0): 30})
    assert lift.committed(name, name)[0].offset == 30, "what was committed is not undone by leaving"
    lift.reset_group(name, {name: {0: 49}})
    with lift.consume(name, group=name) as consumer:
        consumer.commit(next(iter(consumer)))
    with lift.consume_batches(name, group=name) as consumer:
        assert next(iter(consumer)).column("offset")[0].as_py() == 50
    lift.reset_group(name, {name: {0: 7}})
    assert [group.group for group in lift.groups()] == [name]
    with lift.consume(name, group=name) as consumer:
        assert next(iter(consumer)).offset == 7
    for arguments in ({"stop": "latest"}, {"partitions": [0]}, {"start": 5}):
        with pytest.raises(liftpy.UsageError):
            lift.consume(name, group=name, **arguments)
    with pytest.raises(liftpy.UsageError, match="pass group="):
        lift.consume(name, group_options=liftpy.GroupOptions())


def test_a_table(lift, name):
    fill(lift, name, 100)
    with lift.table(name, decode=int) as table:
        assert (len(table), table[b"7"], table.get(b"x"), table.get(b"x", 3), b"7" in table) == (100, 7, None, 3, True)
        assert dict(table.items()) == {b"%d" % number: number for number in range(100)}
        assert (sorted(table.values()), set(table)) == (list(range(100)), set(table.keys()))
        changes = table.changes()
        table.wait_for(lift.publish(f"{name}.x", b"70", key=b"7"))
        change = next(changes)
        assert (change.key, change.old, change.new) == (b"7", 7, 70)
        lift.publish(f"{name}.x", None, key=b"7")
        table.refresh()
        assert (b"7" in table, table.offset(), table.to_arrow().num_rows) == (False, 102, 99)
        with pytest.raises(KeyError):
            table[b"7"]
        changes.close()
