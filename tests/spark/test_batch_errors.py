"""What a person is told whose batch can not be read, and what happens to records that are gone."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from contextlib import contextmanager, suppress

import pyarrow as pa
import pytest

import liftpy_spark
from liftpy_spark.connections import lift
from liftpy_spark.errors import DataLossError, NatsError
from liftpy_spark.options.connection import ConnectionOptions
from liftpy_spark.options.source import SourceOptions
from liftpy_spark.reading.planning import Range
from liftpy_spark.reading.ranges import read_ranges
from liftpy_spark.reading.schema import source_schema
from support.cluster import make_nats
from support.nats_proxy import NatsProxy
from support.ports import free_port
from support.spark_system import eventually


@pytest.fixture
def name(request):
    """A name for a stream that no other test uses."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", f"e-{request.node.name}")[:100].strip("-")


def load(spark, options, schema=None):
    reader = spark.read.format("liftpy").options(**options)
    return (reader if schema is None else reader.schema(schema)).load()


@contextmanager
def refused(*said):
    """Something is refused, in these words, and without a traceback."""
    with pytest.raises(Exception, match=re.escape(said[0])) as caught:
        yield
    text = str(caught.value)
    assert "Traceback" not in text.split("JVM stacktrace", maxsplit=1)[0]
    assert [part for part in said if part not in text] == []


def make(system, name, count=20, **settings):
    system.lift.create_stream(name, subject=f"{name}.>", **settings)
    system.publish(f"{name}.x", value=pa.array([b"%d" % number for number in range(count)]))
    return system.options | {"subscribe": name}


def test_mistakes_are_told_with_what_would_be_right(spark, system, name):
    options = make(system, name)
    with refused("unknown option 'startingofset'; did you mean 'startingOffsets'?"):
        load(spark, options | {"startingOfset": "earliest"})
    with refused("option 'startingOffsets': '{oops' is not JSON"):
        load(spark, options | {"startingOffsets": "{oops"}).count()
    with refused("there is no stream", f"did you mean '{name}'?"):
        load(spark, options | {"subscribe": name + "z"}).count()
    with refused("startingOffsets", "ends at 20, before offset 21"):
        load(spark, options | {"startingOffsets": json.dumps({name: {"0": 21}})}).count()
    with refused("column offset is int; it is bigint"):
        load(spark, options, "offset int").count()


def test_who_can_not_reach_what(spark, system, name):
    options = make(system, name)
    nowhere = f"127.0.0.1:{free_port()}"
    with refused(f"NATS at nats://{nowhere} cannot be reached", "tried from the driver"):
        load(spark, options | {"servers": f"nats://{nowhere}"}).count()
    with refused("the bucket can not be read from an executor", nowhere, "'s3.endpoint'"):
        load(spark, options | {"s3.endpoint": f"http://{nowhere}"}).count()
    with refused("has no catalog of liftpy: is the prefix right?"):
        load(spark, options | {"bucket": system.bucket_url + "/elsewhere"}).count()
    with refused("option 'bucket'", "s3://bucket/prefix"):
        load(spark, options | {"bucket": "my-bucket"}).count()
    with refused("option 'credentialsFile': there is no file"):
        load(spark, options | {"credentialsFile": "no/such.creds"}).count()


def test_what_a_sink_can_not_reach(spark, system, name):
    make(system, name, count=0)
    options = system.options | {"stream": name, "subject": f"{name}.x"}
    nowhere = f"127.0.0.1:{free_port()}"

    def write(**changes):
        rows = spark.range(3).selectExpr("string(id) AS value")
        rows.write.format("liftpy").mode("append").options(**options | changes).save()

    with refused(f"NATS at nats://{nowhere} cannot be reached", "tried from the driver"):
        write(servers=f"nats://{nowhere}")
    with refused("the bucket can not be read from the driver", nowhere, "'s3.endpoint'"):
        write(**{"s3.endpoint": f"http://{nowhere}"})
    with refused("unknown option 'kafka.bootstrap.servers'; NATS takes the place", "'servers' says where it is"):
        write(**{"kafka.bootstrap.servers": "a:9092"})
    assert system.records(name).num_rows == 0


def tasks_of(frame):
    """Plans it."""
    return frame.rdd.getNumPartitions()


async def test_nats_that_goes_after_planning(spark, system, name):
    options = make(system, name, tier=False) | {"cold": "false"}
    async with NatsProxy(int(system.url.rpartition(":")[2])) as proxy:
        url = proxy.url
        frame = load(spark, options | {"servers": url})
        assert await asyncio.to_thread(tasks_of, frame) == 1
    with refused(f"NATS at {url} cannot be reached", "tried from an executor on"):
        await asyncio.to_thread(frame.count)


def users(password):
    return f"authorization {{ users = [ {{ user: spark, password: {password} }} ] }}\n"


def test_a_connection_that_nats_closed_for_good_is_made_anew(tmp_path):
    server = make_nats(tmp_path, config=users("one"))
    try:
        connection = ConnectionOptions(servers=server.url.replace("//", "//spark:one@"))
        first = lift(connection)
        assert lift(connection) is first
        (tmp_path / "nats.conf").write_text(users("two"))
        os.kill(server.pid, signal.SIGHUP)
        eventually(lambda: first.is_closed, "NATS has closed the connection")
        with pytest.raises(NatsError, match="Authorization Violation"):
            lift(connection)
        (tmp_path / "nats.conf").write_text(users("one"))
        os.kill(server.pid, signal.SIGHUP)

        def again():
            with suppress(NatsError):
                return lift(connection)

        assert eventually(again, "NATS takes the password again") is not first
        lift(connection).close()
    finally:
        server.stop()


def test_versions_that_do_not_work_are_refused_at_once(spark, monkeypatch):
    installed = {"pandas": "3.1.1", "pyspark": "4.3.0"}
    monkeypatch.setattr("importlib.metadata.version", installed.__getitem__)
    with refused("pandas 3.1.1 does not work with this pyspark", "pip install 'pandas>=2.2,<3'"):
        liftpy_spark.register(spark)


def read(options, ranges, **more):
    given = SourceOptions.read(options | more, streaming=False)
    schema = source_schema(include_headers=False)
    return [offset for batch in read_ranges(ranges, given, schema) for offset in batch.column("offset").to_pylist()]


def test_a_start_that_moved_after_planning(system, name):
    options = make(system, name, tier=False)
    planned = [Range(name, system.lift.stream_info(name).uuid, 0, 0, 20)]
    assert read(options, planned) == list(range(20))
    system.lift.purge_stream(name, offset=7)
    with pytest.raises(DataLossError, match=r"the records from 0 to 7 are gone .*set failOnDataLoss to false"):
        read(options, planned)
    assert read(options, planned, failOnDataLoss="false") == list(range(7, 20))
    system.lift.purge_stream(name)
    assert read(options, planned, failOnDataLoss="false") == []


def test_a_start_that_moved_in_the_bucket(system, name):
    options = make(system, name)
    system.tiered(name)
    planned = [Range(name, system.lift.stream_info(name).uuid, 0, 0, 20)]
    assert read(options, planned) == list(range(20))
    system.lift.purge_stream(name, offset=7)
    eventually(lambda: read(options, planned, failOnDataLoss="false") == list(range(7, 20)), "the bucket knows of it")
    with pytest.raises(DataLossError, match="the records from 0 to 7 are gone"):
        read(options, planned)


def test_a_start_that_is_gone_when_it_is_planned(spark, system, name):
    options = make(system, name) | {"startingOffsets": json.dumps({name: {"0": 3}})}
    system.lift.purge_stream(name, offset=7)
    with refused("the records from 3 to 7 are gone", "set failOnDataLoss to false"):
        load(spark, options).count()
    assert load(spark, options | {"failOnDataLoss": "false"}).count() == 13


def test_a_stream_that_was_made_anew_after_planning(spark, system, name):
    options = make(system, name, tier=False)
    frame, tolerant = load(spark, options), load(spark, options | {"failOnDataLoss": "false"})
    assert frame.count() == tolerant.count() == 20
    system.lift.delete_stream(name)
    with refused(f"stream {name} was deleted", "set failOnDataLoss to false"):
        frame.count()
    make(system, name, count=30, tier=False)
    with refused(f"stream {name} was deleted and created again"):
        frame.count()
    assert tolerant.count() == 0
    assert load(spark, options).count() == 30
