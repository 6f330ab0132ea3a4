"""Opening a partition's directory: which segments must be there, what is tidied up, and which epochs there were."""

import errno
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_log.errors import SegmentCorruptError, StorageFullError
from liftpy_log.partition_log import LogConfig
from liftpy_log.segments import segment as segment_module
from liftpy_log.segments.segment import segment_path
from support.examples import examples
from support.log_model import DIRECTORY, T0, OpenLog
from support.simdisk import Order, SimDisk

SMALL = LogConfig(segment_bytes=1_500)  # four batches of one record


def segmented(batches=14, config=SMALL):
    """A log of several segments that was closed."""
    log = OpenLog(SimDisk(), config).fill(batches)
    log.log.close()
    return log


def closed_paths(log):
    return [segment.path for segment in log.log.segments]


def test_a_new_log_begins_where_it_is_told_to():
    for first in (0, 7):
        log = OpenLog(SimDisk(), log_start=first)
        assert (log.log.log_start, log.log.log_end, log.path) == (first, first, segment_path(DIRECTORY, first))
        log.reopen()
        assert (log.log.log_start, log.log.log_end) == (first, first)


@pytest.mark.parametrize("order", Order)
def test_a_new_log_is_durable(order):
    log = OpenLog(SimDisk(), log_start=5)
    for seed in range(20):
        assert log.disk.crash(random.Random(seed), order).exists(log.path)


def test_what_was_there_is_there_again():
    log = segmented()
    assert len(closed_paths(log)) >= 3
    log.reopen(durable_end=log.model.end)
    log.check()
    assert log.log.synced_end == log.model.end
    assert closed_paths(log) == sorted(log.disk.files(".log"))


def test_opening_twice_gives_the_same():
    log = segmented()
    states = []
    for _ in range(3):
        opened = log.reopen()
        states.append(
            (log.disk.files(".log"), opened.log_start, opened.log_end, opened.epochs.entries, opened.last_timestamp)
        )
    assert states[0] == states[1] == states[2]


@pytest.mark.parametrize("durable_end", [1, 5])
def test_no_segment_where_there_were_durable_records_is_an_error(durable_end):
    with pytest.raises(SegmentCorruptError, match=f"no segment, but records up to {durable_end} were durable"):
        OpenLog(SimDisk(), durable_end=durable_end)
    log = OpenLog(SimDisk(), durable_end=durable_end, log_start=durable_end)
    assert log.log.log_end == durable_end, "they were purged"


def test_all_segments_gone_is_an_error():
    log = segmented()
    for path in closed_paths(log):
        log.disk.delete(path)
    with pytest.raises(SegmentCorruptError) as caught:
        log.reopen(durable_end=log.model.end)
    assert (caught.value.path, caught.value.position) == (segment_path(DIRECTORY, 0), 0)
    assert log.disk.files(".log") == {}, "nothing was put in their place"


def test_a_missing_segment_in_the_middle_is_an_error():
    log = segmented(24)
    paths = closed_paths(log)
    for missing in range(1, len(paths) - 1):
        disk = log.disk.kill()
        disk.delete(paths[missing])
        before = disk.files(".log")
        other = OpenLog.__new__(OpenLog)
        other.disk, other.config = disk, SMALL
        with pytest.raises(SegmentCorruptError, match="the next segment begins at") as caught:
            other.reopen()
        assert caught.value.path == paths[missing - 1]
        assert disk.files(".log") == before


def test_a_missing_oldest_segment_is_retention():
    log = segmented()
    first, second = log.log.segments[:2]
    log.disk.delete(first.path)
    log.reopen()
    log.model.log_start = second.base_offset
    log.check()


def test_a_missing_newest_segment_is_noticed_when_its_records_were_durable():
    log = segmented()
    log.disk.delete(log.path)
    end = log.log.active.base_offset
    with pytest.raises(SegmentCorruptError, match=f"ends at offset {end}, but records up to {end + 1} were durable"):
        log.reopen(durable_end=end + 1)


def test_an_empty_newest_segment_shows_how_far_its_elder_was_durable():
    log = segmented(8)
    log.reopen().roll()
    elder, newest = closed_paths(log)[-2:]
    log.disk.overwrite(elder, log.disk.content(elder)[:-1])
    before = log.disk.files(".log")
    assert before[newest] == b""
    for _ in range(2):
        with pytest.raises(SegmentCorruptError, match=f"{elder} is damaged at byte .* up to 8 were durable"):
            log.reopen()
        assert log.disk.files(".log") == before


def change(content, kind, rng):
    """Damage that changes the length of a segment, or what it holds."""
    if kind == "shorter":
        return content[: -rng.randint(1, 900)]
    if kind == "longer":
        return content + rng.randbytes(rng.randint(1, 900))
    if kind == "a batch more":
        return content + content[:360]
    turned = bytearray(content)
    turned[rng.randrange(len(turned))] ^= 1 << rng.randrange(8)
    return bytes(turned)


@pytest.mark.parametrize("kind", ["shorter", "longer", "a batch more", "damaged"])
@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_a_closed_segment_that_changed_is_an_error(kind, indexed, seed):
    log, rng = segmented(), random.Random(seed)
    path = rng.choice(closed_paths(log)[:-1])
    log.disk.overwrite(path, change(log.disk.content(path), kind, rng))
    if not indexed or kind == "damaged":  # with an index a damaged body is left to its reader, who checks it
        for index in (*log.disk.files(".index"), *log.disk.files(".timeindex")):
            log.disk.delete(index)
    before = log.disk.files(".log")
    with pytest.raises(SegmentCorruptError) as caught:
        log.reopen()
    assert caught.value.path == path
    assert re.search(rf"{path} is damaged at byte \d+", str(caught.value))
    assert log.disk.files(".log") == before


def test_a_damaged_header_in_a_closed_segment_is_found_by_those_who_come_by(monkeypatch):
    monkeypatch.setattr(segment_module, "INDEX_INTERVAL_BYTES", 1)
    log = segmented()
    path, batch = closed_paths(log)[0], log.model.batches[1]
    content = bytearray(log.disk.content(path))
    content[len(log.model.batches[0].data) + 60] ^= 1
    log.disk.overwrite(path, content)
    log.reopen()
    with pytest.raises(SegmentCorruptError) as caught:
        log.log.read(batch.base_offset, log.log.log_end, 1)
    assert (caught.value.path, caught.value.position) == (path, len(log.model.batches[0].data))


def test_without_any_index_file_nothing_is_missing():
    log = segmented()
    for path in (*log.disk.files(".index"), *log.disk.files(".timeindex")):
        log.disk.delete(path)
    log.reopen(durable_end=log.model.end)
    log.check()
    for batch in log.model.batches:
        assert log.log.offset_at_time(batch.timestamp) == batch.base_offset


def test_half_written_indexes_and_indexes_without_a_segment_are_removed():
    log = segmented()
    kept = set(log.disk.files())
    base = log.log.segments[0].path
    for name in (f"{base.stem}.index.tmp", f"{base.stem}.timeindex.tmp", f"{5:020d}.index", f"{5:020d}.timeindex"):
        log.disk.overwrite(DIRECTORY / name, b"stray")
    log.reopen()
    assert set(log.disk.files()) == kept


@pytest.mark.parametrize("name", [f"{0:020d}.log.bak", f"{5:020d}.log.bak", "README", "2024.notes", "7.log"])
def test_what_is_no_index_is_left_alone(name):
    log = segmented()
    log.disk.overwrite(DIRECTORY / name, b"an operator's")
    log.reopen()
    log.check()
    assert log.disk.content(DIRECTORY / name) == b"an operator's"


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("batches", [0, 14])
def test_names_that_a_killed_process_left_are_durable_before_records_are(order, batches):
    """It was killed between creating the newest segment and making its name durable."""
    log = OpenLog(SimDisk(), SMALL).fill(batches)
    if batches:
        log.log.roll()
    left = log.disk.crash(random.Random(0), Order.IN_ORDER)
    left.delete(log.path)
    left.open(log.path, create=True)
    log.disk = left
    log.reopen()
    appended = log.append()
    log.commit()
    for seed in range(20):
        log.disk = left.crash(random.Random(seed), order)
        assert log.reopen().log_end == appended.next_offset, f"seed {seed}"
        log.check()


@pytest.mark.parametrize("order", Order)
def test_the_name_of_a_segment_for_which_there_was_no_room_may_come_back(order):
    log = OpenLog(SimDisk()).fill(3)
    log.disk.fail("sync_directory", code=errno.ENOSPC)
    with pytest.raises(StorageFullError):
        log.log.roll()
    log.fill(2)
    log.commit()
    disk, came_back = log.disk, 0
    for seed in range(60):
        log.disk = disk.crash(random.Random(seed), order)
        came_back += len(log.disk.files(".log")) > 1
        log.reopen(durable_end=5)
        log.check()
    assert came_back


@pytest.mark.parametrize("order", Order)
def test_retention_leaves_no_hole_whatever_a_power_loss_undoes(order):
    log, crashed = segmented(24), []
    assert log.reopen().drop_before(4) == 1
    log.disk = log.disk.kill()
    log.reopen()
    log.disk.before = lambda _: crashed.extend(log.disk.crash(random.Random(seed), order) for seed in range(10))
    assert log.log.drop_before(20) >= 3
    for disk in crashed:
        log.disk = disk
        opened = log.reopen(durable_end=24)
        log.model.log_start = opened.log_start
        log.check()


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), min_size=1, max_size=40),
    st.integers(0, 30),
    st.sampled_from((500, 1_500, 10**6)),
    st.sampled_from((1, 600, 10**6)),
)
@examples(80)
def test_epochs_are_what_the_batches_say(steps, log_start, segment_bytes, interval):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_module, "INDEX_INTERVAL_BYTES", interval)
        log, epoch = OpenLog(SimDisk(), LogConfig(segment_bytes=segment_bytes)), 0
        for newer, records in steps:
            epoch += newer
            log.append(records, epoch=epoch)
        assert log.log.epochs.entries == log.model.epochs()
        log.log.close()
        log.model.log_start = min(log_start, log.model.batches[-1].base_offset)
        log.reopen(log_start=log.model.log_start)
        assert log.log.epochs.entries == log.model.epochs()
        ends = [start for _, start in log.model.epochs()[1:]] + [log.model.end]
        for (known, _), end in zip(log.model.epochs(), ends, strict=True):
            assert log.log.epochs.end_offset(known, log.log.log_end) == (known, end)


def test_an_epoch_per_batch_in_long_segments():
    log = OpenLog(SimDisk(), LogConfig(segment_bytes=40_000))
    for number in range(300):
        log.append(epoch=number // 2, now=T0 + number)
    log.reopen()
    assert log.log.epochs.entries == log.model.epochs() == [(epoch, 2 * epoch) for epoch in range(150)]
