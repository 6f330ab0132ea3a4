"""Load for workloads with Spark, each a process of its own: `python -m bench.spark_load NAME JSON-ARGUMENTS`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import liftpy
from bench.load import say
from bench.spark_sources import values_of
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.reading.version import open_version
from liftpy_bucket.store.s3 import S3Store
from liftpy_bucket.store.s3_settings import S3Settings

_AT_ONCE = 50_000
_POOL_ROWS = 200_000


def publish(url, stream, subject, size, count):
    """Publish records with keys of 13 bytes, and values that do not compress."""
    values = values_of(size, _POOL_ROWS)
    with liftpy.connect_sync(url, timeout_s=10.0) as lift, lift.publisher(stream=stream) as publisher:
        for at in range(0, count, _AT_ONCE):
            rows = min(_AT_ONCE, count - at)
            records = {"key": _keys(at, rows), "value": values.slice(at % _POOL_ROWS, rows)}
            publisher.publish_batch(subject, records)
    say(published=count)


def copy(url, endpoint, uuid, partitions, count, directory):
    """Copy the objects that hold a stream to files, for Spark to read without us; all its records, and no others."""
    store = S3Store(S3Settings(url=url, endpoint=endpoint))
    versions = [open_version(store, PartitionPath(uuid, number)) for number in range(partitions)]
    keys = {piece.key for version in versions for piece in version.pieces()}
    for number, key in enumerate(sorted(keys)):
        (Path(directory) / f"{number:05d}.parquet").write_bytes(store.get(key).body)
    files = list(Path(directory).iterdir())
    found = sum(pq.read_metadata(path).num_rows for path in files)
    if found != count:
        raise RuntimeError(f"{found:,} records are in the objects of the stream, not {count:,}")
    say(keys=sorted(keys), bytes=sum(path.stat().st_size for path in files))


def write(directory, size, count):
    """Write records as Parquet, for Spark to append to a stream."""
    values = values_of(size, _POOL_ROWS)
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
    with pq.ParquetWriter(Path(directory) / "records.parquet", schema, compression="none") as writer:
        for at in range(0, count, _POOL_ROWS):
            rows = min(_POOL_ROWS, count - at)
            columns = [_keys(at, rows), values.slice(0, rows)]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    say(written=count)


def _keys(first, rows):
    return pa.array([b"user-%08d" % number for number in range(first, first + rows)], pa.binary())


if __name__ == "__main__":
    globals()[sys.argv[1]](**json.loads(sys.argv[2]))
