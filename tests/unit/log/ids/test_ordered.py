"""A partition knows the highest batch of each ordered producer, whatever is cut off, saved and read again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_log.ids import ordered
from liftpy_log.ids.ordered import OrderedId, OrderedMemory, OrderedProducers, StoredBatch, load_ordered, save_ordered
from liftpy_log.storage.disk import OsDisk
from support.examples import examples

IDS = [bytes([number]) * 16 for number in range(1, 5)]


def batch(offset, epoch=1, sequence=None, time=0):
    return StoredBatch(epoch, offset if sequence is None else sequence, offset, 1, time)


def highest(table, end=2**62):
    return {producer: known.order for producer, known in table.known(end)}


def test_only_what_is_greater_is_new():
    table = OrderedProducers()
    table.add(IDS[0], batch(7, epoch=2, sequence=40), 0)
    older, same = OrderedId(IDS[0], 2, 39), OrderedId(IDS[0], 2, 40)
    assert (table.find(older).offset, table.find(same).offset) == (7, 7)
    assert table.find(OrderedId(IDS[0], 1, 99)).offset == 7, "an earlier leader's messages come before"
    for newer in (OrderedId(IDS[0], 2, 41), OrderedId(IDS[0], 3, 0), OrderedId(IDS[1], 1, 0)):
        assert table.find(newer) is None


def test_what_was_cut_off_was_never_stored():
    table = OrderedProducers()
    for offset in (5, 10, 15):
        table.add(IDS[0], batch(offset), committed_end=8)
    table.truncate(12)
    assert highest(table) == {IDS[0]: (1, 10)}
    table.truncate(8)
    assert highest(table) == {IDS[0]: (1, 5)}
    assert table.end_offset <= 8


def test_all_partitions_of_a_node_share_a_bound():
    memory = OrderedMemory(producers_max=3)
    first, second = OrderedProducers(memory=memory), OrderedProducers(expiry_ns=50, memory=memory)
    first.add(IDS[0], batch(1), 0)
    first.add(IDS[1], batch(2), 0)
    second.add(IDS[0], batch(1, time=10), 0)
    assert not first.has_room(IDS[2], 0)
    assert first.has_room(IDS[1], 0)
    assert not OrderedProducers(memory=memory).has_room(IDS[2], 0), "it has none whose place could be taken"
    assert second.has_room(IDS[2], 100), "in place of one that expired"
    second.add(IDS[2], batch(2, time=100), 0)
    assert (len(second), memory.producers) == (1, 3)
    second.add(IDS[3], batch(3, time=101), 0)
    assert (len(second), memory.producers) == (2, 4), "a follower takes what its leader has"
    second.truncate(3)
    first.clear(0)
    assert memory.producers == 1
    assert first.has_room(IDS[2], 0)


def test_what_a_leader_tells_is_known_also_below_what_is_not_committed():
    """A file was damaged: the log has the newest batch, which is cut off, and the leader tells of the one before."""
    table = OrderedProducers()
    table.add(IDS[0], batch(40), committed_end=30)
    table.add(IDS[0], batch(90), committed_end=30)
    for _ in range(2):
        table.learn([(IDS[0], batch(50)), (IDS[1], batch(60))])
    assert highest(table) == {IDS[0]: (1, 90), IDS[1]: (1, 60)}
    table.truncate(80)
    assert highest(table) == {IDS[0]: (1, 50), IDS[1]: (1, 60)}
    table.truncate(50)
    assert highest(table) == {IDS[0]: (1, 40)}


@pytest.mark.parametrize(("sure_end", "lacks"), [(50, True), (61, False)])
def test_a_batch_that_may_be_cut_off_is_no_reason_to_let_the_one_before_it_go(sure_end, lacks):
    table = OrderedProducers()
    table.add(IDS[0], batch(10), committed_end=20)
    table.add(IDS[0], batch(60), committed_end=20)
    assert table.lacks_below(40, sure_end) == lacks
    assert table.lacks_below(70, sure_end)
    table.saved_end = 11
    assert not table.lacks_below(40, sure_end), "the file says it"


class Log:
    """What a log and the file beside it do, without bytes: the highest batch is found by looking at all of them."""

    def __init__(self):
        self.batches = []
        self.end = self.committed = 0

    def highest(self, end=2**62):
        found = {}
        for producer, each in self.batches:
            if each.offset < end:
                found[producer] = max(found.get(producer, (0, 0)), each.order)
        return found


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(IDS), st.integers(1, 3), st.integers(0, 30)),
        st.tuples(st.just("commit"), st.floats(0, 1)),
        st.tuples(st.just("cut"), st.floats(0, 1)),
        st.tuples(st.just("save")),
        st.tuples(st.just("restart")),
    ),
    max_size=40,
)


@examples(200)
@given(steps=STEPS)
def test_it_is_what_the_log_says(steps, tmp_path_factory):
    directory, disk = tmp_path_factory.mktemp("partition"), OsDisk()
    log, table = Log(), OrderedProducers()
    checkpoint = 0
    for step, *arguments in steps:
        if step == "add":
            producer, epoch, sequence = arguments
            if table.find(OrderedId(producer, epoch, sequence)) is None:
                each = StoredBatch(epoch, sequence, log.end, 1, log.end)
                log.batches.append((producer, each))
                table.add(producer, each, log.committed)
                log.end += 1
                table.end_offset = log.end
            else:
                assert log.highest()[producer] >= (epoch, sequence)
        elif step == "commit":
            log.committed += round((log.end - log.committed) * arguments[0])
        elif step == "cut":
            log.end = log.committed + round((log.end - log.committed) * arguments[0])
            log.batches = [each for each in log.batches if each[1].offset < log.end]
            table.truncate(log.end)
        elif step == "save":
            if table.is_unsaved():
                save_ordered(disk, directory, table.encode(log.committed))
                table.saved_end = log.committed
            checkpoint = log.committed
        else:
            table = load_ordered(disk, directory, 0, log.end, checkpoint)
            for producer, each in log.batches:
                if each.offset >= table.end_offset:
                    table.add(producer, each, log.committed)
            table.end_offset = log.end
        assert highest(table) == log.highest()
        assert highest(table, log.committed) == log.highest(log.committed)


def test_no_file_means_nothing_below_the_checkpoint(tmp_path):
    table = load_ordered(OsDisk(), tmp_path, log_start=0, log_end=100, checkpointed_end=60)
    assert (len(table), table.end_offset, table.saved_end) == (0, 60, None)


def test_a_damaged_file_is_told_of_and_the_log_is_read(tmp_path, caplog):
    table = OrderedProducers()
    table.add(IDS[0], batch(5), 0)
    content = bytearray(table.encode(50))
    content[-1] ^= 1
    save_ordered(OsDisk(), tmp_path, bytes(content))
    table = load_ordered(OsDisk(), tmp_path, log_start=0, log_end=100, checkpointed_end=60)
    assert (len(table), table.end_offset) == (0, 0)
    assert "is damaged" in caplog.text


def test_the_file_speaks_of_nothing_that_the_log_lost(tmp_path):
    table = OrderedProducers()
    table.add(IDS[0], batch(5), 0)
    table.add(IDS[1], batch(50), 0)
    save_ordered(OsDisk(), tmp_path, table.encode(60))
    table = load_ordered(OsDisk(), tmp_path, log_start=0, log_end=40, checkpointed_end=60)
    assert (highest(table), table.end_offset) == ({IDS[0]: (1, 5)}, 40)


@pytest.mark.parametrize("age", [0, 1])
def test_a_new_producer_takes_the_place_of_one_that_expired_or_is_refused(age):
    table = OrderedProducers(producers_max=2, expiry_ns=10)
    table.add(IDS[0], batch(1, time=100), 0)
    table.add(IDS[1], batch(2, time=105), 0)
    now = 110 + age
    assert table.has_room(IDS[0], now)
    assert table.has_room(IDS[2], now) == bool(age)
    if age:
        table.add(IDS[2], batch(3, time=now), 0)
        assert set(highest(table)) == {IDS[1], IDS[2]}


def test_bounds_are_what_the_documentation_says():
    assert (ordered.PRODUCERS_MAX, ordered.EXPIRY_NS) == (10_000, 7 * 86_400 * 10**9)
