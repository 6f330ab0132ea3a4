"""Values are compressed where that saves something; everything else always is."""

from __future__ import annotations

import io
import random

import pyarrow.parquet as pq
import pytest

from liftpy_bucket.layout import slot_of
from liftpy_bucket.objects.record_hash import RecordHash
from liftpy_bucket.objects.write_stream_set import SetWriter
from support.tier_rows import plain_records, rows_from, table_of, written

UUID = "ab" * 16
GROUP_BYTES = 64 * 1024


def noise(count, size=300, base=0, seed=1):
    rng = random.Random(seed)
    return rows_from(
        [record._replace(value=rng.randbytes(size)) for record in plain_records(count, size=size, base=base)]
    )


def codecs(body):
    """By column, the codecs of its chunks."""
    found = {}
    metadata = pq.ParquetFile(io.BytesIO(body)).metadata
    for group in range(metadata.num_row_groups):
        for place in range(metadata.num_columns):
            column = metadata.row_group(group).column(place)
            found.setdefault(column.path_in_schema, set()).add(column.compression)
    return found


def test_values_that_do_not_compress_are_not_compressed():
    rows = noise(1_000)
    body, _ = written([rows], row_group_bytes=GROUP_BYTES)
    found = codecs(body)
    assert found.pop("value") == {"UNCOMPRESSED"}
    assert set.union(*found.values()) == {"ZSTD"}
    assert pq.read_table(io.BytesIO(body)).num_rows == rows.num_rows
    assert pq.read_table(io.BytesIO(body)).column("value").to_pylist() == table_of([rows]).column("value").to_pylist()


@pytest.mark.parametrize("rows", [rows_from(plain_records(1_000, size=300)), noise(1_000).slice(0, 0)])
def test_others_are(rows):
    body, _ = written([rows], row_group_bytes=GROUP_BYTES)
    assert all(found <= {"ZSTD"} for found in codecs(body).values())


def test_a_few_values_that_do_not_compress_do_not_keep_the_others_from_it():
    records = plain_records(1_000, size=300)
    rng = random.Random(2)
    mixed = [
        record._replace(value=rng.randbytes(300)) if place % 4 == 0 else record for place, record in enumerate(records)
    ]
    body, _ = written([rows_from(mixed)], row_group_bytes=GROUP_BYTES)
    assert codecs(body)["value"] == {"ZSTD"}


def test_values_that_are_not_there_say_nothing_of_those_that_follow():
    nulls = [record._replace(value=None, key=b"k" * 300) for record in plain_records(1_000, size=1)]
    body, _ = written(
        [rows_from(nulls), rows_from(plain_records(1_000, size=300, base=1_000))], row_group_bytes=GROUP_BYTES
    )
    assert codecs(body)["value"] == {"ZSTD"}


def test_streams_that_share_an_object_are_not_judged_by_the_first_of_them():
    sink = io.BytesIO()
    writer = SetWriter(sink, node="a", nonce="n", row_group_bytes=GROUP_BYTES)
    first, second = sorted(range(2), key=lambda partition: slot_of(UUID, partition))
    for partition in (first, second):
        writer.begin(UUID, partition, 0, 0, 1_000, record_hash=RecordHash.BLAKE2B)
        writer.write(noise(1_000) if partition == first else rows_from(plain_records(1_000, size=300)))
    writer.finish()
    assert codecs(sink.getvalue())["value"] == {"ZSTD"}
