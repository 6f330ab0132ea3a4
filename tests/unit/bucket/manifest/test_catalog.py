"""The catalog: one object, swapped."""

import dataclasses

import pytest

from liftpy_bucket.errors import OvertakenError
from liftpy_bucket.manifest.catalog import Catalog, CatalogFile, CatalogStream
from liftpy_bucket.store.memory import MemoryStore
from support.fault_store import Fault, FaultStore, plan_at
from support.manifest_kit import PATH, ids

FIRST = Catalog(cluster_id="c1", version=1)
STREAM = CatalogStream(name="orders", config={"tier": True}, partitions=2, created_ns=1)


def more(loaded, name="orders"):
    stream = dataclasses.replace(STREAM, name=name)
    return dataclasses.replace(loaded.catalog, version=loaded.catalog.version + 1, streams={PATH.uuid: stream})


def test_what_is_committed_is_loaded_and_of_two_writers_one_wins():
    store = MemoryStore()
    file, other = (CatalogFile(store, new_id=ids(name)) for name in ("one", "two"))
    assert file.load() is None
    loaded = file.commit(None, FIRST)
    assert other.load() == loaded
    standing = other.commit(loaded, more(loaded))
    with pytest.raises(OvertakenError):
        file.commit(loaded, more(loaded, "others"))
    with pytest.raises(OvertakenError):
        file.commit(None, FIRST)
    assert file.load() == standing


@pytest.mark.parametrize(
    "fault", [Fault.LOST, Fault.TWICE, Fault.REFUSED_AFTER, Fault.NOT_DONE, Fault.LATE, Fault.UNAVAILABLE]
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_commit_knows_itself_whatever_the_answer(fault, is_first):
    store = MemoryStore()
    loaded = None if is_first else CatalogFile(store, new_id=ids("before")).commit(None, FIRST)
    faulty = FaultStore(store, plan_at({1: fault}))
    catalog = FIRST if is_first else more(loaded)
    committed = CatalogFile(faulty, new_id=ids("ours")).commit(loaded, catalog)
    faulty.deliver_late()
    assert CatalogFile(store, new_id=ids()).load() == committed
    assert committed.catalog == catalog
