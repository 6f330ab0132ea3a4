"""A history of several streams in a bucket, as leaders, mergers, compactions and forks leave it, and its comparison."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.catalog import Catalog, CatalogFile, CatalogStream
from liftpy_bucket.manifest.pins.cursors import Cursor
from liftpy_bucket.manifest.root import changes as root_changes
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.objects.record_hash import setsum_of
from liftpy_bucket.objects.setsum import NO_RECORDS
from liftpy_bucket.reading.version import open_version
from liftpy_bucket.upkeep.forking import fork
from liftpy_bucket.upkeep.scrubbing import scrub
from liftpy_envelope.stream_config import StreamConfig
from support.job_bucket import NODE, JobBucket, new_id
from support.tier_rows import plain_records, records_of, rows_from, written

if TYPE_CHECKING:
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["OFFSETS", "CopyHistory", "Held", "held_by", "make_history", "visible"]

OFFSETS = "__consumer_offsets"


class Held(NamedTuple):
    """What can be seen of a partition: where it begins and ends, its epochs, and every field of every record."""

    start: int
    end: int
    epochs: tuple[tuple[int, int], ...]
    records: list[Any]


class CopyHistory(NamedTuple):
    """Streams of one bucket.

    Attributes:
        orders: with many objects of its own, snapshots, a compacted one, and records in shared objects.
        quiet: with nothing but records in shared objects.
        offsets: what groups have committed.
        fork: a stream that begins with what `orders` has.
    """

    orders: JobBucket
    quiet: JobBucket
    offsets: JobBucket
    fork: JobBucket

    @property
    def store(self) -> ObjectStore:
        return self.orders.store


def _key(place: int) -> bytes:
    return b"k%d" % (place % 3)


def add_stream(bucket: JobBucket, name: str, partitions: int = 1, *, creates: bool = True) -> JobBucket:
    """One more stream of the same bucket."""
    added = copy.copy(bucket)
    added.uuid = uuid4().hex
    added.paths = [PartitionPath(added.uuid, number) for number in range(partitions)]
    if creates:
        for path in added.paths:
            RootFile(bucket.store, path, new_id=new_id).commit(
                None, root_changes.create(path, epoch=0, node=NODE, start=0)
            )
    config = StreamConfig(name=name.lstrip("_"), subject=f"{name}.>", partitions=partitions).to_plain()
    stream = CatalogStream(name=name, config=config, partitions=partitions, created_ns=1)
    file = CatalogFile(bucket.store, new_id=new_id)
    loaded = file.load()
    assert loaded is not None
    catalog = loaded.catalog
    streams = {**catalog.streams, added.uuid: stream}
    file.commit(loaded, replace(catalog, version=catalog.version + 1, streams=streams))
    return added


def make_history(server: Any, *, objects: int = 20) -> CopyHistory:
    """All of it; from 20 objects on there are snapshots."""
    orders = JobBucket(server, 2)
    for base in range(0, objects * 10, 10):
        orders.append(plain_records(10, base=base, key=_key), row_group_bytes=700)
    orders.append(plain_records(30), 1)
    compact(orders)
    quiet, offsets = add_stream(orders, "quiet", 2), add_stream(orders, OFFSETS)
    end = orders.root().end
    fork_of_orders = add_stream(orders, "orders-test", creates=False)
    fork(orders.store, orders.paths[0], fork_of_orders.paths[0], epoch=0, node=NODE, new_id=new_id)
    fork_of_orders.append(plain_records(5, base=end, seed=9))
    orders.share({0: plain_records(7, base=end), 1: plain_records(4, base=30)})
    orders.share({0: plain_records(3, base=end + 7)})
    quiet.share({0: plain_records(9), 1: plain_records(2)})
    offsets.share({0: plain_records(6, key=_key)})
    Cursor(orders.store, orders.paths[0], "nightly", new_id=new_id).advance(5, None)
    assert orders.root().snapshots or objects < 20
    return CopyHistory(orders, quiet, offsets, fork_of_orders)


def compact(bucket: JobBucket) -> None:
    """Half of the records of the second object fall to key compaction."""
    path, file = bucket.paths[0], RootFile(bucket.store, bucket.paths[0], new_id=new_id)
    loaded = file.load()
    assert loaded is not None
    old = next(file.fragments(loaded.root, 10, 20))
    before = plain_records(10, base=10, key=_key)
    kept, nonce = rows_from(before[::2]), new_id()
    body, result = written([kept], uuid=path.uuid, partition=0, nonce=nonce, record_hash=loaded.root.record_hash)
    name = f"{old.base:020d}-0-{nonce}.parquet"
    bucket.store.create(path.fragment(name), body, nonce)
    new = result.pointer(name, base=old.base, end=old.end)
    change = root_changes.replace(
        loaded.root,
        [old],
        [new],
        collected=old.setsum - setsum_of(kept, loaded.root.record_hash),
        snapshots=file.snapshots(loaded.root, 10, 20),
        delete_horizon=3,
        compacted_end=20,
    )
    assert change.root.collected != NO_RECORDS
    file.commit(loaded, change)


def catalog_of(store: ObjectStore) -> Catalog | None:
    loaded = CatalogFile(store, new_id=new_id).load()
    return None if loaded is None else loaded.catalog


def visible(store: ObjectStore) -> dict[str, CatalogStream]:
    """The streams that a restore would find."""
    catalog = catalog_of(store)
    streams = {} if catalog is None else catalog.streams
    return {stream.name: stream for stream in streams.values() if stream.deleted_ns is None}


def held_by(store: ObjectStore) -> dict[tuple[str, int], Held]:
    """All that can be seen in a bucket; that it is whole, to the last byte, is seen to."""
    catalog, found = catalog_of(store), {}
    for uuid, stream in ({} if catalog is None else catalog.streams).items():
        for number in range(stream.partitions):
            path = PartitionPath(uuid, number)
            version = open_version(store, path)
            if version is None:
                continue  # nothing of it ever was there
            report = scrub(store, path)
            assert report.problems == [], report.problems
            records = [record for rows in version.read() for record in records_of(rows)]
            found[stream.name, number] = Held(version.start, version.end, version.epochs, records)
    return found
