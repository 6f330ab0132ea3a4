"""What comes out of a filter is what a naive one finds, in whole and sound batches, for whatever is in the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.batch import HEADER_SIZE
from liftpy_envelope.columns import Column
from liftpy_envelope.subject_filter import SubjectMatcher
from liftpy_log.errors import SegmentCorruptError
from liftpy_server.pull.filtering import Filtering, matcher_of
from support.examples import examples
from support.filter_kit import MemoryFile, Shape, Stored, batches_in, filter_once, naive, records_in, sent

SUBJECTS = st.sampled_from((b"a", b"a.b", b"a.c", b"a.b.c", b"b.\xff", b"c"))
PATTERNS = st.lists(st.sampled_from(("a", "a.*", "a.>", "*", "*.b", "c", "x", "*.*.*")), min_size=1, max_size=3)
SHAPES = st.builds(
    Shape,
    subjects=st.lists(SUBJECTS, max_size=60).map(tuple)
    | st.tuples(SUBJECTS, st.integers(1, 80)).map(lambda t: t[:1] * t[1]),
    holes=st.lists(st.integers(0, 3), max_size=4).map(tuple),
    hole_behind=st.integers(0, 3),
    has_times=st.booleans(),
    has_keys=st.booleans(),
    compression=st.sampled_from((None, "lz4", "zstd")),
    epoch_step=st.sampled_from((0, 0, 1)),
    value_size=st.sampled_from((0, 30, 300)),
).map(lambda shape: shape if shape.subjects else shape._replace(has_times=False, hole_behind=1))


def few_of(wanted=b"a.b", other=b"x.y", count=1_000, every=100, **fields):
    """A batch in which some records have the wanted subject."""
    return Shape(tuple(wanted if number % every == every // 2 else other for number in range(count)), **fields)


@examples(200)
@given(st.lists(SHAPES, min_size=1, max_size=12), PATTERNS, st.data())
def test_a_filter_finds_what_a_naive_one_finds(shapes, patterns, data):
    stored = Stored(shapes, file_batches=data.draw(st.sampled_from((1, 3, 1_000))))
    bytes_max = data.draw(st.sampled_from((1, 700, 5_000, 1 << 20)))
    cost_max = data.draw(st.sampled_from((1, 20_000, 1 << 30)))
    batches = data.draw(st.sampled_from((1, 2, 1_000)))
    matcher = SubjectMatcher(patterns)
    offset, found, size, rounds = stored.start, [], 0, 0
    while offset < stored.end:
        filtering = filter_once(matcher, stored.pinned(offset, batches), bytes_max, cost_max)
        answer = sent(filtering)
        ends = [header.next_offset for header, _ in batches_in(answer)]
        end = max(ends, default=offset)
        assert filtering.next_offset == -1 or filtering.next_offset > end
        end = max(end, filtering.next_offset)
        assert end == filtering.last.next_offset > offset, "every fetch gets on"
        records = records_in(answer)
        assert all(offset <= record.offset < end for record in records)
        found += records
        size += len(answer)
        offset, rounds = end, rounds + 1
        assert rounds <= len(shapes)
    assert naive(found, patterns) == naive(stored.records, patterns)
    assert size <= stored.size, "filtering never sends more"


def test_batches_without_a_match_are_not_sent():
    stored = Stored([Shape((b"x",) * 100)] * 5)
    filtering = filter_once(SubjectMatcher(["a.*"]), stored.pinned(stored.start, 5))
    assert (filtering.pieces, filtering.body_bytes, filtering.next_offset) == ([], 0, stored.end)


def test_few_matches_of_many_batches_come_in_one_small_batch():
    stored = Stored([few_of(value_size=100)] * 10)
    filtering = filter_once(SubjectMatcher(["a.*"]), stored.pinned(stored.start, 10))
    (piece,) = filtering.pieces
    ((header, _),) = batches_in(piece)
    assert header.columns & Column.OFFSET_DELTA
    assert (header.base_offset, header.next_offset, filtering.next_offset) == (stored.start, stored.end, -1)
    assert records_in(piece) == naive(stored.records, ["a.*"])
    assert len(piece) < stored.size / 50


def test_what_follows_the_last_match_is_skipped_with_a_number():
    stored = Stored([few_of(), Shape((b"x",) * 50), Shape((b"x",) * 50, epoch_step=1)])
    filtering = filter_once(SubjectMatcher(["a.*"]), stored.pinned(stored.start, 3))
    ((header, _),) = batches_in(sent(filtering))
    assert (header.next_offset, filtering.next_offset) == (stored.start + 1_000, stored.end)


def test_batches_of_which_most_matches_stay_in_their_file():
    stored = Stored([few_of(b"x", b"a.b", every=10)] * 3 + [few_of()] + [few_of(b"x", b"a.b", every=10)] * 2)
    filtering = filter_once(SubjectMatcher(["a.*"]), stored.pinned(stored.start, 6))
    first, between, last = filtering.pieces
    assert isinstance(between, bytes)
    assert first[1].length == sum(piece.length for _, piece in stored.places[:3])
    assert (last[1].position, last[1].next_offset) == (stored.places[4][1].position, stored.end)
    assert filtering.next_offset == -1


def test_small_batches_are_not_taken_apart():
    stored = Stored([Shape((b"a.b", b"x", b"x", b"x"))])
    filtering = filter_once(SubjectMatcher(["a.*"]), stored.pinned(stored.start, 1))
    assert [(file, piece) for file, piece in filtering.pieces] == stored.places


def test_epochs_are_not_mixed():
    stored = Stored([few_of(), few_of(epoch_step=2), few_of()])
    answer = sent(filter_once(SubjectMatcher(["a.*"]), stored.pinned(stored.start, 3)))
    assert [header.leader_epoch for header, _ in batches_in(answer)] == [3, 5]
    assert records_in(answer) == naive(stored.records, ["a.*"])


def test_what_was_compressed_stays_so():
    stored = Stored([few_of(compression="zstd", value_size=500, every=5)] * 2)
    answer = sent(filter_once(SubjectMatcher(["a.*"]), stored.pinned(stored.start, 2)))
    ((header, _),) = batches_in(answer)
    assert header.is_compressed
    assert records_in(answer) == naive(stored.records, ["a.*"])


def test_work_is_bounded_and_goes_on_where_it_ended():
    stored = Stored([Shape((b"x",) * 1_000, value_size=100)] * 100)
    filtering = Filtering(SubjectMatcher(["a.*"]), stored.pinned(stored.start, 100), 1 << 20, 3 << 20)
    filtering.step()
    assert not filtering.is_done
    assert filtering.cost < (2 << 20) + (1 << 20), "one step"
    while not filtering.is_done:
        filtering.step()
    assert 3 << 20 <= filtering.cost < (3 << 20) + stored.places[0][1].length + 8_192
    assert filtering.next_offset == filtering.last.next_offset < stored.end
    assert all(file.largest_read <= 512 * 1024 for file, _ in stored.places), "memory"


def test_many_tiny_batches_count_for_more_than_their_bytes():
    stored = Stored([Shape((b"x",))] * 300)
    filtering = filter_once(SubjectMatcher(["a.*"]), stored.pinned(stored.start, 300), cost_max=1 << 20)
    assert filtering.last.next_offset - stored.start < 256


def test_what_was_compressed_counts_as_what_it_becomes():
    stored = Stored([Shape((b"x",) * 1_000, compression="zstd", value_size=1_000)] * 5)
    assert stored.size < 100_000
    filtering = filter_once(SubjectMatcher(["a.*"]), stored.pinned(stored.start, 5), cost_max=2_000_000)
    assert filtering.next_offset == stored.start + 2_000


def test_an_answer_holds_about_as_much_as_was_asked_for_and_one_batch_at_least():
    stored = Stored([few_of(b"x", b"a.b", value_size=100)] * 10)
    matcher, ends = SubjectMatcher(["a.*"]), [piece.position + piece.length for _, piece in stored.places]
    for bytes_max, batches in ((1, 1), (ends[0], 1), (ends[2] - 1, 2), (ends[2], 3)):
        filtering = filter_once(matcher, stored.pinned(stored.start, 10), bytes_max)
        assert (filtering.body_bytes, filtering.next_offset) == (ends[batches - 1], -1)


def test_a_batch_larger_than_what_is_read_at_once_is_filtered_too():
    stored = Stored([Shape((b"x",) * 3), few_of(count=300, value_size=10_000), Shape((b"a.b",))])
    answer = sent(filter_once(SubjectMatcher(["a.*"]), stored.pinned(stored.start, 3)))
    assert records_in(answer) == naive(stored.records, ["a.*"])


@pytest.mark.parametrize("at", [9, 30, HEADER_SIZE + 20, -20])
def test_damage_is_found_even_where_nothing_would_be_sent(at):
    stored = Stored([Shape((b"x",) * 50)] * 3)
    (file, piece) = stored.places[1]
    position = piece.position + (at if at >= 0 else piece.length + at)
    file.data = file.data[:position] + bytes((file.data[position] ^ 1,)) + file.data[position + 1 :]
    with pytest.raises(SegmentCorruptError) as caught:
        filter_once(SubjectMatcher(["a.*"]), stored.pinned(stored.start, 3))
    assert str(piece.position) in str(caught.value)


@pytest.mark.parametrize("missing", [1, 40, 400, 5_000])
def test_a_file_that_ends_early_is_damaged(missing):
    stored = Stored([Shape((b"x",) * 50)] * 3)
    pinned = stored.pinned(stored.start, 3)
    cut = MemoryFile(pinned[0][0].data[:-missing])
    with pytest.raises(SegmentCorruptError, match="early"):
        filter_once(SubjectMatcher(["a.*"]), [(cut, pinned[0][1])])


def test_patterns_that_take_everything_need_no_filter():
    assert matcher_of(()) is None
    assert matcher_of(("a", ">")) is None
    assert matcher_of(("a.*",)) is matcher_of(("a.*",))
