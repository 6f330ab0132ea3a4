"""What compaction knows of a log: kept, and when it is lost nothing comes of it but work."""

from hypothesis import given
from hypothesis import strategies as st

from liftpy_log.compaction.state import Cleaned, load_cleaned, save_cleaned
from support.examples import examples
from support.simdisk import ROOT, SimDisk

numbers = st.integers(0, 2**62)
states = st.builds(Cleaned, numbers, numbers, numbers, st.lists(st.tuples(numbers, numbers), max_size=5).map(tuple))


@given(states)
@examples(50)
def test_it_is_read_as_it_was_written(cleaned):
    assert Cleaned.decode(cleaned.encode()) == cleaned


@given(st.one_of(st.binary(max_size=80), states.map(lambda cleaned: cleaned.encode()[:-1])))
@examples(100)
def test_garbage_is_nothing(content):
    assert Cleaned.decode(content) is None


def test_a_damaged_file_means_all_is_dirty_and_any_tombstone_may_be_gone():
    disk = SimDisk()
    assert load_cleaned(disk, ROOT, 100) == Cleaned()
    cleaned = Cleaned(50, 20, 3, ((50, 1),))
    save_cleaned(disk, ROOT, cleaned)
    assert load_cleaned(disk, ROOT, 100) == cleaned
    disk.overwrite(ROOT / "cleaned", b"?" + disk.content(ROOT / "cleaned")[1:])
    assert load_cleaned(disk, ROOT, 100) == Cleaned(delete_horizon=100)


def test_passes_are_remembered_as_long_as_they_matter():
    cleaned = Cleaned()
    for number in range(1, 11):
        cleaned = cleaned.after_pass(number, 10 * number, 0, 30)
    assert cleaned.passes == ((7, 70), (8, 80), (9, 90), (10, 100))
    assert [cleaned.expired_end(now, 30) for now in (99, 100, 109, 110, 130)] == [0, 7, 7, 8, 10]
    assert cleaned.after_pass(10, 1_000, 0, 30).passes == ((10, 100),), "a pass over nothing new finds nothing"


def test_a_clock_that_goes_back_keeps_tombstones_longer():
    cleaned = Cleaned().after_pass(1, 100, 0, 30).after_pass(2, 50, 0, 30)
    assert cleaned.passes == ((1, 100), (2, 100))


def test_many_passes_are_put_together():
    cleaned = Cleaned()
    for number in range(1, 1_000):
        cleaned = cleaned.after_pass(number, number, 0, 10**6)
    assert len(cleaned.passes) == 128
    assert cleaned.passes[-1] == (999, 999)


@given(st.integers(0, 60))
@examples(61)
def test_a_cut(end):
    cleaned = Cleaned(50, 20, 3, ((10, 1), (30, 2), (50, 3))).cut(end)
    assert cleaned.clean_end == min(50, end)
    assert cleaned.delete_horizon == 20
    assert max(each for each, _ in cleaned.passes) == min(50, end)
    assert [time for each, time in cleaned.passes] == [1, 2, 3][: len(cleaned.passes)]
