"""The checkpoint file: what was saved is loaded, as a whole or not at all, and damage is never taken for content."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_log.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from liftpy_log.errors import CheckpointCorruptError
from liftpy_log.log_time import Leap, LogTimeState
from support.examples import examples
from support.simdisk import ROOT, Order, SimDisk

PATH = ROOT / "checkpoint"
MARKS = st.dictionaries(
    st.tuples(st.binary(min_size=16, max_size=16), st.integers(0, 1_000)), st.integers(0, 2**63 - 1), max_size=20
)
NS = st.integers(0, 2**63 - 1)
TIMES = st.builds(LogTimeState, NS, st.lists(st.builds(Leap, NS, NS), max_size=3).map(tuple))


@st.composite
def checkpoints(draw):
    marks = draw(MARKS)
    times = {key: draw(TIMES) for key in marks if draw(st.booleans())}
    pairs = st.lists(st.tuples(NS, NS), min_size=1, max_size=2)
    wholes = {key: draw(pairs) for key in marks if draw(st.booleans())}
    return Checkpoint(draw(st.booleans()), marks, times, wholes)


CHECKPOINTS = checkpoints()
SAMPLE = Checkpoint(True, {(b"u" * 16, 0): 5, (b"u" * 16, 1): 2**40, (b"v" * 16, 0): 0})


def saved(checkpoint):
    disk = SimDisk()
    save_checkpoint(disk, PATH, checkpoint)
    return disk


@given(CHECKPOINTS)
@examples(100)
def test_what_was_saved_is_loaded(checkpoint):
    assert load_checkpoint(saved(checkpoint), PATH) == checkpoint


def test_there_may_be_none():
    assert load_checkpoint(SimDisk(), PATH) is None


def test_no_file_stays_open():
    disk = saved(SAMPLE)
    load_checkpoint(disk, PATH)
    assert disk.open_files == set()


@pytest.mark.parametrize("order", Order)
def test_after_a_crash_the_old_one_is_there_or_the_new(order):
    disk, newer, found = saved(SAMPLE), Checkpoint(False, {(bytes(16), number): number for number in range(200)}), []

    def crash(_operation=None):
        found.extend(load_checkpoint(disk.crash(random.Random(seed), order), PATH) for seed in range(20))

    disk.before = crash
    save_checkpoint(disk, PATH, newer)
    assert all(checkpoint in (SAMPLE, newer) for checkpoint in found)
    found.clear()
    crash()
    assert found == [newer] * 20


def test_every_flipped_bit_is_noticed():
    disk = saved(SAMPLE)
    content = disk.content(PATH)
    for bit in range(8 * len(content)):
        turned = bytearray(content)
        turned[bit // 8] ^= 1 << bit % 8
        disk.overwrite(PATH, turned)
        with pytest.raises(CheckpointCorruptError, match="checkpoint is damaged"):
            load_checkpoint(disk, PATH)


def test_every_other_length_is_noticed():
    disk = saved(SAMPLE)
    content = disk.content(PATH)
    for other in [content[:length] for length in range(len(content))] + [content + b"\0", content + content]:
        disk.overwrite(PATH, other)
        with pytest.raises(CheckpointCorruptError):
            load_checkpoint(disk, PATH)


@given(st.binary(max_size=100))
@examples(100)
def test_garbage_is_noticed(garbage):
    disk = SimDisk()
    disk.overwrite(PATH, garbage)
    with pytest.raises(CheckpointCorruptError):
        load_checkpoint(disk, PATH)
