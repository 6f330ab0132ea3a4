"""What a history of 1 TiB costs: per commit as much as one of 1 GiB, and a seek reads one snapshot at most."""

import dataclasses
import random

import pytest

from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.root.changes import append, claim, create
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.manifest.root.folding import POINTERS_MAX, SNAPSHOT_FRAGMENTS_MAX, roll_up
from liftpy_bucket.manifest.root.snapshot import Snapshot
from liftpy_bucket.objects.pointers import SnapshotPointer, StreamObjectPointer
from liftpy_bucket.objects.setsum import Setsum
from liftpy_bucket.store.counting import CountingStore
from liftpy_bucket.store.memory import MemoryStore
from support.manifest_kit import PATH, START_NS, digest_of, ids

FRAGMENT_BYTES = 64 * 2**20
GIB = 2**30
TIB = 2**40
RECORDS = FRAGMENT_BYTES // 1024


def pointer(number, nonce):
    """A stream object of 64 MiB of records of 1 KiB."""
    base = number * RECORDS
    return StreamObjectPointer(
        name=f"{base:020d}-12-{nonce}.parquet",
        base=base,
        end=base + RECORDS,
        records=RECORDS,
        size=FRAGMENT_BYTES - 1,
        footer=FRAGMENT_BYTES - 40_000,
        digest=digest_of(number).hex(),
        first_timestamp=START_NS + base * 100_000,
        last_timestamp=START_NS + (base + RECORDS) * 100_000,
        setsum=Setsum(digest_of(number)),
    )


class SizedStore(CountingStore):
    """Also notes how large every root is."""

    def __init__(self, store):
        super().__init__(store)
        self.root_bytes = []

    def replace(self, key, body, etag, nonce):
        self.root_bytes.append(len(body))
        return super().replace(key, body, etag, nonce)


@pytest.fixture(scope="module", params=[TIB // 8, pytest.param(TIB, marks=pytest.mark.slow)], ids=["128 GiB", "1 TiB"])
def history(request):
    """(store, root) of a history of so many bytes, as one writer makes it: 2,048 appends, or 16,384."""
    store, new_id = SizedStore(MemoryStore()), ids("history")
    file = RootFile(store, PATH, new_id=new_id)
    loaded = file.commit(None, create(PATH, epoch=12, node="node-1", start=0))
    for number in range(request.param // FRAGMENT_BYTES):
        change = append(loaded.root, pointer(number, new_id()), epoch=12, epochs=[(12, 0)])
        loaded = file.commit(loaded, change)
    return store, loaded.root


def percentile(values, share):
    return sorted(values)[int(share * len(values))]


def test_bytes_per_commit_are_flat(history):
    store, root = history
    appends = root.end // RECORDS
    assert len(store.root_bytes) == appends
    first_gib = max(store.root_bytes[: GIB // FRAGMENT_BYTES])
    assert percentile(store.root_bytes, 0.99) <= 1.5 * first_gib
    assert max(store.root_bytes) <= 1.5 * first_gib
    assert len(root.snapshots) + len(root.fragments) <= POINTERS_MAX + 2


def test_bytes_of_snapshots_grow_linearly(history):
    store, root = history
    appends = root.end // RECORDS
    snapshot_bytes = store.bytes_out - sum(store.root_bytes)
    assert snapshot_bytes <= appends * 5_000  # a pointer has some 320 bytes: each is written a dozen times
    assert store.counts["create"] <= appends / 8  # one snapshot for eight appends, at most
    assert store.counts["get"] == 0  # the writer has at hand what it rolls up


def test_a_seek_reads_the_root_and_one_snapshot_at_most(history):
    store, root = history
    rng = random.Random(1)
    appends = root.end // RECORDS
    numbers = {0, 1, min(SNAPSHOT_FRAGMENTS_MAX, appends - 1), appends - 1, *rng.sample(range(appends), 12)}
    for number in numbers:
        before = dict(store.counts)
        file = RootFile(store, PATH, new_id=ids("reader"))
        loaded = file.load()
        assert loaded.root == root
        found = file.find(loaded.root, number * RECORDS + rng.randrange(RECORDS))
        assert found.base == number * RECORDS
        gets = store.counts["get"] - before["get"]
        assert gets <= 2
        assert sum(store.counts.values()) - sum(before.values()) == gets


def test_opening_for_writing_costs_two_gets_at_most(history):
    store, root = history
    file = RootFile(store, PATH, new_id=ids("opener"))
    before = dict(store.counts)
    loaded = file.load()
    claimed = file.commit(loaded, claim(loaded.root, epoch=13, node="node-2", start=loaded.root.end))
    assert store.counts["get"] - before["get"] <= 2
    assert store.counts["create"] == before["create"]
    number = root.end // RECORDS
    change = append(claimed.root, pointer(number, "n"), epoch=13, epochs=[(12, 0), (13, number * RECORDS)])
    assert file.commit(claimed, change).root.end == (number + 1) * RECORDS


def plain_snapshot(depth, base, fragments):
    end = base + fragments
    return SnapshotPointer(
        digest=f"{base:064x}",
        depth=depth,
        base=base,
        end=end,
        records=fragments,
        size=fragments,
        fragments=fragments,
        first_timestamp=0,
        last_timestamp=0,
        setsum=Setsum(),
    )


def test_many_full_snapshots_are_listed_by_deeper_ones():
    """100 TiB: the root stays as small, and a seek takes a snapshot more."""
    path = PartitionPath(*PATH)
    root = create(path, epoch=1, node="node-1", start=0).root
    end, known = 0, {}

    def load(wanted):
        if wanted.digest in known:
            return known[wanted.digest]
        assert wanted.depth == 1, "what is full is not opened"
        return Snapshot(pointer=wanted, children=(), body=b"")

    for _ in range(100 * TIB // FRAGMENT_BYTES // SNAPSHOT_FRAGMENTS_MAX):
        full = plain_snapshot(1, end, SNAPSHOT_FRAGMENTS_MAX)
        end = full.end
        root = dataclasses.replace(root, end=end, snapshots=(*root.snapshots, full))
        root, drafts = roll_up(root, [], load)
        known |= {draft.pointer.digest: draft for draft in drafts}
        assert len(root.snapshots) <= POINTERS_MAX + 10
    assert max(each.depth for each in root.snapshots) <= 3
    assert sum(each.fragments for each in root.snapshots) == end
    assert [each.base for each in root.snapshots[1:]] == [each.end for each in root.snapshots[:-1]]
