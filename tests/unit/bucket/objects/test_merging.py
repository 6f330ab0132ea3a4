"""Merging gives back every record, in bounded memory, and names the object whose records do not add up."""

from __future__ import annotations

import tempfile
import tracemalloc
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_bucket.errors import ManifestCorruptError, ObjectCorruptError
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.objects.merging import fragment_source, member_source, merge, merge_fragments
from liftpy_bucket.objects.read import ObjectReader
from liftpy_bucket.objects.record_hash import RecordHash
from liftpy_bucket.objects.rows.convert import rows_of
from liftpy_bucket.objects.setsum import NO_RECORDS
from liftpy_bucket.objects.write_stream_set import SetWriter
from liftpy_bucket.store.counting import CountingStore
from liftpy_bucket.store.memory import MemoryStore
from liftpy_envelope.batch import ATTRIBUTE_COMPACTED
from support.examples import examples
from support.tier_rows import UUID, Record, batch_of, histories, plain_records, records_of, rows_from, table_of, written

PATH = PartitionPath(UUID, 0)


def put(store, name, pieces, **options):
    body, result = written(pieces, **options)
    store.create(PATH.fragment(name), body, "n")
    return result.pointer(name)


def reader_of(store, sink, result, key="merged"):
    sink.seek(0)
    store.create(key, sink.read(), "n")
    return ObjectReader(store, key, result.extent)


@examples(40)
@given(histories(), st.integers(1, 12), st.booleans())
def test_fragments_merged_are_their_records(records, step, keeps_replies):
    store = CountingStore(MemoryStore())
    pieces = [records[start : start + step] for start in range(0, len(records), step)]
    rows = [rows_from(piece, keeps_replies=keeps_replies) for piece in pieces]
    pointers = [put(store, f"{number}", [each], keeps_replies=keeps_replies) for number, each in enumerate(rows)]
    with tempfile.TemporaryFile() as sink:
        result = merge_fragments(store, PATH, pointers, sink, nonce="m")
        assert store.counts["get_range"] == 2 * len(pointers)
        reader = reader_of(store, sink, result)
    assert table_of(reader.rows(0, 2**62)) == table_of(rows)
    assert result.setsum == sum((pointer.setsum for pointer in pointers), NO_RECORDS)
    reader.check_fragment(PATH, result.pointer("merged"))


def test_rows_keep_their_producers_and_the_mark_of_compaction(tmp_path):
    """Else a chunk of the sink would be stored again, as nothing said that it may have been there."""
    pieces = []
    for base, change in (
        (0, {"producer_id": b"p" * 16, "producer_sequence": 3}),
        (5, {"attributes": ATTRIBUTE_COMPACTED}),
        (10, {}),
    ):
        header, body = batch_of(plain_records(5, base=base))
        pieces.append(rows_of(header._replace(**change), body))
    store = MemoryStore()
    pointers = [put(store, str(number), [rows]) for number, rows in enumerate(pieces)]
    with (tmp_path / "x").open("w+b") as sink:
        reader = reader_of(store, sink, merge_fragments(store, PATH, pointers, sink, nonce="m"))
    rows = table_of(reader.rows(0, 2**62))
    assert rows.column("producer_id").to_pylist() == [b"p" * 16] * 5 + [None] * 10
    assert rows.column("producer_sequence").to_pylist() == [3] * 5 + [-1] * 5 + [None] * 5


def test_members_of_sets_become_a_fragment_trimmed_to_what_counts(tmp_path):
    store = MemoryStore()
    rows = rows_from(plain_records(40))
    with (tmp_path / "set").open("w+b") as sink:
        writer = SetWriter(sink, node="a", nonce="n")
        for number in range(2):
            writer.begin(f"{number:032x}", 0, 1, 0, 40, record_hash=RecordHash.BLAKE2B)
            writer.write(rows)
        _, members = writer.finish()
        sink.seek(0)
        store.create("set", sink.read(), "n")
        first, second = (ObjectReader(store, "set", member.extent) for member in members)
    with (tmp_path / "fragment").open("w+b") as sink:
        whole = member_source(first, members[0], 0, 40)
        assert whole.setsum == members[0].setsum
        part = member_source(second, members[1], 10, 15)
        assert part.setsum is None
        result = merge([part], sink, path=PATH, nonce="m", keeps_replies=False, record_hash=RecordHash.BLAKE2B)
        found = reader_of(store, sink, result, "fragment")
    assert [record for piece in found.rows(0, 99) for record in records_of(piece)] == records_of(rows)[10:15]
    assert (result.base, result.end, result.records) == (10, 15, 5)


def test_an_object_whose_records_do_not_add_up_is_named(tmp_path):
    store = MemoryStore()
    pointers = [put(store, f"{base}", [rows_from(plain_records(5, base=base))]) for base in (0, 5, 10)]
    reader = ObjectReader(store, PATH.fragment("5"), pointers[1].extent)
    wrong = fragment_source(reader, PATH, pointers[1])._replace(setsum=NO_RECORDS)
    with (tmp_path / "x").open("w+b") as sink, pytest.raises(ManifestCorruptError, match=reader.key):
        merge([wrong], sink, path=PATH, nonce="m", keeps_replies=False, record_hash=RecordHash.BLAKE2B)
    pointers[1] = replace(pointers[1], setsum=pointers[0].setsum)
    with (tmp_path / "y").open("w+b") as sink, pytest.raises(ObjectCorruptError, match=reader.key):
        merge_fragments(store, PATH, pointers, sink, nonce="m")


def test_objects_of_two_hashes_are_not_merged(tmp_path):
    store = MemoryStore()
    pointers = [
        put(store, f"{place}", [rows_from(plain_records(5, base=5 * place))], record_hash=record_hash)
        for place, record_hash in enumerate(RecordHash)
    ]
    with (tmp_path / "x").open("w+b") as sink, pytest.raises(ManifestCorruptError, match=PATH.fragment("1")):
        merge_fragments(store, PATH, pointers, sink, nonce="m")


def test_objects_that_overlap_are_not_merged(tmp_path):
    store = MemoryStore()
    pointers = [put(store, f"{base}", [rows_from(plain_records(5, base=base))]) for base in (0, 4)]
    with (tmp_path / "x").open("w+b") as sink, pytest.raises(ObjectCorruptError, match=r"4.*do not ascend"):
        merge_fragments(store, PATH, pointers, sink, nonce="m")


@pytest.mark.parametrize(("cleaned", "expected"), [((5, 9, 7), 9), ((5, 0, 7), 0), ((0, 0, 0), 0)])
def test_what_was_cleaned_stays_cleaned_since_the_latest_time(tmp_path, cleaned, expected):
    store = MemoryStore()
    pointers = [
        put(store, f"{base}", [rows_from([Record(base, 1, b"s", key=b"k")])], cleaned_ns=time_ns)
        for base, time_ns in zip((0, 5, 10), cleaned, strict=True)
    ]
    pointers.append(put(store, "15", [rows_from(plain_records(5, base=15))]))  # no tombstones: it does not matter
    with (tmp_path / "x").open("w+b") as sink:
        result = merge_fragments(store, PATH, pointers, sink, nonce="m")
        assert reader_of(store, sink, result).metadata.cleaned_ns == expected


def test_merging_takes_the_memory_of_a_few_row_groups(tmp_path):
    """8 objects of 16 MiB that can not be compressed."""

    class OnDisk(MemoryStore):
        """Objects are files, so that only what is read is in memory."""

        def get_range(self, key, start, length):
            with (tmp_path / key.rpartition("/")[2]).open("rb") as file:
                file.seek(start)
                return file.read(length)

    pointers = []
    for number in range(8):
        rows = rows_from(plain_records(4_096, size=1, base=number * 4_096))
        noise = np.random.default_rng(number).bytes(4_096 * 4_096)
        ends = np.arange(0, len(noise) + 1, 4_096, dtype=np.int32)
        value = pa.Array.from_buffers(pa.binary(), 4_096, [None, pa.py_buffer(ends), pa.py_buffer(noise)])
        rows = rows.set_column(rows.schema.get_field_index("value"), rows.schema.field("value"), value)
        body, result = written([rows])
        assert len(body) > 16 * 1024 * 1024
        (tmp_path / f"{number}").write_bytes(body)
        pointers.append(result.pointer(f"{number}"))
    del rows, value, body, noise, ends
    pa.default_memory_pool().release_unused()
    before = pa.total_allocated_bytes()
    peaks = []

    class Watching(OnDisk):
        def get_range(self, key, start, length):
            peaks.append(pa.total_allocated_bytes() - before)
            return super().get_range(key, start, length)

    tracemalloc.start()
    try:
        with (tmp_path / "merged").open("w+b") as sink:
            result = merge_fragments(Watching(), PATH, pointers, sink, nonce="m")
        _, python_peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result.records == 8 * 4_096
    assert max(peaks) + python_peak < 64 * 1024 * 1024
