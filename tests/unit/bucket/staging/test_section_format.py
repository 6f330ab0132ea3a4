"""Staged sections: what is read is what was written, in fewer bytes where that can be, and damage is told."""

from __future__ import annotations

import random

import google_crc32c
import msgpack
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_bucket.errors import StagingDamagedError
from liftpy_bucket.staging.section import RowChunk
from liftpy_bucket.staging.section_format import decode_section, encode_section
from liftpy_bucket.staging.source import load_section
from liftpy_bucket.store.memory import MemoryStore
from liftpy_spark.sink.place import BucketPlace
from liftpy_spark.sink.staging import stage
from support.examples import examples

VALUES = st.none() | st.binary(max_size=20) | st.integers(0, 70_000).map(bytes)
ROWS = st.lists(st.tuples(VALUES, st.none() | st.binary(max_size=4), st.just(b"NATS/1.0\r\n\r\n")), min_size=1)


def encoded(*chunks):
    return b"".join(encode_section(chunks))


def chunk_of(**columns):
    return RowChunk(0, "s.x", pa.record_batch({name: pa.array(found, pa.binary()) for name, found in columns.items()}))


def noise(size):
    return random.Random(size).randbytes(size)


@examples(100)
@given(st.lists(st.tuples(st.text(max_size=5), ROWS, st.integers(1, 3), st.integers(0, 3)), min_size=1, max_size=4))
def test_chunks_read_back(given_chunks):
    chunks = []
    for subject, rows, columns, first in given_chunks:
        names = ("value", "key", "headers")[:columns]
        arrays = {name: pa.array([row[at] for row in rows], pa.binary()) for at, name in enumerate(names)}
        chunks.append(RowChunk(7, subject, pa.record_batch(arrays).slice(min(first, len(rows) - 1))))
    found = list(decode_section(encoded(*chunks), 7))
    assert found == chunks
    for chunk in found:
        chunk.records.validate(full=True)


def test_a_null_that_has_a_place():
    data, offsets = pa.py_buffer(b"abc"), pa.py_buffer(pa.array([0, 1, 2, 3], pa.int32()).buffers()[1])
    column = pa.BinaryArray.from_buffers(pa.binary(), 3, [pa.py_buffer(b"\x05"), offsets, data])
    chunk = RowChunk(0, "s.x", pa.record_batch({"value": column}))
    ((_, _, records),) = decode_section(encoded(chunk), 0)
    assert records.column("value").to_pylist() == [b"a", None, b"c"]


def test_lengths_that_are_alike_take_nothing():
    values = [noise(4_000)[at : at + 10] for at in range(0, 4_000, 10)]
    assert len(encoded(chunk_of(value=values))) < 4_000 + 60


@pytest.mark.parametrize(("longest", "each"), [(255, 1), (256, 2), (65_536, 4)])
def test_lengths_take_as_few_bytes_as_the_longest_needs(longest, each):
    few = [noise(longest), *[b"", b"x"] * 20]
    assert len(encoded(chunk_of(value=few))) < longest + 20 + each * len(few) + 60


def test_what_compresses_is_compressed_and_what_does_not_is_kept():
    value, keys = noise(100_000), [b"user-%08d" % number for number in range(1_000)]
    body = encoded(chunk_of(value=[value[at : at + 100] for at in range(0, 100_000, 100)], key=keys))
    assert value in body
    assert len(body) < 100_000 + 13_000 / 2


def test_what_looks_worse_than_it_is_never_grows():
    noisy = noise(64)
    body = encoded(chunk_of(value=[noisy * 5_000, noise(20_000)]))
    assert len(body) < 20_000 + 5_000


@examples(300)
@given(st.data())
def test_damage_is_told(data):
    body = bytearray(encoded(chunk_of(value=[b"a" * 600, b"b", None], key=[b"k", b"l", b"m"])))
    if data.draw(st.booleans()):
        del body[data.draw(st.integers(0, len(body) - 1)) :]
    for _ in range(data.draw(st.integers(1, 3))):
        if body:
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        chunks = list(decode_section(bytes(body), 0))
    except StagingDamagedError:
        return
    for chunk in chunks:  # its checksum would tell; but nothing may be read from beyond it
        chunk.records.validate(full=True)


@pytest.mark.parametrize("size", [3, 12, 50])
def test_a_section_that_breaks_off_is_told_with_its_object(size):
    store = MemoryStore()
    (section,) = stage(BucketPlace(store), "key", [chunk_of(value=[b"v" * 100])], "nonce")
    body = store.get("key").body[:size]
    store.create("other", body, "nonce")
    damaged = section._replace(key="other", length=size, crc=google_crc32c.value(body))
    with pytest.raises(StagingDamagedError, match=f"staged object other, {size} bytes from 0 on: it "):
        list(load_section(BucketPlace(store), damaged))


def section_of(header, body=b""):
    packed = msgpack.packb(header)
    return b"LPYS\x01" + len(packed).to_bytes(4, "little") + packed + body


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (["s", 1, [["value", 0, 2**31, [[1, 2**31]]]]], "over what a chunk may have"),
        (["s", 2**40, [["value", 0, 0, [[0, 0]]]]], "is no chunk"),
        (["s", 0, [["value", 0, 0, [[0, 0]]]]], "is no chunk"),
        ([b"", 1, [["value", 0, 0, [[0, 0]]]]], "exceeds max_bin_len|is no chunk"),
        (["s", 1, [["partition", 0, 0, [[0, 0]]]]], "is no column of records"),
        (["s" * 20_000, 1, []], "max_str_len"),
    ],
)
def test_sizes_are_bounded_before_memory_is_spent(header, said):
    with pytest.raises(StagingDamagedError, match=said):
        list(decode_section(section_of(header, b"x"), 0))
