"""What nodes of a lost cluster write late into its bucket does not keep out those of the one restored from it."""

from __future__ import annotations

import pytest

from liftpy_bucket.errors import LineageError
from liftpy_bucket.manifest.catalog import Catalog, CatalogFile
from liftpy_bucket.store.memory import MemoryStore
from support.tier_slices import LogFile
from support.tier_workers import Worker, new_id

OLD, NEW = "a" * 32, "b" * 32


def test_a_zombie_of_the_old_cluster_is_always_earlier(tmp_path):
    store = MemoryStore()
    log = LogFile(tmp_path / "log")
    log.append(40)
    CatalogFile(store, new_id=new_id).commit(None, Catalog(cluster_id=OLD, version=1))
    zombie, node = Worker(store), Worker(store)
    zombie.claim()
    zombie.upload_set([(log, 0, 10, 0)], incarnation=7)
    assert node.call("take_catalog", cluster_id=NEW, from_cluster_id=OLD, streams=[]) == {"strangers": []}
    generation = node.call("probe")["generation"]
    zombie.upload_set([(log, 10, 20, 0)], incarnation=9)  # on its way while the bucket was taken over
    first = (generation << 32) + 1
    node.upload_set([(log, 20, 30, 0)], incarnation=first)
    with pytest.raises(LineageError, match="is over"):
        zombie.upload_set([(log, 30, 40, 0)], incarnation=10)
    node.upload_set([(log, 30, 40, 0)], incarnation=first)


def test_a_catalog_keeps_its_generation_and_its_cluster_takes_it_once():
    store = MemoryStore()
    CatalogFile(store, new_id=new_id).commit(None, Catalog(cluster_id=OLD, version=1))
    for _ in range(2):
        Worker(store).call("take_catalog", cluster_id=NEW, from_cluster_id=OLD, streams=[])
    assert CatalogFile(store, new_id=new_id).load().catalog == Catalog(cluster_id=NEW, version=2, generation=1)
