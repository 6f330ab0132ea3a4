"""A file of each format on a node's disk, and of the bucket's smaller ones, as this version wrote it once.

Who changes a format raises its version and writes the files anew: `python -m unit.test_golden_formats`, in tests/.
Formats of manifests and objects are in `unit.bucket.test_golden_files`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgpack
import numpy as np
import pyarrow as pa
import pytest

from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.boundary import move, read_boundary
from liftpy_bucket.manifest.garbage import Garbage, load_garbage, swap_garbage
from liftpy_bucket.manifest.pins.held import load_pin, write_pin
from liftpy_bucket.manifest.pins.pin import Pin
from liftpy_bucket.object_log.format import decode_object, encode_object
from liftpy_bucket.object_log.trim import Trim, TrimFile
from liftpy_bucket.objects.setsum import Setsum
from liftpy_bucket.store.memory import MemoryStore
from liftpy_envelope.batch import (
    HEADER_SIZE,
    check_body,
    decode_records,
    encode_body,
    encode_header,
    encode_plain_body,
    read_header,
)
from liftpy_envelope.columns import ALL_COLUMNS
from liftpy_envelope.ipc import fixed_column, nullable_column, values_column
from liftpy_log.batches.partial import PartialBatch
from liftpy_log.batches.stored import StoredBatch
from liftpy_log.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from liftpy_log.compaction.state import Cleaned
from liftpy_log.durability.wal_format import DATA, RoundHead, decode_head, decode_round, encode_entry, encode_head
from liftpy_log.ids.ordered import OrderedProducers, load_ordered
from liftpy_log.ids.ordered import StoredBatch as OrderedBatch
from liftpy_log.log_time import Leap, LogTimeState
from liftpy_log.segments.index import SegmentIndex
from liftpy_log.storage.checked_json import find_checksum, with_checksum
from liftpy_log.storage.disk import read_whole, write_atomically
from liftpy_server.consensus.storage.journal_frames import encode_frame, read_copies
from liftpy_server.consensus.storage.snapshot import MetadataSnapshot
from liftpy_server.groups.core.member import GroupImage
from liftpy_server.groups.core.records import CommittedOffset, decode_offset, encode_offset
from liftpy_server.metadata.commands import Command
from liftpy_server.metadata.state import MetadataState
from support.simdisk import ROOT, SimDisk

FOLDER = Path(__file__).parent / "golden"
T = 1_790_000_000_000_000_000
PATH = PartitionPath("0123456789abcdef" * 2, 3)
PRODUCER = bytes(range(16))


def batch(body, **stamps):
    stamps = {"base_offset": 42, "leader_epoch": 7, "base_timestamp": T, "max_timestamp": T + 9} | stamps
    return encode_header(body, **stamps) + b"".join(map(bytes, body.parts))


def plain_batch():
    """Two messages of a publisher that says nothing of itself."""
    return batch(encode_plain_body([b"orders.eu", b"orders.us"], [b"paid", b""]))


def full_batch():
    """All columns, of an ordered producer."""
    columns = [
        fixed_column([T, T + 9], "q"),
        fixed_column([0, 5], "i"),
        values_column([b"orders.eu", b"\xff.raw"]),
        nullable_column([b"key", None]),
        nullable_column([b"NATS/1.0\r\nA: b\r\n\r\n", None]),
        nullable_column([None, b"value"]),
        nullable_column([b"id", None]),
        nullable_column([None, b"_INBOX.1"]),
    ]
    body = encode_body(2, ALL_COLUMNS, columns)
    return batch(body, producer_id=PRODUCER, producer_sequence=9, producer_epoch=3, last_offset_delta=6)


def compacted_batch():
    """What key compaction left of one."""
    whole = full_batch()
    partial = PartialBatch(read_header(whole), is_compacted=True)
    partial.take(StoredBatch(read_header(whole), pa.py_buffer(whole)), np.array([True, False]))
    return b"".join(map(bytes, partial.encode("zstd").parts))


def index():
    made = SegmentIndex(1_000)
    made.add(1_000, 0, T)
    made.add(1_500, 16_400, T + 7)
    return made


CLEANED = Cleaned(90, 40, 2, ((50, T), (90, T + 5)))
ORDERED = (PRODUCER, OrderedBatch(3, 65_536, 41, 2, T))
ROUND = RoundHead(7, 0, 0, 6, 640)
CHECKPOINT = Checkpoint(
    clean=True,
    high_watermarks={(PRODUCER, 3): 42},
    times={(PRODUCER, 3): LogTimeState(T, (Leap(T - 5, 4),))},
    wholes={(PRODUCER, 3): [(T, 40)]},
)
SNAPSHOT = MetadataSnapshot(
    previous=(b"before", 4, 1), last=(b"last", 5, 2), voters=(), state=MetadataState().to_plain(), cluster_id="c" * 32
)
COMMITTED = CommittedOffset(42, 7, T, 3, 9, "orders", b"mine")
COMMAND = Command(id="golden", op="remove_node", now_ns=T, args={"node_id": "node-1"})
PIN = Pin(name="golden", kind="range", start=40, until=44, expires_ns=T)
GARBAGE = Garbage(root_version=9, start=40, setsum=Setsum.from_hex("01" * 32), keys=("fragments/a.parquet",))
TRIM = Trim(3, 40, 42)


def producers():
    made = OrderedProducers()
    made.learn([ORDERED])
    made.end_offset = 42
    return made.encode(42)


def wal_round():
    entries = b"".join(map(bytes, encode_entry(DATA, "orders/0/a.log", 88, [b"data of a segment"])))
    return encode_head(ROUND._replace(length=len(entries))) + entries


def checkpoint():
    disk = SimDisk()
    save_checkpoint(disk, ROOT / "checkpoint", CHECKPOINT)
    return read_whole(disk, ROOT / "checkpoint")


def in_bucket(put):
    """The one object that something puts into a bucket."""
    store = MemoryStore()
    put(store)
    (entry,) = store.list("")
    return store.get(entry.key).body


def with_object(key, name):
    store = MemoryStore()
    store.create(key, golden(name), "n")
    return store


MAKERS = {
    "batch.lftb": plain_batch,
    "batch-full.lftb": full_batch,
    "batch-compacted.lftb": compacted_batch,
    "segment.index": lambda: index().encode()[0],
    "segment.timeindex": lambda: index().encode()[1],
    "cleaned": CLEANED.encode,
    "producers": producers,
    "round.wal": wal_round,
    "checkpoint": checkpoint,
    "small.json": lambda: with_checksum(b'{"format":1,"node_id":"node-1"}'),
    "raft.journal": lambda: encode_frame(
        msgpack.packb(["i" * 32, "c" * 32, None, 2, None, [[b"command", 1, 1]]]),
        generation=1,
        position=0,
        previous_crc=0,
    )[0],
    "metadata.snapshot": SNAPSHOT.encode,
    "command.msgpack": COMMAND.encode,
    "group-offset": lambda: encode_offset(COMMITTED),
    "group": GroupImage(3, 4, T).to_value,
    "pin.json": lambda: in_bucket(lambda store: write_pin(store, PATH, PIN, lambda: "golden")),
    "GARBAGE.json": lambda: in_bucket(lambda store: swap_garbage(store, PATH, GARBAGE, "", lambda: "golden")),
    "BOUNDARY.json": lambda: in_bucket(lambda store: move(store, PATH.directory, 9, lambda: "golden")),
    "object-log": lambda: encode_object(3, 40, [b"one", b"", b"three"], "writer", "nonce"),
    "object-log-trim.json": lambda: in_bucket(lambda store: TrimFile(store, "trim").advance(*TRIM, lambda: "golden")),
}


def golden(name):
    return (FOLDER / name).read_bytes()


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_what_is_written_is_what_was_written(name):
    assert MAKERS[name]() == golden(name)


def test_there_is_no_file_that_nobody_tries():
    assert {path.name for path in FOLDER.iterdir()} == set(MAKERS)


@pytest.mark.parametrize(
    ("name", "offsets", "values", "producer"),
    [
        ("batch.lftb", (42, 44), [b"paid", b""], (bytes(16), -1, 0)),
        ("batch-full.lftb", (42, 49), [None, b"value"], (PRODUCER, 9, 3)),
        ("batch-compacted.lftb", (42, 49), [None], (bytes(16), -1, 0)),
    ],
)
def test_batches_are_read(name, offsets, values, producer):
    content = golden(name)
    header, body = read_header(content), content[HEADER_SIZE:]
    check_body(header, body)
    assert (header.base_offset, header.next_offset, header.leader_epoch) == (*offsets, 7)
    assert (header.producer_id, header.producer_sequence, header.producer_epoch) == producer
    assert header.is_compacted == (name == "batch-compacted.lftb")
    records = decode_records(header, body)
    assert records.column("value").to_pylist() == values


def test_files_of_a_log_are_read():
    assert SegmentIndex.decode(1_000, golden("segment.index"), golden("segment.timeindex")).last() == (1_500, 16_400)
    assert Cleaned.decode(golden("cleaned")) == CLEANED
    disk = SimDisk()
    for name in ("producers", "checkpoint"):
        write_atomically(disk, ROOT / name, golden(name))
    assert load_ordered(disk, ROOT, 0, 42, 0).known(42) == [ORDERED]
    assert load_checkpoint(disk, ROOT / "checkpoint") == CHECKPOINT
    whole = golden("round.wal")
    assert decode_head(whole, 0, 7) == ROUND._replace(length=decode_head(whole, 0, 7).length)
    ((entry,), end) = decode_round(whole, 0, 7)
    assert (entry.path, entry.position, bytes(entry.data), end) == (
        "orders/0/a.log",
        88,
        b"data of a segment",
        len(whole),
    )
    assert find_checksum(golden("small.json")) is True


def test_files_of_the_metadata_and_of_groups_are_read():
    contents = read_copies(golden("raft.journal"), golden("raft.journal"))
    assert [msgpack.unpackb(body)[5] for body in contents.bodies] == [[[b"command", 1, 1]]]
    assert MetadataSnapshot.decode(golden("metadata.snapshot")) == SNAPSHOT
    assert Command.decode(golden("command.msgpack")) == COMMAND
    assert decode_offset(golden("group-offset")) == COMMITTED
    assert GroupImage.from_value(golden("group")) == GroupImage(3, 4, T)


def test_documents_of_the_bucket_are_read():
    found = load_pin(with_object(PATH.pin("golden"), "pin.json"), PATH, "golden")
    assert replace(found, etag="", modified_ns=0) == PIN
    found = load_garbage(with_object(PATH.garbage, "GARBAGE.json"), PATH)
    assert replace(found, etag="", modified_ns=0) == GARBAGE
    assert read_boundary(with_object(PATH.boundary, "BOUNDARY.json"), PATH.directory) == 9
    assert decode_object(golden("object-log"), "log/3", 3).records == (b"one", b"", b"three")
    assert TrimFile(with_object("trim", "object-log-trim.json"), "trim").load() == TRIM


def write_all(folder):
    """Write the golden files."""
    for name, make in MAKERS.items():
        (folder / name).write_bytes(make())


if __name__ == "__main__":
    write_all(FOLDER)
