"""Walks over batches: the same ones whatever the windows of reading, and a search that misses no batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.batch import HEADER_SIZE, MAGIC, read_header
from liftpy_envelope.errors import BatchCorruptError, BatchTruncatedError, BatchVersionError
from liftpy_log.segments import scan
from liftpy_log.segments.scan import find_valid_batch, read_batch, walk_headers
from support.examples import examples
from support.log_batches import as_newer_version
from support.log_model import T0, encode_batch, numbered_body
from support.simdisk import ROOT, SimDisk

PATH = ROOT / "segment"


def file_of(content):
    disk = SimDisk()
    disk.overwrite(PATH, content)
    return disk.open(PATH)


def batches(sizes):
    """Batches one after the other, with a value of each size."""
    return [encode_batch(numbered_body(number, size=size), number, T0) for number, size in enumerate(sizes)]


@pytest.mark.parametrize("window", [HEADER_SIZE, HEADER_SIZE + 1, 200, 300, 16 * 1024])
def test_a_walk_finds_every_batch(monkeypatch, window):
    monkeypatch.setattr(scan, "SCAN_WINDOW_BYTES", window)
    written = batches([1, 90, 2_000, 0, 31, 16_384, 5])
    content = b"".join(written)
    found = list(walk_headers(file_of(content), 0, len(content)))
    assert [position for position, _ in found] == [len(b"".join(written[:number])) for number in range(len(written))]
    assert [header for _, header in found] == [read_header(batch) for batch in written]


def test_a_walk_begins_and_ends_where_it_is_told_to():
    written = batches([10, 20, 30, 40])
    start, end = len(written[0]), len(b"".join(written[:3]))
    found = list(walk_headers(file_of(b"".join(written)), start, end))
    assert [header.base_offset for _, header in found] == [1, 2]
    assert list(walk_headers(file_of(b"".join(written)), end, end)) == []


@pytest.mark.parametrize(
    ("stop", "error"), [(-1, BatchTruncatedError), (-150, BatchTruncatedError), (1, BatchTruncatedError)]
)
def test_a_walk_ends_with_an_error_where_no_header_or_batch_fits(stop, error):
    written = batches([10, 20])
    content = b"".join(written) + b"\0"
    end = len(content) - 1 + stop
    with pytest.raises(error):
        list(walk_headers(file_of(content), 0, end))


def test_a_walk_does_not_pass_a_damaged_header():
    written = batches([10, 20, 30])
    for at in range(HEADER_SIZE):
        damaged = bytearray(written[1])
        damaged[at] ^= 0x10
        content = written[0] + damaged + written[2]
        walk = walk_headers(file_of(content), 0, len(content))
        assert next(walk)[0] == 0
        with pytest.raises((BatchCorruptError, BatchVersionError, BatchTruncatedError)):
            next(walk)


def test_a_batch_is_read_with_its_body():
    written = batches([10, 20_000, 30])
    file = file_of(b"".join(written))
    header, body = read_batch(file, len(written[0]), len(b"".join(written)))
    assert (header, body) == (read_header(written[1]), written[1][HEADER_SIZE:])


def test_every_flipped_bit_of_a_batch_is_noticed():
    (batch,) = batches([10])
    for bit in range(8 * len(batch)):
        damaged = bytearray(batch)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((BatchCorruptError, BatchTruncatedError, BatchVersionError)):
            read_batch(file_of(damaged), 0, len(damaged))


def test_every_cut_of_a_batch_is_noticed():
    (batch,) = batches([10])
    for length in range(len(batch)):
        with pytest.raises(BatchTruncatedError):
            read_batch(file_of(batch[:length]), 0, length)
        with pytest.raises(BatchTruncatedError):
            read_batch(file_of(batch), 0, length)


@pytest.mark.parametrize("search", [5, 7, 64, 1000, 1024 * 1024])
@pytest.mark.parametrize("garbage", [0, 1, 3, 4, 60, 61, 62, 63, 64, 1001])
def test_a_batch_is_found_behind_any_amount_of_garbage(monkeypatch, search, garbage):
    monkeypatch.setattr(scan, "_SEARCH_BYTES", search)
    (batch,) = batches([10])
    content = b"\x4c" * garbage + batch
    assert find_valid_batch(file_of(content), 0, len(content)) == garbage
    assert find_valid_batch(file_of(content), garbage, len(content)) == garbage
    assert find_valid_batch(file_of(content), garbage + 1, len(content)) is None
    assert find_valid_batch(file_of(content), 0, len(content) - 1) is None


def test_a_magic_number_is_not_a_batch():
    (batch,) = batches([10])
    content = MAGIC.to_bytes(4, "little") * 50 + batch[:-1] + b"!" + batch
    assert find_valid_batch(file_of(content), 0, len(content)) == 200 + len(batch)


def test_a_batch_of_a_newer_version_counts():
    (batch,) = batches([10])
    newer = as_newer_version(batch)
    content = b"garbage!" + newer
    with pytest.raises(BatchVersionError):
        read_batch(file_of(newer), 0, len(newer))
    assert find_valid_batch(file_of(content), 0, len(content)) == 8


PIECES = st.lists(
    st.one_of(
        st.binary(max_size=30),
        st.sampled_from((b"LFTB", b"LFT", b"L", bytes(50))),
        st.sampled_from(batches([0, 40])),
        st.sampled_from([batch[:-8] for batch in batches([0, 40])]),
    ),
    max_size=8,
)


@given(PIECES, st.integers(4, 100))
@examples(100)
def test_it_equals_a_search_of_every_position(pieces, search):
    content = b"".join(pieces)
    file, end = file_of(content), len(content)

    def is_batch(position):
        try:
            read_batch(file, position, end)
        except BatchTruncatedError:
            return False
        except BatchCorruptError:
            return False
        return True

    expected = next((position for position in range(end) if is_batch(position)), None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "_SEARCH_BYTES", search)
        assert find_valid_batch(file, 0, end) == expected
