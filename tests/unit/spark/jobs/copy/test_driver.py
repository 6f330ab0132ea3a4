"""A copy of a bucket: the same history, or none; with tasks run one after the other, and stores in memory."""

from __future__ import annotations

import dataclasses

import pytest

from liftpy_bucket.errors import ObjectMissingError, StoreDeniedError, StoreUnfitError
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.catalog import Catalog, CatalogFile
from liftpy_bucket.manifest.pins.cursors import Cursor
from liftpy_bucket.manifest.pins.held import load_pins
from liftpy_bucket.manifest.root import changes as root_changes
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.store.memory import MemoryStore
from liftpy_bucket.store.s3_settings import S3Settings
from liftpy_spark.jobs import parts
from liftpy_spark.jobs.compact import driver as compact_driver
from liftpy_spark.jobs.copy import driver, task, waves
from liftpy_spark.jobs.copy.driver import copy_history, plan_copy
from liftpy_spark.jobs.copy.roots import CopyRefusedError
from liftpy_spark.jobs.copy.waves import CopyDamagedError
from support.copy_kit import OFFSETS, catalog_of, held_by, make_history, visible
from support.fault_store import Crash, FaultStore
from support.job_bucket import new_id
from support.tier_rows import plain_records

TARGET = S3Settings(url="s3://memory/target")
TASK_BYTES = 4 << 20  # some four objects


class MemoryServer:
    """What `JobBucket` wants of a server."""

    def __init__(self):
        self.stores = {}

    def url(self, prefix):
        return f"s3://memory/{prefix}"

    def settings(self, prefix):
        return S3Settings(url=self.url(prefix))

    def store(self, prefix):
        return self.stores.setdefault(self.url(prefix), MemoryStore())


def run_here(spark, given, work, *, what, read, progress=None):
    results = [read(work(each)) for each in given]
    if progress is not None:
        progress(len(given), len(given))
    return results


@pytest.fixture
def server(monkeypatch):
    made = MemoryServer()
    for module in (task, waves, parts, driver):
        monkeypatch.setattr(module, "store_of", lambda settings: made.stores.setdefault(settings.url, MemoryStore()))
    monkeypatch.setattr(waves, "run_tasks", run_here)
    return made


@pytest.fixture
def history(server):
    return make_history(server)


@pytest.fixture
def target(server):
    return server.store("target")


def copied(bucket, names=(), **options):
    return copy_history(None, bucket.settings, TARGET, names, task_bytes=TASK_BYTES, **options)


@pytest.mark.parametrize("copies", [True, False])
def test_by_the_store_or_by_us(history, target, monkeypatch, copies):
    done = []
    copy_from = MemoryStore.copy_from

    def copying(*said):
        done.append(copies and copy_from(*said))
        return done[-1]

    monkeypatch.setattr(MemoryStore, "copy_from", copying)
    copied(history.orders)
    assert held_by(target) == held_by(history.store)
    assert done
    assert set(done) == {copies}


def test_what_is_shared_is_counted_for_compaction(server, history, monkeypatch):
    monkeypatch.setattr(compact_driver, "store_of", lambda _: history.store)
    found = {}
    for uuid, stream in catalog_of(history.store).streams.items():
        paths = [PartitionPath(uuid, number) for number in range(stream.partitions)]
        found[stream.name] = compact_driver.shared_records(history.orders.settings, paths)
    assert found == {OFFSETS: 6, "orders": 14, "orders-test": 0, "quiet": 11}


def test_all_of_it_is_there(history, target):
    before = held_by(history.store)
    seen = []
    plan = plan_copy(history.orders.settings, TARGET)
    assert not any(target.list("")), "a plan writes nothing"
    done = copied(history.orders, progress=lambda *said: seen.append(said))
    assert held_by(target) == before
    assert visible(target) == visible(history.store)
    assert catalog_of(target).cluster_id == catalog_of(history.store).cluster_id
    assert done.plan == plan
    assert done.copied == sum(stream.objects for stream in plan.streams)
    assert seen[-1] == (done.copied, done.copied)
    assert [stream.name for stream in plan.streams] == [OFFSETS, "orders", "orders-test", "quiet"]
    records = {name: sum(len(held.records) for (of, _), held in before.items() if of == name) for name, *_ in before}
    assert {stream.name: stream.records for stream in plan.streams} == records
    shared = {stream.name: stream.shared_records for stream in plan.streams}
    assert shared == {OFFSETS: 6, "orders": 14, "orders-test": 0, "quiet": 11}
    assert not any(target.list("sets/")), "what was shared is everybody's own"


def test_what_was_appended_and_what_is_gone_is_as_in_the_source(history, target):
    copied(history.orders)
    path = history.orders.paths[0]
    source, there = (RootFile(store, path, new_id=new_id).load().root for store in (history.store, target))
    assert there.snapshots == source.snapshots
    assert there.fragments[:-1] == source.fragments
    assert (there.collected, there.delete_horizon, there.compacted_end) == (source.collected, 3, 20)
    assert Cursor(target, path, "nightly", new_id=new_id).load().start == 5
    assert [
        pin for pin in load_pins(history.store, path) if pin.kind == "version" and not pin.target and not pin.dropped
    ] == []


def test_a_fork_becomes_a_stream_by_itself(history, target):
    copied(history.orders)
    path = history.fork.paths[0]
    root = RootFile(target, path, new_id=new_id).load().root
    assert {each.home for each in RootFile(target, path, new_id=new_id).fragments(root)} == {""}
    orders = [entry.key for entry in target.list(history.orders.paths[0].directory)]
    target.delete(orders)
    version = parts.TierVersion(target, path, root, None)
    assert sum(rows.num_rows for rows in version.read()) == len(held_by(history.store)["orders-test", 0].records)


def test_again_copies_nothing(history, target):
    first = copied(history.orders)
    before = {entry.key: entry for entry in target.list("")}
    again = copied(history.orders)
    assert (again.copied, again.there, again.size) == (0, first.copied, 0)
    assert {entry.key: entry for entry in target.list("")} == before


def test_objects_that_another_tool_brought_are_not_copied(history, target):
    for entry in history.store.list("streams/"):
        if "/fragments/" in entry.key or "/snapshots/" in entry.key:
            target.create(entry.key, history.store.get(entry.key).body, "")
    done = copied(history.orders)
    assert done.there == 22, "all that stays as it is"
    assert held_by(target) == held_by(history.store)


def test_some_streams_and_then_others(history, target):
    before = held_by(history.store)
    copied(history.orders, ["quiet"])
    assert visible(target).keys() == {"quiet", OFFSETS}
    copied(history.orders, [history.orders.uuid])
    assert visible(target).keys() == {"quiet", OFFSETS, "orders"}
    assert held_by(target) == {place: held for place, held in before.items() if place[0] != "orders-test"}
    refused(history, r"no stream 'order': it has orders, orders-test, quiet$", "order")


def test_what_came_meanwhile_comes_with_the_next_copy(history, target):
    copied(history.orders)
    history.orders.share({0: plain_records(4, base=history_end(history))})
    history.orders.append(plain_records(6, base=history.orders.root(1).end + 4, seed=3), 1)
    done = copied(history.orders)
    assert done.copied == 2, "a tail, and one object"
    assert held_by(target) == held_by(history.store)


def history_end(history):
    return held_by(history.store)["orders", 0].end


@pytest.mark.thorough
@pytest.mark.parametrize("done", [False, True])
def test_whatever_it_is_killed_by(server, history, done):
    """Before each request to the destination, or after it, everything ends: nothing is seen, or all of it."""
    before, shown = held_by(history.store), 0
    url = "s3://memory/target"
    probe = FaultStore(MemoryStore())
    server.stores[url] = probe
    copied(history.orders)
    wanted = roots_of(probe)
    writes = [request for request in probe.requests if request.kind in ("create", "replace")]
    objects = [request.number for request in writes if "/fragments/" in request.key]
    manifests = [request.number for request in writes if "/fragments/" not in request.key]
    assert len(manifests) > 10
    for number in sorted([objects[0], objects[len(objects) // 2], objects[-1], *manifests]):
        kept = MemoryStore()

        def crash(request, number=number):
            if request.number >= number:
                raise Crash

        server.stores[url] = FaultStore(kept, **{"after" if done else "before": crash})
        with pytest.raises(Crash):
            copied(history.orders)
        seen = visible(kept)
        if seen:
            shown += 1
            assert held_by(kept) == before
        server.stores[url] = kept
        copied(history.orders)
        assert visible(kept) == visible(history.store)
        assert roots_of(kept) == wanted
    assert shown == done, "the last write is the one that shows it"


def roots_of(store):
    return {entry.key: store.get(entry.key).body for entry in store.list("streams/") if entry.key.endswith("/ROOT")}


def keys_of(store):
    return {(entry.key, entry.etag) for entry in store.list("")}


def another_cluster(store, **streams):
    """The catalog of a cluster that has begun to use a bucket, with streams of its own."""
    CatalogFile(store, new_id=new_id).commit(None, Catalog(cluster_id="d" * 32, version=1, streams=streams))


def stream_of(history, bucket):
    return catalog_of(history.store).streams[bucket.uuid]


def test_into_the_bucket_of_a_new_cluster(history, target):
    own = dataclasses.replace(stream_of(history, history.offsets), created_ns=2)
    another_cluster(target, **{"e" * 32: own})
    copied(history.orders)
    catalog = catalog_of(target)
    assert catalog.cluster_id == "d" * 32
    assert {each.name for each in catalog.streams.values()} == visible(history.store).keys()
    assert catalog.streams.keys() == {*catalog_of(history.store).streams, "e" * 32}


def test_into_the_bucket_of_a_cluster_with_streams(history, target):
    another_cluster(target, **{"e" * 32: dataclasses.replace(stream_of(history, history.quiet), name="flights")})
    done = copied(history.orders, ["quiet"])
    assert visible(target).keys() == {"flights", "quiet"}
    assert done.plan.notes == (
        f"{OFFSETS} is not copied: the cluster at the destination has streams, and one, of its own",
    )


def test_what_a_cluster_has_taken_over_stays(history, target):
    copied(history.orders)
    file = CatalogFile(target, new_id=new_id)
    loaded = file.load()
    file.commit(loaded, dataclasses.replace(loaded.catalog, cluster_id="d" * 32, version=loaded.catalog.version + 1))
    path = history.quiet.paths[0]
    roots = RootFile(target, path, new_id=new_id)
    there = roots.load()
    roots.commit(there, root_changes.claim(there.root, epoch=10_000, node="n2", start=there.root.end))
    before = {entry.key: entry for entry in target.list("")}
    history.quiet.share({0: plain_records(3, base=9)})
    done = copied(history.orders)
    assert (done.plan.streams, done.copied) == ((), 0)
    assert f"quiet is left as it is: cluster {'d' * 32} has it already" in done.plan.notes
    assert {entry.key: entry for entry in target.list("")} == before


def refused(history, why, *names):
    with pytest.raises(CopyRefusedError, match=why):
        copied(history.orders, names)


def test_other_leader_epochs_are_another_history(history, target):
    copied(history.orders, ["quiet"])
    file = RootFile(target, history.quiet.paths[0], new_id=new_id)
    there = file.load()
    other = dataclasses.replace(there.root, version=there.root.version + 1, epochs=((7, 0),))
    file.commit(there, root_changes.Change(root=other))
    refused(history, "another history of quiet/0: leader epochs of its records differ")
    assert visible(target).keys() == {"quiet", OFFSETS}


def test_other_records_are_another_history(history, target):
    copied(history.orders, ["quiet"])
    history.store.delete([entry.key for entry in history.store.list("sets/")])
    history.offsets.append(held_by(target)[OFFSETS, 0].records)
    history.quiet.append(plain_records(9, seed=5))
    refused(history, "another history of quiet/0: its records up to offset 9 are others", "quiet")


def test_a_source_that_was_set_back_is_refused(history, target):
    copied(history.orders)
    history.store.delete([entry.key for entry in history.store.list("sets/")])
    refused(history, f"more of {OFFSETS}/0 than the source, up to offset 6 and not 0")


def test_names_that_are_taken_or_deleted(history, target):
    deleted = dataclasses.replace(stream_of(history, history.quiet), deleted_ns=5)
    another_cluster(target, **{"e" * 32: stream_of(history, history.orders), history.quiet.uuid: deleted})
    refused(history, f"another stream orders, with uuid {'e' * 32}", "orders")
    refused(history, r"stream quiet \(.*\) was deleted at the destination", "quiet")
    assert "orders-test" not in visible(target)


def test_the_same_place(history):
    with pytest.raises(CopyRefusedError, match="source and destination are the same"):
        plan_copy(history.orders.settings, history.orders.settings)


def test_the_same_place_by_another_address(server, history):
    alias = S3Settings(url=server.url("alias"))
    server.stores[alias.url] = history.store
    before = keys_of(history.store)
    with pytest.raises(CopyRefusedError, match="have one catalog, so they are the same place"):
        copy_history(None, history.orders.settings, alias)
    with pytest.raises(CopyRefusedError, match="have one catalog, so they are the same place"):
        plan_copy(history.orders.settings, alias)
    assert keys_of(history.store) == before, "neither pins nor probes were left there"


def test_a_store_that_ignores_conditions(server, history):
    class Careless(MemoryStore):
        def create(self, key, body, nonce):
            self.delete([key])
            return super().create(key, body, nonce)

    server.stores[TARGET.url] = Careless()
    with pytest.raises(StoreUnfitError, match="If-None-Match"):
        copied(history.orders)


def test_a_source_that_may_only_be_read(server, history, target):
    def deny(request):
        if request.kind in ("create", "replace", "delete"):
            raise StoreDeniedError("the store does not allow it")

    server.stores[history.orders.settings.url] = FaultStore(history.store, before=deny)
    with pytest.raises(StoreDeniedError) as caught:
        copied(history.orders)
    assert caught.value.__notes__ == ["where the source may only be read, and nobody writes to it, say --hold 0"]
    copied(history.orders, hold_s=0)
    assert held_by(target) == held_by(history.store)


def test_all_that_is_damaged_is_named_at_once(history, target):
    keys = [history.orders.paths[0].fragment(each.name) for each in history.orders.root().fragments]
    history.orders.damage(keys[0], 200)
    history.store.delete([keys[1]])
    with pytest.raises(CopyDamagedError) as caught:
        copied(history.orders, ["orders"])
    assert [(each.kind, each.key) for each in caught.value.problems] == [("corrupt", keys[0]), ("missing", keys[1])]
    assert visible(target) == {}


def test_a_plan_has_looked_at_all_manifests(history, target):
    assert plan_copy(history.orders.settings, TARGET).streams
    key = history.orders.paths[0].snapshot(history.orders.root().snapshots[0].digest)
    history.store.delete([key])
    with pytest.raises(ObjectMissingError, match=key):
        plan_copy(history.orders.settings, TARGET)
    assert not [*target.list("")]


def test_what_is_shared_and_goes_is_looked_up_anew(server, history, target):
    """As soon as its manifest is read, what was shared is moved into an object of the stream's own."""
    before = held_by(history.store)
    end = before["orders", 0].end
    shared = [entry.key for entry in history.store.list("sets/n1/objects/")][:2]
    keeping = {key: history.store.get(key) for key in shared}

    def move(request):
        if request.kind == "get_range" and request.key in keeping:
            keeping.clear()
            base = history.orders.root().end
            records = [*plain_records(7, base=base), *plain_records(3, base=base + 7)]
            history.orders.append(records)
            history.orders.append(plain_records(4, base=30), 1)
            history.orders.append(plain_records(6, base=end, seed=4))
            history.store.delete(shared)

    server.stores[history.orders.settings.url] = FaultStore(history.store, before=move)
    copied(history.orders)
    assert keeping == {}
    assert held_by(target) == before, "and what came afterwards is not of this version"


def test_an_object_at_the_destination_that_is_another_is_named(history, target):
    key = history.orders.paths[1].fragment(history.orders.root(1).fragments[0].name)
    target.create(key, b"PAR1 is not enough", "x")
    with pytest.raises(CopyDamagedError, match="at the destination, where it was before"):
        copied(history.orders)
    target.delete([key])
    copied(history.orders)
    assert held_by(target) == held_by(history.store)
