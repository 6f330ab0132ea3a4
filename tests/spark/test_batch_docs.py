"""What docs/spark/read.md shows works as it stands there; the tables of options have every one, with its default."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa

from liftpy_spark.options.names import CONNECTION_OPTIONS, SINK_OPTIONS, SOURCE_OPTIONS
from liftpy_spark.options.source import SourceOptions
from liftpy_spark.reading.schema import source_schema
from liftpy_spark.sink.options import SinkOptions

DOCS = Path(__file__).parents[2] / "docs" / "spark"
PAGE = (DOCS / "read.md").read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_five_minutes(spark, system, monkeypatch, capsys):
    monkeypatch.setenv("PYSPARK_PYTHON", "put back afterwards")
    system.lift.create_stream("orders", subject="orders.>")
    try:
        system.publish("orders.eu", value=pa.array([b"two pizzas"]))
        code = BLOCK.findall(PAGE)[0].replace("nats://127.0.0.1:4222", system.url)
        exec(code.replace(".load()", ".option('cold', 'false').load()"), {})
        assert "two pizzas" in capsys.readouterr().out
        assert spark.version
    finally:
        system.lift.delete_stream("orders")


def test_every_option_and_column_is_there():
    documented = re.findall(r"^\| `([\w.]+)` \|", PAGE, re.MULTILINE)
    columns = {*source_schema(include_headers=True).fieldNames(), "timestamp_ns", "message_id", "leader_epoch"}
    assert set(documented) == {*SOURCE_OPTIONS, *columns}


def defaults(page):
    """Of the options of a page, by name, as they stand there."""
    section = re.split(r"^## ", page.partition("\n## Options\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    rows = re.findall(r"^\| (`[^|]+`) \|([^|]*)\|", section, re.MULTILINE)
    return {name: default.strip("` ") for names, default in rows for name in re.findall(r"`([\w.]+)`", names)}


def test_defaults_of_reading():
    least = {"servers": "nats://n", "subscribe": "s"}
    batch, stream = (SourceOptions.read(least, streaming=streaming) for streaming in (False, True))
    assert (stream.max_offsets_per_trigger, stream.max_bytes_per_trigger) == (None, None)
    assert (batch.subject, batch.key_equals) == ((), None)
    told = defaults(PAGE)
    assert {name: told[name] for name in SOURCE_OPTIONS if told[name]} == {
        "bucket": "the one that the nodes use",
        "s3.endpoint": "that of the nodes; of a `bucket` that is named: AWS",
        "s3.region": "that of the nodes, or as the environment says",
        "cold": str(batch.cold).lower(),
        "startingOffsets": f"{batch.starting.everywhere}`; streaming: `{stream.starting.everywhere}",
        "startingOffsetsByTimestampStrategy": {False: "error", True: "latest"}[batch.late_is_latest],
        "endingOffsets": batch.ending.everywhere,
        "subject": "all",
        "keyEquals": "all",
        "keyEqualsHex": "all",
        "includeHeaders": str(batch.include_headers).lower(),
        "failOnDataLoss": str(batch.fail_on_data_loss).lower(),
        "minPartitions": str(batch.min_partitions),
        "maxTasks": str(batch.max_tasks),
        "maxOffsetsPerTrigger": "no limit",
        "maxBytesPerTrigger": "no limit",
        "maxPollMs": str(batch.max_poll_ms),
    }


def test_options_and_defaults_of_writing():
    told = defaults((DOCS / "write.md").read_text())
    plain = SinkOptions.read({"servers": "nats://n", "stream": "s"}, streaming=False)
    assert set(told) == set(SINK_OPTIONS)
    assert set(CONNECTION_OPTIONS) < set(told)
    assert (told["delivery"], told["stagingBytes"]) == (plain.delivery, str(plain.staging_bytes))
    assert (plain.application, plain.version, plain.staging_directory) == (None, None, None)
    assert {told[name] for name in ("txnAppId", "txnVersion", "stagingDirectory")} == {"none"}
