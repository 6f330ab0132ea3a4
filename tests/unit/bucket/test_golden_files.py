"""A file of each format in the bucket, as a version wrote it once: what is in a bucket can be read for years.

There is a folder for each hash of records, as roots and objects have a format for each. Who adds one has the files of
it written: `python -m unit.bucket.test_golden_files HASH`, in tests/. Those of before stay as they are.
Manifests are canonical, so that they are compared byte by byte. Parquet is not: pyarrow decides on its bytes.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from liftpy_bucket.errors import ObjectCorruptError
from liftpy_bucket.layout import PartitionPath, slot_of
from liftpy_bucket.manifest.catalog import Catalog, CatalogStream, decode_catalog, encode_catalog
from liftpy_bucket.manifest.root.format import Claim, Root, decode_root, encode_root
from liftpy_bucket.manifest.root.snapshot import decode_snapshot, make_snapshot
from liftpy_bucket.manifest.stream_sets.changes import add
from liftpy_bucket.manifest.stream_sets.format import SetManifest, decode_set, encode_set
from liftpy_bucket.manifest.stream_sets.listing import decode_listing
from liftpy_bucket.manifest.stream_sets.pages import decode_page
from liftpy_bucket.manifest.stream_sets.paging import paged
from liftpy_bucket.objects.parquet import FIELD_IDS
from liftpy_bucket.objects.read import ObjectReader
from liftpy_bucket.objects.record_hash import RecordHash, setsum_of
from liftpy_bucket.objects.write_stream_set import SetWriter
from liftpy_bucket.store.memory import MemoryStore
from support.tier_rows import UUID, Record, records_of, rows_from, written

NODE = "node-1"
FOLDER = Path(__file__).parent / "golden"
PATH, OTHER = PartitionPath(UUID, 3), PartitionPath("0" * 32, 0)
PRODUCER, SEQUENCE = bytes(range(16)), 7
RECORDS = [
    Record(40, 1_790_000_000_000_000_123, b"orders.eu", value=b"first"),
    Record(41, 1_790_000_000_000_001_000, b"orders.us", key=b"k", message_id=b"id", value=b""),
    Record(43, 1_790_000_000_000_002_999, b"\xff.raw", key=b"k", headers=b"NATS/1.0\r\nA: b\r\n\r\n", epoch=2),
]


def rows():
    """The records, of which the last two came from a producer."""
    made = rows_from(RECORDS)
    ids = pa.array([None, PRODUCER, PRODUCER], pa.binary(16))
    made = made.set_column(made.schema.get_field_index("producer_id"), made.schema.field("producer_id"), ids)
    place = made.schema.get_field_index("producer_sequence")
    return made.set_column(place, made.schema.field(place), pa.array([None, SEQUENCE, SEQUENCE], pa.int64()))


def write_all(record_hash):
    """Write the golden files of a hash."""
    body, result = written([rows()], partition=PATH.partition, nonce="golden", record_hash=record_hash)
    pointer = result.pointer(f"{40:020d}-2-golden.parquet", end=44)
    sink = io.BytesIO()
    writer = SetWriter(sink, node=NODE, nonce="golden")
    for path in sorted((OTHER, PATH), key=lambda path: slot_of(*path)):
        writer.begin(path.uuid, path.partition, 2, 40, 44, record_hash=record_hash)
        writer.write(rows())
    shared = writer.finish().pointer(f"{5:020d}-golden.parquet")
    snapshot = make_snapshot(PATH, [pointer], "golden")
    root = Root(
        uuid=PATH.uuid,
        partition=PATH.partition,
        record_hash=record_hash,
        version=9,
        start=40,
        end=44,
        snapshots=(snapshot.pointer,),
        setsum=pointer.setsum,
        epochs=((0, 40), (2, 43)),
        claims=(Claim(epoch=2, node=NODE, start=40),),
        commits=("golden",),
    )
    node = add(SetManifest(node=NODE, incarnation=4, version=6, sequence=5, commits=("golden",)), shared)
    made = paged((), node, "golden", lambda _pages: {})
    stream = CatalogStream(name="orders", config={"subject": "orders.>"}, partitions=4, created_ns=1)
    catalog = Catalog(cluster_id="c" * 32, version=2, generation=1, streams={UUID: stream})
    files = {
        "stream-object.parquet": body,
        "stream-set-object.parquet": sink.getvalue(),
        "root.json": encode_root(root),
        "snapshot.json": snapshot.body,
        "set-manifest": encode_set(made.manifest),
        "set-manifest-pack": made.body,
        "catalog.json": encode_catalog(catalog),
    }
    for name, content in files.items():
        (FOLDER / record_hash / name).write_bytes(content)


@pytest.fixture(params=RecordHash)
def record_hash(request):
    return request.param


@pytest.fixture
def golden(record_hash):
    return lambda name: (FOLDER / record_hash / name).read_bytes()


def test_manifests_are_written_as_they_were(golden):
    for name, decode, encode in (
        ("root.json", lambda body: decode_root(PATH, body), encode_root),
        ("set-manifest", lambda body: decode_set(NODE, body), encode_set),
        ("catalog.json", decode_catalog, encode_catalog),
    ):
        assert encode(decode(golden(name))) == golden(name)


def check_rows(found):
    (read,) = found
    assert records_of(read) == RECORDS
    assert read.column("producer_id").to_pylist() == [None, PRODUCER, PRODUCER]
    assert read.column("producer_sequence").to_pylist() == [None, SEQUENCE, SEQUENCE]


def test_a_root_leads_by_digests_to_its_records(record_hash, golden):
    root = decode_root(PATH, golden("root.json"))
    snapshot = decode_snapshot(PATH, root.snapshots[0], golden("snapshot.json"))
    (pointer,) = snapshot.fragments
    store = MemoryStore()
    store.create("golden", golden("stream-object.parquet"), "n")
    reader = ObjectReader(store, "golden", pointer.extent)
    reader.check_fragment(PATH, pointer)
    check_rows(list(reader.rows(40, 44)))
    assert (root.record_hash, reader.record_hash) == (record_hash, record_hash)
    assert setsum_of(next(reader.rows(40, 44)), record_hash) == root.setsum


def test_a_set_manifest_leads_by_digests_to_its_records(record_hash, golden):
    root, pack = decode_set(NODE, golden("set-manifest")), golden("set-manifest-pack")
    (page,) = root.pages
    (shared,) = decode_page("golden", NODE, page.digest, pack[page.start : page.start + page.size])
    at = root.listing.start
    (listed,) = decode_listing("golden", NODE, root.listing.digest, pack[at : at + root.listing.size])
    assert (listed.name, listed.size, listed.digest) == (shared.name, shared.size, shared.digest)
    store = MemoryStore()
    store.create("golden", golden("stream-set-object.parquet"), "n")
    for member in shared.members:
        reader = ObjectReader(store, "golden", member.extent)
        reader.check_member(member)
        check_rows(list(reader.rows(40, 44)))
        assert setsum_of(next(reader.rows(40, 44)), record_hash) == reader.setsum


@pytest.mark.parametrize("name", ["stream-object.parquet", "stream-set-object.parquet"])
def test_columns_have_their_ids(record_hash, name):
    schema = pq.read_schema(FOLDER / record_hash / name)
    ids = {field.name: int(field.metadata[b"PARQUET:field_id"]) for field in schema}
    assert ids == {column: FIELD_IDS[column] for column in schema.names}
    assert set(pq.read_table(FOLDER / record_hash / name).column("partition").to_pylist()) <= {0, PATH.partition}


def test_an_object_that_somebody_made_in_its_place_is_refused(golden):
    """Its checksums and its setsum are right; only the manifest knows what was written."""
    root = decode_root(PATH, golden("root.json"))
    (pointer,) = decode_snapshot(PATH, root.snapshots[0], golden("snapshot.json")).fragments
    forged, result = written([rows_from([RECORDS[0]._replace(value=b"FIRST"), *RECORDS[1:]])], partition=3)
    store = MemoryStore()
    store.create("forged", forged, "n")
    assert list(ObjectReader(store, "forged", result.extent).rows(40, 44))
    lying = result.extent._replace(digest=pointer.digest)
    with pytest.raises(ObjectCorruptError, match=f"SHA-256.*{pointer.digest}"):
        list(ObjectReader(store, "forged", lying).rows(40, 44))


if __name__ == "__main__":
    write_all(RecordHash(sys.argv[1]))
