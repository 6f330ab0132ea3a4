"""Verifying and scrubbing: whatever is wrong in the bucket is found, and the object named."""

import dataclasses

import pytest

from liftpy_bucket.errors import ManifestCorruptError
from liftpy_bucket.layout import PartitionPath, set_object_key, set_root_key
from liftpy_bucket.manifest import boundary
from liftpy_bucket.manifest.pins.cursors import Cursor
from liftpy_bucket.manifest.pins.held import Pins
from liftpy_bucket.manifest.root.changes import replace
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.manifest.stream_sets import changes as set_changes
from liftpy_bucket.manifest.stream_sets.compressed import compressed, decompressed
from liftpy_bucket.manifest.stream_sets.file import SetManifestFile
from liftpy_bucket.objects.pointers import Extent, SetMember, SetObjectPointer
from liftpy_bucket.objects.setsum import NO_RECORDS
from liftpy_bucket.upkeep.collecting import Collector
from liftpy_bucket.upkeep.forking import fork
from liftpy_bucket.upkeep.scrubbing import scrub
from liftpy_bucket.upkeep.verifying import verify
from support.damage import bit_flips
from support.fault_store import FaultStore
from support.garbage_kit import Ids
from support.manifest_kit import edited
from support.tier_history import PATH, TierHistory, new_id
from support.tier_rows import Record, rows_from, written


def records(base, end, epoch=0):
    return [
        Record(offset, 10**18 + offset, b"orders.eu", b"k", None, b"value", epoch=epoch) for offset in range(base, end)
    ]


@pytest.fixture
def history():
    made = TierHistory()
    for base in range(0, 40, 10):
        made.append(records(base, base + 10))
    return made


def keys(history):
    return [PATH.fragment(each.name) for each in history.file.fragments(history.root)]


def rewrite(store, key, body):
    store.delete([key])
    store.create(key, body, "other")


def found(history, look=scrub):
    return {(each.kind, each.key) for each in look(history.store, PATH).problems}


def test_a_sound_partition_has_no_problem(history):
    seen = []
    report = scrub(history.store, PATH, lambda done, total, text: seen.append((done, total)))
    assert report.problems == report.orphans == []
    assert (report.start, report.end, report.objects, report.records) == (0, 40, 4, 40)
    assert seen[-1] == (report.size, report.size)


def test_every_flipped_byte_is_named(history):
    key = keys(history)[1]
    body = history.store.get(key).body
    for at in range(0, len(body), 37):
        rewrite(history.store, key, body[:at] + bytes([body[at] ^ 0x10]) + body[at + 1 :])
        assert found(history) == {("corrupt", key)}, f"byte {at} of {len(body)}"


def test_a_missing_object_is_named(history):
    key = keys(history)[2]
    history.store.delete([key])
    assert found(history, verify) == found(history) == {("missing", key)}
    (problem,) = verify(history.store, PATH).problems
    assert problem.offset == 20


def test_swapped_objects_are_named(history):
    first, second = keys(history)[:2]
    one, two = (history.store.get(key).body for key in (first, second))
    rewrite(history.store, first, two)
    rewrite(history.store, second, one)
    assert {key for _, key in found(history)} == {first, second}


@pytest.mark.parametrize("left", [0, 3, 100, -1])
def test_a_truncated_object_is_named(history, left):
    key = keys(history)[3]
    rewrite(history.store, key, history.store.get(key).body[:left])
    assert found(history) == {("size", key)}


def test_a_fragment_of_another_stream_is_named(history):
    key, pointer = keys(history)[0], next(history.file.fragments(history.root))
    other = PartitionPath("ab" * 16, 0)
    foreign, result = written(
        [rows_from(records(0, 10))], uuid=other.uuid, nonce=new_id(), record_hash=history.root.record_hash
    )
    assert result.setsum == pointer.setsum, "the same records, of another stream"
    assert len(foreign) == pointer.size
    rewrite(history.store, key, foreign)
    (problem,) = scrub(history.store, PATH).problems
    assert problem.key == key
    assert "SHA-256" in problem.text
    assert "until it is put back" in problem.text


EDITS = {
    "setsum": lambda plain: plain.update(setsum="0" * 64),
    "end": lambda plain: plain["fragments"][1].update(end=15),
    "base": lambda plain: plain["fragments"][1].update(base=11),
    "records": lambda plain: plain["fragments"][1].update(records=9),
    "time": lambda plain: plain["fragments"][1].update(first_timestamp=1),
    "order": lambda plain: plain["fragments"].reverse(),
    "name": lambda plain: plain["fragments"][1].update(name=plain["fragments"][0]["name"]),
    "left out": lambda plain: plain["fragments"].pop(),
    "epochs": lambda plain: plain.update(epochs=[[0, 0], [1, 12]]),
    "field": lambda plain: plain.pop("claims"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_root_is_found(history, edit):
    rewrite(history.store, PATH.root, edited(history.store.get(PATH.root).body, EDITS[edit]))
    assert found(history)


@pytest.mark.parametrize("field", [b'"sealed":false', b'"gone_below":0', b'"compacted_end":0', b'"start":0', b'"n1"'])
def test_an_edited_root_that_makes_sense_is_found_by_its_checksum(history, field):
    body = history.store.get(PATH.root).body
    other = field.replace(b"false", b"true").replace(b"0", b"9").replace(b"n1", b"n2")
    assert body.count(field) == 1
    edit = body.replace(field, other)
    rewrite(history.store, PATH.root, edited(edit, lambda _: None))
    assert RootFile(history.store, PATH, new_id=new_id).load(), "with the right checksum nobody knows"
    rewrite(history.store, PATH.root, edit)
    (problem,) = scrub(history.store, PATH).problems
    assert (problem.kind, problem.key) == ("manifest", PATH.root)
    assert "Put back" in problem.text


def test_an_edited_set_manifest_is_found_by_its_checksum(history):
    file = SetManifestFile(history.store, "n1", new_id=Ids("s"))
    file.commit(None, set_changes.begin("n1", 1))
    key = set_root_key("n1")
    assert found(history) == set()
    plain = decompressed(key, history.store.get(key).body)
    rewrite(history.store, key, compressed(plain.replace(b'"sequence":1', b'"sequence":7')))
    assert found(history) == {("manifest", key)}


@pytest.mark.thorough
@pytest.mark.parametrize("look", [verify, scrub])
def test_what_collectors_of_sets_go_by_is_looked_at(history, look):
    SetManifestFile(history.store, "n1", new_id=Ids("s")).commit(None, set_changes.begin("n1", 1))
    boundary.move(history.store, "sets/n1/", 7, Ids("b"))
    key = "sets/n1/BOUNDARY"
    assert found(history, look) == set()
    for damaged in bit_flips(history.store.get(key).body):
        rewrite(history.store, key, damaged)
        assert found(history, look) == {("corrupt", key)}


@pytest.mark.parametrize("name", ["cursor", "range", "version"])
def test_an_edited_pin_is_found_by_its_checksum(history, name):
    pins = Pins(history.store, PATH, new_id=Ids("p"), now_ns=lambda: 10**18)
    if name == "cursor":
        pin = Cursor(history.store, PATH, "mine", new_id=Ids("c")).advance(10, None)
    else:
        pin = pins.hold_range("mine", 10, 20, None) if name == "range" else pins.hold_version("mine", None)
    key = PATH.pin(pin.name)
    assert found(history) == set()
    body = history.store.get(key).body
    rewrite(history.store, key, body.replace(b'"expires_ns":-1', b'"expires_ns":99'))
    assert found(history) == {("pin", key)}


def announced(history):
    """A collection that was announced, and cut short."""
    collector = Collector(history.store, PATH, new_id=Ids("g"), now_ns=lambda: 10**18, grace_ns=0)
    collector.apply(collector.compute(10))


@pytest.mark.parametrize(("key", "advice"), [(PATH.garbage, "Or delete it"), (PATH.boundary, "Put back")])
@pytest.mark.parametrize("look", [verify, scrub])
def test_what_collectors_go_by_is_looked_at(history, key, advice, look):
    announced(history)
    assert found(history, look) == set()
    body = history.store.get(key).body
    for broken in (b"", body[:-1], body.replace(b"version", b"vision"), body.replace(b'"format":3', b'"format":9')):
        rewrite(history.store, key, broken)
        (problem,) = look(history.store, PATH).problems
        assert (problem.kind, problem.key) == ("corrupt", key)
        assert advice in problem.text
    collector = Collector(history.store, PATH, new_id=Ids("h"), now_ns=lambda: 10**18, grace_ns=0)
    with pytest.raises(ManifestCorruptError, match=key):
        collector.run(20)
    rewrite(history.store, key, body)
    assert collector.run(20).deleted


def test_a_collection_goes_on_without_its_announcement(history):
    """As a problem with it says."""
    announced(history)
    history.store.delete([PATH.garbage])
    assert found(history) == set()
    collector = Collector(history.store, PATH, new_id=Ids("h"), now_ns=lambda: 10**18, grace_ns=0)
    assert collector.run(20).deleted == 2, "what was announced, and what came since"
    assert found(history) == set()


def test_what_is_missing_is_told_once_however_many_need_it(history):
    fork(history.store, PATH, PartitionPath("c" * 32, 0), epoch=0, node="n1", new_id=Ids("f"))
    Pins(history.store, PATH, new_id=Ids("p"), now_ns=lambda: 10**18).hold_version("long", None)
    lost = keys(history)[1]
    history.store.delete([lost])
    for look in (verify, scrub):
        (problem,) = look(history.store, PATH).problems
        assert (problem.kind, problem.key, problem.offset) == ("missing", lost, 10)


def test_an_edited_or_missing_snapshot_is_found(history):
    for base in range(40, 400, 10):
        history.append(records(base, base + 10))
    digest = history.root.snapshots[0].digest
    key = PATH.snapshot(digest)
    body = history.store.get(key).body
    rewrite(history.store, key, body.replace(b'"size":', b'"size":1', 1))
    assert found(history) == {("manifest", key)}
    history.store.delete([key])
    assert found(history, verify) == {("missing", key)}


def test_an_edited_pin_and_what_a_pin_misses_are_found(history):
    pins = Pins(history.store, PATH, new_id=new_id, now_ns=lambda: 0)
    pin = pins.hold_version("read", ttl_ns=None)
    history.commit(_merged(history))
    history.store.delete([PATH.fragment(pin.root.fragments[1].name)])
    history.store.create(PATH.pin("odd"), b"{}", "n")
    assert found(history) == {("missing", PATH.fragment(pin.root.fragments[1].name)), ("pin", PATH.pin("odd"))}


def _merged(history):
    old = list(history.file.fragments(history.root, 0, 30))
    pointer = history.fragment(records(0, 30), 0, 30)
    snapshots = history.file.snapshots(history.root, 0, 30)
    return replace(history.root, old, [pointer], collected=NO_RECORDS, snapshots=snapshots)


def test_orphans_are_told_but_are_no_problem(history):
    old = keys(history)[:3]
    history.commit(_merged(history))
    report = scrub(history.store, PATH)
    assert (report.problems, report.orphans) == ([], sorted(old))


def test_no_root_is_a_problem(history):
    history.store.delete([PATH.root])
    assert found(history) == {("missing", PATH.root)}


def test_a_collection_meanwhile_is_no_problem(history):
    """What was merged and collected between two requests is read in the newer version."""
    for look in (verify, scrub):
        for at in range(2, 20):
            made = TierHistory()
            for base in range(0, 40, 10):
                made.append(records(base, base + 10))

            def work(request, at=at, made=made):
                if request.number == at:
                    made.commit(_merged(made))
                    collecting = Collector(made.store, PATH, new_id=Ids("c"), now_ns=lambda: 10**9, grace_ns=0)
                    assert collecting.run().deleted == 3

            assert look(FaultStore(made.store, before=work), PATH).problems == []


def test_a_member_of_a_set_that_is_lost_and_a_gap_are_found(history):
    names, ids = [], Ids("s")
    file = SetManifestFile(history.store, "n1", new_id=ids)
    loaded = None
    for number, base in enumerate((40, 50, 70), 1):
        name = f"{number:020d}-{ids()}.parquet"
        member = SetMember(
            uuid=PATH.uuid,
            partition=0,
            tier_epoch=0,
            base=base,
            end=base + 10,
            records=10,
            extent=Extent(100, 50, "ab" * 32, start=0),
            epochs=((0, base),),
            first_timestamp=0,
            last_timestamp=0,
            setsum=NO_RECORDS,
        )
        pointer = SetObjectPointer(name=name, size=4, footer=1, digest="ab" * 32, members=(member,))
        history.store.create(set_object_key("n1", name), b"body", "n")
        manifest = loaded.manifest if loaded else set_changes.empty("n1", 1)
        loaded = file.commit(loaded, set_changes.add(manifest, pointer))
        names.append(set_object_key("n1", name))
    history.store.delete(names[:1])
    assert found(history, verify) == {("missing", names[0]), ("gap", names[2])}
    assert verify(history.store, PATH).end == 60


def test_a_set_manifest_that_is_gone_is_found_by_what_it_named(history):
    names = [set_object_key("n1", f"{number:020d}-x.parquet") for number in range(2)]
    history.store.create(names[0], b"of an older program that died before its first manifest", "n")
    history.store.create("sets/n1/objects/notes.txt", b"a stranger's", "n")
    assert found(history) == set()
    history.store.create(names[1], b"body", "n")
    assert found(history) == {("missing", set_root_key("n1"))}


def test_what_verify_counts_is_what_the_root_says(history):
    loaded = RootFile(history.store, PATH, new_id=new_id).load()
    report = verify(history.store, PATH)
    assert report.size == sum(each.size for each in loaded.root.fragments)
    assert dataclasses.replace(report) == report
