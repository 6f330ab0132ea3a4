"""What the set manifest of a node with 100,000 quiet streams costs: bytes of a round, and of a cold reader."""

import os
from itertools import islice

import pytest

from liftpy_bucket.layout import PartitionPath, set_root_key, slot_of
from liftpy_bucket.manifest.stream_sets.changes import add, begin
from liftpy_bucket.manifest.stream_sets.file import SetManifestFile, page_cache
from liftpy_bucket.objects.pointers import Extent, SetMember, SetObjectPointer
from liftpy_bucket.objects.setsum import Setsum
from liftpy_bucket.store.counting import CountingStore
from liftpy_bucket.store.memory import MemoryStore
from support.manifest_kit import START_NS, ids

MEMBERS_MAX = 4_096
RECORDS = 10
MEMBER_BYTES = 4_000


def shared(sequence, paths, round_number):
    """An object of one round, with ten records of each partition; digests and sums are as random as real ones."""
    base = RECORDS * round_number
    members = tuple(
        SetMember(
            uuid=path.uuid,
            partition=path.partition,
            tier_epoch=3,
            base=base,
            end=base + RECORDS,
            records=RECORDS,
            extent=Extent(MEMBER_BYTES, MEMBER_BYTES - 2_800, os.urandom(32).hex(), start=number * MEMBER_BYTES),
            epochs=((3, base),),
            first_timestamp=START_NS + base * 60 * 10**9,
            last_timestamp=START_NS + (base + RECORDS - 1) * 60 * 10**9,
            setsum=Setsum.of_digests(os.urandom(32)),
        )
        for number, path in enumerate(sorted(paths))
    )
    name = f"{sequence:020d}-{os.urandom(16).hex()}.parquet"
    return SetObjectPointer(name=name, size=len(members) * MEMBER_BYTES, footer=1, digest="ab" * 32, members=members)


@pytest.mark.parametrize("streams", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_round_costs_what_it_has_and_a_reader_reads_one_page(streams, capsys):
    paths = sorted((PartitionPath(os.urandom(16).hex(), 0) for _ in range(streams)), key=lambda path: slot_of(*path))
    store = CountingStore(MemoryStore())
    file = SetManifestFile(store, "n1", new_id=ids(), pages=page_cache())
    loaded = file.commit(None, begin("n1", 1))
    told = []
    for round_number in range(4):
        before = dict(store.counts), store.bytes_out
        left, uploads = iter(paths), 0
        while some := list(islice(left, MEMBERS_MAX)):
            manifest = loaded.manifest
            loaded = file.commit(loaded, add(manifest, shared(manifest.sequence, some, round_number)))
            uploads += 1
        counts = {kind: count - before[0].get(kind, 0) for kind, count in store.counts.items()}
        assert (counts["create"], counts["replace"]) == (uploads, uploads), "with the object itself three PUTs"
        told.append((loaded.size, (store.bytes_out - before[1]) // uploads, counts["get_range"] / uploads))
    root_bytes = len(store.get(set_root_key("n1")).body)
    cold = CountingStore(store)
    reader = SetManifestFile(cold, "n1", new_id=ids())
    part = reader.part(reader.load_root().root, paths[streams // 2])
    assert len(part.objects) == 4
    asked = {kind: count for kind, count in cold.counts.items() if count}
    assert asked == {"get": 1, "get_range": 1}
    assert loaded.manifest.listing is not None
    packs = sum(each.size for each in loaded.manifest.packs)
    pages = sum(each.size for each in loaded.manifest.pages)
    assert packs <= 4 * pages + 2**20 + told[-1][1]
    with capsys.disabled():
        for number, (size, written, gets) in enumerate(told):
            print(
                f"\nround {number}: ROOT {size:,} B, an upload writes {written:,} B of manifest, {gets:.1f} GETs",
                end="",
            )
        print(
            f"\n{streams:,} streams, {len(loaded.manifest.pages)} pages, {pages:,} B; packs {packs:,} B; "
            f"a cold reader: ROOT {root_bytes:,} B and a page, {cold.bytes_in:,} B together"
        )
