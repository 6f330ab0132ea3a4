"""Objects that somebody else made: small, with the right checksums, and huge once they are decoded."""

from __future__ import annotations

import io
import struct
from hashlib import sha256

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google_crc32c import value as crc32c

from liftpy_bucket.errors import ManifestCorruptError, ObjectCorruptError
from liftpy_bucket.object_log.format import decode_head
from liftpy_bucket.objects.pages import DECODED_BYTES_MAX, ROWS_MAX, measure_column
from liftpy_bucket.objects.parquet import ROW_GROUPS_KEY, write_footer
from liftpy_bucket.objects.pointers import Extent
from liftpy_bucket.objects.read import ObjectReader, parse_footer
from liftpy_bucket.objects.thrift import ThriftReader
from liftpy_bucket.store.memory import MemoryStore
from liftpy_bucket.store.object_store import WHOLE_BYTES_MAX
from support.tier_rows import plain_records, records_of, rows_from, written

KEY = "forged.parquet"
MIB = 1024 * 1024
ROWS = rows_from(plain_records(600, size=10))


def forged(columns, *, rows=ROWS, **options):
    """What reads an object with other columns in place of ours, and how many bytes it has."""
    arrays = {"partition": pa.array([0] * rows.num_rows, pa.int32())}
    arrays |= dict(zip(rows.schema.names, rows.columns, strict=True)) | columns
    table = pa.table(arrays)
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, compression="zstd", store_schema=False, **options) as writer:
        writer.write_table(table, row_group_size=table.num_rows)
        writer.add_key_value_metadata({"liftpy.format": "2", ROW_GROUPS_KEY: "0" * 64})
    whole = sink.getvalue()
    at = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    footer = whole[at:].replace(b"0" * 64, sha256(whole[4:at]).hexdigest().encode())
    out = io.BytesIO()
    out.write(whole[:at])
    extent = write_footer(out, footer, at)
    store = MemoryStore()
    store.create(KEY, out.getvalue(), "n")
    return ObjectReader(store, KEY, extent), len(out.getvalue())


def refused(reader, why, columns=None):
    with pytest.raises(ObjectCorruptError, match=why):
        reader.read(0, columns)


def test_what_nobody_forged_is_read():
    reader, _ = forged({}, use_dictionary=["subject"])
    assert records_of(reader.read(0)) == records_of(ROWS)


@pytest.mark.parametrize("columns", [None, ["offset", "value"]])
def test_a_page_that_decompresses_to_much(columns):
    values = pa.array([bytes(MIB)] * ROWS.num_rows, pa.binary())
    reader, size = forged({"value": values}, use_dictionary=False)
    assert size < 100_000
    refused(reader, f"would decompress to .*, and {DECODED_BYTES_MAX} are the most", columns)


def test_a_value_that_a_dictionary_repeats():
    """All the values are never there at once, not even to be refused."""
    once = pa.DictionaryArray.from_arrays(pa.array([0] * ROWS.num_rows, pa.int32()), pa.array(["a" * 2 * MIB]))
    reader, size = forged({"subject": once}, use_dictionary=["subject"], dictionary_pagesize_limit=2**30)
    assert size < 100_000
    before = pa.default_memory_pool().max_memory()
    refused(reader, f"column subject would take more than {DECODED_BYTES_MAX} bytes")
    assert pa.default_memory_pool().max_memory() <= max(before, pa.total_allocated_bytes() + 3 * DECODED_BYTES_MAX)


def test_many_subjects_are_decoded_in_steps_and_come_back():
    """A dictionary of which every row could have the longest value; no row has all of it."""
    records = [
        record._replace(subject=b"%d.%s" % (record.offset % 900, b"s" * 60)) for record in plain_records(9_000, size=10)
    ]
    body, result = written([rows_from(records)])
    store = MemoryStore()
    store.create(KEY, body, "n")
    reader = ObjectReader(store, KEY, result.extent)
    assert reader.row_groups[0].records * 900 * 64 > DECODED_BYTES_MAX
    assert [record for group in reader.row_groups for record in records_of(reader.read(group.index))] == records


def test_values_that_are_made_of_other_values():
    """Each has the MiB of the first one in front of it; only decoding would tell how long they are."""
    values = pa.array([b"a" * MIB + b"%d" % at for at in range(ROWS.num_rows)], pa.binary())
    reader, size = forged({"headers": values}, use_dictionary=False, column_encoding={"headers": "DELTA_BYTE_ARRAY"})
    assert size < 100_000
    refused(reader, "liftpy writes no pages of encoding 7")


def test_pages_of_another_kind():
    reader, _ = forged({}, data_page_version="2.0")
    refused(reader, "liftpy writes no pages of type 3")


def test_nulls_of_another_type():
    """A null of a column of fixed width takes all of it."""
    reader, _ = forged({"value": pa.nulls(ROWS.num_rows, pa.binary(MIB))}, use_dictionary=False)
    refused(reader, "column value has type fixed_size_binary")


def test_more_rows_than_are_ever_written():
    many = ROWS_MAX + 1
    columns = {name: pa.nulls(many, type_) for name, type_ in zip(ROWS.schema.names, ROWS.schema.types, strict=True)}
    columns |= {"offset": pa.array(range(many)), "timestamp_ns": pa.array([1] * many)}
    columns["partition"] = pa.array([0] * many, pa.int32())
    reader, _ = forged(columns)
    refused(reader, f"and {many} rows")


def test_a_footer_that_is_too_long_is_not_fetched():
    class Counting(MemoryStore):
        fetched = 0

        def get_range(self, key, start, length):
            self.fetched += length
            return bytes(length)

    store = Counting()
    with pytest.raises(ObjectCorruptError, match="no footer begins at byte 1000"):
        ObjectReader(store, KEY, Extent(2**40, 1_000, "")).metadata  # noqa: B018
    assert store.fetched == 0


def page_header(**fields):
    """A data page header with some numbers in place of ours."""
    numbers = {"kind": 0, "size": 10, "stored": 0, "values": 5, "encoding": 0} | fields

    def number(value):
        out, value = b"", value << 1 ^ value >> 63
        while value >= 128:
            out, value = out + bytes([value & 127 | 128]), value >> 7
        return out + bytes([value])

    kind, size, stored, values, encoding = map(number, numbers.values())
    return b"\x15" + kind + b"\x15" + size + b"\x15" + stored + b"\x2c\x15" + values + b"\x15" + encoding + b"\0\0"


def test_page_headers():
    assert measure_column(memoryview(page_header()), 5) == (10, 0)
    assert measure_column(memoryview(page_header() + page_header(size=20)), 10) == (30, 0)
    for lie in (
        {"size": -1},
        {"stored": -9},
        {"stored": 7},
        {"values": 6},
        {"values": -5},
        {"encoding": 6},
        {"kind": 1},
    ):
        with pytest.raises((ValueError, KeyError)):
            measure_column(memoryview(page_header(**lie)), 5)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\x15\x02\x05\x02\x02\0", "stands behind"),  # field 1, and again by its number
        (b"\x1c" * 100, "lie in one another"),
        (b"\x19" * 100, "lie in one another"),
        (b"\x15" + b"\xff" * 20, "more than 64 bits"),
        (b"\x18\xff\x7f", "ends behind everything"),
        (b"\x1d\0", "no values of type 13"),
    ],
)
def test_structs_that_are_none(content, why):
    with pytest.raises((ValueError, IndexError), match=why):
        ThriftReader(content).struct()


def test_footers_that_are_none():
    for content in (b"", b"LFTC", b"LFTC\0\0\0\0", bytes(100)):
        with pytest.raises((ValueError, OSError, pa.ArrowException)):
            parse_footer(content)


def test_an_object_that_is_read_whole_is_no_larger_than_a_manifest():
    store = MemoryStore()
    store.create("ROOT", bytes(WHOLE_BYTES_MAX), "n")
    assert len(store.get("ROOT").body) == WHOLE_BYTES_MAX
    store.create("large", bytes(WHOLE_BYTES_MAX + 1), "n")
    for read in (lambda: store.get("large"), lambda: store.get_newer("large", "another")):
        with pytest.raises(ManifestCorruptError, match=f"{WHOLE_BYTES_MAX + 1} bytes are more than"):
            read()
    assert store.head("large").size == len(store.get_range("large", 0, 2**30))


def test_the_head_of_an_object_of_a_log_that_lies_about_its_size():
    for records, index_at in ((2**32 - 1, 2**30), (1, 2**40)):
        head = struct.pack("<IHHHHIQQQI", 0x4C4F464C, 1, 0, 0, 0, records, 1, 1, index_at, 0)
        with pytest.raises(ObjectCorruptError, match="its head says"):
            decode_head(head + struct.pack("<I", crc32c(head)), "log/1")
