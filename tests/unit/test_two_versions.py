"""Two versions of liftpy side by side: who is older says so and changes nothing, and who is newer writes nothing new.

Here what is newer is planted. Nodes of two versions are in `tests/integration/test_two_versions.py`.
"""

from __future__ import annotations

import struct

import google_crc32c
import pytest

from liftpy_bucket.errors import BucketVersionError
from liftpy_bucket.layout import CATALOG, PartitionPath
from liftpy_bucket.manifest import json as manifest_json
from liftpy_bucket.manifest.catalog import Catalog, CatalogFile
from liftpy_bucket.manifest.root import format as root_format
from liftpy_bucket.manifest.root.changes import create
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.object_log import format as object_log_format
from liftpy_bucket.object_log import trim
from liftpy_bucket.objects import write
from liftpy_bucket.store.memory import MemoryStore
from liftpy_envelope import batch, envelope
from liftpy_log import checkpoint, cut_mark, data_dir
from liftpy_log.checkpoint import Checkpoint, open_checkpoint, save_checkpoint
from liftpy_log.compaction import state as cleaned
from liftpy_log.durability import wal_format
from liftpy_log.errors import DataDirError
from liftpy_log.ids import ordered
from liftpy_log.segments import index
from liftpy_log.storage.disk import read_whole, write_atomically
from liftpy_server.consensus import machine
from liftpy_server.consensus.storage import journal_frames, snapshot
from liftpy_server.consensus.wire import session
from liftpy_server.groups.core import member, records
from liftpy_server.metadata.state import LEVEL
from liftpy_server.tier.host.tiered_partition import record_hash_at
from support.manifest_kit import edited
from support.simdisk import ROOT, SimDisk

_AT_1 = {
    "record batch": 1,
    "envelope": 1,
    "identity of a data directory": 1,
    "checkpoint": 5,
    "cut mark": 1,
    "cleaned": 1,
    "producers": 1,
    "index": 1,
    "write-ahead log": 2,
    "journal": 1,
    "snapshot": 1,
    "state": 1,
    "session of voters": 1,
    "committed offset": 1,
    "group": 1,
    "manifest": 3,
    "root": 3,
    "object": 2,
    "object log": 1,
    "beginning of an object log": 1,
}
WRITTEN_AT = {1: _AT_1, 2: _AT_1 | {"root": 4, "object": 3}}
"""The version of each format that nodes write at a level of the cluster.

A release reads a new version first, and the next one writes it: `LEVEL` grows with it, and it is written only where
`MetadataState.level` has grown too, as then no node is registered any more that could not read it.
"""


def test_a_format_changes_only_with_the_level():
    """Who comes here with another version raises `LEVEL`, has it written at the new level only, and adds a line."""
    now = {
        "record batch": batch.VERSION,
        "envelope": envelope.VERSION,
        "identity of a data directory": data_dir._FORMAT,
        "checkpoint": checkpoint._VERSION,
        "cut mark": cut_mark._VERSION,
        "cleaned": cleaned._VERSION,
        "producers": ordered._VERSION,
        "index": index._VERSION,
        "write-ahead log": wal_format._VERSION,
        "journal": journal_frames._VERSION,
        "snapshot": snapshot._VERSION,
        "state": machine._VERSION,
        "session of voters": session._VERSION,
        "committed offset": records.OFFSET_VERSION,
        "group": member._VERSION,
        "manifest": manifest_json.FORMAT,
        "root": root_format.FORMATS[record_hash_at(LEVEL)],
        "object": write.FORMATS[record_hash_at(LEVEL)],
        "object log": object_log_format._VERSION,
        "beginning of an object log": trim._FORMAT,
    }
    assert now == WRITTEN_AT[LEVEL]
    assert max(WRITTEN_AT) == LEVEL


@pytest.mark.parametrize("level", WRITTEN_AT)
def test_a_history_is_begun_as_all_nodes_of_the_cluster_can_read_it(level):
    record_hash = record_hash_at(level)
    written = {"root": root_format.FORMATS[record_hash], "object": write.FORMATS[record_hash]}
    assert written.items() <= WRITTEN_AT[level].items()


def test_an_older_liftpy_leaves_a_newer_data_directory_alone():
    disk, path = SimDisk(), ROOT / "checkpoint"
    save_checkpoint(disk, path, Checkpoint(clean=True))
    content = read_whole(disk, path)[16:]
    version = checkpoint._VERSION + 1
    crc = google_crc32c.value(struct.pack("<I", version) + content)
    newer = struct.pack("<III4x", checkpoint._MAGIC, version, crc) + content
    write_atomically(disk, path, newer)
    with pytest.raises(DataDirError, match=r"a newer liftpy ran in this data directory.*Start the newer one again"):
        open_checkpoint(disk, path, ROOT / "quarantine")
    assert read_whole(disk, path) == newer, "it is not taken for damaged, and not set aside"
    damaged = newer[:-1] + bytes([newer[-1] ^ 1])
    write_atomically(disk, path, damaged)
    assert open_checkpoint(disk, path, ROOT / "quarantine") == (Checkpoint(), True)


@pytest.mark.parametrize("key", [CATALOG, PartitionPath("0" * 32, 0).root])
def test_an_older_node_beside_a_newer_one_at_a_bucket(key):
    """The newer one writes too early; the older one names object, formats and what to do, and writes nothing."""
    store, path = MemoryStore(), PartitionPath("0" * 32, 0)
    catalog = CatalogFile(store, new_id=lambda: "old")
    root = RootFile(store, path, new_id=lambda: "old")
    CatalogFile(store, new_id=lambda: "new").commit(None, Catalog(cluster_id="c" * 32, version=1, streams={}))
    RootFile(store, path, new_id=lambda: "new").commit(None, create(path, epoch=0, node="n", start=0))
    written = store.get(key)
    store.replace(key, edited(written.body, lambda plain: plain.update(format=9)), written.head.etag, "newer")
    before = store.get(key)
    with pytest.raises(BucketVersionError, match=rf"{key} was written by a newer liftpy, in format 9; .* upgrade it"):
        (catalog if key == CATALOG else root).load()
    assert store.get(key) == before
