"""Any offset and any time of a history in the bucket is found, with few requests, and rows come once and in order."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_bucket.errors import ObjectCorruptError, ObjectMissingError, OvertakenError
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.root import changes as root_changes
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.objects.setsum import NO_RECORDS
from liftpy_bucket.reading.cache import ReadingCache
from liftpy_bucket.reading.version import TierVersion, open_version
from liftpy_bucket.store.counting import CountingStore
from liftpy_bucket.store.memory import MemoryStore
from support.examples import examples
from support.tier_history import PATH, TierHistory, new_id
from support.tier_rows import plain_records, records_of

SMALL = {"row_group_bytes": 2_000}


def rows(version, *bounds):
    return [record for piece in version.read(*bounds) for record in records_of(piece)]


def offsets(version, *bounds):
    return [record.offset for record in rows(version, *bounds)]


@pytest.fixture
def history():
    """Offsets 0 to 299 in three fragments of several row groups each."""
    made = TierHistory()
    for base in (0, 100, 200):
        made.append(plain_records(100, base=base, seed=base), **SMALL)
    return made


def test_a_partition_of_which_nothing_is_there():
    assert open_version(MemoryStore(), PATH) is None
    version = open_version(TierHistory(start=7).store, PATH)
    assert (version.start, version.end, list(version.pieces()), list(version.read())) == (7, 7, [], [])
    assert version.offset_at_time(0) is None


def test_everything_is_read_in_order(history):
    version = open_version(history.store, PATH)
    assert (version.start, version.end, version.epochs) == (0, 300, ((0, 0),))
    expected = [record for base in (0, 100, 200) for record in plain_records(100, base=base, seed=base)]
    assert rows(version) == expected
    assert [(piece.start, piece.end) for piece in version.pieces()] == [(0, 100), (100, 200), (200, 300)]


@pytest.mark.parametrize("bounds", [(0, 1), (50, 250), (99, 101), (299, None), (300, 400), (120, 120), (0, 1_000)])
def test_a_range_is_read(history, bounds):
    version = open_version(history.store, PATH)
    assert offsets(version, *bounds) == list(range(300))[slice(*bounds)]


def test_nothing_below_the_start_is_read(history):
    history.loaded = history.loaded._replace(root=dataclasses.replace(history.root, start=150))
    version = TierVersion(history.store, PATH, history.root, None)
    assert offsets(version) == list(range(150, 300))
    assert [(piece.start, piece.end) for piece in version.pieces()] == [(150, 200), (200, 300)]
    assert version.offset_at_time(0) == 150


def test_a_version_stays_as_it_is(history):
    version = open_version(history.store, PATH)
    history.append(plain_records(10, base=300))
    assert offsets(version) == list(range(300))
    assert offsets(open_version(history.store, PATH)) == list(range(310))


def test_times_are_found(history):
    version = open_version(history.store, PATH)
    for base in (0, 200):
        records = plain_records(100, base=base, seed=base)
        assert version.offset_at_time(records[37].timestamp) <= records[37].offset
        found = version.offset_at_time(records[37].timestamp + 1)
        expected = [each.offset for each in rows(version) if each.timestamp > records[37].timestamp]
        assert found == expected[0]
    assert version.offset_at_time(0) == 0
    assert version.offset_at_time(2**63 - 1) is None


def test_fragments_that_have_lost_all_records_are_passed_over():
    history = TierHistory()
    history.append(plain_records(10), **SMALL)
    empty = dataclasses.replace(history.fragment([], 10, 500), last_timestamp=2**62)
    history.commit(root_changes.append(history.root, empty, epoch=0, epochs=((0, 0),)))
    later = [record._replace(timestamp=record.timestamp + 10**9) for record in plain_records(10, base=700)]
    history.append(later, end=900)
    version = open_version(history.store, PATH)
    assert offsets(version) == [*range(10), *range(700, 710)]
    assert version.offset_at_time(plain_records(10)[9].timestamp + 1) == 700


@pytest.mark.parametrize("fragments", [1_500, pytest.param(16_384, marks=pytest.mark.slow)])
def test_a_seek_into_a_long_history_takes_four_requests(fragments):
    """With fragments of 64 MiB, as many as make 1 TiB; the ones that are looked for are real."""
    history = TierHistory()
    found = []
    for place in range(10):
        history.append_blank(fragments // 10, 1_000)
        base = history.root.end
        records = [
            record._replace(timestamp=base + number)
            for number, record in enumerate(plain_records(1_000, base=base, seed=place))
        ]
        history.append(records, row_group_bytes=20_000)
        found.append(base + 500)
    for offset in found:
        counting = CountingStore(history.store)
        version = open_version(counting, PATH, offset=offset)
        assert offsets(version, offset, offset + 1) == [offset]
        assert sum(counting.counts.values()) <= 4, counting.counts
        counting = CountingStore(history.store)
        version = open_version(counting, PATH, offset=offset)
        assert version.offset_at_time(offset) == offset
        assert sum(counting.counts.values()) <= 4, counting.counts


def test_what_was_read_before_is_not_read_again(history):
    counting = CountingStore(history.store)
    cache = ReadingCache(counting)
    for _ in range(3):
        offsets(open_version(counting, PATH, offset=0, cache=cache), 0, 100)
    groups = len(cache.reader(*next(open_version(history.store, PATH).pieces())[:2]).row_groups)
    assert groups > 3
    assert counting.counts["get"] == 3
    assert counting.counts["get_range"] == 1 + 3 * groups


def test_footers_are_kept_in_bounds(history):
    pieces = list(open_version(history.store, PATH).pieces())
    bytes_max = 30 * max(piece.extent.size - piece.extent.footer for piece in pieces)
    cache = ReadingCache(history.store, footers_bytes=bytes_max)
    version = open_version(history.store, PATH, cache=cache)
    assert len(offsets(version)) == 300
    assert 0 < len(cache._readers) < len(pieces)
    assert cache._readers.weight <= bytes_max


def test_an_object_that_is_not_what_the_root_means_is_named(history):
    other = TierHistory()
    pointer = other.append(plain_records(100, seed=99))
    body = other.store.get(PATH.fragment(pointer.name)).body
    key = PATH.fragment(history.root.fragments[1].name)
    history.store.delete([key])
    version = open_version(history.store, PATH)
    assert offsets(version, 0, 100) == list(range(100))
    with pytest.raises(ObjectMissingError, match=key):
        offsets(version, 0, 200)
    padded = body.ljust(history.root.fragments[1].size, b"\0")
    history.store.create(key, padded, "n")
    with pytest.raises(ObjectCorruptError, match=key):
        offsets(open_version(history.store, PATH), 100, 200)


def test_a_root_that_never_stands_still_is_given_up(history, monkeypatch):
    def load_newer(self, loaded):
        return loaded._replace(etag=new_id())

    monkeypatch.setattr(RootFile, "load_newer", load_newer)
    with pytest.raises(OvertakenError, match="ROOT"):
        open_version(history.store, PATH)
    assert open_version(history.store, PATH, offset=5).end == 300


def test_readers_commit_nothing(history):
    file = ReadingCache(history.store).root_file(PATH)
    with pytest.raises(AssertionError, match="do not commit"):
        file.commit(history.loaded, root_changes.seal(history.root))


def test_other_partitions_are_other_histories(history):
    assert open_version(history.store, PartitionPath(PATH.uuid, 1)) is None
    assert history.root.setsum != NO_RECORDS


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(0, 500), st.integers(0, 500))
@examples(25)
def test_any_range_of_any_history(sizes, start, end):
    history = TierHistory()
    everything = []
    for seed, size in enumerate(sizes):
        records = plain_records(size, base=history.root.end, seed=seed)
        everything += records
        history.append(records, row_group_bytes=1_000)
    version = open_version(history.store, PATH)
    assert rows(version, start, end) == [each for each in everything if start <= each.offset < end]
