"""One segment: look-ups equal those in a list of batches, and its index files are a cache that can do no harm."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.batch import read_header
from liftpy_log.errors import SegmentCorruptError
from liftpy_log.segments import segment as segment_module
from liftpy_log.segments.index import OFFSET_SUFFIX, TIME_SUFFIX, SegmentIndex
from liftpy_log.segments.segment import Segment, base_offset_of, segment_path
from support.examples import examples
from support.log_model import DIRECTORY, T0, encode_batch, numbered_body
from support.simdisk import Order, SimDisk

BASE = 70


@pytest.fixture
def every_batch_indexed(monkeypatch):
    monkeypatch.setattr(segment_module, "INDEX_INTERVAL_BYTES", 1)


def batches_of(shapes, base=BASE, first=T0):
    """Batches by (records, value size, ns since the batch before)."""
    offset, time, batches = base, first, []
    for number, (records, size, later) in enumerate(shapes):
        time += later
        batches.append(encode_batch(numbered_body(number, records, size), offset, time))
        offset += records
    return batches


def build(batches, disk=None):
    """A segment with these batches, as the log writes one."""
    disk = disk or SimDisk()
    disk.make_directory(DIRECTORY)
    segment, file = Segment.create(disk, DIRECTORY, BASE)
    for batch in batches:
        header = read_header(batch)
        file.write(segment.size, [batch])
        segment.append(header)
    return disk, segment, file


def places(batches):
    position, found = 0, []
    for batch in batches:
        found.append((position, read_header(batch)))
        position += len(batch)
    return found


def check_look_ups(segment, file, batches):
    for position, header in places(batches):
        for offset in range(header.base_offset, header.next_offset):
            assert segment.locate(file, offset) == (position, header)
    times = {header.max_timestamp for _, header in places(batches)}
    for asked in {time + step for time in times for step in (-1, 0, 1)}:
        expected = next((place for place in places(batches) if place[1].max_timestamp >= asked), None)
        assert segment.locate_time(file, asked) == expected


SHAPES = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 300), st.integers(0, 2)), min_size=1, max_size=20)
TEN = [(1 + number % 3, 20 * number, number % 2) for number in range(10)]


def test_names():
    assert segment_path(DIRECTORY, 42).name == "00000000000000000042.log"
    for base in (0, 42, 2**63 - 1):
        assert base_offset_of(segment_path(DIRECTORY, base).name) == base


@pytest.mark.parametrize(
    "name",
    [
        *("", ".log", "42.log", "00000000000000000042", "00000000000000000042.index", "0000000000000000004x.log"),
        *("00000000000000000042.log.tmp", "000000000000000000042.log", "-0000000000000000042.log", "²" * 20 + ".log"),
    ],
)
def test_names_that_are_none_of_ours(name):
    assert base_offset_of(name) is None


@pytest.mark.parametrize("order", Order)
def test_the_name_of_a_new_segment_is_durable(order):
    disk, segment, _ = build([])
    assert all(disk.crash(random.Random(seed), order).exists(segment.path) for seed in range(20))
    assert (segment.size, segment.next_offset, segment.first_timestamp, segment.max_timestamp) == (0, BASE, None, 0)


def test_it_knows_what_was_appended():
    batches = batches_of([(2, 10, 5), (3, 10, 7)])
    _, segment, _ = build(batches)
    assert (segment.base_offset, segment.next_offset, segment.size) == (BASE, BASE + 5, len(b"".join(batches)))
    assert (segment.first_timestamp, segment.max_timestamp) == (T0 + 5, T0 + 12)


@given(SHAPES, st.sampled_from((1, 200, 500, 2_000, 10**9)))
@examples(40)
def test_look_ups_equal_those_in_a_list(shapes, interval):
    batches = batches_of(shapes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_module, "INDEX_INTERVAL_BYTES", interval)
        _, segment, file = build(batches)
        check_look_ups(segment, file, batches)
        segment.drop_index()
        check_look_ups(segment, file, batches)
        segment.rebuild(file, segment.size)
        check_look_ups(segment, file, batches)
        assert (segment.next_offset, segment.size) == (BASE + sum(shape[0] for shape in shapes), len(b"".join(batches)))


@pytest.mark.parametrize("interval", [1, 400, 1_000])
def test_an_entry_for_the_first_batch_that_begins_in_every_interval(monkeypatch, interval):
    monkeypatch.setattr(segment_module, "INDEX_INTERVAL_BYTES", interval)
    batches = batches_of(TEN)
    _, segment, file = build(batches)
    index, due, expected = segment.index(file), 0, []
    for position, header in places(batches):
        if position >= due:
            expected.append((header.base_offset, position))
            due = position + interval
    assert [index.floor_position(position) for _, position in expected] == expected
    assert len(index) == len(expected)


@pytest.mark.parametrize("suffix", [OFFSET_SUFFIX, TIME_SUFFIX])
def test_without_an_index_file_it_is_built_anew(every_batch_indexed, suffix):
    batches = batches_of(TEN)
    disk, segment, file = build(batches)
    segment.drop_index()
    disk.delete(segment.path.with_suffix(suffix))
    check_look_ups(segment, file, batches)


@pytest.mark.parametrize("suffix", [OFFSET_SUFFIX, TIME_SUFFIX])
@pytest.mark.parametrize("seed", range(20))
def test_damaged_index_files_do_no_harm(every_batch_indexed, suffix, seed):
    batches, rng = batches_of(TEN), random.Random(seed)
    disk, segment, file = build(batches)
    segment.drop_index()
    path = segment.path.with_suffix(suffix)
    content = bytearray(disk.content(path))
    for _ in range(rng.randint(1, 3)):
        content[rng.randrange(len(content))] = rng.randrange(256)
    disk.overwrite(path, rng.choice((content, content[: rng.randrange(len(content))], rng.randbytes(200), b"")))
    check_look_ups(segment, file, batches)


@pytest.mark.parametrize("seed", range(20))
def test_an_index_of_other_batches_does_not_mislead_a_look_up_of_offsets(every_batch_indexed, seed):
    rng = random.Random(seed)
    batches = batches_of(TEN)
    _, segment, file = build(batches)
    lie = SegmentIndex(BASE)
    position = rng.choice((0, 8))
    offset = BASE + rng.randint(0, 2)
    for _ in range(8):
        lie.add(offset, position, T0)
        offset, position = offset + rng.randint(1, 3), position + rng.randint(1, 60) * 8
    segment.adopt_index(lie)
    for place in places(batches):
        assert segment.locate(file, place[1].base_offset) == place
        assert segment.locate(file, place[1].next_offset - 1) == place


def test_a_damaged_header_on_the_way_is_named(every_batch_indexed):
    batches = batches_of(TEN)
    disk, segment, file = build(batches)
    position, header = places(batches)[4]
    content = bytearray(disk.content(segment.path))
    content[position + 50] ^= 1
    disk.overwrite(segment.path, content)
    with pytest.raises(SegmentCorruptError, match=f"{segment.path} is damaged at byte {position}: ") as caught:
        segment.locate(file, header.base_offset)
    assert (caught.value.path, caught.value.position) == (segment.path, position)


def test_a_look_up_beyond_the_end_is_an_error():
    _, segment, file = build(batches_of(TEN))
    with pytest.raises(SegmentCorruptError, match="is not where it must be"):
        segment.locate(file, segment.next_offset)


def test_a_batch_out_of_order_is_noticed():
    batches = batches_of(TEN)
    disk, segment, _ = build([])
    disk.overwrite(segment.path, batches[0] + batches[2])
    with pytest.raises(SegmentCorruptError) as caught:
        segment.rebuild(disk.open(segment.path), len(batches[0] + batches[2]))
    assert caught.value.position == len(batches[0])


def test_index_files_are_written_when_enough_entries_are_missing(every_batch_indexed, monkeypatch):
    monkeypatch.setattr(segment_module, "INDEX_FLUSH_ENTRIES", 3)
    batches = batches_of([(1, 10, 0)] * 7)
    disk, segment, file = build([])
    written = []
    for batch in batches:
        file.write(segment.size, [batch])
        segment.append(read_header(batch))
        segment.flush_long_index()
        written.append(len(segment.load_index() or ()))
    assert written == [0, 0, 3, 3, 3, 6, 6]
    segment.flush_index()
    assert len(segment.load_index()) == 7
    counts = disk.counts.copy()
    segment.flush_index()
    assert disk.counts == counts, "nothing is missing, nothing is written"
    assert disk.counts["sync"] == 0, "a cache needs no sync"


def test_an_index_that_is_in_its_files_is_freed_and_read_again(every_batch_indexed):
    batches = batches_of(TEN)
    disk, segment, file = build(batches)
    segment.drop_index()
    assert segment._index is None
    entries = segment.index(file)
    assert len(entries) == len(batches)
    assert not [path for path in disk.files() if path.name.endswith(".tmp")]


def test_it_is_removed_with_its_indexes_which_go_first():
    disk, segment, _ = build(batches_of(TEN))
    segment.drop_index()
    removed = []
    disk.before = lambda operation: removed.append((operation.kind, operation.path.suffix))
    segment.remove()
    assert removed == [("remove", OFFSET_SUFFIX), ("remove", TIME_SUFFIX), ("remove", ".log")]
    assert disk.files() == {}
