"""Whole batches of a leader: they are there as they came, or refused."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_log.errors import BatchesRefusedError, PartitionOfflineError, StorageFullError
from liftpy_log.partition_log import LogConfig
from support.examples import examples
from support.log_batches import headers_of
from support.log_model import T0, LogModel, OpenLog, numbered_body
from support.log_node import StorageNode
from support.simdisk import Order, SimDisk


def leaders(sizes, first_offset=0, epoch=0):
    """Batches of (records, value size) of a leader, a second apart."""
    model = LogModel()
    model.first_offset = first_offset
    for number, (records, size) in enumerate(sizes):
        model.append(numbered_body(number, records, size), T0 + number * 10**9, epoch)
    return model.batches


def joined(batches):
    return b"".join(batch.data for batch in batches)


def take(log, batches):
    data = joined(batches)
    return log.append_batches(data, headers_of(data))


pieces = st.lists(
    st.lists(st.tuples(st.integers(1, 5), st.sampled_from([0, 40, 700])), min_size=1, max_size=6), max_size=6
)


@given(pieces, st.sampled_from([600, 2_000, 10**6]), st.sampled_from([3 * 10**9, 10**12]))
@examples(80)
def test_the_log_is_cut_into_segments_as_the_leader_s(given_pieces, segment_bytes, age_ns):
    config = LogConfig(segment_bytes=segment_bytes, segment_age_ns=age_ns)
    log, leader = OpenLog(SimDisk(), config), OpenLog(SimDisk(), config)
    now = T0
    for sizes in given_pieces:
        batches = []
        for records, size in sizes:
            now += 10**9
            batches.append(leader.append(records, size, now))
        appended = take(log.log, batches)
        assert appended == (batches[0].base_offset, batches[-1].next_offset, now)
        log.model.batches += batches
    assert log.disk.files(".log") == leader.disk.files(".log")
    log.check()
    assert log.log.durability.unsynced_bytes == leader.log.durability.unsynced_bytes
    for end in log.model.edges:
        log.log.read(0, end, 2**62)
    log.reopen()
    log.check()


@pytest.mark.parametrize("kind", [bytes, memoryview, bytearray])
def test_bytes_of_any_kind(kind):
    node = StorageNode(SimDisk(), 1, direct_max=0).start()
    batches = leaders([(2, 40), (1, 900)])
    node.logs[0].append_batches(kind(joined(batches)), headers_of(joined(batches)))
    node.models[0].batches += batches
    node.round()
    for seed in range(10):
        node.crash(seed, Order.UNORDERED).check_after_crash()


@pytest.mark.parametrize(
    "broken",
    [
        lambda data, headers: (data, headers[1:]),
        lambda data, headers: (data[:-8], headers),
        lambda data, headers: (data, headers[::-1]),
        lambda data, headers: (b"", []),
        lambda data, headers: (data, [headers[0], headers[1]._replace(leader_epoch=0)]),
        lambda data, headers: (data, [headers[0]._replace(leader_epoch=1), headers[1]]),
    ],
    ids=["a header less", "cut off", "reversed", "empty", "epochs fall", "an epoch before the log's"],
)
def test_what_does_not_continue_the_log_is_refused(broken):
    log = OpenLog(SimDisk()).fill(3, epoch=2)
    data = joined(leaders([(2, 40), (1, 40)], 3, epoch=2))
    log.disk.counts.clear()
    with pytest.raises(BatchesRefusedError):
        log.log.append_batches(*broken(data, headers_of(data)))
    assert not log.disk.counts
    log.check()


@pytest.mark.parametrize("first_offset", [2, 4])
def test_a_hole_or_an_overlap_is_refused(first_offset):
    log = OpenLog(SimDisk()).fill(3)
    with pytest.raises(BatchesRefusedError, match="comes where 3 must"):
        take(log.log, leaders([(1, 40)], first_offset))
    log.check()


def test_epochs_come_from_the_batches():
    log = OpenLog(SimDisk()).fill(2)
    batches = [*leaders([(1, 40)] * 2, 2, epoch=3), *leaders([(1, 40)] * 2, 4, epoch=7)]
    take(log.log, batches)
    assert log.log.epochs.entries == [(0, 0), (3, 2), (7, 4)]


def test_nothing_stays_behind_on_a_full_disk():
    log = OpenLog(SimDisk()).fill(3)
    log.disk.capacity = len(log.disk.content(log.path)) + 500
    with pytest.raises(StorageFullError):
        take(log.log, leaders([(2, 400)] * 3, 3))
    log.check()
    assert log.log.epochs.latest == 0
    log.disk.heal()
    log.fill(2)
    log.check()


def test_what_found_room_stays_on_a_full_disk():
    log = OpenLog(SimDisk(), LogConfig(segment_bytes=2_000))
    batches = leaders([(1, 700)] * 6)
    log.disk.capacity = 3_000
    appended = take(log.log, batches)
    taken = [batch for batch in batches if batch.next_offset <= appended.next_offset]
    assert 0 < len(taken) < 6
    assert appended == (0, taken[-1].next_offset, taken[-1].timestamp)
    log.model.batches += taken
    log.check()
    log.disk.heal()
    take(log.log, batches[len(taken) :])
    log.model.batches += batches[len(taken) :]
    log.check()


def test_an_input_error_takes_the_log_offline():
    log = OpenLog(SimDisk()).fill(1)
    log.disk.fail("write", code=errno.EIO)
    with pytest.raises(PartitionOfflineError):
        take(log.log, leaders([(1, 40)], 1))
    with pytest.raises(PartitionOfflineError):
        take(log.log, leaders([(1, 40)], 1))
