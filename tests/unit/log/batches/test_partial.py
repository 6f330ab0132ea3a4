"""A batch made of what stays of others covers what they covered, and says which records are left."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from liftpy_envelope.batch import read_header
from liftpy_envelope.columns import Column
from liftpy_log.batches.partial import PartialBatch
from liftpy_log.batches.stored import StoredBatch
from support.filter_kit import Shape, Stored, records_in


def stored_batches(*shapes):
    stored = Stored(shapes)
    batches = []
    for file, piece in stored.places:
        data = pa.py_buffer(file.data[piece.position : piece.position + piece.length])
        batches.append(StoredBatch(read_header(data), data))
    return stored, batches


def data_of(encoded):
    data = b"".join(map(bytes, encoded.parts))
    assert len(data) == encoded.length
    return data


def test_records_that_stay_keep_everything_but_their_neighbours():
    stored, batches = stored_batches(
        Shape((b"a", b"b", b"c"), has_keys=True), Shape((b"d",), has_times=True), Shape((b"e", b"f"), holes=(2, 1))
    )
    partial = PartialBatch(batches[0].header)
    assert partial.is_empty
    partial.take(batches[0], np.array([False, True, True]))
    partial.take(batches[1], None, batches[1].records)
    partial.take(batches[2], np.array([True, False]))
    assert not partial.is_empty
    encoded = partial.encode("lz4")
    kept = [stored.records[number] for number in (1, 2, 3, 4)]
    assert records_in(data_of(encoded)) == kept
    assert (encoded.record_count, encoded.next_offset) == (4, stored.end)
    assert encoded.times == (kept[0].time, kept[-1].time)


def test_batches_of_which_all_stays_leave_no_holes():
    stored, batches = stored_batches(Shape((b"a",) * 3), Shape((b"b",) * 2))
    partial = PartialBatch(batches[0].header)
    for batch in batches:
        partial.take(batch, None)
    data = data_of(partial.encode("lz4"))
    assert not read_header(data).columns & Column.OFFSET_DELTA
    assert records_in(data) == stored.records


def test_a_batch_of_which_nothing_stays_still_covers_its_offsets():
    stored, batches = stored_batches(Shape((b"a",) * 3), Shape((b"b",) * 2))
    partial = PartialBatch(batches[0].header)
    for batch in batches:
        partial.take(batch, np.zeros(batch.header.record_count, np.bool_))
    encoded = partial.encode("lz4")
    header = read_header(data_of(encoded))
    assert (header.base_offset, header.next_offset, header.record_count) == (stored.start, stored.end, 0)
    assert (header.base_timestamp, header.max_timestamp) == (batches[0].header.base_timestamp, encoded.times[1])


def test_another_epoch_or_too_wide_a_range_begins_anew():
    _, batches = stored_batches(Shape((b"a",)), Shape((b"a",)), Shape((b"a",), epoch_step=1))
    partial = PartialBatch(batches[0].header)
    assert [partial.can_take(batch.header) for batch in batches] == [True, True, False]
    assert not partial.can_take(batches[1].header._replace(base_offset=batches[0].header.base_offset + 2**31))


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_what_was_compressed_is_compressed_again(codec):
    stored, batches = stored_batches(Shape((b"a",) * 50, compression=codec, value_size=500))
    partial = PartialBatch(batches[0].header)
    mask = np.arange(50) % 2 == 0
    partial.take(batches[0], mask)
    data = data_of(partial.encode(codec))
    assert read_header(data).is_compressed
    assert records_in(data) == stored.records[::2]


@pytest.mark.parametrize("codec", [None, "zstd"])
def test_what_compaction_wrote_stays_marked(codec):
    _, (batch,) = stored_batches(Shape((b"a",) * 50, compression=codec, value_size=500))
    marked = StoredBatch(batch.header._replace(attributes=batch.header.attributes | 2), batch.data)
    for header, is_compacted in ((batch.header, False), (marked.header, True)):
        partial = PartialBatch(header)
        partial.take(marked if is_compacted else batch, np.arange(50) < 20)
        found = read_header(data_of(partial.encode("zstd")))
        assert (found.is_compacted, found.is_compressed) == (is_compacted, codec is not None)
