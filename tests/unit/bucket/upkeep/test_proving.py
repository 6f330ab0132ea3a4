"""Whoever has the SHA-256 of a root can prove its history."""

from __future__ import annotations

from hashlib import sha256

import pytest

from liftpy_bucket.errors import ManifestCorruptError, ObjectCorruptError
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.root import changes
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.store.memory import MemoryStore
from liftpy_bucket.upkeep.proving import prove
from support.tier_rows import UUID, plain_records, rows_from, written
from support.tier_workers import new_id

PATH = PartitionPath(UUID, 0)


def put(store, key, body):
    store.delete([key])
    store.create(key, body, new_id())


@pytest.fixture
def store():
    """A history of 30 objects of 5 records, most of them below snapshots."""
    store = MemoryStore()
    file = RootFile(store, PATH, new_id=new_id)
    loaded = file.commit(None, changes.create(PATH, epoch=0, node="n1", start=0))
    for base in range(0, 150, 5):
        body, result = written([rows_from(plain_records(5, base=base))])
        pointer = result.pointer(f"{base:020d}-0-{new_id()}.parquet")
        store.create(PATH.fragment(pointer.name), body, new_id())
        loaded = file.commit(loaded, changes.append(loaded.root, pointer, epoch=0, epochs=((0, 0),)))
    assert loaded.root.snapshots
    return store


def digest_of(store):
    return sha256(store.get(PATH.root).body).hexdigest()


def test_a_history_is_proven_by_the_digest_of_its_root(store):
    proof = prove(store, PATH, digest_of(store))
    assert (proof.start, proof.end, proof.objects, proof.records) == (0, 150, 30, 150)


def test_another_root_is_none(store):
    before = digest_of(store)
    file = RootFile(store, PATH, new_id=new_id)
    loaded = file.load()
    file.commit(loaded, changes.seal(loaded.root))
    with pytest.raises(ManifestCorruptError, match="written since"):
        prove(store, PATH, before)


def test_an_object_with_a_changed_value_is_none_whatever_checksums_it_has(store):
    key = next(entry.key for entry in store.list(f"{PATH.directory}fragments/"))
    records = plain_records(5)
    forged, _ = written([rows_from([records[0]._replace(value=records[0].value[::-1]), *records[1:]])])
    put(store, key, forged)
    with pytest.raises(ObjectCorruptError, match="footer"):
        prove(store, PATH, digest_of(store))
