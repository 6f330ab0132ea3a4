"""What is in the bucket is a table: DuckDB and Polars read the objects with nothing of ours in the way."""

from __future__ import annotations

import json

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest

from liftpy_bucket.layout import PartitionPath, set_object_key, slot_of
from liftpy_bucket.objects.record_hash import RecordHash
from liftpy_bucket.objects.write_stream_set import SetWriter
from support.tier_rows import UUID, Record, plain_records, rows_from, written

PATH = PartitionPath(UUID, 0)
COLUMNS = [
    "partition",
    "offset",
    "timestamp",
    "timestamp_ns",
    "subject",
    "key",
    "headers",
    "value",
    "message_id",
    "leader_epoch",
    "producer_id",
    "producer_sequence",
]


@pytest.fixture
def bucket(tmp_path):
    """A bucket as a directory: two fragments of a stream, and a stream-set object of two others."""
    orders = [
        Record(
            place,
            1_790_000_000_000_000_123 + place * 1_000_000,
            b"orders.%d" % (place % 3),
            key=b"k%d" % (place % 5) if place % 2 else None,
            headers=b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n" % place,
            value=None if place % 50 == 49 else json.dumps({"total": place}).encode(),
            message_id=b"%d" % place,
            epoch=place // 300,
        )
        for place in range(1_000)
    ]
    for start in (0, 600):
        body, _ = written([rows_from(orders[start : start + 600])], row_group_bytes=8_192)
        file = tmp_path / PATH.fragment(f"{start:020d}-1-n.parquet")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
    shared = tmp_path / set_object_key("a", f"{1:020d}-n.parquet")
    shared.parent.mkdir(parents=True)
    with shared.open("wb") as sink:
        writer = SetWriter(sink, node="a", nonce="n")
        for uuid, number in sorted(
            ((f"{number:032x}", number) for number in range(2)), key=lambda path: slot_of(*path)
        ):
            writer.begin(uuid, number, 1, 0, 10, record_hash=RecordHash.BLAKE2B)
            writer.write(rows_from(plain_records(10)))
        writer.finish()
    return tmp_path


def fragments(bucket):
    return str(bucket / PATH.directory / "fragments" / "*.parquet")


def test_duckdb_reads_fragments_as_one_table(bucket):
    with duckdb.connect() as database:
        database.execute("set TimeZone = 'UTC'")
        table = f"read_parquet('{fragments(bucket)}')"
        described = database.sql(f"describe select * from {table}").fetchall()
        assert [name for name, *_ in described] == COLUMNS
        types = {name: kind for name, kind, *_ in described}
        assert types["timestamp"] == "TIMESTAMP WITH TIME ZONE"
        assert (types["subject"], types["value"], types["offset"]) == ("VARCHAR", "BLOB", "BIGINT")
        assert database.sql(f'select count(*), min("offset"), max("offset") from {table}').fetchall() == [
            (1_000, 0, 999)
        ]
        by_subject = database.sql(
            f"select subject, count(*), sum((decode(value)::json ->> '$.total')::int)::int from {table} "
            "where value is not null group by subject order by subject"
        ).fetchall()
        expected = [
            (f"orders.{rest}", sum(1 for place in places), sum(places))
            for rest in range(3)
            for places in [[place for place in range(1_000) if place % 3 == rest and place % 50 != 49]]
        ]
        assert by_subject == expected
        nulls = database.sql(f"select count(*) - count(key), count(*) - count(value) from {table}").fetchall()
        assert nulls == [(500, 20)]
        when = database.sql(f'select epoch_us(timestamp), timestamp_ns from {table} where "offset" = 700').fetchall()
        assert when == [(1_790_000_000_700_000, 1_790_000_000_700_000_123)]


def test_duckdb_reads_stream_sets_by_stream(bucket):
    with duckdb.connect() as database:
        table = f"read_parquet('{bucket}/sets/*/objects/*.parquet')"
        found = database.sql(f"select stream, partition, count(*) from {table} group by all order by all").fetchall()
        assert found == [("0" * 32, 0, 10), ("0" * 31 + "1", 1, 10)]


def test_polars_reads_fragments_as_one_table(bucket):
    frame = pl.scan_parquet(fragments(bucket))
    schema = frame.collect_schema()
    assert schema.names() == COLUMNS
    assert schema["timestamp"] == pl.Datetime("us", "UTC")
    assert (schema["subject"], schema["value"], schema["leader_epoch"]) == (pl.String, pl.Binary, pl.Int32)
    found = frame.filter((pl.col("offset") >= 595) & (pl.col("offset") < 605)).collect()
    assert found["offset"].to_list() == list(range(595, 605))
    assert found["message_id"].to_list() == [b"%d" % place for place in range(595, 605)]
    assert found["headers"][0] == b"NATS/1.0\r\nNats-Msg-Id: 595\r\n\r\n"
    assert found["value"].to_list()[4] is None
    last = frame.filter(pl.col("key").is_not_null()).group_by("key").agg(pl.col("offset").max()).collect()
    assert dict(last.rows()) == {b"k%d" % (place % 5): place for place in range(1, 1_000, 2)}


def test_pyarrow_reads_them_as_well(bucket):
    table = pq.read_table(bucket / PATH.directory / "fragments")
    assert table.num_rows == 1_000
    assert table.schema.names == COLUMNS
