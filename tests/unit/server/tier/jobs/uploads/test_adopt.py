"""The set manifests of nodes that are gone, and of those that come back although nobody expected them."""

from __future__ import annotations

from contextlib import suppress

import pytest

from liftpy_bucket.errors import LineageError, ObjectMissingError, OvertakenError
from liftpy_bucket.layout import PartitionPath, set_object_key
from support.tier_workers import PATH, UUID, Worker, check_whole, history

OTHER = PartitionPath(UUID, 1)


def objects_of(store, node):
    return [entry.key for entry in store.list(f"sets/{node}/objects/")]


def adopted(worker, *present):
    return worker.call("adopt_sets", present=list(present))


def died(store, log, incarnation=3):
    """A node that had two partitions in shared objects, and led both."""
    dead = Worker(store, "n1")
    for path in (PATH, OTHER):
        dead.claim(path=path)
    dead.upload_set([(log, 0, 50, 0), (log, 0, 20, 0, OTHER)], incarnation)
    dead.upload_set([(log, 50, 90, 0)], incarnation)
    return dead


def moved_by(worker, *paths):
    for path in paths:
        claimed = worker.claim(epoch=1, epochs=[(0, 0)], path=path)
        assert claimed["holders"] == ["n1"]
        assert claimed["set_bytes"] > 0
        assert not worker.call("merge", **path._asdict(), epoch=1)["more"]


def test_what_counts_stays_until_it_was_moved_and_then_goes(store, log):
    died(store, log)
    heir = Worker(store, "n2")
    assert adopted(heir, "n2") == {"dropped": 0, "deleted": 0, "left": 2, "returned": []}
    moved_by(heir, PATH)
    assert adopted(heir, "n2") == {"dropped": 1, "deleted": 1, "left": 1, "returned": []}
    check_whole(store, 90)
    check_whole(store, 20, path=OTHER)
    moved_by(heir, OTHER)
    assert adopted(heir, "n2") == {"dropped": 1, "deleted": 1, "left": 0, "returned": []}
    assert objects_of(store, "n1") == []
    check_whole(store, 90)
    check_whole(store, 20, path=OTHER)


def test_those_who_are_there_are_left_alone(store, log):
    died(store, log)
    heir = Worker(store, "n2")
    moved_by(heir, PATH, OTHER)
    assert adopted(heir, "n1", "n2")["deleted"] == 0
    assert len(objects_of(store, "n1")) == 2


def test_a_node_that_comes_back_goes_on(store, log):
    died(store, log)
    heir = Worker(store, "n2")
    moved_by(heir, PATH, OTHER)
    adopted(heir, "n2")
    back = Worker(store, "n1")
    back.claim(epoch=2, epochs=[(0, 0)])
    back.upload_set([(log, 90, 95, 2)], incarnation=4)
    check_whole(store, 95)
    assert adopted(heir, "n2") == {"dropped": 0, "deleted": 0, "left": 1, "returned": []}
    check_whole(store, 95)


def test_a_process_that_was_only_away_loses_and_doubles_nothing(store, log):
    away = died(store, log)
    heir = Worker(store, "n2")
    moved_by(heir, PATH, OTHER)
    adopted(heir, "n2")
    heir.upload_set([(log, 90, 95, 1)])
    before = history(store)
    with pytest.raises((LineageError, ObjectMissingError)):  # its own objects are gone
        away.upload(log, 90, 99)
    for base in (90, 93):  # what it knows of its manifest is out of date
        with suppress(OvertakenError):
            away.upload_set([(log, base, base + 3, 0)], incarnation=3)
    assert history(store) == before
    adopted(heir, "n2")
    assert objects_of(store, "n1") == []
    check_whole(store, 95)


def test_who_adopts_while_the_node_comes_back_is_refused(store, log):
    died(store, log)
    heir, back = Worker(store, "n2"), Worker(store, "n1")
    moved_by(heir, PATH, OTHER)
    inner = heir.context.store.list

    def list_late(prefix, start_after=""):
        if prefix == "sets/n1/objects/" and not back.context.sets.get("n1"):
            back.claim(epoch=2, epochs=[(0, 0)])
            back.upload_set([(log, 90, 95, 2)], incarnation=4)
        return inner(prefix, start_after)

    heir.context.store.list = list_late
    assert adopted(heir, "n2")["returned"] == ["n1"]
    assert len(objects_of(store, "n1")) == 3
    check_whole(store, 95)


def test_objects_of_a_node_that_died_before_its_first_manifest(store):
    store.create(set_object_key("n1", f"{0:020d}-abc.parquet"), b"x", "abc")
    assert adopted(Worker(store, "n2"), "n2")["deleted"] == 1
    assert objects_of(store, "n1") == []
