"""What manifests look like, and that whatever else stands there is refused with the key and the field."""

import dataclasses
import json
import random
import re
import zlib
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_bucket.errors import BucketVersionError, ManifestCorruptError, TierError
from liftpy_bucket.manifest.catalog import Catalog, CatalogStream, decode_catalog, encode_catalog
from liftpy_bucket.manifest.json import FORMAT, MANIFEST_BYTES_MAX, with_checksum
from liftpy_bucket.manifest.root import producers
from liftpy_bucket.manifest.root.format import Claim, Root, decode_root, encode_root
from liftpy_bucket.manifest.root.producers import HighestBatch, highest_of
from liftpy_bucket.manifest.root.snapshot import decode_snapshot, make_snapshot
from liftpy_bucket.manifest.stream_sets.changes import add
from liftpy_bucket.manifest.stream_sets.compressed import compressed, decompressed
from liftpy_bucket.manifest.stream_sets.format import SetManifest, SetRoot, decode_set, encode_set
from liftpy_bucket.manifest.stream_sets.listing import decode_listing, whole
from liftpy_bucket.manifest.stream_sets.pages import decode_page
from liftpy_bucket.manifest.stream_sets.paging import paged
from liftpy_bucket.objects.record_hash import RecordHash
from liftpy_bucket.objects.setsum import Setsum
from support.examples import examples
from support.manifest_kit import OTHER_PATH, PATH, edited, fragment, ids, member, set_object, sum_of, unchecked

SNAPSHOT = make_snapshot(PATH, [fragment(0, 10), fragment(10, 30)], "n1")
DEEP = make_snapshot(PATH, [SNAPSHOT.pointer], "n2")
ROOT = Root(
    uuid=PATH.uuid,
    partition=PATH.partition,
    version=7,
    start=5,
    end=60,
    snapshots=(SNAPSHOT.pointer,),
    fragments=(fragment(30, 40), fragment(45, 60, offsets=[46])),
    setsum=sum_of([*range(40), 46]),
    collected=sum_of([70]),
    epochs=((1, 0), (4, 33)),
    claims=(Claim(epoch=3, node="node-1", start=20), Claim(epoch=4, node="node-2", start=70)),
    sealed=True,
    delete_horizon=12,
    compacted_end=30,
    commits=tuple(next_id() for next_id in [ids("root")] * 64),
)
REMEMBERING = dataclasses.replace(
    ROOT, producers=(HighestBatch("ab" * 16, 1, 2**40, 33, 4, -5), HighestBatch("cd" * 16, 2**31 - 1, 0, 59, 1, 7))
)
SHARED = (
    set_object(2, member(0, 10), member(0, 7, path=OTHER_PATH)),
    set_object(8, member(10, 20, epochs=((1, 10), (2, 15)))),
)
PAGED = paged(
    (),
    add(
        add(SetManifest(node="node-1", incarnation=12, version=2, sequence=2, commits=("a", "b")), SHARED[0]), SHARED[1]
    ),
    "b",
    lambda pages: {page.digest: b"" for page in pages},
)
SET = PAGED.manifest
SET_ROOT = SetRoot(**{each.name: getattr(SET, each.name) for each in dataclasses.fields(SetRoot)})
SET_BODY = decompressed("sets/node-1/ROOT", encode_set(SET))
(PAGE,) = SET.pages
PAGE_BODY = PAGED.body[: PAGE.size]
LISTING_BODY = PAGED.body[PAGE.size :]
CATALOG = Catalog(
    cluster_id="c1",
    version=2,
    streams={
        PATH.uuid: CatalogStream(name="orders", config={"tier": True, "x": [1.5, None]}, partitions=4, created_ns=5),
        OTHER_PATH.uuid: CatalogStream(name="old", config={}, partitions=1, created_ns=-5, deleted_ns=9),
    },
)
MANIFESTS = {
    "root": (encode_root(ROOT), lambda body: decode_root(PATH, body), ROOT, PATH.root),
    "root with producers": (encode_root(REMEMBERING), lambda body: decode_root(PATH, body), REMEMBERING, PATH.root),
    "set": (SET_BODY, lambda body: decode_set("node-1", compressed(body)), SET_ROOT, "sets/node-1/ROOT"),
    "catalog": (encode_catalog(CATALOG), decode_catalog, CATALOG, "catalog.json"),
    "snapshot": (
        SNAPSHOT.body,
        lambda body: decode_snapshot(PATH, SNAPSHOT.pointer, body),
        SNAPSHOT,
        PATH.snapshot(SNAPSHOT.pointer.digest),
    ),
}
each_manifest = pytest.mark.parametrize("kind", MANIFESTS)


@each_manifest
def test_it_is_read_as_it_was_written(kind):
    body, decode, value, _ = MANIFESTS[kind]
    assert decode(body) == value


each_checked = pytest.mark.parametrize("kind", ["root", "set", "catalog"])  # a snapshot has its digest


@each_manifest
def test_its_bytes_are_canonical(kind):
    body = MANIFESTS[kind][0].decode()
    plain = json.loads(body)
    assert body.startswith('{"format":3,')
    end = ["checksum"] if "checksum" in plain else []
    assert bool(end) is (kind != "snapshot")
    names = [name for name in plain if name not in ("format", "checksum")]
    assert [*plain] == ["format", *sorted(names), *end]
    assert body == json.dumps(plain, separators=(",", ":"))


@each_checked
def test_its_last_field_is_the_sha_256_of_the_bytes_before_it(kind):
    body = MANIFESTS[kind][0]
    before = body[: body.rindex(b',"checksum":"')]
    assert body == before + b',"checksum":"' + sha256(before).hexdigest().encode() + b'"}'


@each_checked
@pytest.mark.parametrize("version", [1, 2])
def test_one_of_before_the_first_release_is_refused(kind, version):
    body, decode, _, key = MANIFESTS[kind]
    old = unchecked(body).replace(b'"format":3', f'"format":{version}'.encode(), 1)
    for each in (old, with_checksum(old)):
        with pytest.raises(ManifestCorruptError, match="of before the first release") as refused:
            decode(each)
        assert refused.value.key == key


@each_checked
def test_a_change_of_any_byte_is_told_as_damage(kind):
    body, decode, _, key = MANIFESTS[kind]
    for at, byte in enumerate(body):
        for flipped in (byte ^ 1, byte ^ 2, byte ^ 0x20):  # other digits, other letters, small for capital
            with pytest.raises(ManifestCorruptError) as refused:
                decode(body[:at] + bytes([flipped]) + body[at + 1 :])
            assert refused.value.key == key


@each_checked
@given(st.data())
@examples(300)
def test_bytes_that_are_changed_put_in_or_left_out_are_told_as_damage(kind, data):
    body, decode, _, _ = MANIFESTS[kind]
    at = data.draw(st.integers(0, len(body)))
    put_in = data.draw(st.one_of(st.binary(max_size=3), st.sampled_from([b" ", b"\n", b"0", b"1", b",", b'"'])))
    left_out = data.draw(st.integers(0, 3))
    changed = body[:at] + put_in + body[at + left_out :]
    if changed == body:
        return
    with pytest.raises(ManifestCorruptError):
        decode(changed)


def test_a_checksum_that_is_wrong_says_what_to_do():
    body = encode_root(ROOT)
    sealed = body.replace(b'"sealed":true', b'"sealed":null')
    with pytest.raises(ManifestCorruptError, match=re.escape(PATH.root) + r" is damaged: its checksum .* Put back"):
        decode_root(PATH, sealed)


@each_checked
def test_one_without_a_checksum_is_refused(kind):
    body, decode, _, _ = MANIFESTS[kind]
    with pytest.raises(ManifestCorruptError, match="does not end with a checksum"):
        decode(unchecked(body))


@pytest.mark.parametrize(("record_hash", "named", "format_"), [("BLAKE2B", "blake2b-256", 3), ("XXH3", "xxh3-128", 4)])
def test_the_root_names_the_hash_of_its_records_and_has_a_format_that_knows_it(record_hash, named, format_):
    root = dataclasses.replace(ROOT, record_hash=RecordHash[record_hash])
    body = encode_root(root)
    plain = json.loads(body)
    assert (plain["hash"], plain["format"]) == (named, format_)
    assert decode_root(PATH, body) == root
    other = edited(body, lambda plain: plain.update(format=7 - format_))
    with pytest.raises(ManifestCorruptError, match=f"hash. is {named}, which is none of a root of its format"):
        decode_root(PATH, other)


def test_the_root_leaves_out_what_is_at_home():
    plain = json.loads(encode_root(ROOT))
    assert "home" not in plain["fragments"][0]
    assert plain["setsum"] == ROOT.setsum.hex()


@each_checked
def test_one_of_a_newer_program_is_told_from_a_damaged_one(kind):
    body, decode, _, key = MANIFESTS[kind]
    with pytest.raises(BucketVersionError, match=re.escape(key)):
        decode(edited(body, lambda plain: plain.update(format=FORMAT + 2, more=1)))
    with pytest.raises(BucketVersionError, match=re.escape(key)):  # however that one checks its bytes
        decode(unchecked(body).replace(b'"format":3', b'"format":9', 1))


ROOT_EDITS = {
    "format": lambda plain: plain.update(format=0),
    "hash": lambda plain: plain.update(hash="sha3-256"),
    "uuid": lambda plain: plain.update(uuid="5A" * 16),
    "partition": lambda plain: plain.update(partition=4),
    "version": lambda plain: plain.update(version=True),
    "start": lambda plain: plain.update(start=61),
    "end": lambda plain: plain.update(end=59),
    "end]": lambda plain: plain.pop("end"),
    "fragments][0][end": lambda plain: plain["fragments"][0].update(base=40),
    "named up to 30": lambda plain: plain["fragments"][0].update(base=29),
    "fragments][1][name": lambda plain: plain["fragments"][1].update(name="../ROOT"),
    "fragments][1][footer": lambda plain: plain["fragments"][1].update(footer=10**6),
    "fragments][0][home": lambda plain: plain["fragments"][0].update(home="/etc"),
    "fragments][0]['colour'": lambda plain: plain["fragments"][0].update(colour="red"),
    "snapshots][0][digest": lambda plain: plain["snapshots"][0].update(digest="x"),
    "snapshots][0][depth": lambda plain: plain["snapshots"][0].update(depth=0),
    "setsum": lambda plain: plain.update(setsum="00" * 32),
    "setsum] is not a setsum": lambda plain: plain.update(setsum="ff" * 32),
    "what it names": lambda plain: plain["fragments"].pop(0),
    "epochs": lambda plain: plain.update(epochs=[[1, 0], [1, 3]]),
    "epochs][0": lambda plain: plain.update(epochs=[[1]]),
    "behind the end": lambda plain: plain.update(epochs=[[1, 60]]),
    "claims": lambda plain: plain.update(claims=[]),
    "claims] does not grow": lambda plain: plain["claims"].reverse(),
    "sealed": lambda plain: plain.update(sealed=1),
    "compacted_end": lambda plain: plain.update(compacted_end=61),
    "commits": lambda plain: plain["commits"].append("one-more"),
    "commits] is not": lambda plain: plain.update(commits=[""]),
    "'extra'": lambda plain: plain.update(extra=1),
}


@pytest.mark.parametrize("field", ROOT_EDITS)
def test_a_root_that_makes_no_sense_is_refused_by_field(field):
    with pytest.raises(ManifestCorruptError, match=re.escape(field)) as refused:
        decode_root(PATH, edited(encode_root(ROOT), ROOT_EDITS[field]))
    assert refused.value.key == PATH.root


PRODUCER_EDITS = {
    "producers] has 0 rows": lambda rows: rows.clear(),
    "producers][0] is not a list of 6": lambda rows: rows[0].pop(),
    "producers][0][0": lambda rows: rows[0].__setitem__(0, "AB" * 16),
    "producers][1][1": lambda rows: rows[1].__setitem__(1, 0),
    "producers][1][2": lambda rows: rows[1].__setitem__(2, -1),
    "producers][1][3": lambda rows: rows[1].__setitem__(3, 60),
    "producers][1][4": lambda rows: rows[1].__setitem__(4, 0),
    "producers] has one twice": lambda rows: rows[1].__setitem__(0, rows[0][0]),
    "producers] does not ascend": lambda rows: rows.reverse(),
}


@pytest.mark.parametrize("field", PRODUCER_EDITS)
def test_producers_that_make_no_sense_are_refused_by_field(field):
    body = edited(encode_root(REMEMBERING), lambda plain: PRODUCER_EDITS[field](plain["producers"]))
    with pytest.raises(ManifestCorruptError, match=re.escape(field)):
        decode_root(PATH, body)


def test_a_root_without_producers_does_not_name_them():
    assert b"producers" not in encode_root(ROOT)


def test_of_each_producer_the_highest_batch_is_kept_and_of_too_many_the_newest(monkeypatch):
    batches = [
        HighestBatch(f"{number % 3:032x}", 1 + number // 6, 6 - number % 6, number, 1, 0) for number in range(12)
    ]
    found = highest_of(batches)
    assert [(int(each.producer), each.epoch, each.sequence, each.offset) for each in found] == [
        (0, 2, 6, 6), (1, 2, 5, 7), (2, 2, 4, 8),
    ]  # fmt: skip
    monkeypatch.setattr(producers, "_PRODUCERS_MAX", 2)
    assert highest_of(batches) == found[1:]


SET_EDITS = {
    "node node-2": lambda plain: plain.update(node="node-2"),
    "incarnation": lambda plain: plain.update(incarnation=-1),
    "packs] has one twice": lambda plain: plain["packs"].append(plain["packs"][0]),
    "packs] has one twice, or one without": lambda plain: plain.update(pages=[], listing=None),
    "pages][0][0]": lambda plain: plain["pages"][0].__setitem__(0, 5),
    "pages][1][0]": lambda plain: plain["pages"].append([0, *plain["pages"][0][1:]]),
    "pages][0][1]": lambda plain: plain["pages"][0].__setitem__(1, 1),
    "pages][0][3]": lambda plain: plain["pages"][0].__setitem__(3, 10**6),
    "pages] do not have as many": lambda plain: plain["pages"][0].__setitem__(5, 2),
    "pages] do not have as many members": lambda plain: plain["listing"].__setitem__(5, 4),
    "listing] is not a list of 6": lambda plain: plain["listing"].pop(),
    "listing][4]": lambda plain: plain["listing"].__setitem__(4, "x"),
}


@pytest.mark.parametrize("field", SET_EDITS)
def test_a_set_manifest_that_makes_no_sense_is_refused_by_field(field):
    with pytest.raises(ManifestCorruptError, match=re.escape(field)) as refused:
        decode_set("node-1", compressed(edited(SET_BODY, SET_EDITS[field])))
    assert refused.value.key == "sets/node-1/ROOT"


def test_what_is_compressed_is_refused_where_it_is_another_or_too_long():
    body = encode_set(SET)
    for other in (b"", body[:-1], body + b" ", SET_BODY, zlib.compress(b" " * (MANIFEST_BYTES_MAX + 1))):
        with pytest.raises(ManifestCorruptError) as refused:
            decode_set("node-1", other)
        assert refused.value.key == "sets/node-1/ROOT"


LISTING_EDITS = {
    "another node's": lambda plain: plain.update(node="node-2"),
    "objects][0][4]": lambda plain: plain["objects"][0].__setitem__(4, 0),
    "objects][0][7]": lambda plain: plain["objects"][0].__setitem__(7, plain["objects"][0][6] - 1),
    "objects][1] is not a list of 9": lambda plain: plain["objects"][1].pop(),
    "objects][0][0]": lambda plain: plain["objects"][0].__setitem__(0, "x.parquet"),
    "a sequence twice": lambda plain: plain["objects"].append(plain["objects"][0]),
    "as many members": lambda plain: plain["objects"][0].__setitem__(4, 7),
    "but that of its objects": lambda plain: plain["objects"][0].__setitem__(8, "0" * 64),
}


@pytest.mark.parametrize("field", LISTING_EDITS)
def test_a_list_of_objects_that_makes_no_sense_is_refused_by_field(field):
    with pytest.raises(ManifestCorruptError, match=re.escape(field)):
        whole(SET_ROOT, decode_listing("pack", "node-1", *repacked(LISTING_EDITS[field], LISTING_BODY)))


def test_a_list_of_objects_is_what_the_root_says():
    assert whole(SET_ROOT, decode_listing("pack", "node-1", SET.listing.digest, LISTING_BODY)) == SET
    with pytest.raises(ManifestCorruptError, match="SHA-256"):
        decode_listing("pack", "node-1", "0" * 64, LISTING_BODY)
    late = dataclasses.replace(SET_ROOT, sequence=8)
    with pytest.raises(ManifestCorruptError, match="one that is not given out yet"):
        whole(late, SET.objects)


def repacked(change, body=PAGE_BODY):
    """The page, in which somebody changed something, with the digest of what it is now."""
    plain = json.loads(zlib.decompress(body))
    change(plain)
    body = zlib.compress(json.dumps(plain).encode())
    return sha256(body).hexdigest(), body


PAGE_EDITS = {
    "node": lambda plain: plain.update(node=1),
    "another node's": lambda plain: plain.update(node="node-2"),
    "objects][0][2]": lambda plain: plain["objects"][0].__setitem__(2, 10**9),
    "members][0][0]": lambda plain: plain["members"][0].__setitem__(0, 2),
    "members][0][5]": lambda plain: plain["members"][0].__setitem__(5, 0),
    "members][1][11]": lambda plain: plain["members"][1].__setitem__(11, [[1, 9], [1, 12]]),
    "members][2] is not a list of 14": lambda plain: plain["members"][2].pop(),
    "members][0][10]": lambda plain: plain["members"][0].__setitem__(10, "x"),
}


@pytest.mark.parametrize("field", PAGE_EDITS)
def test_a_page_that_makes_no_sense_is_refused_by_field(field):
    with pytest.raises(ManifestCorruptError, match=re.escape(field)) as refused:
        decode_page("pack", "node-1", *repacked(PAGE_EDITS[field]))
    assert refused.value.key == "pack"


def test_a_page_is_what_the_set_manifest_says():
    found = decode_page("pack", "node-1", PAGE.digest, PAGE_BODY)
    for each, written in zip(found, SHARED, strict=True):
        assert (each.name, each.extent) == (written.name, written.extent)
        told = [dataclasses.replace(member, setsum=None) for member in written.members]
        assert sorted(each.members, key=str) == sorted(told, key=str)
    (only,) = decode_page("pack", "node-1", PAGE.digest, PAGE_BODY, OTHER_PATH)
    (member,) = only.members
    assert (only.name, member) == (SHARED[0].name, dataclasses.replace(SHARED[0].members[1], setsum=None))
    with pytest.raises(ManifestCorruptError, match="SHA-256"):
        decode_page("pack", "node-1", "0" * 64, PAGE_BODY)
    for body in (b"", PAGE_BODY[:-1], PAGE_BODY + b" ", zlib.compress(b" " * (MANIFEST_BYTES_MAX + 1))):
        with pytest.raises(ManifestCorruptError, match="page in it"):
            decode_page("pack", "node-1", sha256(body).hexdigest(), body)


CATALOG_EDITS = {
    "streams][0][uuid": lambda plain: plain["streams"][0].update(uuid="x"),
    "streams][1][uuid": lambda plain: plain["streams"][1].update(uuid=plain["streams"][0]["uuid"]),
    "streams][0][config": lambda plain: plain["streams"][0].update(config=[]),
    "streams][0][partitions": lambda plain: plain["streams"][0].update(partitions=0),
    "streams][0][deleted_ns": lambda plain: plain["streams"][0].update(deleted_ns=1.5),
    "cluster_id": lambda plain: plain.update(cluster_id=""),
}


@pytest.mark.parametrize("field", CATALOG_EDITS)
def test_a_catalog_that_makes_no_sense_is_refused_by_field(field):
    with pytest.raises(ManifestCorruptError, match=re.escape(field)):
        decode_catalog(edited(encode_catalog(CATALOG), CATALOG_EDITS[field]))


def test_a_snapshot_is_what_its_pointer_says():
    assert decode_snapshot(PATH, DEEP.pointer, DEEP.body).snapshots == (SNAPSHOT.pointer,)
    assert (DEEP.pointer.depth, DEEP.pointer.fragments, DEEP.pointer.setsum) == (2, 2, sum_of(range(30)))
    with pytest.raises(ManifestCorruptError, match="SHA-256"):
        decode_snapshot(PATH, SNAPSHOT.pointer, SNAPSHOT.body + b" ")
    with pytest.raises(ManifestCorruptError, match="another partition"):
        decode_snapshot(OTHER_PATH, SNAPSHOT.pointer, SNAPSHOT.body)
    lying = make_snapshot(PATH, [fragment(0, 10)], "n1").pointer
    with pytest.raises(ManifestCorruptError, match="as the manifest above it says"):
        decode_snapshot(PATH, type(lying)(**{**plain_of(lying), "setsum": Setsum()}), snapshot_body(lying))


def plain_of(pointer):
    return {name: getattr(pointer, name) for name in type(pointer).__slots__}


def snapshot_body(pointer):
    snapshot = make_snapshot(PATH, [fragment(0, 10)], "n1")
    assert snapshot.pointer == pointer
    return snapshot.body


def test_a_manifest_that_is_too_large_is_neither_written_nor_read():
    stream = CatalogStream(name="n" * 128, config={"subject": "s" * 2000}, partitions=1, created_ns=1)
    many = {f"{number:032x}": stream for number in range(8_000)}
    with pytest.raises(TierError, match="merged before more"):
        encode_catalog(Catalog(cluster_id="c1", version=1, streams=many))
    with pytest.raises(ManifestCorruptError, match="bytes are more"):
        decode_root(PATH, b" " * (MANIFEST_BYTES_MAX + 1))


@each_manifest
@given(st.binary(max_size=200))
@examples(200)
def test_garbage_is_refused(kind, body):
    with pytest.raises(TierError):
        MANIFESTS[kind][1](body)


@each_manifest
@pytest.mark.parametrize("body", [b"", b"[" * 100_000, b'{"format":NaN}', b"null", b'{"format":1' + b"0" * 9000 + b"}"])
def test_json_that_is_none_is_refused(kind, body):
    with pytest.raises(TierError):
        MANIFESTS[kind][1](body)


VALUES = (None, True, -1, 0, 1, 2**63, 10**30, 0.5, "", "x", "0" * 64, "f" * 64, "\ud800", [], [[]], {}, [0], "5a" * 16)


def places(value, found):
    """Every container of a document, with every key in it."""
    if isinstance(value, dict | list):
        found += [(value, at) for at in (value if isinstance(value, dict) else range(len(value)))]
        for child in value.values() if isinstance(value, dict) else value:
            places(child, found)
    return found


@each_manifest
@given(st.integers(0, 2**32))
@examples(400)
def test_a_mutation_is_refused_or_makes_sense(kind, seed):
    rng = random.Random(seed)
    body, decode, value, key = MANIFESTS[kind]
    plain = json.loads(body)
    is_sealed = plain.pop("checksum", None) is not None and rng.random() < 0.9
    for _ in range(rng.randint(1, 3)):
        container, at = rng.choice(places(plain, []))
        action = rng.randrange(4)
        if action == 0:
            container[at] = rng.choice(VALUES)
        elif action == 1:
            del container[at]
        elif action == 2 and isinstance(container, dict):
            container[rng.choice(["home", "colour", "end"])] = rng.choice(VALUES)
        elif isinstance(container, list):
            container.insert(at, container[at])
    mutated = json.dumps(plain).encode()
    if rng.random() < 0.3:
        at = rng.randrange(len(mutated))
        mutated = mutated[:at] + bytes([rng.randrange(256)]) + mutated[at + 1 :]
    if is_sealed and mutated.endswith(b"}"):
        mutated = with_checksum(mutated)
    try:
        read = decode(mutated)
    except BucketVersionError:
        return
    except ManifestCorruptError as refused:
        named = refused.key
    else:
        named = None
    if named is not None:
        assert named == key
        return
    assert type(read) is type(value)
    if kind == "root":  # whatever is accepted balances
        assert read.setsum == Setsum.total(each.setsum for each in (*read.snapshots, *read.fragments))
        assert decode(encode_root(read)) == read
