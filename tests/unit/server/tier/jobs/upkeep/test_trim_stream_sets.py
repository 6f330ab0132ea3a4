"""What was deleted, purged or given up leaves shared objects, too, though others need what is beside it."""

from __future__ import annotations

import io
from itertools import count

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from liftpy_bucket.errors import ManifestCorruptError, ObjectMissingError, StoreUnavailableError
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.catalog import Catalog, CatalogFile, CatalogStream
from liftpy_bucket.manifest.pins.held import Pins
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.store.memory import MemoryStore
from liftpy_bucket.upkeep.auditing import audit
from liftpy_bucket.upkeep.forking import fork
from liftpy_bucket.upkeep.remains import find_remains
from liftpy_envelope.stream_config import StreamConfig
from liftpy_server.tier.jobs.parts import counted_members
from liftpy_server.tier.jobs.upkeep import merge_stream_sets, trim_stream_sets
from support.tier_slices import LogFile
from support.tier_workers import PATH, UUID, Worker, check_whole, history, new_id

OTHER = PartitionPath("f" * 32, 0)


@pytest.fixture
def worker(tmp_path):
    log = LogFile(tmp_path / "0.log")
    log.append(200)
    worker = Worker(MemoryStore())
    for path in (PATH, OTHER):
        worker.claim(path=path)
    for base in range(0, 200, 100):
        worker.upload_set([(log, base, base + 100, 0, path) for path in (PATH, OTHER)])
    return worker


def collect(worker):
    return worker.call("collect_sets", node="n1", incarnation=1)


def put_catalog(worker, *paths, **config):
    """The catalog names these streams."""
    config = StreamConfig(name="s", subject="s.>", **config).to_plain()
    streams = {
        path.uuid: CatalogStream(name=f"s{number}", config=config, partitions=1, created_ns=1)
        for number, path in enumerate(paths)
    }
    file = CatalogFile(worker.context.store, new_id=new_id)
    loaded = file.load()
    version = loaded.catalog.version + 1 if loaded else 1
    file.commit(loaded, Catalog(cluster_id="c" * 32, version=version, streams=streams))


def remains(worker):
    """(uuid, first offset, offset after the last one) of what was deleted and is there."""
    found = find_remains(worker.context.store, now_ns=2**62)
    return sorted({(each.path.uuid, each.start, each.end) for each in found})


def garbage(worker):
    """What an audit lists, without what it is in words, and without packs of pages that rounds have replaced."""
    found = [each.key for each in audit(worker.context.store, now_ns=2**62).garbage]
    return [key for key in found if "/pages/" not in key]


def rows(worker, uuid=UUID):
    """Offsets of a stream in all objects that there are, named or not, as somebody sees who reads the bucket."""
    store, found = worker.context.store, []
    for entry in store.list("sets/n1/objects/"):
        table = pq.read_table(io.BytesIO(store.get(entry.key).body), columns=["stream", "offset"])
        names = table.column("stream").to_pylist()
        found += [at for name, at in zip(names, table.column("offset").to_pylist(), strict=True) if name == uuid]
    return sorted(found)


def test_of_a_deleted_stream_nothing_is_left(worker):
    put_catalog(worker, PATH, OTHER)
    assert (remains(worker), garbage(worker)) == ([], [])
    put_catalog(worker, OTHER)
    worker.call("drop_stream", uuid=UUID, partitions=1)
    assert rows(worker) == list(range(200))
    assert remains(worker) == [(UUID, 0, 100), (UUID, 100, 200)]
    answer = collect(worker)
    assert (remains(worker), audit(worker.context.store, now_ns=2**62).garbage) == ([], [])
    assert (answer["trimmed"], answer["left"]) == (2, 2)
    assert rows(worker) == []
    assert rows(worker, OTHER.uuid) == list(range(200))
    check_whole(worker.context.store, 200, path=OTHER)
    assert collect(worker)["trimmed"] == 0


def test_of_what_was_purged_nothing_is_left(worker):
    put_catalog(worker, PATH, OTHER)
    worker.call("retain", **PATH._asdict(), start=150, epoch=0)
    assert remains(worker) == [(UUID, 0, 100), (UUID, 100, 150)]
    collect(worker)
    assert (remains(worker), garbage(worker)) == ([], [])
    assert rows(worker) == list(range(150, 200))
    check_whole(worker.context.store, 200, 150)
    check_whole(worker.context.store, 200, path=OTHER)


@pytest.mark.parametrize("kept", [[*range(20)], [*range(20), *range(80, 100)]])
def test_where_compaction_left_no_record_the_history_goes_on(tmp_path, monkeypatch, kept):
    """The part that counts begins in a hole, or has no record at all: of which epoch it is has to be known still."""
    module = "liftpy_server.tier.jobs.uploads.upload_stream_set.trimmed"
    offsets = pa.array(kept, pa.int64())
    monkeypatch.setattr(module, lambda rows, *_: rows.filter(pc.is_in(rows.column("offset"), offsets)))
    log = LogFile(tmp_path / "0.log")
    log.append(200)
    worker = Worker(MemoryStore())
    for path in (PATH, OTHER):
        worker.claim(path=path)
    worker.upload_set([(log, 0, 100, 0, path) for path in (PATH, OTHER)])
    worker.call("retain", **PATH._asdict(), start=30, epoch=0)
    assert collect(worker)["trimmed"] == 1
    worker.upload(log, 100, 200)
    assert [row[0] for row in history(worker.context.store)] == [at for at in kept if at >= 30] + list(range(100, 200))


def test_what_moved_into_an_object_of_its_own_goes(worker):
    put_catalog(worker, PATH, OTHER)
    worker.call("merge", **PATH._asdict(), epoch=0)
    assert (remains(worker), garbage(worker)) == ([], []), "it was not deleted"
    collect(worker)
    assert rows(worker) == []
    assert (remains(worker), garbage(worker)) == ([], [])
    check_whole(worker.context.store, 200)


def test_little_that_moved_waits_until_objects_are_merged(worker, tmp_path):
    """To write an object anew for each stream that leaves it would write all of them time and again."""
    store, log = worker.context.store, LogFile(tmp_path / "1.log")
    log.append(500)
    many = [PartitionPath(f"{number:032x}", 0) for number in range(10)]
    for path in many:
        worker.claim(path=path)
    worker.upload_set([(log, 0, 100, 0, path) for path in many])
    worker.call("merge", **many[3]._asdict(), epoch=0)
    assert collect(worker)["trimmed"] == 0
    assert rows(worker, many[3].uuid) == list(range(100))
    worker.upload_set([(log, 100, 200, 0, path) for path in many])
    assert collect(worker)["merged"] == 4
    assert rows(worker, many[3].uuid) == list(range(100, 200))
    worker.call("retain", **many[4]._asdict(), start=200, epoch=0)
    assert collect(worker)["trimmed"] == 1, "what was deleted does not wait"
    assert rows(worker, many[4].uuid) == []
    for path in many:
        check_whole(store, 200, 200 if path == many[4] else 0, path=path)


def many_streams(worker, tmp_path, rounds):
    """Ten streams that share an object in each round."""
    log = LogFile(tmp_path / "many.log")
    log.append(100 * rounds)
    many = [PartitionPath(f"{number:032x}", 0) for number in range(10)]
    for path in many:
        worker.claim(path=path)
    for base in range(0, 100 * rounds, 100):
        worker.upload_set([(log, base, base + 100, 0, path) for path in many])
    return many


def test_what_was_compacted_does_not_wait_either(worker, tmp_path):
    """Superseded records are a tenth of the object: too little for what has only moved."""
    many = many_streams(worker, tmp_path, 1)
    arguments = {"min_compaction_lag_ns": 0, "delete_retention_ns": 0, "clean_end": 100}
    worker.call("compact", **many[3]._asdict(), epoch=0, **arguments)
    assert collect(worker)["trimmed"] == 1
    assert rows(worker, many[3].uuid) == []


def test_a_record_that_is_lost_on_the_way_is_noticed_where_something_else_is_left_out(worker, tmp_path, monkeypatch):
    """The sums of all objects together then say nothing; that of each member does."""
    many = many_streams(worker, tmp_path, 4)
    worker.call("merge", **many[3]._asdict(), epoch=0)
    real, lost = merge_stream_sets.member_source, []

    def short(*arguments):
        source = real(*arguments)
        if lost:
            return source
        lost.append(True)
        return source._replace(rows=[each.slice(1) for each in source.rows])

    monkeypatch.setattr(merge_stream_sets, "member_source", short)
    with pytest.raises(ManifestCorruptError, match="must sum up to"):
        collect(worker)
    monkeypatch.undo()
    for path in many:
        check_whole(worker.context.store, 400, path=path)


def test_of_objects_of_which_a_merge_leaves_nothing_there_is_none(worker, monkeypatch, tmp_path):
    log = LogFile(tmp_path / "1.log")
    log.append(400)
    for base in (200, 300):
        worker.upload_set([(log, base, base + 100, 0, path) for path in (PATH, OTHER)])
    for path in (PATH, OTHER):
        worker.call("merge", **path._asdict(), epoch=0)
    monkeypatch.setattr("liftpy_server.tier.jobs.upkeep.collect.trim_sets", lambda *_: 0)
    assert collect(worker) == {"trimmed": 0, "merged": 4, "dropped": 0, "deleted": 4, "left": 0}
    assert rows(worker) == rows(worker, OTHER.uuid) == []
    for path in (PATH, OTHER):
        check_whole(worker.context.store, 400, path=path)


def test_superseded_records_leave_shared_objects(worker):
    put_catalog(worker, PATH, OTHER, compact=True)
    arguments = {"min_compaction_lag_ns": 0, "delete_retention_ns": 0, "clean_end": 200}
    worker.call("compact", **PATH._asdict(), epoch=0, **arguments)
    assert remains(worker) == [(UUID, 0, 100), (UUID, 100, 200)]
    collect(worker)
    worker.call("collect", **PATH._asdict(), grace_ns=0)
    assert (remains(worker), garbage(worker)) == ([], [])


def test_an_audit_lists_what_nothing_names(worker):
    store = worker.context.store
    put_catalog(worker, PATH, OTHER)
    keys = [PATH.fragment(f"{0:020d}-0-lost.parquet"), "sets/n1/objects/00000000000000000009-lost.parquet", "notes.txt"]
    for key in keys:
        store.create(key, b"1234", "x")
    found = audit(store, now_ns=store.head(keys[0]).modified_ns + 7 * 10**9)
    told = {each.key: (each.size, round(each.age_s)) for each in found.garbage if "/pages/" not in each.key}
    assert told == dict.fromkeys(keys, (4, 7))
    assert found.objects == len(list(store.list("")))
    store.delete(keys)
    assert garbage(worker) == []


def test_an_audit_says_of_an_interrupted_probe_what_becomes_of_it(worker):
    worker.context.store.create("probe/1234", b"created by 1234", "1234")
    put_catalog(worker, PATH, OTHER)
    (found,) = [each for each in audit(worker.context.store, now_ns=2**62).garbage if "/pages/" not in each.key]
    assert (found.key, "probe that was interrupted" in found.text) == ("probe/1234", True)


def test_what_another_node_lets_go_of_is_found_in_time(worker, tmp_path):
    context = worker.context
    context.grace_ns, now = 100, count(1_000)
    context.now_ns = lambda: next(now)
    collect(worker)
    other = Worker(context.store, "n2")
    other.claim(epoch=1, epochs=[(0, 0)])
    other.call("retain", **PATH._asdict(), start=200, epoch=1)
    assert collect(worker)["trimmed"] == 0, "roots cost a request each"
    now = count(2_000)
    assert collect(worker)["trimmed"] == 2


def test_a_pinned_version_keeps_what_it_names(worker):
    context = worker.context
    pins = Pins(context.store, PATH, new_id=new_id, now_ns=context.now_ns)
    pin = pins.hold_version("export", None)
    worker.call("retain", **PATH._asdict(), start=200, epoch=0)
    collect(worker)
    assert rows(worker) == list(range(200))
    pins.release(pin)
    collect(worker)
    assert rows(worker) == []


def test_what_a_fork_holds_of_a_deleted_stream_goes_with_the_fork(worker, tmp_path):
    store, copy = worker.context.store, PartitionPath("c" * 32, 0)
    worker.call("merge", **PATH._asdict(), epoch=0)
    fork(store, PATH, copy, epoch=1, node="n1", new_id=new_id)

    def drop(path):
        return worker.call("drop_stream", uuid=path.uuid, partitions=1)["pinned"]

    def objects():
        return [entry.key for entry in store.list("streams/") if entry.key.endswith(".parquet")]

    put_catalog(worker, OTHER, copy)
    assert drop(PATH), "the fork's pin"
    assert garbage(worker) == []
    assert objects()
    check_whole(store, 200, path=copy)
    put_catalog(worker, OTHER)
    assert not drop(copy)
    assert garbage(worker), "nothing names it now"
    assert drop(PATH), "the pin is let go of, and deleted when its time has come"
    assert objects() == []
    assert not drop(PATH)
    assert [entry.key for entry in store.list(f"{PATH.directory}pins/")] == []
    collect(worker)
    assert (remains(worker), garbage(worker)) == ([], [])


def test_sums_balance(worker):
    before = worker.context.sets.get("n1").manifest
    worker.call("drop_stream", uuid=UUID, partitions=1)
    collect(worker)
    after = worker.context.sets.get("n1").manifest
    assert after.setsum + after.collected == before.setsum + before.collected


def test_a_look_at_the_roots_that_failed_is_made_again(worker, monkeypatch):
    context = worker.context
    context.grace_ns, context.now_ns = 100, lambda: 1_000
    other = Worker(context.store, "n2")
    other.claim(epoch=1, epochs=[(0, 0)])
    other.call("retain", **PATH._asdict(), start=200, epoch=1)
    find = counted_members.find

    def away(_context, path):
        if path == OTHER:
            raise StoreUnavailableError("away")
        return find(_context, path)

    monkeypatch.setattr(counted_members, "find", away)
    with pytest.raises(StoreUnavailableError):
        trim_stream_sets.trim_sets(context, "n1", 1)
    monkeypatch.setattr(counted_members, "find", find)
    context.roots.drop(PATH)
    assert trim_stream_sets.trim_sets(context, "n1", 1) > 0, "and not after the next grace period only"


def test_a_fork_that_is_being_made_of_a_stream_that_is_dropped_has_its_time(worker):
    """Its pin is there, and its root comes later: nobody puts an end in its place meanwhile."""
    store, copy = worker.context.store, PartitionPath("c" * 32, 0)
    worker.call("merge", **PATH._asdict(), epoch=0)
    fork(store, PATH, copy, epoch=1, node="n1", new_id=new_id)
    store.delete([copy.root])  # it is written last
    worker.context.grace_ns, worker.context.now_ns = 10**6, lambda: 1_000
    assert worker.call("drop_stream", uuid=UUID, partitions=1)["pinned"]
    assert RootFile(store, copy, new_id=new_id).load() is None
    worker.context.grace_ns = 0
    worker.call("drop_stream", uuid=UUID, partitions=1)
    assert RootFile(store, copy, new_id=new_id).load().root.sealed


def test_what_a_late_upload_left_in_a_dropped_stream_is_looked_for_again(worker):
    store = worker.context.store
    worker.context.grace_ns, worker.context.now_ns = 10**6, lambda: 1_000
    store.create(key := PATH.fragment(f"{0:020d}-0-late.parquet"), b"1234", "x")
    assert worker.call("drop_stream", uuid=UUID, partitions=1)["pinned"], "another look is due"
    assert store.head(key)
    worker.context.grace_ns = 0
    assert not worker.call("drop_stream", uuid=UUID, partitions=1)["pinned"]
    with pytest.raises(ObjectMissingError):
        store.head(key)
