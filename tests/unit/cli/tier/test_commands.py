"""`liftpy tier ...` on a bucket in memory: what is wrong is named, what is right ends with 0, mistakes end in words."""

from __future__ import annotations

import dataclasses
import json
from contextlib import nullcontext
from hashlib import sha256
from io import StringIO

import pytest
from rich.console import Console

from liftpy.cli.tier.bucket import OpenBucket
from liftpy_bucket.layout import CATALOG, PartitionPath, set_root_key
from liftpy_bucket.manifest.catalog import Catalog, CatalogFile, CatalogStream
from liftpy_bucket.manifest.root.changes import create
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.manifest.stream_sets.changes import add, begin, empty
from liftpy_bucket.manifest.stream_sets.compressed import compressed, decompressed
from liftpy_bucket.manifest.stream_sets.file import SetManifestFile
from liftpy_bucket.reading.version import open_version
from liftpy_bucket.store.counting import CountingStore
from liftpy_bucket.store.s3_settings import S3Settings
from liftpy_bucket.upkeep.collecting import Collector
from liftpy_bucket.upkeep.verifying import verify
from liftpy_client.admin.tier import TierStatus
from liftpy_envelope.errors import LiftError
from liftpy_envelope.stream_config import StreamConfig
from support.cli import Cli
from support.fake_cluster import FakeCluster
from support.manifest_kit import member, set_object
from support.tier_history import PATH, TierHistory, new_id
from support.tier_rows import Record

OTHER = "ab" * 16
MEMORY = S3Settings(url="s3://memory")
PARTITION = {
    "stream": "orders",
    "uuid": "0" * 32,
    "partition": 0,
    "leader": "node-1",
    "local_start": 300,
    "start": 0,
    "tiered_end": 900,
    "high_watermark": 1_000,
    "untiered_bytes": 4_096,
    "untiered_age_s": 3.5,
    "stored_bytes": 65_536,
    "stopped": False,
    "trouble": None,
}
STATUS = {
    "url": "s3://bucket/liftpy",
    "state": "ok",
    "message": "",
    "since_ns": None,
    "room_s": None,
    "untiered_bytes": 4_096,
    "untiered_age_s": 3.5,
    "partition_count": 1,
    "trouble_count": 0,
    "requests": {"get": 12, "create": 3},
    "failures": {},
    "partitions": [PARTITION],
    "unreachable": [],
}


def records(base, end):
    return [Record(offset, 10**18 + offset, b"orders.eu", b"k", None, b"value") for offset in range(base, end)]


def put_catalog(store, **streams):
    catalog = Catalog(
        cluster_id="c" * 32,
        version=1,
        streams={
            uuid: CatalogStream(
                name=name,
                config=StreamConfig(name=name, subject=f"{name}.>").to_plain(),
                partitions=1,
                created_ns=1,
                deleted_ns=deleted,
            )
            for name, (uuid, deleted) in streams.items()
        },
    )
    CatalogFile(store, new_id=new_id).commit(None, catalog)


@pytest.fixture
def history():
    made = TierHistory()
    for base in range(0, 40, 10):
        made.append(records(base, base + 10))
    put_catalog(made.store, orders=(PATH.uuid, None), old=(OTHER, 5))
    return made


@pytest.fixture
def cli(history, monkeypatch, tmp_path):
    """The command, whose bucket is the one in memory."""
    monkeypatch.setattr(
        "liftpy.cli.tier.bucket.open_bucket", lambda _where: OpenBucket(CountingStore(history.store), MEMORY)
    )
    return Cli(None, tmp_path)


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    """Gives the command for a cluster whose bucket is as told."""

    def told(**changes):
        FakeCluster({"TIER.STATUS": STATUS | changes}).stands_in(monkeypatch)
        return Cli(None, tmp_path)

    return told


def first_key(history):
    return PATH.fragment(next(iter(history.file.fragments(history.root))).name)


def rewrite(store, key, body):
    store.delete([key])
    store.create(key, body, "x")


def damaged_set(store, node):
    """The key of a set manifest that was edited."""
    SetManifestFile(store, node, new_id=new_id).commit(None, begin(node, 1))
    key = set_root_key(node)
    plain = decompressed(key, store.get(key).body)
    rewrite(store, key, compressed(plain.replace(b'"sequence":1', b'"sequence":2')))
    return key


def damage(history):
    key = first_key(history)
    body = history.store.get(key).body
    history.store.delete([key])
    history.store.create(key, body[:300] + bytes([body[300] ^ 1]) + body[301:], "x")
    return key


@pytest.mark.parametrize("command", ["verify", "scrub"])
def test_a_sound_history(cli, command):
    said = cli.out("tier", command)
    assert "orders/0: offsets 0 to 40, 40 records in 4 objects" in said
    assert "all is well" in said
    report = cli.json("tier", command, "orders")
    assert (report["problems"], len(report["partitions"])) == (0, 1)
    assert report["partitions"][0]["end"] == 40


def test_a_terminal_gets_a_bar(cli, monkeypatch):
    shown = Console(file=StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr("liftpy.cli.tier.progress.stderr", shown)
    assert "all is well" in cli.out("tier", "scrub", "orders")
    assert "scrubbing orders/0" in shown.file.getvalue()
    assert "100%" in shown.file.getvalue()


def test_an_interrupt_is_not_an_error(cli, monkeypatch):
    def interrupt(_where):
        raise KeyboardInterrupt

    monkeypatch.setattr("liftpy.cli.tier.bucket.open_bucket", interrupt)
    assert cli.run("tier", "scrub", code=130).output == ""


def test_a_flipped_byte_is_named_by_scrub(cli, history):
    key = damage(history)
    cli.run("tier", "verify")  # it reads no data
    result = cli.run("tier", "scrub", "orders", code=1)
    (line,) = [line for line in result.stdout.splitlines() if key in line]
    assert line.startswith(f"  corrupt {key}: offset 0: ")
    assert "1 problem in s3://memory" in result.stderr
    report = json.loads(cli.run("tier", "scrub", "--json", code=1).stdout)
    assert [(each["kind"], each["key"], each["offset"]) for each in report["partitions"][0]["problems"]] == [
        ("corrupt", key, 0)
    ]


def test_a_missing_object_is_named_by_verify(cli, history):
    key = first_key(history)
    history.store.delete([key])
    result = cli.run("tier", "verify", code=1)
    assert f"missing {key}: offset 0: " in result.stdout


def test_a_history_is_proven_from_the_digest_of_its_root(cli, history):
    digest = sha256(history.store.get(PATH.root).body).hexdigest()
    assert "40 records in 4 objects: all of it is as it was" in cli.out("tier", "verify", "orders", "--from", digest)
    assert cli.json("tier", "verify", "orders", "--from", digest)["records"] == 40
    refused = cli.run("tier", "verify", "orders", "--from", digest[::-1], code=1)
    assert f"its SHA-256 is {digest}" in " ".join(refused.stderr.split())


def test_a_root_that_is_gone_is_a_problem_and_nothing_at_all_is_none(cli, history):
    history.store.delete([PATH.root])
    assert f"missing {PATH.root}" in cli.run("tier", "verify", code=1).stdout
    history.store.delete([entry.key for entry in history.store.list(PATH.directory)])
    assert "orders/0: nothing in the bucket" in cli.out("tier", "verify")


@pytest.mark.parametrize("command", ["verify", "scrub"])
def test_a_damaged_root_of_a_partition_without_records_is_not_taken_for_nothing(cli, history, command):
    path, store = PartitionPath(OTHER, 0), history.store
    RootFile(store, path, new_id=new_id).commit(None, create(path, epoch=0, node="n1", start=0))
    assert "old/0: offsets 0 to 0, 0 records in 0 objects: all is well" in cli.out("tier", command, OTHER)
    rewrite(store, path.root, store.get(path.root).body.replace(b'"epochs"', b'"ebochs"'))
    assert f"manifest {path.root}: " in cli.run("tier", command, OTHER, code=1).stdout


@pytest.mark.parametrize("command", ["verify", "scrub"])
def test_a_damaged_set_manifest_does_not_keep_the_others_from_being_looked_at(cli, history, command):
    loaded = CatalogFile(history.store, new_id=new_id).load()
    streams = {uuid: dataclasses.replace(each, deleted_ns=None) for uuid, each in loaded.catalog.streams.items()}
    catalog = dataclasses.replace(loaded.catalog, version=2, streams=streams)
    CatalogFile(history.store, new_id=new_id).commit(loaded, catalog)
    key = damaged_set(history.store, "another")
    said = cli.run("tier", command, code=1).stdout
    assert f"  manifest {key}: object {key} is damaged" in said
    assert "Whether it names records of this partition cannot be told" in said
    assert said.index("old/0: offsets 0 to 0") < said.index("orders/0: offsets 0 to 40")
    report = json.loads(cli.run("tier", command, "--json", code=1).stdout)
    assert [len(each["problems"]) for each in report["partitions"]] == [1, 0]


@pytest.fixture
def without_spark(history, monkeypatch):
    """What tasks of Spark would find, found here."""
    monkeypatch.setattr("liftpy_spark.jobs.sessions.session", lambda *_: nullcontext())
    found = "liftpy_spark.jobs.scrubbing.scrub"
    monkeypatch.setattr(found, lambda _spark, _settings, paths, **_: [verify(history.store, path) for path in paths])


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("command", [["tier", "verify"], ["spark", "scrub", "--bucket", "s3://bucket"]])
def test_a_root_that_is_gone_is_a_problem_where_only_shared_objects_hold_the_records(cli, history, command):
    history.store.delete([entry.key for entry in history.store.list(PATH.directory)])
    for node, path in (("node-1", PartitionPath(OTHER, 0)), ("node-2", PATH)):
        held = member(0, 10, path=path)
        manifest = add(empty(node, 1), set_object(1, held))
        SetManifestFile(history.store, node, new_id=new_id).commit(None, manifest)
        expected = f"missing {PATH.root}" if path == PATH else "orders/0: nothing in the bucket"
        assert expected in cli.run(*command, code=int(path == PATH)).stdout


@pytest.mark.parametrize(
    "command", [["export-list", "orders"], ["fork", "orders", "copy", "--subject", "copy", "--bucket-only"]]
)
def test_a_root_that_is_gone_is_not_an_empty_history(cli, history, command):
    catalog, root = history.store.get(CATALOG).body, history.store.get(PATH.root).body
    history.store.delete([PATH.root])
    before = {entry.key for entry in history.store.list("")}
    assert f"there is no object {PATH.root}, and there was one" in cli.error("tier", *command)
    assert history.store.get(CATALOG).body == catalog, "the catalog names a fork of nothing"
    assert {entry.key for entry in history.store.list("")} == before
    history.store.create(PATH.root, root, "x")
    cli.out("tier", *command)


def test_what_strangers_put_there_is_not_a_history_without_a_root(cli, history):
    history.store.delete([entry.key for entry in history.store.list(PATH.directory)])
    for name in ("notes.txt", "fragments/notes.parquet"):
        history.store.create(PATH.directory + name, b"theirs", "x")
    assert "orders/0: nothing in the bucket" in cli.out("tier", "verify")
    assert "copy/0 goes on at offset 0" in cli.out("tier", "fork", "orders", "copy", "--subject", "c", "--bucket-only")


def test_export_list(cli):
    report = cli.json("tier", "export-list", "orders", "--bucket", "s3://b/p")
    (partition,) = report["partitions"]
    assert [(each["start"], each["end"]) for each in partition["objects"]] == [(0, 10), (10, 20), (20, 30), (30, 40)]
    urls = cli.out("tier", "export-list", "orders", "--bucket", "s3://b/p/", "--urls").split()
    assert urls == [each["url"] for each in partition["objects"]]
    assert urls[0].startswith(f"s3://b/p/{PATH.directory}fragments/")


def test_a_list_of_nothing_says_why(cli, history):
    history.store.delete([entry.key for entry in history.store.list(PATH.directory)])
    result = cli.run("tier", "export-list", "orders", "--bucket", "s3://b/p")
    assert result.stdout == ""
    assert "note: orders/0: nothing in the bucket" in result.stderr
    result = cli.run("tier", "export-list", "orders", "--json", "--bucket", "s3://b/p")
    assert json.loads(result.stdout)["partitions"] == []
    assert result.stderr == ""


@pytest.mark.parametrize("command", [["verify"], ["scrub"], ["export-list", "orders"], ["cursor", "list"]])
def test_what_only_reads_needs_no_right_to_write(cli, history, monkeypatch, command):
    store = CountingStore(history.store)
    monkeypatch.setattr("liftpy.cli.tier.bucket.open_bucket", lambda _where: OpenBucket(store, MEMORY))
    cli.out("tier", *command)
    asked = {kind for kind, count in store.counts.items() if count}
    assert asked
    assert not asked & {"create", "replace", "delete"}


def test_gc_deletes_what_nothing_names(cli, history):
    orphan = history.fragment(records(0, 3), 0, 3)
    key = PATH.fragment(orphan.name)
    assert "0 objects deleted" in cli.out("tier", "gc", "orders")
    assert history.store.head(key)
    assert "1 object deleted" in cli.out("tier", "gc", "orders", "--grace", "0s")
    assert key not in {entry.key for entry in history.store.list(PATH.directory)}
    assert "all is well" in cli.out("tier", "scrub")


def test_merge_is_the_leaders(cli, history):
    error = cli.error("tier", "merge", "orders")
    assert "is tiered by node n1 (leader epoch 0)" in error
    assert "--alone" in error
    assert "4 objects became larger ones" in cli.out("tier", "merge", "orders", "--alone")
    assert "40 records in 1 object" in cli.out("tier", "scrub")


def test_merge_leaves_nothing_to_merge(cli, history):
    for base in range(40, 1_000, 10):
        history.append(records(base, base + 10))
    size = history.store.head(first_key(history)).size
    command = ("tier", "merge", "orders", "--alone", "--object-bytes", str(5 * size))
    assert cli.json(*command)["partitions"][0]["merged"] > 90
    assert cli.json(*command)["partitions"][0]["merged"] == 0
    assert "1,000 records" in cli.out("tier", "scrub", "orders")


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["merge", "orders", "--alone"], "merging orders/0"),
        (["fork", "orders", "tests", "--subject", "t", "--bucket-only"], "forking orders"),
    ],
)
def test_long_work_has_a_bar(cli, monkeypatch, command, shown):
    console = Console(file=StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr("liftpy.cli.tier.progress.stderr", console)
    cli.out("tier", *command)
    assert shown in console.file.getvalue()


def test_objects_of_no_size_are_a_mistake(cli):
    error = cli.error("tier", "merge", "orders", "--alone", "--object-bytes", "0", code=2)
    assert "--object-bytes" in error


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["gc", "--grace", "soon"], "--grace: 'soon' is not a time span"),
        (["merge", "orders", "--alone", "--object-bytes", "big"], "--object-bytes: 'big' is not a size"),
    ],
)
def test_a_value_that_is_none_is_told_with_its_option(cli, command, said):
    assert said in cli.error("tier", *command, code=2)
    assert said in json.loads(cli.error("tier", *command, "--json", code=2))["error"]["message"]


def test_seal_asks_and_lets_merging_go_on(cli, history):
    assert "none_such" in cli.error("tier", "seal", "none_such", code=1)  # before anybody is asked whether to
    cli.run("tier", "seal", "orders", code=1, answer="n\n")
    assert not history.file.load().root.sealed
    assert "orders/0 is sealed at offset 40" in cli.out("tier", "seal", "orders", "--yes")
    assert history.file.load().root.sealed
    assert cli.json("tier", "merge", "orders")["partitions"] == [{"partition": "orders/0", "merged": 4}]


def test_what_can_not_be_read_is_not_sealed(cli, history):
    key = damaged_set(history.store, "n1")
    assert f"object {key} is damaged" in cli.error("tier", "seal", "orders", "--yes")
    assert not history.file.load().root.sealed
    history.store.delete([key])
    cli.out("tier", "seal", "orders", "--yes")
    assert history.file.load().root.sealed


def test_cursors(cli):
    assert "nothing is held" in cli.out("tier", "cursor", "list")
    assert "cursor spark holds orders/0 from offset 20 on" in cli.out("tier", "cursor", "set", "orders", "spark", "20")
    cli.out("tier", "cursor", "set", "orders", "spark", "30")
    assert "everything from offset 30 on" in cli.out("tier", "cursor", "list", "orders")
    assert cli.json("tier", "cursor", "list")[0]["start"] == 30
    assert "can not be" not in cli.out("tier", "cursor", "drop", "orders", "spark")
    assert "no cursor spark" in cli.error("tier", "cursor", "drop", "orders", "spark")
    assert "no name for a pin" in cli.error("tier", "cursor", "set", "orders", "a/b", "1")


def test_a_cursor_beyond_the_end_would_hold_nothing(cli):
    command = ("tier", "cursor", "set", "orders", "spark")
    assert "the bucket has orders/0 up to offset 40: a cursor at 41 would hold" in cli.error(*command, "41")
    assert cli.json("tier", "cursor", "list") == []
    cli.out(*command, "40")  # all of it has been read
    assert "a cursor at 400 would" in cli.error(*command, "400")
    assert cli.json("tier", "cursor", "list")[0]["start"] == 40


def test_a_fork_has_the_history_and_a_place_in_the_catalog(cli, history):
    said = cli.out("tier", "fork", "orders", "tests", "--subject", "tests.>", "--bucket-only")
    assert "tests/0 goes on at offset 40 of orders" in said
    catalog = CatalogFile(history.store, new_id=new_id).load().catalog
    (uuid,) = [uuid for uuid, stream in catalog.streams.items() if stream.name == "tests"]
    assert catalog.streams[uuid].config["subject"] == "tests.>"
    version = open_version(history.store, PartitionPath(uuid, 0))
    assert sum(rows.num_rows for rows in version.read()) == 40
    assert cli.json("tier", "cursor", "list", "orders")[0]["target"] == f"{uuid}/0"
    assert "already" in cli.error("tier", "fork", "orders", "tests", "--subject", "t", "--bucket-only")
    assert "name" in cli.error("tier", "fork", "orders", "a b", "--subject", "t", "--bucket-only", code=2)


def test_a_fork_that_can_not_be_entered_is_taken_back(cli, history, monkeypatch):
    def refuse(_self, _loaded, _catalog):
        raise LiftError("the store is away")

    monkeypatch.setattr(CatalogFile, "commit", refuse)
    assert "the store is away" in cli.error("tier", "fork", "orders", "tests", "--subject", "t", "--bucket-only")
    (uuid,) = {entry.key.split("/")[1] for entry in history.store.list("streams/")} - {PATH.uuid}
    left = RootFile(history.store, PartitionPath(uuid, 0), new_id=new_id).load().root
    assert (left.fragments, left.snapshots) == ((), ())
    collector = Collector(history.store, PATH, new_id=new_id, now_ns=lambda: 10**19, grace_ns=0)
    assert collector.run(40).deleted == 4, "the pin of the fork holds nothing"


def test_streams_that_are_not_there(cli):
    assert "the bucket has no stream 'flights': it has orders" in cli.error("tier", "verify", "flights")
    assert f"was deleted; what the bucket still has of it is reached by its uuid, {OTHER}" in cli.error(
        "tier", "verify", "old"
    )
    assert "old/0: nothing in the bucket" in cli.out("tier", "verify", OTHER)
    assert "partitions 0 to 0" in cli.error("tier", "verify", "orders", "--partition", "1", code=2)
    assert "of which stream" in cli.error("tier", "verify", "--partition", "1", code=2)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (None, "s3://memory has no catalog of liftpy: is the prefix right?"),
        (b'{"format":99}', "newer"),
        (b"no JSON", "catalog.json is damaged"),
    ],
)
def test_a_bucket_that_is_not_ours_or_newer(cli, history, body, said):
    history.store.delete([CATALOG])
    if body is not None:
        history.store.create(CATALOG, body, "x")
    assert said in cli.error("tier", "verify")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "which bucket? Say --bucket s3://bucket/prefix, or set LIFTPY_TIER_URL"),
        (("--bucket", "http://x"), "--bucket: 'http://x' is not of the form s3://bucket/prefix"),
        (("--bucket", "s3://me:hidden@b"), "--bucket: has credentials in it"),
        (("--bucket", "s3://bucket", "--endpoint", "host:1"), "--endpoint: 'host:1' is not of the form"),
    ],
)
def test_addresses_that_are_none(tmp_path, arguments, said):
    error = Cli(None, tmp_path).error("tier", "verify", *arguments, code=2)
    assert said in error
    assert "hidden" not in error


def test_a_misspelt_variable_is_named(tmp_path):
    said = Cli(None, tmp_path, LIFTPY_TEIR_URL="s3://bucket").error("tier", "verify", code=2)
    assert "the variable LIFTPY_TEIR_URL sets nothing; did you mean LIFTPY_TIER_URL?" in said


def test_a_healthy_bucket(cluster):
    said = cluster().out("tier", "status")
    for word in ("s3://bucket/liftpy", "ok", "about 4.0 KiB, for up to 3.50s", "3 create, 12 get", "orders/0", "900"):
        assert word in said
    assert cluster().json("tier", "status")["state"] == "ok"
    assert "There is no bucket" in cluster(url=None, state="off", partitions=[], partition_count=0).out(
        "tier", "status"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"state": "away", "message": "no answer", "since_ns": 10**18, "room_s": 3_600.0}, "1h at the present rate"),
        ({"unreachable": ["node-2"]}, "node-2 did not answer"),
        (
            {"trouble_count": 1, "partitions": [PARTITION | {"trouble": "it is sealed", "stopped": True}]},
            "it is sealed (stopped)",
        ),
    ],
)
def test_an_alarm_is_in_the_exit_code(cluster, changes, said):
    assert said in cluster(**changes).run("tier", "status", code=1).stdout
    assert json.loads(cluster(**changes).run("tier", "status", "--json", code=1).stdout)["url"]


def test_the_status_answer_has_what_the_table_shows():
    assert {each.name for each in dataclasses.fields(TierStatus)} >= set(STATUS) - {"since_ns"}


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("LIFTPY_TIER_CA_FILE", "/nowhere/ca.pem", "LIFTPY_TIER_CA_FILE"),
        ("LIFTPY_TIER_VERIFY", "perhaps", "LIFTPY_TIER_VERIFY"),
        ("LIFTPY_TIER_ADDRESSING_STYLE", "odd", "LIFTPY_TIER_ADDRESSING_STYLE"),
    ],
)
def test_what_else_a_store_needs_comes_from_variables(tmp_path, variable, value, said):
    cli = Cli(None, tmp_path, **{variable: value})
    assert said in cli.error("tier", "verify", "orders", "--bucket", "s3://liftpy/p", code=2)
