"""`liftpy tier export-list`: whoever reads what it prints reads the rows of the stream, all of them and no others."""

from __future__ import annotations

import io
import json

import duckdb
import pytest

from liftpy.cli.tier.bucket import OpenBucket
from liftpy_bucket.layout import PartitionPath, set_object_key, slot_of
from liftpy_bucket.manifest.catalog import Catalog, CatalogFile, CatalogStream
from liftpy_bucket.manifest.root.changes import advance_start
from liftpy_bucket.manifest.stream_sets import changes as set_changes
from liftpy_bucket.manifest.stream_sets.file import SetManifestFile
from liftpy_bucket.objects.record_hash import RecordHash
from liftpy_bucket.objects.write_stream_set import SetWriter
from liftpy_bucket.store.s3_settings import S3Settings
from liftpy_envelope.stream_config import StreamConfig
from support.cli import Cli
from support.tier_history import PATH, TierHistory, new_id
from support.tier_rows import Record, rows_from

OTHER = PartitionPath("0" * 32, 0)  # before ours, in the same object
ADDRESS = "s3://bucket/p"


def records(base, end):
    return [Record(offset, 10**18 + offset, b"orders.eu", b"k", None, b"value") for offset in range(base, end)]


def share(history, base, end):
    """Another stream and ours share an object."""
    sink, nonce = io.BytesIO(), new_id()
    writer = SetWriter(sink, node="n1", nonce=nonce)
    for path, start, stop in sorted([(OTHER, 0, 5 * end), (PATH, base, end)], key=lambda part: slot_of(*part[0])):
        writer.begin(path.uuid, path.partition, 0, start, stop, record_hash=RecordHash.BLAKE2B)
        writer.write(rows_from(records(start, stop)))
    written = writer.finish()
    file = SetManifestFile(history.store, "n1", new_id=new_id)
    loaded = file.load()
    manifest = loaded.manifest if loaded else set_changes.empty("n1", 1)
    name = f"{manifest.sequence:020d}-{nonce}.parquet"
    history.store.create(set_object_key("n1", name), sink.getvalue(), nonce)
    file.commit(loaded, set_changes.add(manifest, written.pointer(name)))
    return name


@pytest.fixture
def history():
    made = TierHistory()
    for base in range(0, 40, 10):
        made.append(records(base, base + 10))
    stream = CatalogStream(
        name="orders", config=StreamConfig(name="orders", subject="o.>").to_plain(), partitions=1, created_ns=1
    )
    CatalogFile(made.store, new_id=new_id).commit(
        None, Catalog(cluster_id="c" * 32, version=1, streams={PATH.uuid: stream})
    )
    return made


@pytest.fixture
def cli(history, monkeypatch, tmp_path):
    monkeypatch.setattr(
        "liftpy.cli.tier.bucket.open_bucket", lambda _where: OpenBucket(history.store, S3Settings(url=ADDRESS))
    )
    return Cli(None, tmp_path)


def told(cli, *options):
    return cli.out("tier", "export-list", "orders", "--bucket", ADDRESS, *options)


def rows_of(history, view, folder):
    """(partition, offset) of all rows of the view, which DuckDB reads from files with the objects' bytes."""
    for entry in history.store.list(""):
        if entry.key.endswith(".parquet"):
            file = folder / entry.key
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(history.store.get(entry.key).body)
    with duckdb.connect() as database:
        database.execute(view.replace(ADDRESS, str(folder)))
        return database.sql('SELECT partition, "offset" FROM orders ORDER BY "offset"').fetchall()


def test_the_view_has_the_rows_of_the_stream_and_no_others(cli, history, tmp_path):
    share(history, 40, 45)
    share(history, 45, 50)
    history.commit(
        advance_start(history.root, 13, snapshots=history.file.snapshots(history.root, end=13))
    )  # purged within an object
    view = told(cli, "--sql")
    assert rows_of(history, view, tmp_path / "objects") == [(0, offset) for offset in range(13, 50)]


def test_the_view_of_a_stream_that_is_in_shared_objects_alone(cli, history, tmp_path):
    history.commit(advance_start(history.root, 40, snapshots=history.file.snapshots(history.root, end=40)))
    share(history, 40, 45)
    assert rows_of(history, told(cli, "--sql"), tmp_path / "objects") == [(0, offset) for offset in range(40, 45)]


def test_a_stream_without_objects_has_no_view(cli, history):
    history.commit(advance_start(history.root, 40, snapshots=history.file.snapshots(history.root, end=40)))
    assert told(cli, "--sql") == ""


def test_addresses_alone_are_refused_where_not_every_row_counts(cli, history):
    assert len(told(cli, "--urls").split()) == 4
    name = share(history, 40, 45)
    error = cli.error("tier", "export-list", "orders", "--bucket", ADDRESS, "--urls", code=2)
    assert name in error.replace("\n", "")
    assert "--sql" in error


def test_addresses_alone_are_refused_where_a_part_was_purged(cli, history):
    history.commit(advance_start(history.root, 13, snapshots=history.file.snapshots(history.root, end=13)))
    assert "were removed from it" in cli.error("tier", "export-list", "orders", "--bucket", ADDRESS, "--urls", code=2)


def test_an_audit_lists_what_nothing_names(cli, history):
    assert "0 objects of them named by nothing" in cli.out("tier", "audit")
    lost = history.fragment(records(0, 3), 0, 3)
    assert PATH.fragment(lost.name) in cli.out("tier", "audit")
    (found,) = cli.json("tier", "audit")["garbage"]
    assert (found["key"], found["size"]) == (PATH.fragment(lost.name), lost.size)


def test_deleted_records_that_are_there_still_are_found(cli, history):
    share(history, 40, 45)  # with a stream that the catalog does not name
    told = cli.run("tier", "scrub", "--deleted", code=1).stdout
    assert f"offsets 0 to 225 of stream {OTHER.uuid}, partition 0" in told
    (found,) = json.loads(cli.run("tier", "scrub", "--deleted", "--json", code=1).stdout)["remains"]
    assert (found["uuid"], found["start"], found["end"]) == (OTHER.uuid, 0, 225)
    assert "whole bucket" in cli.error("tier", "scrub", "orders", "--deleted", code=2)


def test_no_deleted_record_is_left(cli):
    assert "no deleted record is left" in cli.out("tier", "scrub", "--deleted")


def test_one_form_at_a_time(cli):
    assert "exclude each other" in cli.error("tier", "export-list", "orders", "--sql", "--urls", code=2)
